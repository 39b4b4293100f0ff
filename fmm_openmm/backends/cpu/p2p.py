"""p2p: direct interactions within the near stencil.

One thread owns a box. It copies the parts of all near boxes, shifted to the box's centre, into a
buffer, and sums over the buffer in vectorised order for each of its parts. While it does so,
excluded charges are set to zero and moved away; uncharged parts are moved away permanently. Hence
only coinciding charges are at zero distance, and their results are not finite.

The moment of the forces between pairs, the sum of n f with n the displacement of the source's box
from the target's, follows from forces on whole boxes: n = C' + S - C, where C and C' are the places
of the two boxes in the cell, S is the translation of the cell to the image of the source's box, and
f changes its sign if a pair is exchanged, so that the moment is the sum of (S - 2 C) f. For it the
near boxes of one image follow each other in the buffer.
"""

import numpy as np

from fmm_openmm.backends.cpu.sort import home
from fmm_openmm.backends.cpu.threads import chunk_count, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.openmp import portion
from fmm_openmm.stages import Accumulator, NearExclusions, Parts

DUMMY_X = 99.0
"""First coordinate, in box widths, of sources that must not be at zero distance."""

BLOCK = 64
"""The number of sources is padded to a multiple of this."""

SUMMED = 256
"""Sources summed in the working precision before the sum is added in float64."""


@inline
def _padded(length):
    """The next multiple of BLOCK."""
    return (length + BLOCK - 1) // BLOCK * BLOCK


@inline
def sum_sources(x, y, z, buffer, start, stop):
    """Potential and field at (x, y, z) of the charges from ``start`` to ``stop``, multiples of
    BLOCK, in ``buffer`` (4, capacity)."""
    real = buffer.dtype.type
    total0, total1, total2, total3 = 0.0, 0.0, 0.0, 0.0
    for block in range(start, stop, SUMMED):
        bx, by, bz, bq = buffer[0, block:], buffer[1, block:], buffer[2, block:], buffer[3, block:]
        phi, e0, e1, e2 = real(0.0), real(0.0), real(0.0), real(0.0)
        for j in range(min(SUMMED, stop - block)):
            dx, dy, dz = x - bx[j], y - by[j], z - bz[j]
            inverse = real(1.0) / np.sqrt(dx * dx + dy * dy + dz * dz)
            s = bq[j] * inverse
            phi += s
            s *= inverse * inverse
            e0 += s * dx
            e1 += s * dy
            e2 += s * dz
        total0 += phi
        total1 += e0
        total2 += e1
        total3 += e2
    return total0, total1, total2, total3


@inline
def find_sources(box, near, start, counts, source, begin):
    """Find the near boxes of ``box`` and return the number of their parts.

    Args:
        source: filled with the number of each near box.
        begin: filled with the number of parts in the near boxes before each.
    """
    n0, n1 = counts[0, 0], counts[1, 1]
    length = 0
    i0, i1, i2 = np.int64(0), np.int64(0), np.int64(0)
    for k in range(len(near)):
        # along the first axis the numbers are consecutive
        if (
            k > 0
            and near[k, 1] == near[k - 1, 1]
            and near[k, 2] == near[k - 1, 2]
            and near[k, 0] == near[k - 1, 0] + 1
        ):
            i0 = i0 + 1 if i0 + 1 < n0 else 0
        else:
            i0, i1, i2 = home(
                box % n0 + near[k, 0],
                box // n0 % n1 + near[k, 1],
                box // (n0 * n1) + near[k, 2],
                counts,
            )
        source[k], begin[k] = i0 + n0 * (i1 + n1 * i2), length
        length += start[source[k] + 1] - start[source[k]]
    return length


@inline
def _group_by_image(box, near, start, counts, source, begin, image, stop):
    """Let the parts of the near boxes in one image of the cell follow each other, those of each
    image from a multiple of BLOCK, and return the number of images.

    Args:
        source: numbers of the near boxes.
        begin: filled with the place of the first part of each near box.
        image: filled with the translation of the cell to each image, in boxes, shape (near, 3).
        stop: filled with the end of the parts of each image.
    """
    n0, n1 = counts[0, 0], counts[1, 1]
    i0, i1, i2 = box % n0, box // n0 % n1, box // (n0 * n1)
    which = np.empty(len(near), np.int64)
    images = 0
    for k in range(len(near)):
        j = source[k]
        s0 = i0 + near[k, 0] - j % n0
        s1 = i1 + near[k, 1] - j // n0 % n1
        s2 = i2 + near[k, 2] - j // (n0 * n1)
        g = 0
        while g < images and (image[g, 0] != s0 or image[g, 1] != s1 or image[g, 2] != s2):
            g += 1
        if g == images:
            image[g, 0], image[g, 1], image[g, 2], stop[g] = s0, s1, s2, 0
            images += 1
        which[k], begin[k] = g, stop[g]
        stop[g] += start[j + 1] - start[j]
    for g in range(1, images):
        stop[g] += _padded(stop[g - 1])
    for k in range(len(near)):
        if which[k]:
            begin[k] += _padded(stop[which[k] - 1])
    return images


def columns(x: np.ndarray, charge: np.ndarray) -> np.ndarray:
    """Coordinates and charges of parts, shape (4, m): x, shape (m, 3), with the uncharged parts
    moved away, and charges, shape (m,)."""
    sources = np.empty((4, len(x)), x.dtype)
    sources[:3], sources[3] = x.T, charge
    sources[0, charge == 0.0] = DUMMY_X
    return sources


@inline
def end_of_run(k, near, source):
    """The end of a run of near boxes that starts with box ``k``: neighbours along the first axis,
    whose parts follow each other in memory."""
    end = k + 1
    while (
        end < len(near)
        and source[end] == source[end - 1] + 1
        and near[end, 1] == near[k, 1]
        and near[end, 2] == near[k, 2]
    ):
        end += 1
    return end


@inline
def copy_sources(sources, start, boxes, near, source, begin, buffer):
    """Copy the parts of near boxes, see :func:`columns`, shifted to the centre of the box, into
    ``buffer`` (4, capacity)."""
    real = sources.dtype.type
    x, y, z, q = sources[0], sources[1], sources[2], sources[3]
    bx, by, bz, bq = buffer[0], buffer[1], buffer[2], buffer[3]
    k = 0
    while k < len(near):
        end, first, place = end_of_run(k, near, source), start[source[k]], begin[k]
        length = start[source[end - 1] + 1] - first
        s1 = real(near[k, 1] * boxes[1, 1] + near[k, 2] * boxes[2, 1])
        s2 = real(near[k, 2] * boxes[2, 2])
        to, of = by[place:], y[first:]  # with indices from 0 loops are vectorised
        for j in range(length):
            to[j] = of[j] + s1
        to, of = bz[place:], z[first:]
        for j in range(length):
            to[j] = of[j] + s2
        to, of = bq[place:], q[first:]
        for j in range(length):
            to[j] = of[j]
        for i in range(k, end):
            s0 = near[i, 0] * boxes[0, 0] + near[i, 1] * boxes[1, 0] + near[i, 2] * boxes[2, 0]
            shift, to, of = real(s0), bx[begin[i] :], x[start[source[i]] :]
            for j in range(start[source[i] + 1] - start[source[i]]):
                to[j] = of[j] + shift
        k = end


@kernel(
    "real[:,::1], i8[::1], real[:,::1], i8[::1], i8[:,::1], f8[:,::1], i8[:,::1], i8[::1], "
    "i8[::1], i8[::1], i8, i8, i8, f8[::1], f8[:,::1], f8[:,:,::1]"
)
def _p2p(
    thread, target, target_start, sources, start, counts, boxes, near, excluded_start,
    excluded_part, excluded_row, first, last, chunks, phi, field, moment,
):  # fmt: skip
    real = sources.dtype.type
    zero, dummy_x, charge = real(0.0), real(DUMMY_X), sources[3]
    for chunk in portion(chunks, thread):
        source, begin = np.empty(len(near), np.int64), np.empty(len(near), np.int64)
        image, stop = np.zeros((len(near), 3), np.int64), np.empty(len(near), np.int64)
        buffer, saved = np.empty((4, 0), sources.dtype), np.empty((2, 0), sources.dtype)
        force = np.empty((len(near), 3))
        for box in range(first + chunk, last, chunks):
            if target_start[box] == target_start[box + 1]:
                continue
            stop[0], images = find_sources(box, near, start, counts, source, begin), 1
            if len(moment):
                images = _group_by_image(box, near, start, counts, source, begin, image, stop)
                force[:images] = 0.0
            length = _padded(stop[images - 1])
            if length > buffer.shape[1]:
                buffer = np.empty((4, length + length // 2), sources.dtype)
            copy_sources(sources, start, boxes, near, source, begin, buffer)
            for g in range(images):
                for j in range(stop[g], _padded(stop[g])):
                    buffer[0, j], buffer[1, j], buffer[2, j], buffer[3, j] = (
                        dummy_x,
                        dummy_x,
                        dummy_x,
                        zero,
                    )
            for i in range(target_start[box], target_start[box + 1]):
                entries = excluded_start[i + 1] - excluded_start[i]
                if entries > saved.shape[1]:
                    saved = np.empty((2, 2 * entries), sources.dtype)
                for e in range(entries):
                    row = excluded_row[excluded_start[i] + e]
                    if row >= 0:
                        j = begin[row] + excluded_part[excluded_start[i] + e] - start[source[row]]
                        saved[0, e], saved[1, e] = buffer[0, j], buffer[3, j]
                        buffer[0, j], buffer[3, j] = dummy_x, zero
                t0, t1, t2 = target[i, 0], target[i, 1], target[i, 2]
                begins = np.int64(0)
                for g in range(images):
                    ends = _padded(stop[g])
                    p, e0, e1, e2 = sum_sources(t0, t1, t2, buffer, begins, ends)
                    phi[i] += p
                    field[i, 0] += e0
                    field[i, 1] += e1
                    field[i, 2] += e2
                    if len(moment) and charge[i] != zero:  # which may be where a charge is
                        force[g, 0] += charge[i] * e0
                        force[g, 1] += charge[i] * e1
                        force[g, 2] += charge[i] * e2
                    begins = ends
                for e in range(entries):
                    row = excluded_row[excluded_start[i] + e]
                    if row >= 0:
                        j = begin[row] + excluded_part[excluded_start[i] + e] - start[source[row]]
                        buffer[0, j], buffer[3, j] = saved[0, e], saved[1, e]
            if len(moment):
                n0, n1 = counts[0, 0], counts[1, 1]
                i0, i1, i2 = box % n0, box // n0 % n1, box // (n0 * n1)
                for g in range(images):
                    s0, s1, s2 = image[g, 0] - 2 * i0, image[g, 1] - 2 * i1, image[g, 2] - 2 * i2
                    for axis in range(3):
                        s = s0 * boxes[0, axis] + s1 * boxes[1, axis] + s2 * boxes[2, axis]
                        for k in range(3):
                            moment[box, axis, k] += s * force[g, k]


def p2p(
    targets: Parts,
    sources: Parts,
    near: NearExclusions,
    lattice: BoxLattice,
    out: Accumulator,
    moment: np.ndarray | None = None,
    boxes: range | None = None,
) -> None:
    """See :meth:`fmm_openmm.stages.Stages.p2p`; only for the targets in ``boxes`` if given. If
    there is a ``moment``, the targets are the sources."""
    boxes = range(lattice.size) if boxes is None else boxes
    by_box = np.zeros((0 if moment is None else lattice.size, 3, 3))
    _p2p(
        targets.x, targets.start, columns(sources.x, sources.charge), sources.start,
        lattice.counts, lattice.boxes, lattice.near, near.start, near.part, near.offset,
        boxes.start, boxes.stop, chunk_count(len(boxes)), out.potentials, out.fields, by_box,
    )  # fmt: skip
    if moment is not None:
        moment += by_box.sum(0)
