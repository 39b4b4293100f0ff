"""p2m: computes the moments of the boxes from their parts, in FFT order."""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import load, regular
from fmm_openmm.backends.cpu.threads import LANES, chunk_count, kernel
from fmm_openmm.openmp import prange
from fmm_openmm.stages import Moments, Parts


@kernel("real[:,::1], real[::1], i8[::1], i8[::1], i8, i8, real[:,::1]")
def _p2m(x, charge, start, slots, order, chunks, moments):
    real = moments.dtype.type
    terms, boxes = moments.shape
    for chunk in prange(chunks):
        tile, total = np.empty((terms, LANES), moments.dtype), np.empty(terms, moments.dtype)
        lane, q = np.empty((3, LANES), moments.dtype), np.empty(LANES, moments.dtype)
        for box in range(chunk, boxes, chunks):
            total[:] = real(0.0)
            for begin in range(start[box], start[box + 1], LANES):
                used = min(LANES, start[box + 1] - begin)
                load(x, begin, used, lane)
                for w in range(LANES):
                    q[w] = charge[begin + w] if w < used else real(0.0)
                regular(lane[0], lane[1], lane[2], order, tile)
                for a in range(terms):
                    s = real(0.0)
                    for w in range(LANES):
                        s += q[w] * tile[a, w]
                    total[a] += s
            for a in range(terms):
                moments[a, slots[box]] = total[a]


def p2m(parts: Parts, slots: np.ndarray, order: int) -> Moments:
    """See :meth:`fmm_openmm.stages.Stages.p2m`; ``boxes`` has shape (terms, boxes) in FFT order.

    The boxes are those of ``parts.start``, which may be a range of the boxes that hold parts."""
    moments = np.empty(((order + 1) ** 2, len(slots)), parts.x.dtype)
    _p2m(parts.x, parts.charge, parts.start, slots, order, chunk_count(len(slots)), moments)
    within = slice(parts.start[0], parts.start[-1])
    charge, x = parts.charge[within].astype(np.float64), parts.x[within].astype(np.float64)
    return Moments(moments, charge.sum(), charge @ x, charge @ (x * x))
