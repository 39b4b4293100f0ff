"""Cells of other packages in OpenMM's reduced form.

Rows a, b, c of a reduced cell satisfy ``a = (ax, 0, 0)``, ``b = (bx, by, 0)``, positive diagonal,
``2 |bx| <= ax``, ``2 |cx| <= ax``, ``2 |cy| <= by``.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fmm_openmm.boundary import PERIODIC, Boundary
from fmm_openmm.box import check_reduced
from fmm_openmm.checks import MAX_COORDINATE, check_numbers

NO_CELL = (0.1 * np.eye(3)).ravel().tolist()
"""Cell that CRYST1 holds in a PDB file of a system that is not a crystal, nm."""


IDENTITY = np.eye(3)

ROUNDING = 1e-6
"""Components of unit vectors below which they are the rounding of angles."""


MIN_VOLUME = 1e-9
"""Smallest volume of a cell, in cubes of its largest component."""


def is_no_cell(box) -> bool:
    """Whether box vectors, shape (3, 3), nm, stand for no box: None, zeros, or a cube of one
    Angstrom."""
    if box is None:
        return True
    given = np.asarray(box, float).ravel().tolist()  # NumPy takes microseconds a number
    pairs = zip(given, NO_CELL, strict=True)
    return not any(given) or all(abs(value - other) < 1e-6 for value, other in pairs)


def reduced(
    cell: np.ndarray, slack: float = 0.0, periodic: tuple[bool, bool, bool] = PERIODIC
) -> np.ndarray:
    """The same lattice in reduced form; ``cell`` (3, 3) must be lower triangular with a positive
    diagonal.

    Of a slab or wire, with images along the ``periodic`` vectors, these are reduced by each other
    only: their lattice has no other vectors.

    Where a tilt is half a vector, as in hexagonal cells, two reduced forms are equally good. With a
    relative ``slack``, of which the solver allows 1e-6, a tiny strain does not take one to the
    other.

    >>> reduced(np.array([[2.0, 0, 0], [1.5, 2, 0], [0, 0, 3]])).tolist()
    [[2.0, 0.0, 0.0], [-0.5, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    found = np.array(cell, dtype=np.float64).tolist()
    for row, axis in (2, 1), (2, 0), (1, 0):
        if periodic[axis] or not periodic[row]:
            tilt = found[row][axis] / found[axis][axis]
            if vectors := round(tilt / (1.0 + slack), 0):
                found[row] = [x - y * vectors for x, y in zip(found[row], found[axis], strict=True)]
    return np.array(found)


def is_reduced(box: np.ndarray) -> bool:
    """Whether box vectors, a float64 array of shape (3, 3) in nm, are in reduced form, whatever the
    boundary, and need no other check."""
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = box.tolist()
    if ay or az or bz or not all([0.0 < length <= MAX_COORDINATE for length in (ax, by, cz)]):
        return False
    return 2.0 * max(abs(bx), abs(cx)) <= ax and 2.0 * abs(cy) <= by


def reduce_box(box_vectors, boundary: Boundary) -> np.ndarray:
    """Box vectors as a (3, 3) float64 array in nm, reduced if they are lower triangular.

    Raises:
        ValueError: as :func:`fmm_openmm.box.check_box_vectors`.
    """
    box = check_numbers(box_vectors, "nanometer", "box_vectors")
    if box.shape == (3, 3):
        (ax, ay, az), (_, by, bz), (_, _, cz) = box.tolist()
        if not (ay or az or bz) and min(ax, by, cz) > 0:
            box = reduced(box, periodic=boundary.periodic)
    return check_reduced(box, boundary)


def cell_from_lengths(lengths: Sequence[float], angles: Sequence[float]) -> np.ndarray:
    """Rows a, b, c of given lengths, with the angles alpha, beta, gamma in radians between b and c,
    a and c, and a and b, shape (3, 3): a along x, b in the x-y plane, reduced or not.

    Raises:
        ValueError: no cell has these angles.
    """
    return np.array(
        [
            [length * value if value else 0.0 for value in row]
            for length, row in zip(lengths, _directions(*angles), strict=True)
        ]
    )


@lru_cache(maxsize=4)
def _directions(*angles: float) -> list[list[float]]:
    """Unit vectors along a, b and c, see :func:`cell_from_lengths`; many frames have the same."""
    alpha, beta, gamma = map(math.cos, angles)
    sine = math.sin(angles[2])
    across = (alpha - beta * gamma) / sine if sine else math.inf
    height = 1.0 - beta**2 - across**2
    if not height > 0:
        raise ValueError("there is no cell with these angles")
    units = [[1.0, 0.0, 0.0], [gamma, sine, 0.0], [beta, across, math.sqrt(height)]]
    return [[value if abs(value) >= ROUNDING else 0.0 for value in row] for row in units]


def standard_orientation(cell: np.ndarray, name: str = "cell") -> tuple[np.ndarray, np.ndarray]:
    """Rotate a cell so that a lies along x and b in the x-y plane.

    Args:
        cell: any three independent rows, shape (3, 3). A left-handed cell has its c replaced by -c,
            which spans the same lattice.
        name: name of the cell, for the error.

    Returns:
        turned: shape (3, 3), lower triangular with a positive diagonal,
            ``turned = cell @ rotation``.
        rotation: proper rotation, shape (3, 3), to apply as ``positions @ rotation``. Exactly the
            identity if the cell is lower triangular already.

    Raises:
        ValueError: the three vectors span no volume.
    """
    cell = np.array(cell, dtype=np.float64)
    rows = cell.tolist()
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = rows
    size = max(map(abs, (ax, ay, az, bx, by, bz, cx, cy, cz)))
    volume = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
    if not math.isfinite(volume) or abs(volume) <= MIN_VOLUME * size * size * size:
        raise ValueError(f"`{name}` must span a positive volume, got {rows}")
    if volume < 0:
        cell[2], cz = -cell[2], -cz
    if min(ax, by, cz) > 0 and max(abs(ay), abs(az), abs(bz)) <= 1e-6 * size:
        cell[0, 1] = cell[0, 2] = cell[1, 2] = 0.0
        return cell, IDENTITY.copy()
    rotation, triangle = np.linalg.qr(cell.T)
    signs = np.sign(np.diag(triangle))
    return np.tril((triangle * signs[:, None]).T), rotation * signs
