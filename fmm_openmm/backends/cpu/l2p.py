"""l2p: evaluates local expansions and the trace term at the parts: potentials and fields."""

from functools import cache

import numpy as np

from fmm_openmm.backends.cpu.harmonics import GROUP, TILE, load_tile, regular
from fmm_openmm.backends.cpu.threads import chunk_count, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.background import polynomial
from fmm_openmm.expansions.harmonics import gradient
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Accumulator, Moments, Parts


@inline
def _add_terms(expansion, terms, tile, begin, out):
    """Add ``sum_a expansion[a] tile[a]``, from lane ``begin``, to ``out``."""
    last = terms - terms % 4
    for a in range(0, last, 4):
        e0, e1, e2, e3 = expansion[a], expansion[a + 1], expansion[a + 2], expansion[a + 3]
        t0, t1 = tile[a, begin:], tile[a + 1, begin:]
        t2, t3 = tile[a + 2, begin:], tile[a + 3, begin:]
        for w in range(len(out)):
            out[w] += (e0 * t0[w] + e1 * t1[w]) + (e2 * t2[w] + e3 * t3[w])
    for a in range(last, terms):
        e0, t0 = expansion[a], tile[a, begin:]
        for w in range(len(out)):
            out[w] += e0 * t0[w]


@kernel(
    "real[:,::1], i8[::1], i8[::1], real[:,::1], i8, i8[::1], i8[::1], i8[::1], real[::1], "
    "real[::1], i8, f8[::1], f8[:,::1]"
)
def _l2p(
    thread, x, start, slots, local, order, axis, row, column, factor, trace, chunks, potentials,
    fields,
):  # fmt: skip
    """``trace``: see :func:`fmm_openmm.expansions.background.polynomial`. The gradient matrix is
    given by its entries (axis, row, column, factor)."""
    real = local.dtype.type
    terms, boxes = local.shape
    for chunk in portion(chunks, thread):
        tile, lane = np.empty((terms, TILE), local.dtype), np.zeros((3, TILE), local.dtype)
        piece, total = np.empty((TILE // GROUP, 4), np.int64), np.empty((4, TILE), local.dtype)
        expansion = np.empty((4, terms), local.dtype)  # of the potential and of the field
        box, part = chunk, start[chunk]
        while box < boxes:
            pieces, box, part = load_tile(x, start, box, part, chunks, lane, piece)
            regular(lane[0], lane[1], lane[2], order, tile)
            for w in range(TILE):
                total[0, w] = trace[6]
                for k in range(3):
                    total[0, w] += (trace[k] * lane[k, w] + trace[3 + k]) * lane[k, w]
                    total[1 + k, w] = -(real(2.0) * trace[k] * lane[k, w] + trace[3 + k])
            for i in range(pieces):
                slot, used, begin = slots[piece[i, 0]], piece[i, 2], piece[i, 3]
                end = begin + (used + GROUP - 1) // GROUP * GROUP
                for a in range(terms):
                    expansion[0, a] = local[a, slot]
                expansion[1:] = real(0.0)
                for k in range(len(axis)):
                    expansion[1 + axis[k], column[k]] -= factor[k] * expansion[0, row[k]]
                _add_terms(expansion[0], terms, tile, begin, total[0, begin:end])
                for k in range(1, 4):
                    _add_terms(expansion[k], order * order, tile, begin, total[k, begin:end])
                for w in range(used):
                    target = piece[i, 1] + w
                    potentials[target] = total[0, begin + w]
                    for k in range(3):
                        fields[target, k] = total[1 + k, begin + w]


@cache
def slopes(order: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Nonzero entries of :func:`fmm_openmm.expansions.harmonics.gradient`: axis, row, column,
    value."""
    matrix = gradient(order)
    axis, row, column = map(np.ascontiguousarray, np.nonzero(matrix))
    return axis, row, column, matrix[axis, row, column].astype(dtype)


def l2p(
    parts: Parts,
    moments: Moments,
    local: np.ndarray,
    lattice: BoxLattice,
    order: int,
    slots: np.ndarray | None = None,
) -> Accumulator:
    """See :meth:`fmm_openmm.stages.Stages.l2p`; ``local`` has shape (terms, boxes) in FFT order, or
    in that of ``slots``, one for each box of ``parts.start``. Results in other boxes are 0."""
    slots = lattice.slots if slots is None else slots
    trace = polynomial(lattice, moments.charge, moments.dipole, moments.square)
    m = len(parts.x)
    out = Accumulator(np.zeros(m), np.zeros((m, 3)))
    _l2p(
        parts.x, parts.start, slots, local, order, *slopes(order, local.dtype),
        trace.astype(local.dtype), chunk_count(len(slots)), out.potentials, out.fields,
    )  # fmt: skip
    return out
