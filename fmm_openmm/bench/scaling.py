"""Time of an evaluation as a function of the number of atoms, for copies of one box of water."""

import time

import numpy as np

from fmm_openmm.bench.solver import Evaluation, relative_error
from fmm_openmm.bench.systems import tiled_charges, water

EDGE, ATOMS = 4.67, 10_002
"""Edge, nm, and number of atoms of the box that is copied."""

MULTIPLES = (1, 3, 10, 30, 100, 300, 1000)

SECONDS = 420.0
"""A size is omitted if its measurement would end later than this after the start, s."""


def copies_near(count: float) -> tuple[int, int, int]:
    """Copies along each axis, nearly a cube, about ``count`` of them.

    >>> copies_near(1), copies_near(10), copies_near(100), copies_near(1000)
    ((1, 1, 1), (2, 2, 2), (4, 5, 5), (10, 10, 10))
    """
    first = max(1, round(np.cbrt(count) - 0.2))
    second = max(1, round(np.sqrt(count / first)))
    return first, second, max(1, round(count / (first * second)))


def measure(most: float, tolerance: float, backend: str = "auto"):
    """One row for each size up to ``most`` atoms: atoms, seconds of an evaluation, force error.

    Ends early if memory or time does not suffice; the last row then holds the reason, ``stopped``.
    """
    begin, base = time.perf_counter(), water(EDGE)
    for multiple in MULTIPLES:
        copies = copies_near(multiple)
        atoms = int(np.prod(copies)) * len(base.charges)
        if atoms > most:
            return
        started = time.perf_counter()
        try:
            evaluation = Evaluation(
                tiled_charges(base.charges, copies), tolerance=tolerance, backend=backend
            )
            seconds = evaluation.seconds()
        except MemoryError as error:  # also CuPy's
            yield {"atoms": atoms, "stopped": f"out of memory: {error}"}
            return
        yield {
            "atoms": atoms,
            "seconds": seconds,
            "force_error": relative_error(evaluation.forces, base.exact),
        }
        took = time.perf_counter() - started
        if time.perf_counter() - begin + 4 * took > SECONDS:
            yield {"atoms": atoms, "stopped": f"a larger system would exceed {SECONDS:g} s"}
            return


def growth_exponent(rows) -> float | None:
    """Exponent of the time as a power of the number of atoms, over the largest decade; None with
    fewer than two sizes in it."""
    points = np.array([(row["atoms"], row["seconds"]) for row in rows])
    points = points[points[:, 0] >= 0.099 * points[:, 0].max()] if len(points) else points
    if len(points) < 2:
        return None
    atoms, seconds = np.log(points.T)
    return float(np.polyfit(atoms, seconds, 1)[0])
