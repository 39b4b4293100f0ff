"""l2p: evaluates local expansions and the trace term at the parts: potentials and fields."""

from functools import cache

import numpy as np

from fmm_openmm.backends.cpu.harmonics import load, regular
from fmm_openmm.backends.cpu.threads import LANES, chunk_count, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.background import polynomial
from fmm_openmm.expansions.harmonics import gradient
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Accumulator, Moments, Parts


@kernel(
    "real[:,::1], i8[::1], i8[::1], real[:,::1], i8, i8[::1], i8[::1], i8[::1], real[::1], "
    "real[::1], i8, f8[::1], f8[:,::1]"
)
def _l2p(
    thread,
    x,
    start,
    slots,
    local,
    order,
    axis,
    row,
    column,
    factor,
    trace,
    chunks,
    potentials,
    fields,
):
    """Evaluate in blocks of ``LANES`` parts. ``trace``: see
    :func:`fmm_openmm.expansions.background.polynomial`. The gradient matrix is given by its entries
    (axis, row, column, factor)."""
    real = local.dtype.type
    terms, boxes = local.shape
    inner = order * order
    for chunk in portion(chunks, thread):
        tile, lane = np.empty((terms, LANES), local.dtype), np.empty((3, LANES), local.dtype)
        expansion, slope = np.empty(terms, local.dtype), np.empty((3, inner), local.dtype)
        phi, field = np.empty(LANES, local.dtype), np.empty((3, LANES), local.dtype)
        for box in range(chunk, boxes, chunks):
            if start[box] == start[box + 1]:
                continue
            for a in range(terms):
                expansion[a] = local[a, slots[box]]
            slope[:] = real(0.0)
            for k in range(len(axis)):
                slope[axis[k], column[k]] += factor[k] * expansion[row[k]]
            for begin in range(start[box], start[box + 1], LANES):
                used = min(LANES, start[box + 1] - begin)
                load(x, begin, used, lane)
                regular(lane[0], lane[1], lane[2], order, tile)
                for w in range(LANES):
                    phi[w] = trace[6]
                    for k in range(3):
                        phi[w] += (trace[k] * lane[k, w] + trace[3 + k]) * lane[k, w]
                        field[k, w] = -(real(2.0) * trace[k] * lane[k, w] + trace[3 + k])
                for a in range(terms):
                    for w in range(LANES):
                        phi[w] += expansion[a] * tile[a, w]
                for a in range(inner):
                    for w in range(LANES):
                        field[0, w] -= slope[0, a] * tile[a, w]
                        field[1, w] -= slope[1, a] * tile[a, w]
                        field[2, w] -= slope[2, a] * tile[a, w]
                for w in range(used):
                    potentials[begin + w] = phi[w]
                    for k in range(3):
                        fields[begin + w, k] = field[k, w]


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
