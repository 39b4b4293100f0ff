"""Kernels for several sets of charges of the same parts, for targets that are not sources, and for
the virial of the near field.

What depends on positions only, harmonics and distances, is computed once for all sets. Charges have
shape (sets, parts), expansions (sets, terms, boxes) with the boxes in FFT order.
"""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import load, regular
from fmm_openmm.backends.cpu.l2p import slopes
from fmm_openmm.backends.cpu.p2p import DUMMY_X, copy_sources, find_sources
from fmm_openmm.backends.cpu.threads import LANES, chunk_count, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.openmp import prange
from fmm_openmm.stages import Accumulator, NearExclusions, Parts

TILE = 64
"""Sources whose distances are computed at a time, and whose contributions are summed in the working
precision before the sum is added in float64."""


@kernel("real[:,::1], real[:,::1], i8[::1], i8[::1], i8, i8, real[:,:,::1]")
def _p2m_sets(x, charges, start, slots, order, chunks, moments):
    real = moments.dtype.type
    sets, terms, boxes = moments.shape
    for chunk in prange(chunks):
        tile, total = np.empty((terms, LANES), moments.dtype), np.empty((sets, terms))
        lane = np.empty((3, LANES), moments.dtype)
        for box in range(chunk, boxes, chunks):
            total[:] = 0.0
            for begin in range(start[box], start[box + 1], LANES):
                used = min(LANES, start[box + 1] - begin)
                load(x, begin, used, lane)
                regular(lane[0], lane[1], lane[2], order, tile)
                for k in range(sets):
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
    _p2m_sets(parts.x, charges, parts.start, slots, order, chunk_count(len(slots)), moments)
    return moments


@kernel(
    "real[:,::1], i8[::1], i8[::1], real[:,:,::1], i8, i8[::1], i8[::1], i8[::1], real[::1], "
    "real[:,::1], i8, f8[:,::1], f8[:,:,::1]"
)
def _l2p_sets(
    x, start, slots, local, order, axis, row, column, factor, trace, chunks, potentials, fields
):
    """The arguments are those of ``_l2p``, with sets as the first axis of ``local``, ``trace`` and
    the results. There are no fields if ``fields`` is empty."""
    real = local.dtype.type
    sets, terms, boxes = local.shape
    inner = order * order
    for chunk in prange(chunks):
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
    """Far potentials and, if asked for, fields of all sets at targets, see
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
def _add_sources(x, y, z, buffer, charge, length, tile, phi, field):
    """Add to ``phi`` (sets,) and ``field`` (sets, 3) what the first ``length`` sources contribute
    at (x, y, z). ``buffer`` (4, capacity) holds their coordinates and whether they count,
    ``charge`` (sets, capacity) their charges; ``tile`` (4, TILE) is scratch. There are no fields if
    ``field`` is empty."""
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
            s = real(0.0)
            for j in range(TILE):
                s += q[j] * tile[0, j]
            phi[k] += s
        for k in range(len(field)):
            q = charge[k, block:]
            e0, e1, e2 = real(0.0), real(0.0), real(0.0)
            for j in range(TILE):
                e0 += q[j] * tile[1, j]
                e1 += q[j] * tile[2, j]
                e2 += q[j] * tile[3, j]
            field[k, 0] += e0
            field[k, 1] += e1
            field[k, 2] += e2


@inline
def _add_moments(x, y, z, buffer, charge, length, phi, field, second):
    """:func:`_add_sources` for one set of charges, ``charge`` (capacity,), with its field and, in
    ``second`` (6,), its second moments."""
    real = buffer.dtype.type
    for block in range(0, length, TILE):
        bx, by, bz, bm = buffer[0, block:], buffer[1, block:], buffer[2, block:], buffer[3, block:]
        q = charge[block:]
        s, e0, e1, e2 = real(0.0), real(0.0), real(0.0), real(0.0)
        xx, yy, yx, zx, zy = real(0.0), real(0.0), real(0.0), real(0.0), real(0.0)
        for j in range(TILE):
            dx, dy, dz = x - bx[j], y - by[j], z - bz[j]
            inverse = bm[j] / np.sqrt(dx * dx + dy * dy + dz * dz)
            v = q[j] * inverse
            s += v
            v *= inverse * inverse
            f0, f1, f2 = v * dx, v * dy, v * dz
            e0 += f0
            e1 += f1
            e2 += f2
            xx += f0 * dx
            yy += f1 * dy
            yx += f1 * dx
            zx += f2 * dx
            zy += f2 * dy
        phi[0] += s
        field[0, 0] += e0
        field[0, 1] += e1
        field[0, 2] += e2
        second[0] += xx
        second[1] += yy
        second[2] += s - xx - yy  # the trace of d d / d^3 is 1 / d
        second[3] += yx
        second[4] += zx
        second[5] += zy


@kernel(
    "real[:,::1], i8[::1], real[:,::1], real[:,::1], real[::1], i8[::1], i8[:,::1], f8[:,::1], "
    "i8[:,::1], i8[::1], i8[::1], i8[::1], i8, f8, f8[:,::1], f8[:,:,::1], f8[:,::1]"
)
def _p2p_sets(
    target, target_start, x, charges, occurs, start, counts, boxes, near, excluded_start,
    excluded_part, excluded_row, chunks, far_away, phi, field, second,
):  # fmt: skip
    real = x.dtype.type
    zero, dummy_x = real(0.0), real(far_away)
    sets = len(charges)
    for chunk in prange(chunks):
        source, begin = np.empty(len(near), np.int64), np.empty(len(near), np.int64)
        buffer, saved = np.empty((4, 0), x.dtype), np.empty((2, 0), x.dtype)
        charge = np.empty((sets, 0), x.dtype)
        tile = np.empty((4, TILE), x.dtype)
        p, e, s = np.empty(sets), np.empty((len(field), 3)), np.empty(6 if len(second) else 0)
        for box in range(chunk, len(start) - 1, chunks):
            if target_start[box] == target_start[box + 1]:
                continue
            length = find_sources(box, near, start, counts, source, begin)
            padded = (length + TILE - 1) // TILE * TILE
            if padded > buffer.shape[1]:
                buffer = np.empty((4, padded + padded // 2), x.dtype)
                charge = np.empty((sets, padded + padded // 2), x.dtype)
            copy_sources(x, occurs, start, boxes, near, source, begin, buffer)
            for k in range(sets):
                for row in range(len(near)):
                    first = start[source[row]]
                    for j in range(start[source[row] + 1] - first):
                        charge[k, begin[row] + j] = charges[k, first + j]
                for j in range(length, padded):
                    charge[k, j] = zero
            for j in range(length, padded):
                buffer[0, j], buffer[1, j], buffer[2, j], buffer[3, j] = dummy_x, zero, zero, zero
            for i in range(target_start[box], target_start[box + 1]):
                entries = excluded_start[i + 1] - excluded_start[i]
                if entries > saved.shape[1]:
                    saved = np.empty((2, 2 * entries), x.dtype)
                for n in range(entries):
                    row = excluded_row[excluded_start[i] + n]
                    if row >= 0:
                        j = begin[row] + excluded_part[excluded_start[i] + n] - start[source[row]]
                        saved[0, n], saved[1, n] = buffer[0, j], buffer[3, j]
                        buffer[0, j], buffer[3, j] = dummy_x, zero
                p[:] = 0.0
                e[:] = 0.0
                s[:] = 0.0
                t0, t1, t2 = target[i, 0], target[i, 1], target[i, 2]
                if len(s):
                    _add_moments(t0, t1, t2, buffer, charge[0], padded, p, e, s)
                else:
                    _add_sources(t0, t1, t2, buffer, charge, padded, tile, p, e)
                for k in range(sets):
                    phi[k, i] += p[k]
                for k in range(len(field)):
                    for axis in range(3):
                        field[k, i, axis] += e[k, axis]
                for axis in range(len(s)):
                    second[i, axis] += s[axis]
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
    second: np.ndarray,
) -> None:
    """Add to ``out`` the near field of all sets of charges at targets.

    Args:
        charges: charges of the sources, shape (sets, m).
        near: sources to leave out at each target, which is then a source too.
        second: second moments of the first set to add to, shape (m, 6), see
            :meth:`fmm_openmm.stages.Stages.p2p`, or (0, 6) for none. It
            needs fields, and a single set.
    """
    occurs = (charges != 0.0).any(0).astype(charges.dtype)
    _p2p_sets(
        targets.x, targets.start, sources.x, charges, occurs, sources.start, lattice.counts,
        lattice.boxes, lattice.near, near.start, near.part, near.offset, chunk_count(lattice.size),
        DUMMY_X, out.potentials, out.fields, second,
    )  # fmt: skip
