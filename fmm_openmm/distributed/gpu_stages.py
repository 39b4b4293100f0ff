"""The stages on the GPUs of many ranks, one each: what :mod:`fmm_openmm.distributed.stages` does on
CPUs. Particles, moments and results are exchanged between the GPUs; only the numbers of what is
exchanged pass through MPI.

For the convolution a rank transforms planes of the grid, those of its own boxes in rectangular
cells, along the last two axes. For some of the wave vectors along the last axis it then transforms
along the first axis and multiplies with the operator, so that the spectra are transposed once
before and once after that. The near field, which needs no exchange after that of the particles,
runs along with it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends.cpu.sort import number_boxes
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.ranks import (
    ADD,
    CONVOLVE,
    ENERGY,
    EXCHANGED,
    EXPANDING,
    FINISH,
    FORWARD,
    INVERSE,
    KEEP,
    MARK,
    RESULT_SUMS,
    RESULTS,
    SEND,
    SUMMING,
    LatticeShare,
    RankSizes,
    build_rank,
)
from fmm_openmm.backends.cuda.program import SETUP, Device, Program, Share
from fmm_openmm.box import BoxLattice, index_grid
from fmm_openmm.distributed.communication import agree
from fmm_openmm.distributed.patterns import Patterns
from fmm_openmm.distributed.sharing import BoxShares, PlaneShares, even_ranges, layer_size
from fmm_openmm.distributed.stages import Links, RankResults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.operators.derivatives import traceless
from fmm_openmm.specification import Specification

DEVIATIONS = 6
"""Room for more copies than at the first evaluation, in standard deviations of the number of
independent particles in a volume."""

ALIGNMENT = 4
"""Room for copies on their way is for a multiple of so many: the arrays within it are aligned."""


class Gpu(Protocol):
    """A device of this rank: :class:`fmm_openmm.backends.cuda.execute.cupy.ranks.GpuRank`."""

    arrays: Any

    @property
    def facts(self) -> Device: ...
    def active(self) -> AbstractContextManager: ...
    def made(self, program: Program, given: dict[str, Any], exchanged: Iterable[str]) -> Any: ...
    def beside(self) -> AbstractContextManager: ...
    def join(self) -> None: ...
    def kernel(self, run: Any, stage: str, *names: str) -> Callable[..., None]: ...
    def repeated(self, run: Any, queue: Callable[[], None]) -> Callable[[], None]: ...
    def exchange(self, rank: int, *pairs: tuple[list, list]) -> None: ...
    def fill_derivatives(self, run: Any, lattice: BoxLattice, order: int, first: int) -> None: ...


@dataclass(frozen=True, eq=False)
class CopyRooms:
    """Room for copies and for the results that come back for them.

    Attributes:
        order: the ranks from this one on, cyclically, in whose order copies are.
        sent, received: room for the copies that each rank gets from this one and sends to it, and
            for the results of those with parts in the boxes of the one that gets them, shape
            (ranks, 2), multiples of :data:`ALIGNMENT`; for this rank itself, the number of
            particles that it is given.
    """

    order: list[int]
    sent: np.ndarray
    received: np.ndarray

    @classmethod
    def for_numbers(cls, comm, numbers: np.ndarray, given: int) -> "CopyRooms":
        """Room for so many copies that this rank sends, shape (ranks, 2), and for somewhat more."""
        sent = numbers + DEVIATIONS * (np.sqrt(numbers).astype(np.int64) + 1)
        sent = -(-sent // ALIGNMENT) * ALIGNMENT
        sent[comm.rank] = given
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
        """Where this rank has the copies for each other, among those that it sends."""
        return self._ranges(self._of_others(self.sent[:, 0]))

    @cached_property
    def received_from(self) -> list[slice]:
        """Where this rank has the copies from each other, among those that it receives."""
        return self._ranges(self._of_others(self.received[:, 0]))

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
        columns = (self.places, self.sent_to, self.results_from)
        rows = [[(each[rank].start, each[rank].stop) for each in columns] for rank in self.order]
        begins, ends = np.moveaxis(np.array(rows, np.int32), 2, 0)
        return np.stack([begins, ends - begins], 2).reshape(len(rows), 6)

    def _of_others(self, numbers: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(numbers)) == self.order[0], 0, numbers)

    def _ranges(self, numbers: np.ndarray) -> list[slice]:
        ends = np.cumsum(numbers[self.order])
        found = {
            rank: slice(int(end - number), int(end))
            for rank, number, end in zip(self.order, numbers[self.order], ends, strict=True)
        }
        return [found[rank] for rank in range(len(found))]


@dataclass(frozen=True, eq=False)
class RankRun:
    """A program on the device of this rank.

    Attributes:
        run: the program.
        mark, finish, add_energies: its first and its last two kernels, functions of arrays.
        copies: the arrays of copies that ranks exchange, and their numbers.
        repeated: what queues the stages between these kernels, by the names of methods.
    """

    run: Any
    mark: Callable[..., None]
    finish: Callable[..., None]
    add_energies: Callable[..., None]
    copies: list[tuple[list, list]]
    repeated: dict[str, Callable[[], None]] = field(default_factory=dict)


class GpuStages:
    """The stages on the GPUs of many ranks. Evaluations with the virial have a program of their
    own, with the same memory but for what only the virial needs.

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
        reaches_far = any(comm.allgather(bool((links.rank != comm.rank).any())))
        self._sends_first = comm.size > 1 and not reaches_far
        self._charges = charges
        self._width: float | None = None  # of the boxes that "parameters" holds
        self._largest: float | None = None  # potential that "largest" holds
        self._program: Any = None
        self._programs: dict[bool, RankRun] = {}  # without and with the virial
        self._begun: Any = None  # positions whose evaluation has begun

    @property
    def _run(self) -> Any:
        """The program in use, if there is one."""
        return self._program and self._program.run

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
        self._begun = None
        if self._run is not None and width is not None and width == self._width:
            with self._gpu.active():
                self._begin(positions)

    def _begin(self, positions) -> None:
        """Queue what needs no other rank, at positions on the device: find the ranks that need the
        particles, and make copies for this rank and, unless other ranks have partners of the
        particles, for the others."""
        self._gpu.join()
        self._program.mark(positions)
        with self._gpu.beside():
            self._repeat(self._keep)
        if self._sends_first:
            self._repeat(self._send)
        self._begun = positions

    def _repeat(self, queue: Callable[[], None]) -> None:
        """Queue what a method queues, from the second time on by one launch."""
        name, repeated = queue.__name__, self._program.repeated
        if name in repeated:
            repeated[name]()
        else:
            repeated[name] = self._gpu.repeated(self._run, queue)

    def _keep(self) -> None:
        """Make the copies for this rank."""
        self._run.queue(KEEP)

    def _send(self) -> None:
        """Make the copies for other ranks."""
        self._run.queue(SEND)

    def compute(self, positions, width: float, largest: float, virial: bool) -> RankResults:
        """The results at the particles of this rank, on the host, float64, or on the device, as the
        positions are. See :meth:`fmm_openmm.distributed.stages.DistributedStages.compute`."""
        xp = self._gpu.arrays
        with self._gpu.active():
            if self._run is None:
                self._prepare(to_host(positions), width, virial)
            self._use(virial)
            if width != self._width:
                self._fill("parameters", parameter_block(self.lattice, width))
                if self._width is None:
                    self._run.queue(SETUP)
                self._width = width
            x = xp.ascontiguousarray(xp.asarray(positions), np.float64)
            found = self._queue(x, largest)
        # once the sums have arrived, little is left for the host to do
        while (sums := self._sums())[RESULT_SUMS - 1]:  # copies without room
            found.clear()  # whose memory the new program may need
            with self._gpu.active():
                self._make_room(virial)
                found = self._queue(x, largest)
        if not is_on_device(positions):
            found = [to_host(each).astype(np.float64) for each in found]
            found[-1] = float(found[-1][0])
        potentials, fields, forces, energy = found
        work = traceless(np.array(sums[RESULT_SUMS:])) if virial else None
        return RankResults(potentials, fields, forces, energy, sums[: RESULT_SUMS - 1], work)

    def _queue(self, positions, largest: float) -> list:
        """Queue an evaluation at positions on the device. Returns the arrays of its results, the
        energy last."""
        if self._begun is not positions:
            self._begin(positions)
        self._begun = None
        if largest != self._largest:
            self._run.buffers["largest"].fill(largest)
            self._largest = largest
        self._repeat(self._exchange_copies)
        self._gpu.join()
        self._repeat(self._evaluate)
        n, dtype, empty = len(positions), self._run.buffers["charges"].dtype, self._gpu.arrays.empty
        found = [empty(shape, dtype) for shape in (n, (n, 3), (n, 3))]
        energy = empty(1)
        self._program.finish(*found)
        self._all_gather(list(self._run.buffers["sums"]))
        self._program.add_energies(energy)
        return [*found, energy]

    def _sums(self) -> list[float]:
        """The sums over the particles of all ranks, which the host waits for."""
        return to_host(self._run.buffers["sums"]).sum(0).tolist()

    def _fill(self, name: str, values) -> None:
        buffer = self._run.buffers[name]
        buffer[...] = self._gpu.arrays.asarray(values.astype(buffer.dtype))

    def _prepare(self, positions: np.ndarray, width: float, virial: bool) -> None:
        """Share the boxes among the ranks, by the parts in them, and make the program."""
        self._gpu.join()  # earlier stages, whose memory these may get, can have begun an evaluation
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
        if not self._planes.are_boxes:
            exchanged = self._planes.sent, self._planes.received
            self._boxes, self._places = (list(map(self._gpu.arrays.asarray, k)) for k in exchanged)
        is_owner = self._shares.owner[:, None] == np.arange(comm.size)
        self._make_for(np.column_stack([parts @ self._shares.near, parts @ is_owner]))
        self._use(virial)
        bits = 1 << np.arange(comm.size, dtype=np.uint32)
        masks = [bits[self._shares.owner], self._shares.near @ bits]
        self._fill("box_ranks", np.column_stack(masks).astype(np.uint32))
        self._fill("pattern", 2 * self._patterns.pattern)  # the lowest bit is the kernels'
        self._fill("pattern_start", self._patterns.start)
        self._fill("partner", self._patterns.partner)
        self._fill("charges", self._charges)

    def _make_for(self, numbers: np.ndarray) -> None:
        """Have the next programs made with room for copies.

        Args:
            numbers: of the copies that this rank sends to each, see :class:`CopyRooms`.
        """
        given = self._given.stop - self._given.start
        self._most, self._rooms = numbers, CopyRooms.for_numbers(self._comm, numbers, given)

    def _use(self, virial: bool, given: dict | None = None) -> None:
        """Use the program without or with the virial. It is made on first use.

        Args:
            given: buffers of earlier programs, which a new one takes where it has the same; those
                of the present ones by default.
        """
        if virial not in self._programs:
            self._programs[virial] = self._made(virial, self._buffers() if given is None else given)
        if self._program is not self._programs[virial]:
            self._program, self._begun = self._programs[virial], None

    def _buffers(self) -> dict[str, Any]:
        """The buffers of all programs."""
        found: dict[str, Any] = {}
        for program in self._programs.values():
            found |= program.run.buffers
        return found

    def _made(self, virial: bool, given: dict) -> RankRun:
        """A program; arguments as of :meth:`_use`."""
        rank = self._comm.rank
        share = self._shares.ranges[rank]
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
            rooms.results_from[last].stop,
        )
        boxes = Share(share.start, share.stop, max(1, share.stop - share.start))
        lattice = LatticeShare(self._planes.ranges[rank], self._waves, self._planes.are_boxes)
        wanted = self._specification, self._gpu.facts, sizes, boxes, lattice, virial
        program = agree(self._comm, lambda: build_rank(*wanted))
        kept = {
            name: given[name]
            for name, buffer in program.buffers.items()
            if name in given and given[name].shape == buffer.shape and not buffer.within
        }
        given.clear()
        of_evaluations = {"positions", *RESULTS, "energy"}  # each has its own
        for name in of_evaluations - kept.keys():
            kept[name] = self._gpu.arrays.empty(0, program.buffers[name].dtype)
        run = agree(self._comm, lambda: self._gpu.made(program, kept, EXCHANGED))
        for name in {"located", "place"} - kept.keys():
            run.buffers[name].fill(0)  # read for partners for whose copies there is no room
        run.buffers["rooms"][...] = self._gpu.arrays.asarray(rooms.table)
        derivatives, waves = "operator_derivatives", self._waves[rank]
        if virial and derivatives not in kept and waves.stop > waves.start:
            self._gpu.fill_derivatives(run, self.lattice, self._specification.order, waves.start)
        mark = self._gpu.kernel(run, MARK, "positions")
        finish = self._gpu.kernel(run, FINISH, *RESULTS)
        add_energies = self._gpu.kernel(run, ENERGY, "energy")
        return RankRun(run, mark, finish, add_energies, self._copies_to_send(run.buffers))

    def _make_room(self, virial: bool) -> None:
        """Make the program again, with room for the copies of the last evaluation."""
        numbers = self._by_rank(to_host(self._run.buffers["sent_number"]))
        given = self._buffers()
        self._program, self._programs = None, {}
        self._make_for(np.maximum(np.array(numbers, np.int64), self._most))
        self._use(virial, given)

    def _exchange_copies(self) -> None:
        """Queue the exchange of copies, as far as there is room for them."""
        if not self._sends_first:
            owners = [self._run.buffers["owners"][one] for one in self._bounds]
            self._all_gather(owners)
            self._send()
        self._gpu.exchange(self._comm.rank, *self._program.copies)

    def _evaluate(self) -> None:
        """Queue an evaluation of the copies, up to the sums of results from other ranks."""
        run = self._run
        run.queue(*SUMMING)
        self._expand()
        run.queue(*EXPANDING)
        self._return_results()
        run.queue(ADD)

    def _by_rank(self, rows) -> list:
        """Rows in the order of the copies, in the order of the ranks."""
        return [rows[place] for place in np.argsort(self._rooms.order)]

    def _copies_to_send(self, buffers: dict[str, Any]) -> list[tuple[list, list]]:
        """The arrays of copies, and their numbers, that ranks exchange."""
        rooms = self._rooms
        outgoing = [buffers["sent"][one] for one in rooms.sent_to]
        incoming = [buffers["received"][one] for one in rooms.received_from]
        numbers = (self._by_rank(buffers[f"{name}_number"]) for name in ("sent", "received"))
        return [self._between(outgoing, incoming), self._between(*numbers)]

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
        run.queue(FORWARD)
        self._transpose([spectrum[one] for one in of_planes], [local[one] for one in of_waves])
        run.queue(CONVOLVE)
        self._transpose([spectrum[one] for one in of_waves], [local[one] for one in of_planes])
        run.queue(INVERSE)
        if not shares.are_boxes:
            self._empty_grids()
        if self.lattice.background:
            self._all_gather(list(buffers["traces"]))
            self._gpu.arrays.sum(buffers["traces"], 0, out=buffers["trace"][0])

    def _transpose(self, sources: list, targets: list) -> None:
        """Fill ``targets[r]`` with what rank r has in its ``sources`` for this one."""
        self._exchange(*self._between(sources, targets))

    def _fill_grids(self) -> None:
        """Fill the grids of this rank with the moments of the boxes in its planes."""
        moments = self._run.buffers["moments"]
        grids = self._run.buffers["grids"].reshape(len(moments), -1)
        sent = [moments[:, boxes] for boxes in self._boxes]
        blocks = self._exchanged(sent, [(len(moments), len(to)) for to in self._places])
        for places, block in zip(self._places, blocks, strict=True):
            grids[:, places] = block

    def _empty_grids(self) -> None:
        """The inverse of :meth:`_fill_grids`, for local expansions."""
        local = self._run.buffers["moments"]
        grids = self._run.buffers["grids"].reshape(len(local), -1)
        sent = [grids[:, places] for places in self._places]
        blocks = self._exchanged(sent, [(len(local), len(to)) for to in self._boxes])
        for boxes, block in zip(self._boxes, blocks, strict=True):
            local[:, boxes] = block

    def _exchanged(self, sent: list, shapes: list[tuple[int, ...]]) -> list:
        """What each rank sends to this one while this sends ``sent[r]`` to rank r."""
        xp, rank = self._gpu.arrays, self._comm.rank
        sent = [xp.ascontiguousarray(block) for block in sent]
        found = [
            sent[rank] if other == rank else xp.empty(shape, sent[rank].dtype)
            for other, shape in enumerate(shapes)
        ]
        self._exchange(sent, found)
        return found


def _blocks(ranges: list[slice], size: int) -> list[slice]:
    """The places of arrays of so many values for each item of ranges."""
    return [slice(size * each.start, size * each.stop) for each in ranges]
