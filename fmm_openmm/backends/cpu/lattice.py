"""lattice: convolves the moments of all boxes with the lattice operator.

Between the two FFTs, the complex vector of moments of each wave vector is multiplied by a real
symmetric matrix made of the operator's terms. Inner loops run over ``LANES`` wave vectors, with
real and imaginary parts in separate arrays.
"""

import numpy as np
import scipy.fft

from fmm_openmm.backends.cpu.threads import LANES, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.openmp import get_num_threads, prange


@inline
def load_waves(spectrum, degree, begin, used, re, im):
    """Fill ``re`` and ``im`` (terms, LANES) with i^l times the spectrum (terms, wave vectors, 2) at
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


@kernel("real[:,:,::1], real[:,::1], i4[:,:,::1], real[:,:,::1], i8[::1]")
def _convolve(spectrum, operator, index, weight, degree):
    """Replace the spectrum of the moments by that of the local expansions, in place; ``spectrum``
    has shape (terms, wave vectors, 2)."""
    real = spectrum.dtype.type
    terms, waves = spectrum.shape[:2]
    for block in prange((waves + LANES - 1) // LANES):
        begin = block * LANES
        used = min(LANES, waves - begin)
        t = np.zeros((len(operator), LANES), spectrum.dtype)
        re, im = np.zeros((terms, LANES), spectrum.dtype), np.zeros((terms, LANES), spectrum.dtype)
        for i in range(len(operator)):
            for w in range(used):
                t[i, w] = operator[i, begin + w]
        load_waves(spectrum, degree, begin, used, re, im)
        sum_re, sum_im = np.empty(LANES, spectrum.dtype), np.empty(LANES, spectrum.dtype)
        for a in range(terms):
            sum_re[:] = real(0.0)
            sum_im[:] = real(0.0)
            for b in range(terms):
                i0, i1 = index[a, b, 0], index[a, b, 1]
                w0, w1 = weight[a, b, 0], weight[a, b, 1]
                for w in range(LANES):
                    matrix = w0 * t[i0, w] + w1 * t[i1, w]
                    sum_re[w] += matrix * re[b, w]
                    sum_im[w] += matrix * im[b, w]
            power = degree[a] % 4
            for w in range(used):  # times (-i)^l
                r, i = sum_re[w], sum_im[w]
                if power == 0:
                    spectrum[a, begin + w, 0], spectrum[a, begin + w, 1] = r, i
                elif power == 1:
                    spectrum[a, begin + w, 0], spectrum[a, begin + w, 1] = i, -r
                elif power == 2:
                    spectrum[a, begin + w, 0], spectrum[a, begin + w, 1] = -r, -i
                else:
                    spectrum[a, begin + w, 0], spectrum[a, begin + w, 1] = -i, r


AXES = (1, 2, 3)


def transform(boxes: np.ndarray, lattice: BoxLattice) -> np.ndarray:
    """Fourier transform of expansions (terms, boxes) in FFT order: real and imaginary parts at the
    wave vectors of half of the space, shape (terms, wave vectors, 2)."""
    spectrum = scipy.fft.rfftn(
        boxes.reshape(len(boxes), *lattice.fft_shape), axes=AXES, workers=get_num_threads()
    )
    return np.ascontiguousarray(spectrum).view(boxes.dtype).reshape(len(boxes), -1, 2)


def convolve(spectrum: np.ndarray, operator: np.ndarray, order: int) -> None:
    """Replace the spectrum of the moments, shape (terms, wave vectors, 2), by that of the local
    expansions.

    Args:
        operator: the operator's terms at the same wave vectors, shape (rows, wave vectors).
    """
    index, weight = coupling(order)
    _convolve(spectrum, operator, index, weight.astype(spectrum.dtype), degrees(order))


def transform_back(spectrum: np.ndarray, lattice: BoxLattice) -> np.ndarray:
    """The inverse of :func:`transform`; overwrites the spectrum."""
    *lengths, last = lattice.fft_shape
    waves = spectrum.reshape(len(spectrum), *lengths, last // 2 + 1, 2)
    return scipy.fft.irfftn(
        waves.view(np.result_type(spectrum.dtype, np.complex64))[..., 0],
        lattice.fft_shape,
        axes=AXES,
        workers=get_num_threads(),
        overwrite_x=True,
    ).reshape(len(spectrum), -1)


def lattice_m2l(
    moments: np.ndarray, operator: np.ndarray, lattice: BoxLattice, order: int
) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.lattice_m2l`; moments and result have shape (terms,
    boxes) in FFT order."""
    spectrum = transform(moments, lattice)
    convolve(spectrum, operator, order)
    return transform_back(spectrum, lattice)
