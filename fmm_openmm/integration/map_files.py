"""Files of scalar fields on a grid: OpenDX and Gaussian cube, of which every viewer of molecules
reads one or both.

Both number the points with the last axis fastest, take an origin and the vectors from point to
point, and allow skewed grids.
"""

from pathlib import Path

import numpy as np

NUMBERS_A_LINE = {"dx": 3, "cube": 6}


def write_dx(path: Path, values: np.ndarray, origin, steps, title: str) -> None:
    """Write an OpenDX file as APBS does.

    Args:
        values: shape (nx, ny, nz).
        origin: position of the first point, shape (3,), Angstrom.
        steps: vectors from point to point along the axes, shape (3, 3), Angstrom.
        title: a comment, with the unit of the values.
    """
    counts = " ".join(map(str, values.shape))
    lines = [
        f"# {title}",
        f"object 1 class gridpositions counts {counts}",
        f"origin {_numbers(origin)}",
        *(f"delta {_numbers(step)}" for step in steps),
        f"object 2 class gridconnections counts {counts}",
        f"object 3 class array type double rank 0 items {values.size} data follows",
    ]
    end = [
        'attribute "dep" string "positions"',
        f'object "{title}" class field',
        'component "positions" value 1',
        'component "connections" value 2',
        'component "data" value 3',
    ]
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
        _write_values(file, values.reshape(1, -1), NUMBERS_A_LINE["dx"])
        file.write("\n".join(end) + "\n")


def write_cube(path: Path, values: np.ndarray, origin, steps, atoms, title: str) -> None:
    """Write a Gaussian cube file.

    Args:
        values: shape (nx, ny, nz).
        origin: position of the first point, shape (3,), Bohr.
        steps: vectors from point to point along the axes, shape (3, 3), Bohr.
        atoms: atomic numbers (n,), and positions (n, 3), Bohr.
        title: a comment, with the unit of the values.
    """
    numbers, positions = atoms
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{title}\nOUTER LOOP: X, MIDDLE LOOP: Y, INNER LOOP: Z\n")
        for count, vector in zip((len(numbers), *values.shape), (origin, *steps), strict=True):
            file.write(f"{count:5d}{''.join(f'{x:12.6f}' for x in vector)}\n")
        for number, place in zip(numbers, positions, strict=True):
            coordinates = "".join(f"{x:12.6f}" for x in place)
            file.write(f"{number:5d}{float(number):12.6f}{coordinates}\n")
        # a new line begins with each row along the last axis
        _write_values(file, values.reshape(-1, values.shape[2]), NUMBERS_A_LINE["cube"])


def _numbers(vector) -> str:
    return " ".join(f"{x:.6f}" for x in vector)


def _write_values(file, rows: np.ndarray, columns: int) -> None:
    """Write rows of numbers, each from the beginning of a line."""
    for row in rows:
        whole = len(row) // columns * columns
        np.savetxt(file, row[:whole].reshape(-1, columns), fmt="%13.5E")
        if whole < len(row):
            np.savetxt(file, row[None, whole:], fmt="%13.5E")
