"""Arrays on the host and on a device; the only place that distinguishes them."""

import numpy as np


def is_on_device(array) -> bool:
    """Whether an array lies on a GPU, as CuPy's arrays do."""
    return hasattr(array, "__cuda_array_interface__")


def to_host(array) -> np.ndarray:
    """The array as a NumPy array."""
    return array.get() if is_on_device(array) else array


def bounds(points) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest coordinates of points, shape (n, 3), along each axis; (3,) float64."""
    low, high = (to_host(bound).astype(np.float64) for bound in (points.min(0), points.max(0)))
    return low, high
