"""The work of the lattice operator when the cell is deformed: a part of the virial."""

import numpy as np

from fmm_openmm.backends.cpu.lattice import load_waves
from fmm_openmm.backends.cpu.threads import LANES, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.openmp import portion


@kernel(
    "real[:,:,::1], real[:,:,::1], i4[:,:,::1], real[:,:,::1], i8[::1], real[::1], f8[:,::1]",
)
def _work(thread, spectrum, derivatives, index, weight, degree, multiplicity, out):
    """Row k of ``out`` is the sum over ``LANES`` wave vectors of the quadratic forms of the
    spectrum with the matrices of the derivatives; ``spectrum`` has shape (terms, wave vectors, 2),
    ``multiplicity`` is 2 for wave vectors that stand for their opposites too."""
    real = spectrum.dtype.type
    terms, waves = spectrum.shape[:2]
    for block in portion(len(out), thread):
        begin = block * LANES
        used = min(LANES, waves - begin)
        re, im = np.zeros((terms, LANES), spectrum.dtype), np.zeros((terms, LANES), spectrum.dtype)
        load_waves(spectrum, degree, begin, used, re, im)
        # products of two moments, added up by the term of the operator that they multiply; the
        # matrix is symmetric
        product = np.zeros((derivatives.shape[1], LANES), spectrum.dtype)
        for a in range(terms):
            for b in range(a + 1):
                twice = real(1.0) if b == a else real(2.0)
                i0, i1 = index[a, b, 0], index[a, b, 1]
                w0, w1 = twice * weight[a, b, 0], twice * weight[a, b, 1]
                for w in range(LANES):
                    p = re[a, w] * re[b, w] + im[a, w] * im[b, w]
                    product[i0, w] += w0 * p
                    product[i1, w] += w1 * p
        for s in range(len(derivatives)):
            total = np.zeros(LANES, spectrum.dtype)
            for t in range(derivatives.shape[1]):
                for w in range(used):
                    total[w] += derivatives[s, t, begin + w] * product[t, w]
            for w in range(used):
                out[block, s] += multiplicity[begin + w] * total[w]


def lattice_work(
    spectrum: np.ndarray,
    derivatives: np.ndarray,
    lattice: BoxLattice,
    order: int,
    waves: slice = slice(None),
) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.HostStages.lattice_work`.

    Args:
        spectrum: of the moments, see :func:`fmm_openmm.backends.cpu.lattice.transform`.
        derivatives: of the lattice operator, shape (5, operator terms, wave vectors).
        waves: the wave vectors of spectrum and derivatives, if they are not all.
    """
    index, weight = coupling(order)
    dtype, length = spectrum.dtype, lattice.fft_shape[-1]
    multiplicity = np.full(length // 2 + 1, 2.0, dtype)
    multiplicity[0] = 1.0
    if length % 2 == 0:
        multiplicity[-1] = 1.0
    multiplicity = np.tile(multiplicity, lattice.fft_shape[0] * lattice.fft_shape[1])[waves]
    out = np.zeros((-(-spectrum.shape[1] // LANES), len(derivatives)))
    _work(spectrum, derivatives, index, weight.astype(dtype), degrees(order), multiplicity, out)
    return 0.5 * out.sum(0) / np.prod(lattice.fft_shape)
