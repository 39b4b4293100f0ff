"""The program of a rank among many that share particles, one GPU each; without levels.

The rank is given some particles and owns a range of boxes. For the convolution it has some planes
of the grids of all terms, which it transforms along the last two axes, and some wave vectors along
the last axis, for which it transforms along the first axis and multiplies with the operator. What
happens between the stages, the exchange of particles, spectra and results, is up to the caller.
"""

from dataclasses import dataclass, replace

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.description import Description, builder, described
from fmm_openmm.backends.cuda.pipeline.fft import OTHER, Fourier
from fmm_openmm.backends.cuda.pipeline.lattice import TRACE_TERMS, convolve, trace
from fmm_openmm.backends.cuda.pipeline.p2m import p2m
from fmm_openmm.backends.cuda.pipeline.p2p import list_offsets, p2p
from fmm_openmm.backends.cuda.pipeline.sort import lists, survey
from fmm_openmm.backends.cuda.pipeline.virial import lattice_work, works
from fmm_openmm.backends.cuda.program import BACKGROUND, SETUP, At, Device, Program, Share
from fmm_openmm.expansions.operators.derivatives import GENERATORS
from fmm_openmm.specification import Specification
from fmm_openmm.stages import NearExclusions

MOST_RANKS = 32
"""Maximum number of ranks, the bits of a mask of ``kernels/ranks.cu``."""

MARK, KEEP, SEND = "mark_particles", "own_copies", "copies_for_others"
"""Stages of the particles that the rank is given, the first one a kernel that reads "positions",
whose address it keeps. The other two may run concurrently: one makes the rank's own copies, the
other one fills in "sent", copies for other ranks as far as there is room for them, and
"sent_number". Before that the caller fills in "owners" of the particles of other ranks that are
excluded partners; after it the caller sends copies and numbers to the other ranks."""

SUMMING = ("sort", "p2m", "p2p")
"""The stages from the copies to the moments of the rank's boxes. p2p runs concurrently with all
stages up to "gather"."""

FORWARD = "forward"
"""The stage that transforms "grids", the rank's planes, which the stage "sort" has zeroed unless
they are "moments": values for the wave vectors of other ranks go to "spectrum", those for the
rank's own wave vectors to "local_spectrum", where the caller fills in those of other planes. The
layouts are those of ``kernels/common/spectra.cuh``."""

CONVOLVE = "lattice"
"""The stage from "local_spectrum" to "spectrum", all planes of the rank's wave vectors, and to the
rank's row of "traces", of which "trace" is to be the sum over ranks. Then the caller fills in
"local_spectrum": the rank's planes for the wave vectors of the others."""

INVERSE = "inverse"
"""The stage back to "grids"."""

EXPANDING = ("l2p", "gather")
"""The stages from local expansions to "xq", where the results of copies of other ranks' particles
replace the parts. The caller sends them to the other ranks, and fills in "returned". For the
virial, the rank's share of the products of the virial with the generators of strain follows the
first :data:`RESULT_SUMS` in its row of "sums"."""

ADD = "add_returned"
"""The stage that adds up "returned"."""

FINISH, RESULTS = "finish", ("potentials", "fields", "forces")
"""The stage, a kernel, from these sums and the results of parts to the results of the given
particles, and their buffers; it also fills in the rank's row of "sums". The caller fills in those
of the others."""

ENERGY = "add_energies"
"""The stage, a kernel, from "sums" to "energy", kJ/mol, that of the particles of all ranks."""

EXCHANGED = ("spectrum", "local_spectrum", "xq", "returned")
"""Large buffers from which and to which the caller sends."""

BLOCK, FINISH_BLOCK, SUM_BLOCK = 256, 256, 1024

RESULT_SUMS = 7
"""Number of sums over the given particles."""

FINISH_BLOCKS = 16
"""Maximum blocks of the stage finish per multiprocessor. The last block adds up the sums of all."""


@dataclass(frozen=True, eq=False)
class RankSizes:
    """The numbers of a rank and of its particles.

    Attributes:
        rank, ranks: number of the rank, and number of all ranks.
        all: particles of all ranks.
        first, given: number of the first particle that the rank is given, and how many.
        patterns, partners: lists of excluded partners, which particles share, and their total
            length (``kernels/ranks.cu``).
        sent, copies: copies that the rank sends to others at most, and that it has: first one of
            each particle that it is given.
        returned: results that others send to it at most.
    """

    rank: int
    ranks: int
    all: int
    first: int
    given: int
    patterns: int
    partners: int
    sent: int
    copies: int
    returned: int


@dataclass(frozen=True, eq=False)
class LatticeShare:
    """The share of a rank in the convolution.

    Attributes:
        planes: the planes of the Fourier grid that it transforms.
        waves: for each rank the wave vectors whose moments it multiplies with the operator, a range
            of their last index.
        is_direct: whether the planes are its boxes, in their order: then "grids" are "moments".
    """

    planes: slice
    waves: list[slice]
    is_direct: bool


class RankDescription(Description):
    """The stages of a rank.

    Buffers that the caller fills, besides ``positions`` and ``charges`` of the given particles:
    ``box_ranks``, masks of the rank that owns each box and of those with near boxes; ``pattern`` of
    the given particles, doubled, and ``pattern_start`` and ``partner`` of all patterns; ``rooms``
    of copies and ``largest``, of the potentials (``kernels/ranks.cu``); and ``received``, the
    copies of other ranks' particles, with ``received_number``.
    """

    def __init__(
        self, b: Builder, specification: Specification, sizes: RankSizes, share: LatticeShare
    ):
        super().__init__(b, specification, None)
        self._sizes, self._share = sizes, share
        self._received = sizes.copies - sizes.given
        self._received_blocks = max(1, -(-self._received // BLOCK))

    def sort(self, positions, width):
        b, sizes = self._b, self._sizes
        b.buffer("positions", (sizes.given, 3), np.float64)
        b.buffer("positions_address", 1, np.uint64)
        b.buffer("charges", sizes.given, b.real)
        b.buffer("box_ranks", (b.boxes, 2), np.uint32)
        b.buffer("owners", sizes.all, np.uint32)
        b.buffer("wanted", sizes.given, np.uint32)
        b.buffer("pattern", sizes.given, np.int32)
        b.buffer("pattern_start", sizes.patterns + 1, np.int32)
        b.buffer("partner", sizes.partners, np.int32)
        b.buffer("rooms", (sizes.ranks, 6), np.int32)
        b.buffer("sent_number", (sizes.ranks, 2), np.int32)
        b.buffer("received_number", (sizes.ranks, 2), np.int32)
        b.buffer("tag", (self._received, 2), np.int32)
        b.buffer("copy_of", sizes.all, np.int32)
        given, blocks = np.int32(sizes.given), max(1, -(-sizes.given // BLOCK))
        rank, ranks, first = map(np.int32, (sizes.rank, sizes.ranks, sizes.first))
        lists_of_warps = 2 * (sizes.ranks - 1) * blocks * (BLOCK // 32)
        chunks = -(-lists_of_warps // (4 * SUM_BLOCK))
        b.buffer("listed", lists_of_warps, np.int32)
        b.buffer("before", chunks, np.int32)
        b.buffer("ticket", 1, np.int32)
        b.buffer("returned_to", sizes.returned, np.int32)
        packed = 6 * np.dtype(np.int32).itemsize + 4 * b.real.itemsize
        for name, copies in (("sent", sizes.sent), ("received", self._received)):
            b.buffer(name, (copies, packed), np.uint8)
        b.macros(COPIES=1, SUM_BLOCK=SUM_BLOCK)
        lists(b)
        b.stage(SETUP)
        b.memset("arrived")  # see sort
        b.memset("copy_of")  # of partners for whose copies there was no room
        address, tagged = "positions_address", ("charges", "pattern", "parameters")
        owners = At("owners", sizes.first)
        lists_of_boxes = np.int32(b.n), "located", "fraction", "count", "arrived", "next"
        b.stage(MARK, "ranks", mark_particles=0)
        counts = np.int32(b.boxes + 2)
        b.launch(
            "mark_particles", blocks, BLOCK, given, "positions", "charges", "parameters", rank,
            "box_ranks", owners, "wanted", "pattern", address, "ticket", counts, "count",
        )  # fmt: skip
        b.stage(KEEP, "ranks", keep_copies=0)
        b.record("marked")
        b.wait("marked", BACKGROUND)
        b.launch(
            "keep_copies", blocks, BLOCK, given, rank, address, "charges", "parameters", "wanted",
            *lists_of_boxes, stream=BACKGROUND,
        )  # fmt: skip
        b.record("kept", BACKGROUND)
        b.wait("kept")
        if sizes.ranks > 1:
            b.stage(SEND, "ranks", mark_partners=0, sum_lists=0, make_copies=0)
            b.launch(
                "mark_partners", blocks, BLOCK, given, rank, ranks, first, address, *tagged,
                "pattern_start", "partner", "owners", "wanted", "listed", *lists_of_boxes,
            )  # fmt: skip
            b.launch(
                "sum_lists", chunks, SUM_BLOCK, np.int32(lists_of_warps), "listed", "before",
                "ticket",
            )  # fmt: skip
            b.launch(
                "make_copies", blocks, BLOCK, given, rank, ranks, first, address, *tagged, owners,
                "wanted", "listed", "before", "rooms", "sent_number", "sent", "returned_to",
            )  # fmt: skip
        b.stage("sort", "ranks", place_copies=0)
        if b.lattice.is_padded:  # some planes of which have no boxes
            b.memset("local_spectrum")
        if not self._share.is_direct:
            b.memset("grids")
        b.launch(
            "place_copies", self._received_blocks, BLOCK, ranks, "rooms", "received_number",
            "received", *lists_of_boxes, "tag", "copy_of",
        )  # fmt: skip
        b.stage("sort", survey=0)
        return survey(b)

    def p2m(self, parts):
        return p2m(self._b, parts)

    def lattice_m2l(self, moments):
        b, share, (d0, d1, d2) = self._b, self._share, self._b.root.fft_shape
        waves, grids = b.waves, "moments" if share.is_direct else "grids"
        width, planes = waves.stop - waves.start, share.planes.stop - share.planes.start
        fourier = Fourier.from_builder(b, planes)
        plane = b.terms * d1 * width
        values = max(b.terms * d1 * planes * fourier.half[2], d0 * plane)
        b.buffer("spectrum", values, b.complex)
        b.buffer("local_spectrum", values, b.complex)
        ranges = [(each.start, each.stop - each.start) for each in share.waves]
        b.table("wave_ranges", np.repeat(ranges, [many for _, many in ranges], axis=0), np.int32)
        own = share.planes.start * plane
        if not share.is_direct:
            b.buffer(grids, (b.terms, planes, d1, d2), b.real)
        b.stage(FORWARD)
        if planes:
            fourier.forward_planes(b, grids, At("local_spectrum", own), "wave_ranges", "spectrum")
        here = "local_spectrum"
        b.stage(CONVOLVE)
        if width:
            here = fourier.forward_columns(b, here)
        if b.lattice.background:
            b.buffer("traces", (self._sizes.ranks, TRACE_TERMS), np.float64)
        own_trace = At("traces", TRACE_TERMS * self._sizes.rank)
        trace(b, here, d1 * width if waves.start == 0 else 0, own_trace)
        if b.virial:
            lattice_work(b, here)
        if width:
            convolve(b, here, OTHER[here])
        b.wait("traced")
        if b.virial:
            b.wait("lattice worked")
        if width:
            fourier.inverse_columns(b, OTHER[here])
        b.stage(INVERSE)
        if planes:
            fourier.inverse_planes(b, At("spectrum", own), "wave_ranges", "local_spectrum", grids)
        return moments

    def p2p(self, parts, near, out):
        sizes = self._sizes
        given = np.int32(sizes.given), np.int32(sizes.first)
        p2p(self._b, parts, near, out, (*given, "pattern", "tag", "copy_of"))

    def exclusions(self, parts, out):
        list_offsets(self._b)
        return NearExclusions(start="pattern_start", part="partner", offset="row_of")

    def gather(self, parts, out):
        b = self._b
        b.stage("gather", "ranks", clear_totals=0, gather_copies=0)
        sizes, given = self._sizes, self._sizes.given
        ranks = np.int32(sizes.ranks)
        b.buffer("totals", (given, 4), b.real)
        if sizes.ranks > 1 and given:
            b.launch("clear_totals", -(-given // BLOCK), BLOCK, np.int32(given), "totals")
        blocks = min(-(-given // FINISH_BLOCK), FINISH_BLOCKS * b.device.multiprocessors)
        blocks = max(1, blocks)
        b.buffer("partial", (blocks, max(RESULT_SUMS - 1, len(GENERATORS))), np.float64)
        row = RESULT_SUMS + len(GENERATORS) * b.virial
        b.buffer("sums", (sizes.ranks, row), np.float64)
        own_row = row * sizes.rank
        b.wait("near")
        if b.virial:
            b.stage("gather", "ranks", sum_strain=0)
            b.launch(
                "sum_strain", blocks, FINISH_BLOCK, parts.start, "share", parts.x, out[0],
                *works(b), "partial", At("count", b.boxes), At("sums", own_row + RESULT_SUMS),
            )  # fmt: skip
        results = (parts.box, parts.weight, "place", *out, "parameters", parts.start, "share")
        b.launch(
            "gather_copies", self._received_blocks, BLOCK, np.int32(b.n), ranks, "rooms",
            "received_number", "tag", *results, parts.x,
        )  # fmt: skip
        b.stage(ADD, "ranks", add_returned=0)
        returned = sizes.returned
        b.buffer("returned", (returned, 4), b.real)
        if returned:
            for distance in range(1, sizes.ranks):
                b.launch(
                    "add_returned", -(-returned // BLOCK), BLOCK, np.int32(distance),
                    "rooms", "sent_number", "returned_to", "returned", "totals",
                )  # fmt: skip
        b.stage(FINISH, "ranks", finish=0)
        b.buffer("largest", 1, np.float64)
        b.buffer("potentials", given, b.real)
        b.buffer("fields", (given, 3), b.real)
        b.buffer("forces", (given, 3), b.real)
        b.launch(
            "finish", blocks, FINISH_BLOCK, np.int32(given), ranks, "rooms", "sent_number",
            "pattern", np.int32(b.n), *results, "totals", "charges", "largest", *RESULTS, "partial",
            "ticket", At("sums", own_row),
        )  # fmt: skip
        b.stage(ENERGY, "ranks", add_energies=0)
        b.buffer("energy", 1, np.float64)
        b.launch("add_energies", 1, 1, ranks, np.int32(row), "sums", "energy")
        return "potentials", "fields"


def build_rank(
    specification: Specification,
    device: Device,
    sizes: RankSizes,
    share: Share,
    lattice: LatticeShare,
    virial: bool = False,
) -> Program:
    """The program of a rank.

    Args:
        specification: what is computed. Its charges and exclusions are ignored.
        device: the device of the rank.
        sizes: numbers of its particles.
        share: its boxes.
        lattice: its share in the convolution.
        virial: whether it also computes what the virial needs.

    Raises:
        UnsupportedError: see :func:`fmm_openmm.backends.cuda.pipeline.description.build`.
    """
    copies = np.broadcast_to(0.0, sizes.copies)
    wanted = replace(specification, charges=copies, exclusions=np.zeros((0, 2), np.int64))
    b = builder(wanted, device, virial=virial, share=share)
    b.crowd *= sizes.all / b.n
    b.waves = lattice.waves[sizes.rank]
    slots = np.full(b.boxes, -1)
    slots[share.first : share.end] = np.arange(share.end - share.first)
    b.table("slots", slots, np.int32)
    b.buffer("moments", (b.terms, share.most), b.real)
    b.macros(STRIDE=share.most, ORDERED=0)
    described(b, RankDescription(b, wanted, sizes, lattice))
    b.share_memory("spectrum", ("sent", "received", "arrived", "next", "number"), ("far",))
    b.share_memory("local_spectrum", ("owners", "wanted"), ("totals",))
    return b.program
