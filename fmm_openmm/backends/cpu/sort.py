"""sort: splits particles into parts and orders them by box; gather: sums the results of the parts.

Positions are wrapped in float64 and stored relative to the centres of their boxes.
"""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.backends.cpu.threads import inline, kernel
from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Parts


@dataclass
class CpuParts(Parts):
    """Parts, sorted by box, and where those of each particle are.

    Attributes:
        first: shape (n + 1,) int64.
        place: indices of the parts of particle i are ``place[first[i]:first[i + 1]]``, shape (m,)
            int64.
    """

    first: np.ndarray
    place: np.ndarray


@inline
def home(i0, i1, i2, counts):
    """Wrap a box index into the cell."""
    w = i2 // counts[2, 2]
    i0, i1, i2 = i0 - w * counts[2, 0], i1 - w * counts[2, 1], i2 - w * counts[2, 2]
    w = i1 // counts[1, 1]
    i0, i1 = i0 - w * counts[1, 0], i1 - w * counts[1, 1]
    return i0 % counts[0, 0], i1, i2


@kernel("f8[:,::1], f8, f8[:,::1], f8, f8[:,::1], i1[:,::1], i8[::1]")
def _locate(thread, positions, origin, inverse, smoothing, scaled, side, count):
    for i in portion(len(positions), thread):
        parts = 1
        for axis in range(3):
            s = origin
            for k in range(3):
                s += positions[i, k] * inverse[k, axis]
            u = s - np.floor(s)
            e = -1 if u < smoothing else (1 if u > 1.0 - smoothing else 0)
            scaled[i, axis], side[i, axis] = s, e
            parts *= 2 if e else 1
        count[i] = parts


@inline
def _corner(side, i, k, axis):
    """Offset along an axis from the home box to the box of part k; the bits of k correspond to the
    axes along which the particle is split."""
    bit = 0
    for before in range(axis):
        bit += 1 if side[i, before] else 0
    return side[i, axis] * ((k >> bit) & 1)


@kernel("f8[:,::1], i1[:,::1], i8[::1], i8[:,::1], i8[::1]")
def _number(thread, scaled, side, first, counts, number):
    for i in portion(len(scaled), thread):
        for k in range(first[i + 1] - first[i]):
            i0, i1, i2 = home(
                np.int64(np.floor(scaled[i, 0])) + _corner(side, i, k, 0),
                np.int64(np.floor(scaled[i, 1])) + _corner(side, i, k, 1),
                np.int64(np.floor(scaled[i, 2])) + _corner(side, i, k, 2),
                counts,
            )
            number[first[i] + k] = i0 + counts[0, 0] * (i1 + counts[1, 1] * i2)


@kernel("i8[::1], i8[::1], i8[::1]", parallel=False)
def _counting_sort(number, start, place):
    for k in range(len(number)):
        start[number[k] + 1] += 1
    for b in range(len(start) - 1):
        start[b + 1] += start[b]
    for k in range(len(number)):
        place[k] = start[number[k]]
        start[number[k]] += 1
    for b in range(len(start) - 1, 0, -1):
        start[b] = start[b - 1]
    start[0] = 0


@kernel(
    "f8[:,::1], i1[:,::1], i8[::1], i8[::1], f8[::1], f8[:,::1], f8[:,::1], f8, i8[::1], "
    "real[:,::1], real[::1], f8[::1],"
    "f8[:,::1], i8[:,::1]"
)
def _fill(
    thread,
    scaled,
    side,
    first,
    place,
    charges,
    boxes,
    inverse,
    smoothing,
    particle,
    x,
    charge,
    weight,
    slope,
    box,
):
    w, dw, u = np.empty(3), np.empty(3), np.empty(3)
    for i in portion(len(scaled), thread):
        for k in range(first[i + 1] - first[i]):
            p = place[first[i] + k]
            for axis in range(3):
                cell = np.floor(scaled[i, axis])
                f = scaled[i, axis] - cell
                e = side[i, axis]
                step = _corner(side, i, k, axis)
                w[axis], dw[axis] = 1.0, 0.0
                if e:
                    t = 0.5 - (f if e < 0 else 1.0 - f) / (2.0 * smoothing)
                    share = t * t * (3.0 - 2.0 * t)
                    rate = e * 6.0 * t * (1.0 - t) / (2.0 * smoothing)
                    w[axis], dw[axis] = (share, rate) if step else (1.0 - share, -rate)
                box[p, axis] = np.int64(cell) + step
                u[axis] = f - step - 0.5
            d0, d1, d2 = dw[0] * w[1] * w[2], w[0] * dw[1] * w[2], w[0] * w[1] * dw[2]
            particle[p] = i
            weight[p] = w[0] * w[1] * w[2]
            charge[p] = charges[i] * w[0] * w[1] * w[2]
            for axis in range(3):
                x[p, axis] = u[0] * boxes[0, axis] + u[1] * boxes[1, axis] + u[2] * boxes[2, axis]
                slope[p, axis] = (
                    inverse[axis, 0] * d0 + inverse[axis, 1] * d1 + inverse[axis, 2] * d2
                )


def number_boxes(
    positions, lattice: BoxLattice, width: float, smoothing: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The boxes of the parts of particles: positions in box vectors, shape (n, 3); the faces that
    they are near, shape (n, 3); the parts of particle i, ``first[i]:first[i + 1]``; and the number
    of the box of each part."""
    n = len(positions)
    scaled, side, first = np.empty((n, 3)), np.empty((n, 3), np.int8), np.zeros(n + 1, np.int64)
    _locate(positions, ORIGIN, lattice.inverse / width, smoothing, scaled, side, first[1:])
    np.cumsum(first, out=first)
    number = np.empty(first[-1], np.int64)
    _number(scaled, side, first, lattice.counts, number)
    return scaled, side, first, number


def sort(
    positions, charges, lattice: BoxLattice, width: float, smoothing: float, dtype
) -> CpuParts:
    """See :meth:`fmm_openmm.stages.Stages.sort`."""
    scaled, side, first, number = number_boxes(positions, lattice, width, smoothing)
    m = len(number)
    place, start = np.empty(m, np.int64), np.zeros(lattice.size + 1, np.int64)
    _counting_sort(number, start, place)
    parts = CpuParts(
        particle=np.empty(m, np.int64),
        x=np.empty((m, 3), dtype),
        charge=np.empty(m, dtype),
        weight=np.empty(m),
        slope=np.empty((m, 3)),
        box=np.empty((m, 3), np.int64),
        start=start,
        first=first,
        place=place,
    )
    _fill(
        scaled, side, first, place, charges, lattice.boxes, lattice.inverse, smoothing,
        parts.particle, parts.x, parts.charge, parts.weight, parts.slope, parts.box,
    )  # fmt: skip
    return parts


@kernel("i8[::1], i8[::1], f8[::1], f8[:,::1], f8[::1], f8[:,::1], f8[::1], f8[:,::1]")
def _gather(thread, first, place, weight, slope, part_potentials, part_fields, potentials, fields):
    for i in portion(len(potentials), thread):
        phi, e0, e1, e2 = 0.0, 0.0, 0.0, 0.0
        for k in range(first[i], first[i + 1]):
            p = place[k]
            v = np.float64(part_potentials[p])
            phi += weight[p] * v
            e0 += weight[p] * part_fields[p, 0] - slope[p, 0] * v
            e1 += weight[p] * part_fields[p, 1] - slope[p, 1] * v
            e2 += weight[p] * part_fields[p, 2] - slope[p, 2] * v
        potentials[i] = phi
        fields[i, 0], fields[i, 1], fields[i, 2] = e0, e1, e2


def gather(parts: CpuParts, out) -> tuple[np.ndarray, np.ndarray]:
    """See :meth:`fmm_openmm.stages.Stages.gather`."""
    n = len(parts.first) - 1
    potentials, fields = np.empty(n), np.empty((n, 3))
    _gather(
        parts.first,
        parts.place,
        parts.weight,
        parts.slope,
        out.potentials,
        out.fields,
        potentials,
        fields,
    )
    return potentials, fields
