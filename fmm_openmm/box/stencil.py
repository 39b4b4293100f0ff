"""Offsets between boxes, as integer vectors."""

import numpy as np


def index_grid(low, high) -> np.ndarray:
    """Every index vector with ``low <= index < high``, shape (n2, n1, n0, 3) int64: the first axis
    runs fastest.

    Args:
        low, high: bounds along the three axes, or one number for all.
    """
    axes = map(np.arange, np.broadcast_to(low, 3)[::-1], np.broadcast_to(high, 3)[::-1])
    return np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)


def within(vectors: np.ndarray, radius: float) -> np.ndarray:
    """Integer combinations of the rows of ``vectors`` up to a length, shape (m, 3) int64,
    symmetric under inversion, the first axis fastest."""
    reach = np.ceil(radius * np.linalg.norm(np.linalg.inv(vectors), axis=0)).astype(int)
    numbers = index_grid(-reach, reach + 1).reshape(-1, 3)
    return numbers[np.linalg.norm(numbers @ vectors, axis=1) <= radius]


def near_stencil(boxes: np.ndarray, radius: float) -> np.ndarray:
    """Box offsets that interact directly: centres within ``radius``, and always the 27 boxes that
    touch.

    Args:
        boxes: box vectors in units of the mean box width, shape (3, 3).
        radius: in mean box widths.

    Returns:
        offsets, shape (m, 3) int64, symmetric under inversion, sorted with the first axis fastest.
    """
    reach = np.maximum(
        1, np.ceil(radius * np.linalg.norm(np.linalg.inv(boxes), axis=0) + 1e-9)
    ).astype(int)
    offsets = index_grid(-reach, reach + 1).reshape(-1, 3)
    touching = (np.abs(offsets) <= 1).all(1)
    return offsets[touching | (np.linalg.norm(offsets @ boxes, axis=1) <= radius * (1 + 1e-9))]
