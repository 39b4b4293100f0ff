r"""The lattice operator of empty space: no image but the box itself.

    T_t(i) = S_t(i @ boxes) for |i| < span along every axis, not near;   else 0

on a lattice so large that the displacements of two boxes of the span all differ modulo its lengths (:class:`OpenLattice`).
The circular convolution with T is then the plain sum over boxes: R. W. Hockney and J. W. Eastwood, Computer Simulation Using
Particles (1988), doi:10.1201/9780367806934. Storage and signs as in ``lattice.py``.

Boxes are cubes, so the terms at one octant of displacements give all: mirroring x, y or z multiplies a term by

    x: (-1)^m, -(-1)^m for imaginary parts      y: 1, -1 for imaginary parts      z: (-1)^(l + m)
"""

import numpy as np
import scipy.fft

from fmm_openmm.box import OpenLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular


def free_space_operator(lattice: OpenLattice, top: int) -> np.ndarray:
    """The operator of the module's formula for terms up to degree ``top``; shape as :func:`lattice_operator`."""
    z, y, x = np.meshgrid(*[np.arange(n) for n in lattice.span[::-1]], indexing="ij")
    offsets = np.stack([x, y, z], -1)
    near = lattice.is_near(offsets)
    r = np.where(near, 1.0, np.linalg.norm(offsets, axis=-1))
    harmonics = regular(offsets / r[..., None], top)  # on the unit sphere: nothing overflows at long distances
    inverse = np.where(near, 0.0, 1.0 / r)
    shape = lattice.fft_shape
    operator = np.empty((len(harmonics), *shape[:2], shape[2] // 2 + 1))
    for t, (l, norm) in enumerate(zip(degrees(top).tolist(), irregular_norm(top), strict=True)):
        m, imaginary = t - l * l - l, t < l * l + l
        sign = -1.0 if imaginary else 1.0
        grid = harmonics[t] * inverse ** (l + 1) * norm
        for axis, mirror in enumerate(((-1.0) ** (l + m), sign, sign * (-1.0) ** m)):
            grid = _mirrored(grid, axis, shape[axis], mirror)
        transform = scipy.fft.rfftn(grid)
        operator[t] = (1, 1, -1, -1)[l % 4] * (transform.imag if l % 2 else transform.real)
    return operator


def _mirrored(octant: np.ndarray, axis: int, length: int, sign: float) -> np.ndarray:
    """Index i >= 0 along ``axis`` continued to ``-i``, which is ``length - i``, by a factor ``sign``."""
    octant = np.moveaxis(octant, axis, 0)
    out = np.zeros((length, *octant.shape[1:]))
    out[: len(octant)] = octant
    out[length - len(octant) + 1 :] = sign * octant[:0:-1]
    return np.moveaxis(out, 0, axis)
