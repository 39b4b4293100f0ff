"""Molecules of a periodic cell, moved by cell vectors to where they lie side by side."""

import numpy as np


def gathered(
    positions: np.ndarray, leaders: np.ndarray, cell: np.ndarray, centre: np.ndarray | None = None
) -> np.ndarray:
    """Positions in a periodic cell, moved by cell vectors to where they lie side by side; shape (n,
    3), nm.

    Args:
        positions: shape (n, 3), nm.
        leaders: for each particle the one that it moves with, shape (n,); molecules stay as they
            are.
        cell: vectors in reduced form, shape (3, 3), nm.
        centre: of the place, shape (3,), nm; without it the largest gaps along z, y and x are left
            empty.
    """
    x, moved = positions[leaders], positions.copy()
    for axis in (2, 1, 0):
        period = cell[axis, axis]
        low = _emptiest(x[:, axis], period) if centre is None else centre[axis] - period / 2
        shift = np.floor((x[:, axis] - low) / period)[:, None] * cell[axis]
        x -= shift
        moved -= shift
    return moved


def _emptiest(x: np.ndarray, period: float) -> float:
    """The middle of the largest gap between coordinates, shape (n,), that repeat with a period."""
    x = np.sort(np.mod(x, period))
    gaps = np.diff(x, append=x[0] + period)
    widest = int(gaps.argmax())
    return float(x[widest] + gaps[widest] / 2)
