"""Arrays on the host and on a device; the only place that distinguishes them."""

import sys
from typing import Any

import numpy as np


def is_on_device(array) -> bool:
    """Whether an array lies on a GPU, as CuPy's arrays do, whose interface takes time to make."""
    return type(array).__module__ == "cupy" or hasattr(array, "__cuda_array_interface__")


def to_host(array) -> np.ndarray:
    """The array as a NumPy array."""
    return array.get() if is_on_device(array) else array


def to_device(array: np.ndarray) -> Any:
    """The array as a CuPy array on the current GPU. CuPy must have been imported."""
    return sys.modules["cupy"].asarray(array)


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """``sum_i a_i b_i`` of arrays on the host, shape (n,). BLAS would use threads, which on busy
    processors wait for each other for milliseconds."""
    return float(np.einsum("i,i", a, b))


def bounds(points) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest coordinates of points, shape (n, 3), on the host or a device, along each
    axis; (3,) float64 on the host."""
    if is_on_device(points):
        low, high = (bound.get() for bound in (points.min(0), points.max(0)))
        return low.astype(np.float64), high.astype(np.float64)
    # NumPy reduces the first of two axes a row of three at a time, which takes ten times as long
    axes = points.T
    return np.array([x.min() for x in axes], float), np.array([x.max() for x in axes], float)


def namespace(array) -> Any:
    """The module with the functions for an array: NumPy, or CuPy for one on a device."""
    return sys.modules["cupy"] if is_on_device(array) else np
