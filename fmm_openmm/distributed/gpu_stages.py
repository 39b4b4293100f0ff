"""The stages on the GPUs of many ranks, one each: what :mod:`fmm_openmm.distributed.stages` does on
CPUs. Particles, moments and results are exchanged between the GPUs; only the numbers of what is
exchanged pass through MPI.

For the convolution a rank transforms planes of the grid, those of its own boxes in rectangular
cells, along the last two axes. For some of the wave vectors along the last axis it then transforms
along the first axis and multiplies with the operator, so that the spectra are transposed once
before and once after that. The near field, which needs no exchange after that of the particles,
runs along with it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends.cpu.sort import number_boxes
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.ranks import (
    CONVOLVE,
    EXPANDING,
    FINISH,
    FORWARD,
    INVERSE,
    MARK,
    MARK_PARTNERS,
    RESULTS,
    SEND,
    SUMMING,
    LatticeShare,
    RankSizes,
    build_rank,
)
from fmm_openmm.backends.cuda.program import SETUP, Device, Program, Share
from fmm_openmm.box import index_grid
from fmm_openmm.distributed.communication import exchange
from fmm_openmm.distributed.sharing import BoxShares, PlaneShares, even_ranges, layer_size
from fmm_openmm.distributed.stages import Links, RankResults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.specification import Specification

SLACK = 1.05
"""Room for copies, over the number at the first evaluation."""

ROOM = 16
"""Room for so many more."""


class Gpu(Protocol):
    """A device of this rank: :class:`fmm_openmm.backends.cuda.execute.cupy.ranks.GpuRank`."""

    arrays: Any

    @property
    def facts(self) -> Device: ...
    def active(self) -> AbstractContextManager: ...
    def made(self, program: Program, given: dict[str, Any]) -> Any: ...
    def exchange(self, rank: int, *pairs: tuple[list, list]) -> None: ...
    def read(self, array: Any) -> Callable[[], np.ndarray]: ...


@dataclass(frozen=True, eq=False)
class CopyRoute:
    """The way of copies between the ranks.

    Attributes:
        order: the ranks from this one on, cyclically, in whose order copies are.
        sent, received: numbers of the copies that each rank gets from this one and sends to it,
            those with parts in the boxes of the one that gets them and others, shape (ranks, 2).
    """

    order: list[int]
    sent: np.ndarray
    received: np.ndarray

    @classmethod
    def from_sums(cls, comm, ends: np.ndarray) -> "CopyRoute":
        """The way of copies given, on each rank, the sums up to each list of
        ``kernels/ranks.cu``, shape (2 ranks,)."""
        order = (comm.rank + np.arange(comm.size)) % comm.size
        sent = np.empty((comm.size, 2), np.int64)
        sent[order] = np.diff(ends, prepend=0).reshape(-1, 2)
        received = np.empty_like(sent)
        comm.Alltoall(sent, received)
        return cls(order.tolist(), sent, received)

    @property
    def copies(self) -> int:
        """Number of the copies that this rank has."""
        return int(self.received.sum())

    @cached_property
    def places(self) -> list[slice]:
        """Where this rank has the copies from each."""
        return self._ranges(self.received.sum(1))

    @cached_property
    def sent_to(self) -> list[slice]:
        """Where this rank has the copies for each, among those that it sends to others."""
        numbers = self.sent.sum(1)
        numbers[self.order[0]] = 0
        return self._ranges(numbers)

    def _ranges(self, numbers: np.ndarray) -> list[slice]:
        ends = np.cumsum(numbers[self.order])
        found = {
            rank: slice(int(end - number), int(end))
            for rank, number, end in zip(self.order, numbers[self.order], ends, strict=True)
        }
        return [found[rank] for rank in range(len(found))]


class GpuStages:
    """The stages on the GPUs of many ranks.

    Args:
        comm: the communicator.
        specification: what is computed. Its charges and exclusions are ignored.
        charges: of the particles of this rank, shape (n,), e.
        links: their excluded partners.
        gpu: the device of this rank.

    Raises:
        UnsupportedError: too many particles or exclusions.
    """

    def __init__(
        self, comm, specification: Specification, charges: np.ndarray, links: Links, gpu: Gpu
    ):
        self._comm, self._gpu, self._specification = comm, gpu, specification
        self.lattice = specification.lattice
        self._offsets = np.cumsum([0, *comm.allgather(len(charges))])
        self._bounds = [slice(*pair) for pair in pairwise(self._offsets.tolist())]
        self._given = self._bounds[comm.rank]
        self._waves = even_ranges(self.lattice.fft_shape[2] // 2 + 1, comm.size)
        numbers = self._offsets[links.rank] + links.partner
        partners = _gathered(comm, np.bincount(links.particle, minlength=len(charges)))
        self._excluded_start = np.cumsum(np.concatenate([[0], partners]))
        self._excluded = _gathered(comm, numbers)
        if max(2 * self._offsets[-1], self._excluded_start[-1]) >= 2**31:
            raise UnsupportedError(
                "`backend='cuda'` takes at most 2^30 particles and 2^30 exclusions on all ranks, "
                f"got {self._offsets[-1]:,} and {self._excluded_start[-1] // 2:,}"
            )
        self._reaches_far = any(comm.allgather(bool((links.rank != comm.rank).any())))
        self._charges = charges
        self._width: float | None = None  # of the boxes that "parameters" holds
        self._run: Any = None

    @property
    def given_charges(self):
        """Charges of the particles of this rank on the device, shape (n,), e."""
        return self._run.buffers["charges"]

    @given_charges.setter
    def given_charges(self, charges: np.ndarray) -> None:
        self._charges = charges
        if self._run is not None:
            self._fill("charges", charges)

    def compute(self, positions, width: float, largest: float, virial: bool) -> RankResults:
        """The results at the particles of this rank, on the host, float64, or on the device, as the
        positions are; the sums are on the device. See
        :meth:`fmm_openmm.distributed.stages.DistributedStages.compute`."""
        with self._gpu.active():
            if self._run is None:
                self._begin(to_host(positions), width)
            if width != self._width:
                self._fill("parameters", parameter_block(self.lattice, width))
                if self._width is None:
                    self._run.queue(SETUP)
                self._width = width
            x = self._gpu.arrays.ascontiguousarray(self._gpu.arrays.asarray(positions), np.float64)
            self._run.replace({"positions": x}, MARK, SEND)
            self._evaluate()
            self._hold_results(len(x))
            buffers = self._run.buffers
            buffers["largest"].fill(largest)
            self._run.queue(FINISH)
            sums = to_host(buffers["sums"])
            found = [buffers[name] for name in RESULTS]
            self._hold_results(0)
            if not is_on_device(positions):
                found = [to_host(each).astype(np.float64) for each in found]
            potentials, fields, forces = found
            return RankResults(potentials, fields, forces, sums)

    def _hold_results(self, particles: int) -> None:
        """Hold new arrays for the results of so many particles: they are given to the caller, and
        between evaluations their memory serves others."""
        xp, dtype = self._gpu.arrays, self._run.buffers["charges"].dtype
        shapes = (particles,), (particles, 3), (particles, 3)
        arrays = {name: xp.empty(shape, dtype) for name, shape in zip(RESULTS, shapes, strict=True)}
        self._run.replace(arrays, FINISH)

    def _fill(self, name: str, values) -> None:
        self._run.buffers[name][...] = self._gpu.arrays.asarray(values)

    def _begin(self, positions: np.ndarray, width: float) -> None:
        """Share the boxes among the ranks, by the parts in them, and make the program."""
        comm, lattice = self._comm, self.lattice
        smoothing = self._specification.smoothing
        index = index_grid(0, lattice.span).reshape(-1, 3)
        box = number_boxes(np.ascontiguousarray(positions), lattice, width, smoothing)[3]
        parts = np.bincount(box, minlength=lattice.size)[lattice.linear(index)]
        total = np.empty_like(parts)
        comm.Allreduce(parts, total)
        alignment = layer_size(lattice) or 1
        self._shares = BoxShares.balanced(comm, lattice, index, total, alignment)
        self._planes = PlaneShares.of(comm.rank, lattice, self._shares.ranges)
        copies = int(total[self._shares.near[:, comm.rank]].sum())
        sent = int((parts @ self._shares.near).sum() - parts @ self._shares.near[:, comm.rank])
        self._make(sent, copies, {})
        bits = 1 << np.arange(comm.size, dtype=np.uint32)
        masks = [bits[self._shares.owner], self._shares.near @ bits]
        self._fill("box_ranks", np.column_stack(masks).astype(np.uint32))
        self._fill("excluded_start", self._excluded_start)
        self._fill("excluded", self._excluded)
        self._fill("charges", self._charges)

    def _make(self, sent: int, copies: int, given: dict) -> None:
        """Make the program for so many copies that this rank sends and so many that it has, with
        some room.

        Args:
            given: buffers of an earlier program, which the new one takes where it has the same.
        """
        rank = self._comm.rank
        share = self._shares.ranges[rank]
        self._most = sent, copies
        sent, copies = (int(SLACK * number) + ROOM for number in self._most)
        self._sizes = RankSizes(
            rank,
            self._comm.size,
            int(self._offsets[-1]),
            self._given.start,
            self._given.stop - self._given.start,
            len(self._excluded),
            sent,
            copies,
        )
        boxes = Share(share.start, share.stop, max(1, share.stop - share.start))
        lattice = LatticeShare(self._planes.ranges[rank], self._waves, self._planes.are_boxes)
        program = build_rank(self._specification, self._gpu.facts, self._sizes, boxes, lattice)
        kept = {
            name: given[name]
            for name, buffer in program.buffers.items()
            if name in given and given[name].shape == buffer.shape and not buffer.within
        }
        given.clear()
        for name in {"positions", *RESULTS} - kept.keys():  # of which each evaluation has its own
            kept[name] = self._gpu.arrays.empty(0, program.buffers[name].dtype)
        self._run = self._gpu.made(program, kept)

    def _grow(self, *numbers: int) -> None:
        """Make the program for more copies, see :meth:`_make`, with all that it has of the given
        particles and of the shape of the cell."""
        buffers, self._run = dict(self._run.buffers), None
        sent, copies = map(max, numbers, self._most)
        self._make(sent, copies, buffers)

    def _evaluate(self) -> None:
        """Evaluate the positions in place, up to the sums over ranks in "totals"; again from the
        beginning if there is no room for all copies."""
        run = self._run
        run.queue(MARK)
        if self._reaches_far:
            owners = [run.buffers["owners"][one] for one in self._bounds]
            self._all_gather(owners)
        run.queue(MARK_PARTNERS)
        counted = self._count()
        run.queue(SEND)
        ends, sizes = counted().astype(np.int64), self._sizes
        route, sent = CopyRoute.from_sums(self._comm, ends), int(ends[-1] - ends[1])
        lack_room = route.copies > sizes.copies or sent > sizes.sent
        if lack_room:
            self._grow(sent, route.copies)
        lacking = np.empty(1, np.int64)
        self._comm.Allreduce(np.array([lack_room], np.int64), lacking)
        if lacking[0]:
            self._evaluate()
            return
        self._send(route)
        run.queue(*SUMMING)
        self._expand()
        run.queue(*EXPANDING)
        self._add_results(route)

    def _count(self) -> Callable[[], np.ndarray]:
        """Replace the numbers in "listed" by their sums. Returns what waits for the sums up to each
        list of ``kernels/ranks.cu``."""
        listed = self._run.buffers["listed"]
        flat = listed.ravel()
        self._gpu.arrays.cumsum(flat, dtype=np.int32, out=flat)
        return self._gpu.read(listed[:, -1])

    def _send(self, route: "CopyRoute") -> None:
        """Exchange the copies of particles."""
        buffers, pairs = self._run.buffers, []
        for name in ("located", "fraction", "tag"):
            outgoing = [buffers[f"sent_{name}"][one] for one in route.sent_to]
            incoming = [buffers[name][one] for one in route.places]
            pairs.append(self._between(outgoing, incoming))
        self._gpu.exchange(self._comm.rank, *pairs)
        for place, number in enumerate((route.copies, route.places[self._comm.rank].stop)):
            buffers["copies"][place : place + 1].fill(number)

    def _between(self, outgoing: list, incoming: list) -> tuple[list, list]:
        """Arrays to be exchanged, without those of this rank for itself."""
        rank = self._comm.rank
        outgoing[rank] = incoming[rank] = incoming[rank][:0]
        return outgoing, incoming

    def _add_results(self, route: "CopyRoute") -> None:
        """Add what other ranks have of the results of the given particles."""
        xp, buffers = self._gpu.arrays, self._run.buffers
        results, totals, tags = buffers["xq"], buffers["totals"], buffers["sent_tag"]
        outgoing = [
            results[place.start : place.start + count]
            for place, count in zip(route.places, route.received[:, 0].tolist(), strict=True)
        ]
        counts = route.sent[:, 0].tolist()
        incoming = [xp.empty((count, 4), results.dtype) for count in counts]
        self._exchange(*self._between(outgoing, incoming))
        for place, rows in zip(route.sent_to, incoming, strict=True):
            if len(rows):
                totals[(tags[place][: len(rows)] >> 1) - self._given.start] += rows

    def _exchange(self, outgoing: list, incoming: list) -> None:
        self._gpu.exchange(self._comm.rank, (outgoing, incoming))

    def _all_gather(self, blocks: list) -> None:
        """Fill the blocks of the other ranks; that of this rank is in place."""
        self._exchange([blocks[self._comm.rank]] * self._comm.size, blocks)

    def _expand(self) -> None:
        """Local expansions of the boxes of this rank from their moments, in their place."""
        run, buffers, shares = self._run, self._run.buffers, self._planes
        spectrum, local = buffers["spectrum"], buffers["local_spectrum"]
        lines = len(buffers["moments"]) * self.lattice.fft_shape[1]  # of a plane of all terms
        planes, waves = (each[self._comm.rank] for each in (shares.ranges, self._waves))
        of_planes = _blocks(self._waves, lines * (planes.stop - planes.start))
        of_waves = _blocks(shares.ranges, lines * (waves.stop - waves.start))
        if not shares.are_boxes:
            self._fill_grids()
        if planes.start < planes.stop:
            run.queue(FORWARD)
        rows = lines * (waves.stop - waves.start)
        local[of_waves[-1].stop : rows * self.lattice.fft_shape[0]] = 0  # planes without boxes
        self._transpose([spectrum[one] for one in of_planes], [local[one] for one in of_waves])
        if waves.start < waves.stop:
            run.queue(CONVOLVE)
        self._transpose([spectrum[one] for one in of_waves], [local[one] for one in of_planes])
        if planes.start < planes.stop:
            run.queue(INVERSE)
        if not shares.are_boxes:
            self._empty_grids()
        if self.lattice.background:
            self._share_trace()

    def _transpose(self, sources: list, targets: list) -> None:
        """Fill ``targets[r]`` with what rank r has in its ``sources`` for this one."""
        self._exchange(*self._between(sources, targets))

    def _fill_grids(self) -> None:
        """Fill the grids of this rank with the moments of the boxes in its planes."""
        xp, moments = self._gpu.arrays, self._run.buffers["moments"]
        grids = self._run.buffers["grids"].reshape(len(moments), -1)
        grids.fill(0)
        sent = [moments[:, xp.asarray(boxes)] for boxes in self._planes.sent]
        blocks = self._exchanged(sent, [(len(moments), len(to)) for to in self._planes.received])
        for places, block in zip(self._planes.received, blocks, strict=True):
            grids[:, xp.asarray(places)] = block

    def _empty_grids(self) -> None:
        """The inverse of :meth:`_fill_grids`, for local expansions."""
        xp, local = self._gpu.arrays, self._run.buffers["moments"]
        grids = self._run.buffers["grids"].reshape(len(local), -1)
        sent = [grids[:, xp.asarray(places)] for places in self._planes.received]
        blocks = self._exchanged(sent, [(len(local), len(to)) for to in self._planes.sent])
        for boxes, block in zip(self._planes.sent, blocks, strict=True):
            local[:, xp.asarray(boxes)] = block

    def _share_trace(self) -> None:
        """Add up the trace terms: all but the sum of the second moments are those of one rank."""
        xp, buffers, rank = self._gpu.arrays, self._run.buffers, self._comm.rank
        trace, ranks = buffers["trace"], self._comm.size
        if not self._waves[rank].start == 0 < self._waves[rank].stop:
            trace.fill(0)
            trace[0, 6] = buffers["square"].sum()
        found = xp.empty((ranks, trace.size), trace.dtype)
        found[rank] = trace.ravel()
        self._all_gather(list(found))
        trace[0] = found.sum(0)

    def _exchanged(self, sent: list, shapes: list[tuple[int, ...]]) -> list:
        """What each rank sends to this one while this sends ``sent[r]`` to rank r."""
        found = [self._gpu.arrays.empty(shape, sent[0].dtype) for shape in shapes]
        self._exchange([self._contiguous(block) for block in sent], found)
        return found

    def _contiguous(self, array):
        return self._gpu.arrays.ascontiguousarray(array)


def _blocks(ranges: list[slice], size: int) -> list[slice]:
    """The places of arrays of so many values for each item of ranges."""
    return [slice(size * each.start, size * each.stop) for each in ranges]


def _gathered(comm, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, one rank after the other."""
    return np.concatenate(exchange(comm, [values] * comm.size))
