"""share: which ranks need which particles, the excluded partners among those that a rank has
received, and sums of the results that ranks return.

A link is a particle and one of its excluded partners; each pair is two links.
"""

from fmm_openmm.backends.cpu.threads import kernel
from fmm_openmm.openmp import portion


@kernel("i8[::1], i8[::1], i8[::1], b1[:,::1], b1[:,::1], b1[:,::1]")
def mark_particles(thread, first, box, owner, near, owned, wanted):
    """Mark the particles with a part in the boxes of each rank, in ``owned`` (ranks, n), and in or
    near them, in ``wanted`` (ranks, n).

    Args:
        first: parts of particle i are ``first[i]:first[i + 1]``.
        box: number of the box of each part.
        owner: rank of each box.
        near: whether it is near one of the boxes of each rank, shape (boxes, ranks).
    """
    for i in portion(len(first) - 1, thread):
        for k in range(first[i], first[i + 1]):
            owned[owner[box[k]], i] = True
            for rank in range(len(wanted)):
                if near[box[k], rank]:
                    wanted[rank, i] = True


@kernel("i8[::1], i8[::1], b1[:,::1], b1[:,::1]", parallel=False)
def mark_partners(particle, partner, owned, wanted):
    """Mark the partners of the particles that each rank owns."""
    for rank in range(len(owned)):
        for k in range(len(particle)):
            if owned[rank, particle[k]]:
                wanted[rank, partner[k]] = True


@kernel("i8[::1], i8[::1], b1[::1], i4[::1], i4[:,::1]", parallel=False)
def list_links(particle, partner, owned, place, links):
    """Fill the first and the last column of ``links`` (k, 3) with the places of the particles that
    are owned and of their partners."""
    filled = 0
    for k in range(len(particle)):
        if owned[particle[k]]:
            links[filled, 0], links[filled, 2] = place[particle[k]], place[partner[k]]
            filled += 1


@kernel("i4[:,::1], i8, i8[::1]", parallel=False)
def count_partners(links, offset, start):
    """Add the number of links of particle i, which begin at ``offset``, to ``start[i + 1]``."""
    for k in range(len(links)):
        start[offset + links[k, 0] + 1] += 1


@kernel("i4[:,::1], i8, i8[::1], i8[::1], i8[::1]", parallel=False)
def fill_partners(links, offset, offsets, end, partner):
    """Append partners to the lists that end at ``end[i]``, and move these ends.

    Args:
        links: particle, less ``offset``, rank of the partner, and partner, less the offset of its
            rank, shape (k, 3).
    """
    for k in range(len(links)):
        i = offset + links[k, 0]
        partner[end[i]] = offsets[links[k, 1]] + links[k, 2]
        end[i] += 1


@kernel("i8[::1], f8[::1], f8[:,::1], f8[:,::1]")
def collect(thread, particle, potentials, fields, rows):
    """Potentials and fields of some particles, shape (k, 4)."""
    for k in portion(len(particle), thread):
        i = particle[k]
        rows[k, 0] = potentials[i]
        rows[k, 1], rows[k, 2], rows[k, 3] = fields[i, 0], fields[i, 1], fields[i, 2]


@kernel("i8[::1], f8[:,::1], f8[::1], f8[:,::1]")
def add(thread, particle, rows, potentials, fields):
    """Add rows (k, 4) to the potentials and fields of different particles."""
    for k in portion(len(particle), thread):
        i = particle[k]
        potentials[i] += rows[k, 0]
        fields[i, 0] += rows[k, 1]
        fields[i, 1] += rows[k, 2]
        fields[i, 2] += rows[k, 3]
