"""lattice in small grids: a matrix for each wave vector, kept from one evaluation to the next, and
Fourier transforms as sums over boxes.

With theta = 2 pi k b / n for box b and wave vector k, both along the axes of the transform, i^l
times the spectrum of moments M of degree l has the real and imaginary parts

    x(k) = +- sum_b M(b) (cos theta, -sin theta)    for even l
    x(k) = +- sum_b M(b) (sin theta,  cos theta)    for odd l

with the signs of (-1)^(l // 2). The matrices contain these signs and those of the inverse
transform, and its weights: 2 / boxes, since only one of k and -k is needed, or 1 / boxes where -k
is k. The inverse transform is then a sum over the same cosines and sines.
"""

import math
from functools import lru_cache

import numpy as np

from fmm_openmm.backends.cpu.threads import inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import coupling, degrees, term_count

MAX_BOXES = 192
"""Largest grid: in larger ones fast Fourier transforms are faster."""

MAX_ELEMENTS = 2**21
"""Largest number of elements of the matrices, which are read in every evaluation."""

LANES = 8
"""The number of wave vectors is padded to a multiple of this, which the compiler vectorises."""


@kernel("real[:,::1], i4[:,:,::1], real[:,:,::1], i8[::1], real[::1], real[:,:,::1]", False)
def _fill(operator, index, weight, degree, share, matrices):
    for a in range(len(matrices)):
        for b in range(len(matrices)):
            sign = (1 - degree[a] % 4 // 2 * 2) * (1 - degree[b] % 4 // 2 * 2)
            t0, t1, row = operator[index[a, b, 0]], operator[index[a, b, 1]], matrices[a, b]
            w0, w1 = sign * weight[a, b, 0], sign * weight[a, b, 1]
            for w in range(len(share)):
                row[w] = share[w] * (w0 * t0[w] + w1 * t1[w])


@inline
def _add_rows(factors, rows, out):
    """Add ``sum_k factors[k] rows[k]`` to ``out``."""
    last = len(rows) - len(rows) % 4
    for k in range(0, last, 4):
        f0, f1, f2, f3 = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        for i in range(len(out)):
            out[i] += (f0 * r0[i] + f1 * r1[i]) + (f2 * r2[i] + f3 * r3[i])
    for k in range(last, len(rows)):
        factor, row = factors[k], rows[k]
        for i in range(len(out)):
            out[i] += factor * row[i]


@inline
def _add_products(matrices, x, part, out):
    """Add ``sum_b matrices[b] x[b, part]``, wave vector by wave vector, to ``out``."""
    last = len(x) - len(x) % 4
    for b in range(0, last, 4):
        m0, m1, m2, m3 = matrices[b], matrices[b + 1], matrices[b + 2], matrices[b + 3]
        x0, x1, x2, x3 = x[b, part], x[b + 1, part], x[b + 2, part], x[b + 3, part]
        for w in range(len(out)):
            out[w] += (m0[w] * x0[w] + m1[w] * x1[w]) + (m2[w] * x2[w] + m3[w] * x3[w])
    for b in range(last, len(x)):
        m0, x0 = matrices[b], x[b, part]
        for w in range(len(out)):
            out[w] += m0[w] * x0[w]


@kernel("real[:,::1], real[:,:,::1], real[:,:,::1], i8[::1], real[:,:,::1], real[:,::1]", False)
def _convolve(moments, waves, boxes, degree, matrices, local):
    """``waves``, shape (2, boxes, 2 waves), and ``boxes``, shape (2, 2 waves, boxes), are the
    transforms of even and odd degrees."""
    terms, count = len(moments), matrices.shape[2]
    x = np.zeros((terms, 2 * count), moments.dtype)
    for a in range(terms):
        _add_rows(moments[a], waves[degree[a] % 2], x[a])
    parts = x.reshape(terms, 2, count)
    y = np.empty(2 * count, x.dtype)
    for a in range(terms):
        y[:] = x.dtype.type(0.0)
        for part in range(2):
            _add_products(matrices[a], parts, part, y[part * count : (part + 1) * count])
        local[a] = x.dtype.type(0.0)
        _add_rows(y, boxes[degree[a] % 2], local[a])


class LatticeMatrices:
    """The convolution with a lattice operator in a small grid.

    Args:
        operator: the operator's terms at the wave vectors of
            :func:`fmm_openmm.backends.cpu.lattice.transform`, shape (rows, wave vectors).
        lattice: the boxes, for which :meth:`suit` is true.
        order: expansion order p.
    """

    def __init__(self, operator: np.ndarray, lattice: BoxLattice, order: int):
        dtype = operator.dtype
        place, share, self._waves, self._boxes = _transforms(lattice.fft_shape, dtype)
        index, weight = coupling(order)
        self._degree = degrees(order)
        self._matrices = np.empty((*index.shape[:2], len(share)), dtype)
        _fill(
            np.ascontiguousarray(operator[:, place]), index, weight.astype(dtype), self._degree,
            share, self._matrices,
        )  # fmt: skip

    @staticmethod
    def suit(lattice: BoxLattice, order: int) -> bool:
        """Whether the grid is small enough."""
        waves = lattice.size // 2 + LANES
        return lattice.size <= MAX_BOXES and term_count(order) ** 2 * waves <= MAX_ELEMENTS

    def lattice_m2l(self, moments: np.ndarray) -> np.ndarray:
        """See :meth:`fmm_openmm.stages.Stages.lattice_m2l`; moments and result have shape (terms,
        boxes) in FFT order."""
        local = np.empty_like(moments)
        _convolve(moments, self._waves, self._boxes, self._degree, self._matrices, local)
        return local


@lru_cache(16)
def _transforms(
    shape: tuple[int, int, int], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For one of each two opposite wave vectors, padded by others without weight to a multiple of
    :data:`LANES`: its place among those of half of the space; its weight in the inverse transform;
    and both transforms as :func:`_convolve` takes them."""
    boxes = math.prod(shape)
    index = np.stack(np.unravel_index(np.arange(boxes), shape), 1)
    opposite = np.ravel_multi_index(tuple((-index % shape).T), shape)
    half = index[:, 2] <= shape[2] // 2  # of k and -k one at least is there
    kept = np.flatnonzero(half & ((np.arange(boxes) <= opposite) | ~half[opposite]))
    share = np.where(opposite[kept] == kept, 1.0, 2.0) / boxes
    padding = -len(kept) % LANES
    kept, share = np.append(kept, np.zeros(padding, int)), np.append(share, np.zeros(padding))
    place = np.ravel_multi_index(tuple(index[kept].T), (*shape[:2], shape[2] // 2 + 1))
    theta = 2.0 * np.pi * (index / shape) @ index[kept].T
    cos, sin = np.cos(theta), np.sin(theta)
    waves = np.array([np.hstack([cos, -sin]), np.hstack([sin, cos])], dtype)
    return place, share.astype(dtype), waves, np.ascontiguousarray(waves.transpose(0, 2, 1))
