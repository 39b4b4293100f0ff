"""Translation of the molecules of a periodic cell next to each other."""

import numpy as np

from fmm_openmm.arrays import bounds
from fmm_openmm.boundary import Boundary


def gather(
    positions: np.ndarray, leaders: np.ndarray, cell: np.ndarray, centre: np.ndarray | None = None
) -> np.ndarray:
    """Translate molecules by cell vectors so that they lie next to each other.

    Args:
        positions: shape (n, 3), nm.
        leaders: for each particle the particle whose translation it shares, shape (n,), so that
            molecules stay whole.
        cell: cell vectors in reduced form, shape (3, 3), nm.
        centre: molecules are moved to within half a period of it, shape (3,), nm; without it the
            periods are cut at the largest gaps along z, y and x.

    Returns:
        positions, shape (n, 3), nm; those given if all lie within half a period of the centre.
    """
    if centre is not None:
        lowest, highest = bounds(positions)
        half = np.diag(cell) / 2
        if (lowest >= centre - half).all() and (highest < centre + half).all():
            return positions
    x, moved = positions[leaders], positions.copy()
    for axis in np.flatnonzero(Boundary.from_cell(cell).periodic)[::-1]:
        period = cell[axis, axis]
        low = _emptiest(x[:, axis], period) if centre is None else centre[axis] - period / 2
        periods = np.floor((x[:, axis] - low) / period)
        if periods.any():
            shift = periods[:, None] * cell[axis]
            x -= shift
            moved -= shift
    return moved


def _emptiest(x: np.ndarray, period: float) -> float:
    """Middle of the largest gap between periodic coordinates, shape (n,)."""
    x = np.sort(np.mod(x, period))
    gaps = np.diff(x, append=x[0] + period)
    widest = int(gaps.argmax())
    return float(x[widest] + gaps[widest] / 2)
