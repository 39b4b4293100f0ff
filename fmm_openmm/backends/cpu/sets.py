"""Kernels for several sets of charges of the same parts.

What depends on positions only, harmonics and distances, is computed once for all sets. Charges have
shape (sets, parts), expansions (sets, terms, boxes) with the boxes in FFT order. Sets without
charges in a box, or near it, take no time there.
"""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import load, regular
from fmm_openmm.backends.cpu.l2p import slopes
from fmm_openmm.backends.cpu.p2p import (
    DUMMY_X,
    columns,
    copy_sources,
    end_of_run,
    find_sources,
    sum_sources,
)
from fmm_openmm.backends.cpu.threads import LANES, chunk_count, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Accumulator, NearExclusions, Parts

TILE = 64
"""Sources whose distances are computed at a time, and whose contributions are summed in the working
precision before the sum is added in float64; a multiple of the block of :mod:`.p2p`."""


FEW = 8
"""A set is summed charge by charge where at most one in so many sources is charged."""


def count_charges(charges: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Number of charges of each set in each box, shape (sets, boxes)."""
    before = np.zeros((len(charges), start[-1] + 1), np.int64)
    np.cumsum(charges != 0.0, axis=1, out=before[:, 1:])
    return np.ascontiguousarray(np.diff(before[:, start]))


@kernel("real[:,::1], real[:,::1], i8[:,::1], i8[::1], i8[::1], i8, i8, real[:,:,::1]")
def _p2m_sets(thread, x, charges, filled, start, slots, order, chunks, moments):
    real = moments.dtype.type
    sets, terms, boxes = moments.shape
    for chunk in portion(chunks, thread):
        tile, total = np.empty((terms, LANES), moments.dtype), np.empty((sets, terms))
        lane = np.empty((3, LANES), moments.dtype)
        for box in range(chunk, boxes, chunks):
            total[:] = 0.0
            for begin in range(start[box], start[box + 1], LANES):
                used = min(LANES, start[box + 1] - begin)
                load(x, begin, used, lane)
                regular(lane[0], lane[1], lane[2], order, tile)
                for k in range(sets):
                    if not filled[k, box]:
                        continue
                    for a in range(terms):
                        s = real(0.0)
                        for w in range(used):
                            s += charges[k, begin + w] * tile[a, w]
                        total[k, a] += s
            for k in range(sets):
                for a in range(terms):
                    moments[k, a, slots[box]] = total[k, a]


def p2m_sets(parts: Parts, charges: np.ndarray, slots: np.ndarray, order: int) -> np.ndarray:
    """Moments of all sets of charges, see :meth:`fmm_openmm.stages.Stages.p2m`."""
    moments = np.empty((len(charges), (order + 1) ** 2, len(slots)), parts.x.dtype)
    filled, chunks = count_charges(charges, parts.start), chunk_count(len(slots))
    _p2m_sets(parts.x, charges, filled, parts.start, slots, order, chunks, moments)
    return moments


@kernel(
    "real[:,::1], i8[::1], i8[::1], real[:,:,::1], i8, i8[::1], i8[::1], i8[::1], real[::1], "
    "real[:,::1], i8, f8[:,::1], f8[:,:,::1]"
)
def _l2p_sets(
    thread, x, start, slots, local, order, axis, row, column, factor, trace, chunks, potentials,
    fields,
):  # fmt: skip
    """The arguments are those of ``_l2p``, with sets as the first axis of ``local``, ``trace`` and
    the results. There are no fields if ``fields`` is empty."""
    real = local.dtype.type
    sets, terms, boxes = local.shape
    inner = order * order
    for chunk in portion(chunks, thread):
        tile, lane = np.empty((terms, LANES), local.dtype), np.empty((3, LANES), local.dtype)
        expansion, slope = np.empty((terms, sets), local.dtype), np.empty((3, inner), local.dtype)
        phi, field = np.empty(LANES, local.dtype), np.empty((3, LANES), local.dtype)
        for box in range(chunk, boxes, chunks):
            if start[box] == start[box + 1]:
                continue
            for k in range(sets):
                for a in range(terms):
                    expansion[a, k] = local[k, a, slots[box]]
            for begin in range(start[box], start[box + 1], LANES):
                used = min(LANES, start[box + 1] - begin)
                load(x, begin, used, lane)
                regular(lane[0], lane[1], lane[2], order, tile)
                for k in range(sets):
                    for w in range(LANES):
                        phi[w] = trace[k, 6]
                        for i in range(3):
                            phi[w] += (trace[k, i] * lane[i, w] + trace[k, 3 + i]) * lane[i, w]
                    for a in range(terms):
                        for w in range(LANES):
                            phi[w] += expansion[a, k] * tile[a, w]
                    for w in range(used):
                        potentials[k, begin + w] = phi[w]
                    if len(fields) == 0:
                        continue
                    slope[:] = real(0.0)
                    for e in range(len(axis)):
                        slope[axis[e], column[e]] += factor[e] * expansion[row[e], k]
                    for i in range(3):
                        for w in range(LANES):
                            field[i, w] = -(real(2.0) * trace[k, i] * lane[i, w] + trace[k, 3 + i])
                        for a in range(inner):
                            for w in range(LANES):
                                field[i, w] -= slope[i, a] * tile[a, w]
                        for w in range(used):
                            fields[k, begin + w, i] = field[i, w]


def l2p_sets(
    targets: Parts,
    local: np.ndarray,
    traces: np.ndarray,
    lattice: BoxLattice,
    order: int,
    fields: bool,
) -> Accumulator:
    """Far potentials and, on request, fields of all sets at targets, see
    :meth:`fmm_openmm.stages.Stages.l2p`.

    Args:
        local: local expansions, shape (sets, terms, boxes), in FFT order.
        traces: the trace terms, shape (sets, 7), see
            :func:`fmm_openmm.expansions.background.polynomial`.
    """
    sets, m = len(local), len(targets.x)
    out = Accumulator(np.empty((sets, m)), np.empty((sets if fields else 0, m, 3)))
    _l2p_sets(
        targets.x, targets.start, lattice.slots, local, order, *slopes(order, local.dtype),
        traces.astype(local.dtype), chunk_count(lattice.size), out.potentials, out.fields,
    )  # fmt: skip
    return out


@inline
def _copy_charges(charges, number, start, near, source, begin, few, charge, index):
    """Copy the charges of a set of the near boxes into ``charge`` (capacity,), and with ``few``
    only those that are not zero, with their places among the sources in ``index``.

    Args:
        number: of charges that are not zero in each box.
    """
    if few:
        used = 0
        for row in range(len(near)):
            if number[source[row]]:
                first = start[source[row]]
                for j in range(start[source[row] + 1] - first):
                    if charges[first + j] != charges.dtype.type(0.0):
                        charge[used], index[used] = charges[first + j], begin[row] + j
                        used += 1
    else:
        k = 0
        while k < len(near):
            end, first = end_of_run(k, near, source), start[source[k]]
            to, of = charge[begin[k] :], charges[first:]
            for j in range(start[source[end - 1] + 1] - first):
                to[j] = of[j]
            k = end


@inline
def _add_potentials(x, y, z, buffer, charge, index, few, length, inverse, phi):
    """Add to ``phi`` (sets,) what the first ``length`` sources contribute at (x, y, z).

    Args:
        buffer: their coordinates and whether they count, shape (4, capacity).
        charge, index, few: charges of each set, see :func:`_copy_charges`; ``few`` is their number
            where zeros are left out, else 0.
        inverse: scratch, shape (capacity,).
    """
    bx, by, bz, bm = buffer[0], buffer[1], buffer[2], buffer[3]
    for j in range(length):
        dx, dy, dz = x - bx[j], y - by[j], z - bz[j]
        inverse[j] = bm[j] / np.sqrt(dx * dx + dy * dy + dz * dz)
    for k in range(len(phi)):
        total = 0.0
        for n in range(few[k]):
            total += np.float64(charge[k, n] * inverse[index[k, n]])
        for block in range(0, 0 if few[k] else length, TILE):
            q, tile = charge[k, block:], inverse[block:]
            s = inverse.dtype.type(0.0)
            for j in range(TILE):
                s += q[j] * tile[j]
            total += s
        phi[k] += total


@inline
def _add_sources(x, y, z, buffer, charge, length, tile, phi, field):
    """Add to ``phi`` (sets,) and ``field`` (sets, 3) what the first ``length`` sources contribute
    at (x, y, z); ``buffer`` as in :func:`_add_potentials`, ``charge`` (sets, capacity) with zeros;
    ``tile`` (4, TILE) is scratch."""
    real = buffer.dtype.type
    for block in range(0, length, TILE):
        bx, by, bz, bm = buffer[0, block:], buffer[1, block:], buffer[2, block:], buffer[3, block:]
        for j in range(TILE):
            dx, dy, dz = x - bx[j], y - by[j], z - bz[j]
            inverse = bm[j] / np.sqrt(dx * dx + dy * dy + dz * dz)
            cube = inverse * inverse * inverse
            tile[0, j] = inverse
            tile[1, j], tile[2, j], tile[3, j] = cube * dx, cube * dy, cube * dz
        for k in range(len(phi)):
            q = charge[k, block:]
            s, e0, e1, e2 = real(0.0), real(0.0), real(0.0), real(0.0)
            for j in range(TILE):
                s += q[j] * tile[0, j]
                e0 += q[j] * tile[1, j]
                e1 += q[j] * tile[2, j]
                e2 += q[j] * tile[3, j]
            phi[k] += s
            field[k, 0] += e0
            field[k, 1] += e1
            field[k, 2] += e2


@kernel(
    "real[:,::1], i8[::1], real[:,::1], real[:,::1], i8[:,::1], i8[::1], i8[:,::1], f8[:,::1], "
    "i8[:,::1], i8[::1], i8[::1], i8[::1], i8, f8, f8[:,::1], f8[:,:,::1]"
)
def _p2p_sets(
    thread, target, target_start, sources, charges, number, start, counts, boxes, near,
    excluded_start, excluded_part, excluded_row, chunks, far_away, phi, field,
):  # fmt: skip
    real = sources.dtype.type
    zero, dummy_x = real(0.0), real(far_away)
    sets, fields = len(charges), len(field) > 0
    for chunk in portion(chunks, thread):
        source, begin = np.empty(len(near), np.int64), np.empty(len(near), np.int64)
        buffer, saved = np.empty((4, 0), sources.dtype), np.empty((2, 0), sources.dtype)
        charge, index = np.empty((sets, 0), sources.dtype), np.empty((sets, 0), np.int64)
        charged, few = np.empty(sets, np.int64), np.empty(sets, np.int64)
        tile, inverse = np.empty((4, TILE), sources.dtype), np.empty(0, sources.dtype)
        p, e = np.empty(sets), np.empty((len(field), 3))
        for box in range(chunk, len(start) - 1, chunks):
            if target_start[box] == target_start[box + 1]:
                continue
            length = find_sources(box, near, start, counts, source, begin)
            padded = (length + TILE - 1) // TILE * TILE
            if padded > buffer.shape[1]:
                capacity = padded + padded // 2
                buffer, inverse = (
                    np.empty((4, capacity), sources.dtype),
                    np.empty(capacity, sources.dtype),
                )
                charge = np.empty((sets, capacity), sources.dtype)
                index = np.empty((sets, capacity // FEW), np.int64)
            copy_sources(sources, start, boxes, near, source, begin, buffer)
            used = 0
            for k in range(sets):
                occurring = 0
                for row in range(len(near)):
                    occurring += number[k, source[row]]
                if occurring:
                    few[used] = 0 if fields or occurring * FEW > length else occurring
                    _copy_charges(
                        charges[k], number[k], start, near, source, begin, few[used] > 0,
                        charge[used], index[used],
                    )  # fmt: skip
                    charge[used, length:padded] = zero
                    charged[used] = k
                    used += 1
            alone = fields and used == 1  # faster without the tile
            if alone:
                for j in range(length):
                    buffer[3, j] = charge[0, j]
            for j in range(length, padded):
                buffer[0, j], buffer[1, j], buffer[2, j], buffer[3, j] = dummy_x, zero, zero, zero
            for i in range(target_start[box], target_start[box + 1]):
                entries = excluded_start[i + 1] - excluded_start[i]
                if entries > saved.shape[1]:
                    saved = np.empty((2, 2 * entries), sources.dtype)
                for n in range(entries):
                    row = excluded_row[excluded_start[i] + n]
                    if row >= 0:
                        j = begin[row] + excluded_part[excluded_start[i] + n] - start[source[row]]
                        saved[0, n], saved[1, n] = buffer[0, j], buffer[3, j]
                        buffer[0, j], buffer[3, j] = dummy_x, zero
                p[:] = 0.0
                e[:] = 0.0
                t0, t1, t2 = target[i, 0], target[i, 1], target[i, 2]
                if alone:
                    p[0], e[0, 0], e[0, 1], e[0, 2] = sum_sources(t0, t1, t2, buffer, 0, padded)
                elif fields:
                    _add_sources(t0, t1, t2, buffer, charge, padded, tile, p[:used], e[:used])
                else:
                    _add_potentials(
                        t0, t1, t2, buffer, charge, index, few, padded, inverse, p[:used]
                    )  # fmt: skip
                for k in range(used):
                    phi[charged[k], i] += p[k]
                for k in range(used if fields else 0):
                    for axis in range(3):
                        field[charged[k], i, axis] += e[k, axis]
                for n in range(entries):
                    row = excluded_row[excluded_start[i] + n]
                    if row >= 0:
                        j = begin[row] + excluded_part[excluded_start[i] + n] - start[source[row]]
                        buffer[0, j], buffer[3, j] = saved[0, n], saved[1, n]


def p2p_sets(
    targets: Parts,
    sources: Parts,
    charges: np.ndarray,
    near: NearExclusions,
    lattice: BoxLattice,
    out: Accumulator,
) -> None:
    """Add to ``out`` the near field of all sets of charges of the sources, shape (sets, m), at the
    targets, see :meth:`fmm_openmm.stages.Stages.p2p`."""
    counted = (charges != 0.0).any(0).astype(charges.dtype)
    _p2p_sets(
        targets.x, targets.start, columns(sources.x, counted), charges,
        count_charges(charges, sources.start), sources.start, lattice.counts, lattice.boxes,
        lattice.near, near.start, near.part, near.offset, chunk_count(lattice.size), DUMMY_X,
        out.potentials, out.fields,
    )  # fmt: skip
