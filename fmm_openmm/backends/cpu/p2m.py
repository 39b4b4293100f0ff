"""p2m: computes the moments of the boxes from their parts, in FFT order, and sums over the parts of
each box in float64."""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import GROUP, TILE, load_tile, regular
from fmm_openmm.backends.cpu.threads import chunk_count, kernel
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Moments, Parts


@kernel("real[:,::1], real[::1], i8[::1], i8[::1], i8, i8, real[:,::1], f8[:,::1]")
def _p2m(thread, x, charge, start, slots, order, chunks, moments, sums):
    """Add to the moments. ``sums``, shape (boxes, 7): of ``q``, ``q x`` and, axis by axis,
    ``q x^2``."""
    real = moments.dtype.type
    terms, boxes = moments.shape
    for chunk in portion(chunks, thread):
        tile, q = np.empty((terms, TILE), moments.dtype), np.empty(TILE, moments.dtype)
        lane, piece = np.zeros((3, TILE), moments.dtype), np.empty((TILE // GROUP, 4), np.int64)
        box, part = chunk, start[chunk]
        while box < boxes:
            pieces, box, part = load_tile(x, start, box, part, chunks, lane, piece)
            regular(lane[0], lane[1], lane[2], order, tile)
            for k in range(pieces):
                slot, used, begin = slots[piece[k, 0]], piece[k, 2], piece[k, 3]
                groups = (used + GROUP - 1) // GROUP
                for w in range(groups * GROUP):
                    q[w] = charge[piece[k, 1] + w] if w < used else real(0.0)
                for a in range(terms):
                    row, s = tile[a, begin:], real(0.0)
                    for w in range(groups * GROUP):
                        s += q[w] * row[w]
                    moments[a, slot] += s
        for box in range(chunk, boxes, chunks):
            s0, d0, d1, d2, q0, q1, q2 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for part in range(start[box], start[box + 1]):
                c = np.float64(charge[part])
                x0, x1, x2 = np.float64(x[part, 0]), np.float64(x[part, 1]), np.float64(x[part, 2])
                s0 += c
                d0 += c * x0
                d1 += c * x1
                d2 += c * x2
                q0 += c * x0 * x0
                q1 += c * x1 * x1
                q2 += c * x2 * x2
            sums[box, 0], sums[box, 1], sums[box, 2], sums[box, 3] = s0, d0, d1, d2
            sums[box, 4], sums[box, 5], sums[box, 6] = q0, q1, q2


def p2m(parts: Parts, slots: np.ndarray, order: int) -> Moments:
    """See :meth:`fmm_openmm.stages.Stages.p2m`; ``boxes`` has shape (terms, boxes) in FFT order.

    The boxes are those of ``parts.start``, which may be a range of the boxes that hold parts."""
    moments = np.zeros(((order + 1) ** 2, len(slots)), parts.x.dtype)
    sums = np.empty((len(slots), 7))
    _p2m(parts.x, parts.charge, parts.start, slots, order, chunk_count(len(slots)), moments, sums)
    total = sums.sum(0)
    return Moments(moments, float(total[0]), total[1:4], total[4:])
