r"""The lattice operator of empty space: no image but the box itself.

    T_t(i) = S_t(i @ boxes) for |i| < span along every axis, not near;   else 0

on a lattice so large that the displacements of two boxes of the span all differ modulo its lengths (:class:`OpenLattice`).
The circular convolution with T is then the plain sum over boxes: R. W. Hockney and J. W. Eastwood, Computer Simulation Using
Particles (1988), doi:10.1201/9780367806934. Storage and signs as in ``lattice.py``.

Boxes are cubes, so the terms at one octant of displacements give all: mirroring x, y or z multiplies a term, and its
transform, by

    x: (-1)^m, -(-1)^m for imaginary parts      y: 1, -1 for imaginary parts      z: (-1)^(l + m)

and the transform along an axis is a cosine or a sine transform of half the axis.
"""

from collections.abc import Iterator

import numpy as np
import scipy.fft

from fmm_openmm.box import OpenLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular


def free_space_operator(lattice: OpenLattice, top: int) -> np.ndarray:
    """The operator of the module's formula for terms up to degree ``top``; shape as :func:`lattice_operator`."""
    shape, even = lattice.fft_shape, mirrors(top)
    operator = np.empty((len(even), *shape[:2], shape[2] // 2 + 1))
    for t, octant in enumerate(_octants(lattice, top)):
        for axis in range(2):
            octant = _mirrored(octant, axis, shape[axis], even[t, axis])
        operator[t] = octant
    return operator


def free_space_octant(lattice: OpenLattice, top: int, dtype=np.float64) -> np.ndarray:
    """The same at the wave numbers up to half the length along each axis; shape (terms, *(length // 2 + 1))."""
    operator = np.empty((len(degrees(top)), *(length // 2 + 1 for length in lattice.fft_shape)), dtype)
    for t, octant in enumerate(_octants(lattice, top)):
        operator[t] = octant
    return operator


def _octants(lattice: OpenLattice, top: int) -> Iterator[np.ndarray]:
    """Term by term."""
    z, y, x = np.meshgrid(*[np.arange(n) for n in lattice.span[::-1]], indexing="ij")
    offsets = np.stack([x, y, z], -1)
    near = lattice.is_near(offsets)
    r = np.where(near, 1.0, np.linalg.norm(offsets, axis=-1))
    harmonics = regular(offsets / r[..., None], top)  # on the unit sphere: nothing overflows at long distances
    inverse = np.where(near, 0.0, 1.0 / r)
    for t, (l, norm, even) in enumerate(zip(degrees(top).tolist(), irregular_norm(top), mirrors(top), strict=True)):
        octant = np.zeros([length // 2 + 1 for length in lattice.fft_shape])
        # a sine transform leaves out the factor -i
        sign = (1, 1, -1, -1)[l % 4] * (1, -1, -1, 1)[3 - even.sum()]
        octant[tuple(map(slice, r.shape))] = sign * norm * harmonics[t] * inverse ** (l + 1)
        for axis in range(3):
            octant = _transformed(octant, axis, even[axis])
        yield octant


def mirrors(top: int) -> np.ndarray:
    """Whether the terms up to degree ``top`` are even, not odd, along z, y and x; shape (terms, 3) bool."""
    l = degrees(top)
    m = np.arange(len(l)) - l * l - l
    return np.stack([(l + m) % 2 == 0, m >= 0, (m >= 0) == (m % 2 == 0)], 1)


def _transformed(half: np.ndarray, axis: int, even: bool) -> np.ndarray:
    """Fourier transform along an axis of which half is given, ends included; without the factor -i if it is odd."""
    if even:
        return scipy.fft.dct(half, 1, axis=axis, workers=-1)
    half = np.moveaxis(half, axis, 0)
    out = np.zeros_like(half)
    if len(half) > 2:
        out[1:-1] = scipy.fft.dst(half[1:-1], 1, axis=0, workers=-1)
    return np.moveaxis(out, 0, axis)


def _mirrored(half: np.ndarray, axis: int, length: int, even: bool) -> np.ndarray:
    """Index i >= 0 along ``axis`` continued to ``-i``, which is ``length - i``."""
    half = np.moveaxis(half, axis, 0)
    out = np.concatenate([half, (1.0 if even else -1.0) * half[length - len(half) : 0 : -1]])
    return np.moveaxis(out, 0, axis)
