"""The stages on many ranks.

Each rank owns a range of boxes, with about as many parts as any other, and computes what happens in
them: their moments, and potentials and fields at their parts. It holds copies of all particles with
a part in a box that is near one of its own, and of the excluded partners of the particles with a
part in one of its own. The results of a particle with parts in the boxes of several ranks are sums
over these ranks.

The convolution has the ranks share the terms for the Fourier transforms, which so need no
communication themselves, and the wave vectors for the product between them. The arrays are
transposed by all-to-all exchanges.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fmm_openmm.arrays import inner
from fmm_openmm.backends.cpu import CpuStages
from fmm_openmm.backends.cpu.compilation import prepare
from fmm_openmm.backends.cpu.l2p import l2p
from fmm_openmm.backends.cpu.lattice import convolve, transform, transform_back
from fmm_openmm.backends.cpu.lattice_work import lattice_work
from fmm_openmm.backends.cpu.p2m import p2m
from fmm_openmm.backends.cpu.p2p import p2p
from fmm_openmm.backends.cpu.share import (
    add,
    collect,
    count_partners,
    fill_partners,
    list_links,
    mark_particles,
    mark_partners,
)
from fmm_openmm.backends.cpu.sort import number_boxes
from fmm_openmm.backends.cpu.threads import kernels_in
from fmm_openmm.distributed.communication import exchange, exchange_rows, from_first, summed
from fmm_openmm.distributed.sharing import BoxShares, even_ranges
from fmm_openmm.driver import evaluate
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.results import in_units
from fmm_openmm.specification import Specification


@dataclass(frozen=True, eq=False)
class Links:
    """Excluded partners of the particles of a rank.

    Attributes, for k partners:
        particle: index of the particle on this rank, shape (k,), ascending.
        partner: index of the partner on its own rank, shape (k,).
        rank: rank of the partner, shape (k,).
    """

    particle: np.ndarray
    partner: np.ndarray
    rank: np.ndarray

    @classmethod
    def by_rank(cls, pairs: np.ndarray, offsets: np.ndarray) -> "list[Links]":
        """The links of every rank.

        Args:
            pairs: excluded pairs of particle numbers, shape (m, 2), which are sorted fast if
                molecules follow one after the other.
            offsets: number of the first particle of each rank and, last, of all particles.
        """
        (a, b), n = pairs.T, offsets[-1]
        keys = np.sort(np.concatenate([a * n + b, b * n + a]), kind="stable")
        first = np.repeat(np.arange(n), np.bincount(pairs.reshape(-1), minlength=n))
        second = keys - first * n
        rank = np.searchsorted(offsets, second, side="right") - 1
        cuts = np.searchsorted(first, offsets[1:-1])
        shares = (np.split(values, cuts) for values in (first, second - offsets[rank], rank))
        return [
            cls(particle - offset, partner, other)
            for offset, particle, partner, other in zip(offsets[:-1], *shares, strict=True)
        ]

    @classmethod
    def from_first(cls, comm, links: "list[Links]") -> "Links":
        """Those of this rank, of those of all ranks, which rank 0 has."""
        none = np.empty(0, np.int64)
        links = links or [cls(none, none, none)] * comm.size
        names = "particle", "partner", "rank"
        return cls(*(from_first(comm, [getattr(each, name) for each in links]) for name in names))

    def where(self, kept: np.ndarray) -> "Links":
        """Some of the links."""
        return Links(self.particle[kept], self.partner[kept], self.rank[kept])


@dataclass(frozen=True, eq=False)
class RankResults:
    """The results at the particles of a rank, on the host or the device.

    Attributes:
        potentials: shape (n,), kJ/mol/e; NaN where undefined, as fields are.
        fields: shape (n, 3), kJ/mol/nm/e.
        forces: shape (n, 3), kJ/mol/nm; 0 where undefined.
        energy: of the particles of all ranks, kJ/mol: a float or, on the device, shape (1,).
        sums: over the particles of all ranks, six numbers: those of
            :func:`fmm_openmm.expansions.error.force_sums`, the numbers of charges and of particles
            whose potential is undefined, and twice the energy.
        work: traceless part of the virial of all ranks, in units of the box width, if computed.
    """

    potentials: Any
    fields: Any
    forces: Any
    energy: Any
    sums: list[float]
    work: np.ndarray | None = None


class DistributedStages(CpuStages):
    """The stages on the CPUs of many ranks; what they compute is that of
    :class:`fmm_openmm.backends.cpu.CpuStages`.

    Args:
        comm: the communicator.
        specification: what is computed. Its charges and exclusions are ignored.
        charges: of the particles of this rank, shape (n,), e.
        links: their excluded partners.
    """

    def __init__(self, comm, specification: Specification, charges: np.ndarray, links: Links):
        super().__init__(specification)
        prepare(kernels_in("share", "lattice"), self.dtype)
        self.has_far_field = True  # whose moments show whether the ranks agree about the boxes
        self._comm, self.given_charges = comm, charges
        here = links.rank == comm.rank
        self._links_here, self._links_away = links.where(here), links.where(~here)
        self._terms = even_ranges((self.order + 1) ** 2, comm.size)
        self._waves = even_ranges(self.operator.shape[1], comm.size)
        self.operator = np.ascontiguousarray(self.operator[:, self._waves[comm.rank]])
        self._boxes: list[slice] = []
        self._slots: list[slice | np.ndarray] = []  # of the boxes of each rank

    def compute(
        self, positions: np.ndarray, width: float, largest: float, virial: bool
    ) -> RankResults:
        """The results at the particles of this rank.

        Args:
            positions: shape (n, 3), nm.
            width: box width, nm.
            largest: potential, charges per box width, above which it is undefined.
            virial: whether to compute the virial, too.
        """
        charges, work = self.given_charges, None
        if virial:
            potentials, fields, work = self.evaluate_with_virial(positions, width)
        else:
            potentials, fields = self.evaluate(positions, width)
        is_smoothed = self.smoothing > 0.0 and self.dtype == np.float32
        of_fields = force_sums(charges, fields, potentials if is_smoothed else None)
        undefined = in_units(potentials, fields, width, 1.0, largest)
        faults = np.count_nonzero(undefined & (charges != 0.0)), np.count_nonzero(undefined)
        sums = np.array([*of_fields, *faults, inner(charges, potentials)])
        forces = charges[:, None] * fields
        potentials[undefined] = fields[undefined] = np.nan
        totals = summed(self._comm, sums).tolist()
        energy = 0.5 * totals[-1]
        return RankResults(potentials, fields, forces, energy, totals, work)

    def evaluate(self, positions, width):
        """Potentials (n,) and fields (n, 3) at the particles of this rank, see
        :func:`fmm_openmm.driver.evaluate`."""
        owned, copies = self._distribute(positions, width)
        return self._returned(owned, *evaluate(self, copies, width))

    def evaluate_with_virial(self, positions, width):
        """See :meth:`fmm_openmm.stages.HostStages.evaluate_with_virial`; the virial is that of
        all."""
        owned, copies = self._distribute(positions, width)
        potentials, fields, virial = super().evaluate_with_virial(copies, width)
        return *self._returned(owned, potentials, fields), self._comm.allreduce(virial)

    def _returned(
        self, owned: list[np.ndarray], potentials: np.ndarray, fields: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (n,) and fields (n, 3) at the particles of this rank, from those at the copies
        that each rank has.

        Args:
            owned: for each rank which particles of this one have parts in its boxes.
        """
        own, blocks = np.flatnonzero(self._is_own), []
        for mine in np.split(own, np.searchsorted(own, self._offsets[1:-1])):
            blocks.append(np.empty((len(mine), 4)))
            collect(mine, potentials, fields, blocks[-1])
        n = len(self.given_charges)
        totals = np.zeros(n), np.zeros((n, 3))
        for mine, rows in zip(owned, exchange_rows(self._comm, blocks), strict=True):
            add(mine, rows, *totals)
        return totals

    def _distribute(
        self, positions: np.ndarray, width: float
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Send particles to the ranks that need them.

        Returns:
            for each rank which particles of this one have parts in its boxes, and the positions of
            the particles that this rank has received.
        """
        comm = self._comm
        first, box = number_boxes(positions, self.lattice, width, self.smoothing)[2:]
        if not self._boxes:
            self._share_boxes(np.bincount(box, minlength=self.lattice.size))
        self._sent = len(box)
        owned, wanted = np.zeros((2, comm.size, len(positions)), bool)
        mark_particles(first, box, self._owner, self._near, owned, wanted)
        here = self._links_here
        mark_partners(here.particle, here.partner, owned, wanted)
        owner, asked, requests = self._ask_for_partners(owned, wanted)
        places = np.cumsum(wanted, 1, np.int32) - np.int32(1)  # among those sent to each rank
        answers = exchange(comm, [places[tuple(block.T)] for block in requests])
        away = np.column_stack(
            [places[owner, asked.particle], asked.rank, np.concatenate(answers)]
        ).astype(np.int32)
        partners = []
        for rank, (mine, place) in enumerate(zip(owned, places, strict=True)):
            links = np.full((np.count_nonzero(mine[here.particle]), 3), comm.rank, np.int32)
            list_links(here.particle, here.partner, mine, place, links)
            partners.append(np.concatenate([links, away[owner == rank]]))
        rows = np.column_stack([positions, self.given_charges])
        copied = [np.flatnonzero(sent) for sent in wanted]
        received = exchange_rows(comm, [rows.take(sent, 0) for sent in copied])
        flags = exchange(comm, [mine[sent] for mine, sent in zip(owned, copied, strict=True)])
        self._is_own = np.concatenate(flags)
        self._offsets = np.cumsum([0, *map(len, received)])
        self._exclude(exchange_rows(comm, partners))
        copies = np.concatenate(received)
        self.charges = np.ascontiguousarray(copies[:, 3])
        return [np.flatnonzero(mine) for mine in owned], np.ascontiguousarray(copies[:, :3])

    def _ask_for_partners(
        self, owned: np.ndarray, wanted: np.ndarray
    ) -> tuple[np.ndarray, Links, list[np.ndarray]]:
        """Ask the other ranks to send the partners that they have of the particles of this one.

        Args:
            owned: which particles of this rank have parts in the boxes of each, shape (ranks, n).
            wanted: which are to be sent to each rank, shape (ranks, n). Those that the other ranks
                ask for are added.

        Returns:
            for each request the rank that owns the particle, and its link, in the order of the
            ranks that have the partners; and from each rank its requests: the rank that the partner
            is to be sent to, and the index of the partner, shape (k, 2).
        """
        comm, links = self._comm, self._links_away
        owner, link = np.nonzero(owned[:, links.particle])
        by_rank = np.argsort(links.rank[link], kind="stable")
        owner, asked = owner[by_rank], links.where(link[by_rank])
        cuts = np.searchsorted(asked.rank, np.arange(1, comm.size))
        requests = exchange_rows(comm, np.split(np.column_stack([owner, asked.partner]), cuts))
        for rank, partner in (block.T for block in requests):
            wanted[rank, partner] = True
        return owner, asked, requests

    def _exclude(self, partners: list[np.ndarray]) -> None:
        """Make the lists of partners of the particles with a part in a box of this rank, each of
        which begins with the particle itself.

        Args:
            partners: from each rank the place of a particle among those that it has sent, the rank
                that has sent the partner, and the place of the partner, shape (k, 3).
        """
        offsets, own = self._offsets, np.flatnonzero(self._is_own)
        start = np.zeros(offsets[-1] + 1, np.int64)
        start[own + 1] = 1
        for links, offset in zip(partners, offsets.tolist(), strict=False):
            count_partners(links, offset, start)
        self.partner_start = np.cumsum(start)
        self.partner = np.empty(self.partner_start[-1], np.int64)
        end = self.partner_start[:-1].copy()
        self.partner[end[own]] = own
        end[own] += 1
        for links, offset in zip(partners, offsets.tolist(), strict=False):
            fill_partners(links, offset, offsets, end, self.partner)

    def _share_boxes(self, numbers: np.ndarray) -> None:
        """Share the boxes among the ranks, given the number of this rank's parts in each."""
        comm, lattice = self._comm, self.lattice
        total = np.empty_like(numbers)
        comm.Allreduce(numbers, total)
        shape = np.diag(lattice.counts)
        index = np.column_stack(np.unravel_index(np.arange(lattice.size), shape, order="F"))
        shares = BoxShares.balanced(comm, lattice, index, total)
        self._boxes, self._owner, self._near = shares.ranges, shares.owner, shares.near
        self._slots = [_as_slice(lattice.slots[own]) for own in shares.ranges]

    @property
    def _own(self) -> slice:
        """The boxes of this rank."""
        return self._boxes[self._comm.rank]

    def _own_parts(self, parts):
        """The range of the parts in the boxes of this rank."""
        return slice(int(parts.start[self._own.start]), int(parts.start[self._own.stop]))

    def _within(self, parts):
        """The parts in the boxes of this rank."""
        return replace(parts, start=parts.start[self._own.start : self._own.stop + 1])

    @property
    def _own_slots(self) -> np.ndarray:
        """Places of the boxes of this rank in its expansions, which have shape (terms, boxes)."""
        return np.arange(self._own.stop - self._own.start)

    def p2m(self, parts):
        own = self._within(parts)
        moments = p2m(own, self._own_slots, self.order)
        lost = self._sent - (own.start[-1] - own.start[0])
        sums = np.array([moments.charge, *moments.dipole, *moments.square, lost])
        total = np.empty_like(sums)
        self._comm.Allreduce(sums, total)
        if total[7] != 0.0:
            raise RuntimeError("the ranks disagree about the boxes of particles")
        return replace(moments, charge=float(total[0]), dipole=total[1:4], square=total[4:7])

    def lattice_m2l(self, moments):
        comm, lattice = self._comm, self.lattice
        terms = self._terms[comm.rank]
        count = terms.stop - terms.start
        spectrum = self._spectrum(moments.boxes)
        convolve(spectrum, self.operator, self.order)
        blocks = exchange(comm, [spectrum[rows] for rows in self._terms])
        local = np.empty((count, lattice.size), spectrum.dtype)
        if count:
            shares = zip(blocks, self._waves, strict=True)
            spectrum = np.concatenate(
                [part.reshape(count, share.stop - share.start, 2) for part, share in shares], 1
            )
            local = transform_back(spectrum, lattice)
        blocks = exchange(comm, [local[:, slots] for slots in self._slots])
        return np.concatenate(blocks).reshape(len(moments.boxes), len(self._own_slots))

    def _spectrum(self, moments: np.ndarray) -> np.ndarray:
        """Fourier transform of the moments of all boxes at the wave vectors of this rank, shape
        (terms, wave vectors, 2), from its boxes' moments."""
        comm, lattice = self._comm, self.lattice
        terms, waves = self._terms[comm.rank], self._waves[comm.rank]
        count, width = terms.stop - terms.start, waves.stop - waves.start
        boxes = np.empty((count, lattice.size), moments.dtype)
        blocks = exchange(comm, [moments[rows] for rows in self._terms])
        for own, slots, part in zip(self._boxes, self._slots, blocks, strict=True):
            boxes[:, slots] = part.reshape(count, own.stop - own.start)
        spectrum = (
            transform(boxes, lattice)
            if count
            else np.empty((0, self._waves[-1].stop, 2), boxes.dtype)
        )
        blocks = exchange(comm, [spectrum[:, columns] for columns in self._waves])
        return np.concatenate(blocks).reshape(len(moments), width, 2)

    def lattice_work(self, moments):
        """The share of this rank's wave vectors."""
        prepare(kernels_in("lattice_work"), self.dtype)
        waves = self._waves[self._comm.rank]
        spectrum = self._spectrum(moments.boxes)
        return lattice_work(spectrum, self._derivatives, self.lattice, self.order, waves)

    @cached_property
    def _derivatives(self):
        waves = self._waves[self._comm.rank]
        return np.ascontiguousarray(super()._derivatives[:, :, waves])

    def l2p(self, parts, moments, local):
        own = self._within(parts)
        return l2p(own, moments, local, self.lattice, self.order, self._own_slots)

    def exclusions(self, parts, out, moment=None):
        own = self._own_parts(parts)
        near = super().exclusions(parts, out, moment, own)
        for values in (out.potentials, out.fields):
            values[: own.start] = values[own.stop :] = 0.0
        return near

    def p2p(self, parts, near, out, moment=None, sources=None):
        own = range(self._own.start, self._own.stop)
        p2p(parts, parts, near, self.lattice, out, moment, own)


def _as_slice(index: np.ndarray) -> slice | np.ndarray:
    """A slice for indices that follow one another, which NumPy copies faster."""
    if len(index) and (np.diff(index) == 1).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index
