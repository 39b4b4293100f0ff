"""lattice: convolves the moments of all boxes with the lattice operator.

Between the two FFTs, the complex vector of moments of each wave vector is multiplied by a real
symmetric matrix made of the operator's terms. Inner loops run over ``WAVES`` wave vectors, with
real and imaginary parts in separate arrays. Several sets of moments share the FFTs and matrices.
"""

import math

import numpy as np
import scipy.fft

from fmm_openmm.backends.cpu.threads import inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.openmp import fft_workers, portion

WAVES = 64
"""Wave vectors whose matrices are made together; shorter loops are not vectorised."""

SETS = 4
"""Sets of moments that share matrices: so many that these cost little, and so few that the moments
stay in a core's cache."""


@inline
def load_waves(spectrum, degree, begin, used, re, im):
    """Fill ``re`` and ``im`` (terms, lanes) with i^l times the spectrum (terms, wave vectors, 2) at
    the ``used`` wave vectors from ``begin``."""
    for a in range(len(spectrum)):
        power = degree[a] % 4
        for w in range(used):
            r, i = spectrum[a, begin + w, 0], spectrum[a, begin + w, 1]
            if power == 0:
                re[a, w], im[a, w] = r, i
            elif power == 1:
                re[a, w], im[a, w] = -i, r
            elif power == 2:
                re[a, w], im[a, w] = -r, -i
            else:
                re[a, w], im[a, w] = i, -r


@kernel("real[:,:,:,::1], real[:,::1], i4[:,:,::1], real[:,:,::1], i8[::1]")
def _convolve(thread, spectrum, operator, index, weight, degree):
    """Replace the spectrum of the moments by that of the local expansions, in place; ``spectrum``
    has shape (sets, terms, wave vectors, 2)."""
    real = spectrum.dtype.type
    sets, terms, waves = spectrum.shape[:3]
    blocks, padded = (waves + WAVES - 1) // WAVES, (terms + 3) // 4 * 4
    for item in portion(blocks * ((sets + SETS - 1) // SETS), thread):
        begin, first = item % blocks * WAVES, item // blocks * SETS
        used, together = min(WAVES, waves - begin), min(SETS, sets - first)
        t = np.zeros((len(operator), WAVES), spectrum.dtype)
        x = np.zeros((together, 2, padded, WAVES), spectrum.dtype)
        row, total = np.zeros((padded, WAVES), x.dtype), np.empty((2, WAVES), x.dtype)
        for i in range(len(operator)):
            for w in range(used):
                t[i, w] = operator[i, begin + w]
        for k in range(together):
            load_waves(spectrum[first + k], degree, begin, used, x[k, 0], x[k, 1])
        for a in range(terms):
            for b in range(terms):
                t0, t1, matrix = t[index[a, b, 0]], t[index[a, b, 1]], row[b]
                w0, w1 = weight[a, b, 0], weight[a, b, 1]
                for w in range(WAVES):
                    matrix[w] = w0 * t0[w] + w1 * t1[w]
            power = degree[a] % 4
            for k in range(together):
                for part in range(2):
                    out = total[part]
                    for w in range(WAVES):
                        out[w] = real(0.0)
                    for b in range(0, padded, 4):
                        m0, m1, m2, m3 = row[b], row[b + 1], row[b + 2], row[b + 3]
                        x0, x1 = x[k, part, b], x[k, part, b + 1]
                        x2, x3 = x[k, part, b + 2], x[k, part, b + 3]
                        for w in range(WAVES):
                            out[w] += (m0[w] * x0[w] + m1[w] * x1[w]) + (
                                m2[w] * x2[w] + m3[w] * x3[w]
                            )
                local = spectrum[first + k, a, begin:]
                for w in range(used):  # times (-i)^l
                    r, i = total[0, w], total[1, w]
                    if power == 0:
                        local[w, 0], local[w, 1] = r, i
                    elif power == 1:
                        local[w, 0], local[w, 1] = i, -r
                    elif power == 2:
                        local[w, 0], local[w, 1] = -r, -i
                    else:
                        local[w, 0], local[w, 1] = -i, r


AXES = (-3, -2, -1)


def transform(boxes: np.ndarray, lattice: BoxLattice) -> np.ndarray:
    """Fourier transform of expansions (..., terms, boxes) in FFT order: real and imaginary parts at
    the wave vectors of half of the space, shape (..., terms, wave vectors, 2)."""
    terms = boxes.shape[:-1]
    spectrum = scipy.fft.rfftn(
        boxes.reshape(*terms, *lattice.fft_shape), axes=AXES, workers=fft_workers(boxes.size)
    )
    return np.ascontiguousarray(spectrum).view(boxes.dtype).reshape(*terms, -1, 2)


def convolve(spectrum: np.ndarray, operator: np.ndarray, order: int) -> None:
    """Replace the spectrum of the moments, shape (..., terms, wave vectors, 2), by that of the
    local expansions.

    Args:
        operator: the operator's terms at the same wave vectors, shape (rows, wave vectors).
    """
    index, weight = coupling(order)
    sets = spectrum.reshape(math.prod(spectrum.shape[:-3]), *spectrum.shape[-3:])
    _convolve(sets, operator, index, weight.astype(spectrum.dtype), degrees(order))


def transform_back(spectrum: np.ndarray, lattice: BoxLattice) -> np.ndarray:
    """The inverse of :func:`transform`; overwrites the spectrum."""
    *lengths, last = lattice.fft_shape
    terms = spectrum.shape[:-2]
    waves = spectrum.reshape(*terms, *lengths, last // 2 + 1, 2)
    return scipy.fft.irfftn(
        waves.view(np.result_type(spectrum.dtype, np.complex64))[..., 0],
        lattice.fft_shape,
        axes=AXES,
        workers=fft_workers(spectrum.size),
        overwrite_x=True,
    ).reshape(*terms, -1)


def lattice_m2l(
    moments: np.ndarray, operator: np.ndarray, lattice: BoxLattice, order: int
) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.lattice_m2l`; moments and result have shape (...,
    terms, boxes) in FFT order."""
    spectrum = transform(moments, lattice)
    convolve(spectrum, operator, order)
    return transform_back(spectrum, lattice)
