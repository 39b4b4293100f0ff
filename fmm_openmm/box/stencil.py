"""Offsets between boxes, as integer vectors."""

from functools import lru_cache

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
    i, j, k = (np.arange(-n, n + 1) for n in reach)
    a, b, c = vectors[..., None, None, None]
    x = k[:, None, None] * c + j[:, None] * b + i * a
    found = np.argwhere((x * x).sum(0) <= radius * radius)
    return np.ascontiguousarray(found[:, ::-1]) - reach


def near_stencil(boxes: np.ndarray, radius: float) -> np.ndarray:
    """Box offsets that interact directly: centres within ``radius``, and always the 27 boxes that
    touch.

    Args:
        boxes: box vectors in units of the mean box width, shape (3, 3).
        radius: in mean box widths.

    Returns:
        offsets, shape (m, 3) int64, symmetric under inversion, sorted with the first axis fastest.
    """
    return _kept(np.asarray(boxes, float).tobytes(), float(radius), 0.0).copy()


def far_stencil(boxes: np.ndarray, radius: float, more: float) -> np.ndarray:
    """Box offsets beyond :func:`near_stencil`, up to ``more`` mean box widths farther, as there."""
    return _kept(np.asarray(boxes, float).tobytes(), float(radius), float(more)).copy()


@lru_cache(256)  # a search for parameters asks for those of cubes many times
def _kept(boxes: bytes, radius: float, more: float) -> np.ndarray:
    """The near stencil, or, if ``more`` is not 0, the far one."""
    offsets, distances, near = _around(boxes, 4 * int(np.ceil((radius + more) / 4)))
    chosen = near = near | (distances <= radius * (1 + 1e-9))
    if more:
        chosen = ~near & (distances <= (radius + more) * (1 + 1e-9))
    return offsets[chosen]


@lru_cache(16)  # a search asks for many radii of the same boxes
def _around(boxes: bytes, radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets of the boxes that touch and of at least all others within a radius, shape (m, 3)
    int64, their lengths and whether the boxes touch."""
    vectors = np.frombuffer(boxes).reshape(3, 3)
    reach = np.ceil(radius * np.linalg.norm(np.linalg.inv(vectors), axis=0) + 1e-9)
    most = np.maximum(1, reach).astype(int)
    offsets = index_grid(-most, most + 1).reshape(-1, 3)
    distances = np.linalg.norm(offsets @ vectors, axis=1)
    return offsets, distances, (np.abs(offsets) <= 1).all(1)
