"""Arrays on the host and on a device; the only place that distinguishes them."""

import sys
from typing import Any

import numpy as np


def is_on_device(array) -> bool:
    """Whether an array lies on a GPU, as CuPy's arrays do."""
    return hasattr(array, "__cuda_array_interface__")


def to_host(array) -> np.ndarray:
    """The array as a NumPy array."""
    return array.get() if is_on_device(array) else array


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """``sum_i a_i b_i`` of arrays on the host, shape (n,). BLAS would use threads, which on busy
    processors wait for each other for milliseconds."""
    return float(np.einsum("i,i", a, b))


def namespace(array) -> Any:
    """The module with the functions for an array: NumPy, or CuPy for one on a device."""
    return sys.modules["cupy"] if is_on_device(array) else np
