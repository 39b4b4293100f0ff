"""exclusions: subtracts excluded pairs beyond the near stencil and lists those within it for
p2p."""

import numpy as np

from fmm_openmm.backends.cpu.sort import CpuParts
from fmm_openmm.backends.cpu.threads import kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Accumulator, NearExclusions


@kernel("i8[::1], i8[::1], i8[::1], i8[::1], i8[::1]")
def _capacity(thread, first, place, partner_start, partner, capacity):
    for i in portion(len(first) - 1, thread):
        total = 0
        for k in range(partner_start[i], partner_start[i + 1]):
            total += first[partner[k] + 1] - first[partner[k]]
        for k in range(first[i], first[i + 1]):
            capacity[place[k]] = total


@kernel(
    "i8[::1], i8[::1], i8[::1], i8[::1], real[:,::1], real[::1], i8[:,::1], f8[:,::1], "
    "i8[:,::1], i8[:,:,::1], i8[::1],"
    "f8[:,::1], f8[:,::1], b1, i8[::1], i8[::1], i8[::1], f8[::1], f8[:,::1], f8[:,:,::1]"
)
def _exclusions(
    thread, first, place, partner_start, partner, x, charge, box, boxes, counts, table, reach,
    positions, cell, minimum_image, start, part, offset, potentials, fields, moment,
):  # fmt: skip
    for i in portion(len(first) - 1, thread):
        filled = 0
        for k in range(partner_start[i], partner_start[i + 1]):
            j = partner[k]
            s0, s1, s2 = np.int64(0), np.int64(0), np.int64(0)
            if minimum_image and j != i:  # OpenMM's rule: c first, then b, then a
                d0 = positions[i, 0] - positions[j, 0]
                d1 = positions[i, 1] - positions[j, 1]
                d2 = positions[i, 2] - positions[j, 2]
                m2 = np.rint(d2 / cell[2, 2])
                d0, d1 = d0 - m2 * cell[2, 0], d1 - m2 * cell[2, 1]
                m1 = np.rint(d1 / cell[1, 1])
                m0 = np.rint((d0 - m1 * cell[1, 0]) / cell[0, 0])
                c0, c1, c2 = np.int64(m0), np.int64(m1), np.int64(m2)
                s0 = c0 * counts[0, 0] + c1 * counts[1, 0] + c2 * counts[2, 0]
                s1 = c1 * counts[1, 1] + c2 * counts[2, 1]
                s2 = c2 * counts[2, 2]
            for target in range(first[i], first[i + 1]):
                a = place[target]
                entry = start[a] + filled
                for source in range(first[j], first[j + 1]):
                    b = place[source]
                    n0, n1, n2 = (
                        box[b, 0] + s0 - box[a, 0],
                        box[b, 1] + s1 - box[a, 1],
                        box[b, 2] + s2 - box[a, 2],
                    )
                    row = np.int64(-1)
                    if abs(n0) <= reach[0] and abs(n1) <= reach[1] and abs(n2) <= reach[2]:
                        row = table[n0 + reach[0], n1 + reach[1], n2 + reach[2]]
                    part[entry], offset[entry] = b, row
                    entry += 1
                    if row < 0:
                        t0 = n0 * boxes[0, 0] + n1 * boxes[1, 0] + n2 * boxes[2, 0]
                        t1, t2 = n1 * boxes[1, 1] + n2 * boxes[2, 1], n2 * boxes[2, 2]
                        dx = np.float64(x[a, 0] - x[b, 0]) - t0
                        dy = np.float64(x[a, 1] - x[b, 1]) - t1
                        dz = np.float64(x[a, 2] - x[b, 2]) - t2
                        r2 = dx * dx + dy * dy + dz * dz
                        s = charge[b] / np.sqrt(r2)
                        potentials[a] -= s
                        e0, e1, e2 = s / r2 * dx, s / r2 * dy, s / r2 * dz
                        fields[a, 0] -= e0
                        fields[a, 1] -= e1
                        fields[a, 2] -= e2
                        if len(moment):
                            for axis, t in enumerate((t0, t1, t2)):
                                moment[a, axis, 0] -= charge[a] * t * e0
                                moment[a, axis, 1] -= charge[a] * t * e1
                                moment[a, axis, 2] -= charge[a] * t * e2
            filled += first[j + 1] - first[j]


def exclusions(
    parts: CpuParts,
    partner_start,
    partner,
    positions,
    minimum_image: bool,
    lattice: BoxLattice,
    table,
    reach,
    out: Accumulator,
    moment: np.ndarray | None,
    own: slice,
) -> NearExclusions:
    """See :meth:`fmm_openmm.stages.Stages.exclusions`; entries that have been subtracted have
    offset -1. The moment is that of the forces on the parts in ``own``."""
    start = np.zeros(len(parts.x) + 1, np.int64)
    _capacity(parts.first, parts.place, partner_start, partner, start[1:])
    np.cumsum(start, out=start)
    near = NearExclusions(start, np.empty(start[-1], np.int64), np.empty(start[-1], np.int64))
    by_part = np.zeros((0 if moment is None else len(parts.x), 3, 3))
    _exclusions(
        parts.first, parts.place, partner_start, partner, parts.x, parts.charge, parts.box,
        lattice.boxes, lattice.counts, table, reach, positions, lattice.counts @ lattice.boxes,
        minimum_image, near.start, near.part, near.offset, out.potentials, out.fields,
        by_part,
    )  # fmt: skip
    if moment is not None:
        moment += by_part[own].sum(0)
    return near
