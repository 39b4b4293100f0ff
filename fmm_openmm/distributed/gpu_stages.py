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
    KEEP,
    MARK,
    RESULTS,
    SEND,
    SUMMING,
    LatticeShare,
    RankSizes,
    build_rank,
)
from fmm_openmm.backends.cuda.program import SETUP, Device, Program, Share
from fmm_openmm.box import index_grid
from fmm_openmm.distributed.patterns import Patterns
from fmm_openmm.distributed.sharing import BoxShares, PlaneShares, even_ranges, layer_size
from fmm_openmm.distributed.stages import Links, RankResults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.specification import Specification

DEVIATIONS = 6
"""Room for more copies than at the first evaluation, in standard deviations of the number of
independent particles in a volume."""


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
class CopyRooms:
    """Room for copies and for the results that come back for them.

    Attributes:
        order: the ranks from this one on, cyclically, in whose order copies are.
        sent, received: room for the copies that each rank gets from this one and sends to it, and
            for the results of those with parts in the boxes of the one that gets them, shape
            (ranks, 2).
    """

    order: list[int]
    sent: np.ndarray
    received: np.ndarray

    @classmethod
    def for_numbers(cls, comm, numbers: np.ndarray) -> "CopyRooms":
        """Room for so many copies that this rank sends, shape (ranks, 2), and for somewhat more."""
        sent = numbers + DEVIATIONS * (np.sqrt(numbers).astype(np.int64) + 1)
        received = np.empty_like(sent)
        comm.Alltoall(sent, received)
        order = (comm.rank + np.arange(comm.size)) % comm.size
        return cls(order.tolist(), sent, received)

    @cached_property
    def places(self) -> list[slice]:
        """Where this rank has the copies from each."""
        return self._ranges(self.received[:, 0])

    @cached_property
    def sent_to(self) -> list[slice]:
        """Where this rank has the copies for each, among those that it sends to others."""
        return self._ranges(self._of_others(self.sent[:, 0]))

    @cached_property
    def results_for(self) -> list[slice]:
        """Where this rank has the results of the copies from each."""
        pairs = zip(self.places, self.received[:, 1].tolist(), strict=True)
        return [slice(place.start, place.start + number) for place, number in pairs]

    @cached_property
    def results_from(self) -> list[slice]:
        """Where this rank has the results from each other."""
        return self._ranges(self._of_others(self.sent[:, 1]))

    @property
    def table(self) -> np.ndarray:
        """``Room`` of ``kernels/ranks.cu``, shape (ranks, 6) int32."""
        to = list(self.sent_to)
        to[self.order[0]] = self.places[self.order[0]]
        columns = (self.places, to, self.results_from)
        rows = [[(each[rank].start, each[rank].stop) for each in columns] for rank in self.order]
        begins, ends = np.moveaxis(np.array(rows, np.int32), 2, 0)
        return np.stack([begins, ends - begins], 2).reshape(len(rows), 6)

    def hold(self, numbers: np.ndarray) -> bool:
        """Whether there is room for so many copies that this rank sends."""
        return bool((numbers <= self.sent).all())

    def _of_others(self, numbers: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(numbers)) == self.order[0], 0, numbers)

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
        particle = self._given.start + links.particle
        difference = self._offsets[links.rank] + links.partner - particle
        patterns = Patterns.from_links(links.particle, difference, len(charges))
        self._patterns = patterns.shared(comm)
        if max(2 * self._offsets[-1], len(self._patterns.partner)) >= 2**31:
            raise UnsupportedError(
                "`backend='cuda'` takes at most 2^30 particles and 2^30 exclusions on all ranks, "
                f"got {self._offsets[-1]:,} and {len(self._patterns.partner) // 2:,}"
            )
        self._reaches_far = any(comm.allgather(bool((links.rank != comm.rank).any())))
        self._charges = charges
        self._width: float | None = None  # of the boxes that "parameters" holds
        self._run: Any = None
        self._marked: Any = None  # positions whose particles are marked

    @property
    def given_charges(self):
        """Charges of the particles of this rank on the device, shape (n,), e."""
        return self._run.buffers["charges"]

    @given_charges.setter
    def given_charges(self, charges: np.ndarray) -> None:
        self._charges = charges
        if self._run is not None:
            self._fill("charges", charges)

    def begin(self, positions, width: float | None) -> None:
        """Queue what needs no other rank, while the ranks agree whether they evaluate.

        Args:
            positions: what the next :meth:`compute` gets, if the ranks agree.
            width: its box width, if that is known.
        """
        self._marked = None
        if self._run is not None and width is not None and width == self._width:
            with self._gpu.active():
                self._mark(positions)

    def _mark(self, positions) -> None:
        """Find the ranks that need the particles, at positions on the device."""
        self._run.replace({"positions": positions}, MARK, SEND, KEEP)
        self._run.queue(MARK)
        self._marked = positions

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
            while True:
                if self._marked is not x:
                    self._mark(x)
                self._marked = None
                numbers = self._evaluate()
                self._hold_results(len(x))
                buffers = self._run.buffers
                buffers["largest"].fill(largest)
                self._run.queue(FINISH)
                lacking = self._lacking_room(numbers())  # known long before the sums
                sums = to_host(buffers["sums"])
                if lacking is None:
                    break
                del buffers  # whose memory the new program may need
                self._make(lacking, dict(self._run.buffers))
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
        buffer = self._run.buffers[name]
        buffer[...] = self._gpu.arrays.asarray(values.astype(buffer.dtype))

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
        is_owner = self._shares.owner[:, None] == np.arange(comm.size)
        self._make(np.column_stack([parts @ self._shares.near, parts @ is_owner]), {})
        bits = 1 << np.arange(comm.size, dtype=np.uint32)
        masks = [bits[self._shares.owner], self._shares.near @ bits]
        self._fill("box_ranks", np.column_stack(masks).astype(np.uint32))
        self._fill("pattern", self._patterns.pattern)
        self._fill("pattern_start", self._patterns.start)
        self._fill("partner", self._patterns.partner)
        self._fill("charges", self._charges)

    def _make(self, numbers: np.ndarray, given: dict) -> None:
        """Make the program, with room for copies, in place of an earlier one.

        Args:
            numbers: of the copies that this rank sends to each, see :class:`CopyRooms`.
            given: buffers of the earlier program, which the new one takes where it has the same.
        """
        self._run, self._sent_copies, rank = None, [], self._comm.rank
        share = self._shares.ranges[rank]
        self._most, self._rooms = numbers, CopyRooms.for_numbers(self._comm, numbers)
        rooms, last = self._rooms, self._rooms.order[-1]
        sizes = RankSizes(
            rank,
            self._comm.size,
            int(self._offsets[-1]),
            self._given.start,
            self._given.stop - self._given.start,
            len(self._patterns.start) - 1,
            len(self._patterns.partner),
            rooms.sent_to[last].stop,
            rooms.places[last].stop,
            rooms.places[rank].stop,
            rooms.results_from[last].stop,
        )
        boxes = Share(share.start, share.stop, max(1, share.stop - share.start))
        lattice = LatticeShare(self._planes.ranges[rank], self._waves, self._planes.are_boxes)
        program = build_rank(self._specification, self._gpu.facts, sizes, boxes, lattice)
        kept = {
            name: given[name]
            for name, buffer in program.buffers.items()
            if name in given and given[name].shape == buffer.shape and not buffer.within
        }
        given.clear()
        for name in {"positions", *RESULTS} - kept.keys():  # of which each evaluation has its own
            kept[name] = self._gpu.arrays.empty(0, program.buffers[name].dtype)
        self._run = self._gpu.made(program, kept)
        self._fill("rooms", rooms.table)
        self._sent_copies = self._copies_to_send()

    def _lacking_room(self, numbers: np.ndarray) -> np.ndarray | None:
        """The numbers of copies to make room for if a rank has no room for those that it sends, of
        which this one sends so many; else None."""
        lacking = np.empty(1, np.int64)
        self._comm.Allreduce(np.array([not self._rooms.hold(numbers)], np.int64), lacking)
        return np.maximum(numbers, self._most) if lacking[0] else None

    def _evaluate(self) -> Callable[[], np.ndarray]:
        """Evaluate the positions in place, up to the sums over ranks, as far as there is room for
        copies. Returns what waits for the numbers of those that this rank has to send to each, see
        :class:`CopyRooms`."""
        run = self._run
        if self._reaches_far:
            owners = [run.buffers["owners"][one] for one in self._bounds]
            self._all_gather(owners)
        run.queue(SEND, KEEP)
        read = self._gpu.read(run.buffers["sent_number"])
        self._gpu.exchange(self._comm.rank, *self._sent_copies)
        run.queue(*SUMMING)
        self._expand()
        run.queue(*EXPANDING)
        self._return_results()
        return lambda: np.array(self._by_rank(read()), np.int64)

    def _by_rank(self, rows) -> list:
        """Rows in the order of the copies, in the order of the ranks."""
        return [rows[place] for place in np.argsort(self._rooms.order)]

    def _copies_to_send(self) -> list[tuple[list, list]]:
        """The arrays of copies, and their numbers, that ranks exchange."""
        buffers, rooms, pairs = self._run.buffers, self._rooms, []
        for name in ("located", "fraction", "tag"):
            outgoing = [buffers[f"sent_{name}"][one] for one in rooms.sent_to]
            incoming = [buffers[name][one] for one in rooms.places]
            pairs.append(self._between(outgoing, incoming))
        numbers = (self._by_rank(buffers[f"{name}_number"]) for name in ("sent", "received"))
        return [*pairs, self._between(*numbers)]

    def _between(self, outgoing: list, incoming: list) -> tuple[list, list]:
        """Arrays to be exchanged, without those of this rank for itself."""
        rank = self._comm.rank
        outgoing[rank] = incoming[rank] = incoming[rank][:0]
        return outgoing, incoming

    def _return_results(self) -> None:
        """Exchange the results of the copies with parts in the boxes of the ranks that have
        them."""
        results, returned = (self._run.buffers[name] for name in ("xq", "returned"))
        outgoing = [results[one] for one in self._rooms.results_for]
        incoming = [returned[one] for one in self._rooms.results_from]
        self._exchange(*self._between(outgoing, incoming))

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
