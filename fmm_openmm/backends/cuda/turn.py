"""Vectors on the GPU in other coordinates."""

import cupy
import numpy as np

_TURN = cupy.ElementwiseKernel(
    "raw T vectors, float64 xx, float64 xy, float64 xz, float64 yx, float64 yy, float64 yz, "
    "float64 zx, float64 zy, float64 zz",
    "raw T turned",
    """
    const double x = vectors[3 * i], y = vectors[3 * i + 1], z = vectors[3 * i + 2];
    turned[3 * i] = x * xx + y * yx + z * zx;
    turned[3 * i + 1] = x * xy + y * yy + z * zy;
    turned[3 * i + 2] = x * xz + y * yz + z * zz;
    """,
    "turn_vectors",
)


def turn_on_device(vectors: cupy.ndarray, axes: np.ndarray) -> cupy.ndarray:
    """The product ``vectors @ axes`` for floating-point vectors, shape (..., 3), without cuBLAS,
    which not every machine with CuPy has.

    Args:
        axes: shape (3, 3), on the host.
    """
    turned = cupy.empty(vectors.shape, vectors.dtype)
    _TURN(vectors, *axes.ravel().tolist(), turned, size=vectors.size // 3)
    return turned
