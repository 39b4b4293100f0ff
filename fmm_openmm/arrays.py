"""Arrays on the host and on a device; the only place that distinguishes them."""

import numpy as np


def is_on_device(array) -> bool:
    """Whether an array lies on a GPU, as CuPy's arrays do."""
    return hasattr(array, "__cuda_array_interface__")


def to_host(array) -> np.ndarray:
    """The array as a NumPy array."""
    return array.get() if is_on_device(array) else array


def turn(vectors, axes: np.ndarray):
    """``vectors @ axes`` of vectors, shape (..., 3), where they are and in their dtype.

    Args:
        axes: shape (3, 3), on the host.
    """
    if not is_on_device(vectors):
        return vectors @ axes
    from fmm_openmm.backends.cuda.turn import turn_on_device

    return turn_on_device(vectors, axes)
