"""Energies among many small groups of particles as one program: near pairs once for all groups, and
the far field fragment by fragment, see :mod:`fmm_openmm.backends.cpu.groups`."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.description import Description, builder, described
from fmm_openmm.backends.cuda.pipeline.fft import Fourier
from fmm_openmm.backends.cuda.pipeline.p2m import p2m
from fmm_openmm.backends.cuda.pipeline.p2p import list_near
from fmm_openmm.backends.cuda.pipeline.setup_tables import mirrored
from fmm_openmm.backends.cuda.program import SETUP, At, Device, Program
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.specification import Specification

BLOCK, TRACE_SUMS = 128, 5
"""As in ``kernels/sets/groups.cu``."""

STATIC_BYTES = 8 * 1024
"""Bytes of shared memory that a block of far_groups takes besides matrix and columns, at most."""

COLUMN_BYTES = 32
"""Bytes of a term of the fragments that a warp of far_groups multiplies together."""

MOST_ROWS = 160
"""Rows of a matrix in far_groups, at most: their sums fill the registers."""


def far_shape(order: int, real: np.dtype, shared: int) -> tuple[int, int]:
    """Warps of a block of far_groups, and rows of a matrix that it holds in shared memory: all, or
    equal shares of them; 0 if there is no room for any.

    Args:
        shared: bytes of dynamic shared memory that a block may ask for.
    """
    terms = (order + 1) ** 2
    whole = -(-terms // 32)
    for warps in (16, 8, 4):
        free = (shared - STATIC_BYTES) // terms - warps * COLUMN_BYTES
        most = min(free // (32 * real.itemsize), MOST_ROWS // 32)
        if most >= min(2, whole) or (most == 1 and warps == 4):
            return warps, 32 * -(-whole // -(-whole // most))
    return 4, 0


class GroupsDescription(Description):
    """The stages for the energies among the groups in "group", shape (n,), of charges of at most 1.
    NaN marks entries with a potential, of a charge in box widths, beyond "limit"."""

    def __init__(self, b: Builder, specification: Specification, groups: int):
        super().__init__(b, specification, None)
        self._groups = np.int32(groups)
        self._fragments = "start", "fragment_head", "fragment_owner", "fragment_count"
        b.macros(MIRRORED=int(mirrored(b.root)))
        b.buffer("group", b.n, np.int32)
        b.buffer("limit", 1, b.real)
        b.buffer("totals", (groups, groups + TRACE_SUMS, 2), np.int64)
        b.buffer("undefined", (groups, groups + TRACE_SUMS), np.uint8)
        b.buffer("energies", (groups, groups), np.float64)
        self._transform_operator()

    def _transform_operator(self) -> None:
        """The lattice operator in real space, as many terms at a time as there are moments."""
        b, fourier = self._b, Fourier.from_builder(self._b)
        rounds = -(-((2 * b.order + 1) ** 2) // b.terms)
        for name in ("spectrum", "local_spectrum") if fourier.sums else ("local_spectrum",):
            b.buffer(name, (b.terms, *fourier.half), b.complex)
        b.buffer("in_space", (rounds, b.terms, *fourier.shape), b.real)
        b.stage(SETUP, "groups", spread_operator=0)
        values = b.terms * int(np.prod(fourier.half))
        for part in range(rounds):
            first = part * b.terms
            b.launch(
                "spread_operator", -(-values // BLOCK), BLOCK, np.int32(first), "operator",
                "local_spectrum",
            )  # fmt: skip
            fourier.inverse(b, At("in_space", first * b.root.size))

    def p2m(self, parts):
        b = self._b
        p2m(b, parts)
        b.stage("p2m", "groups", list_fragments=0, fragment_moments=0)
        b.memset("totals")
        b.memset("undefined")
        b.buffer("fragment_xq", (b.parts, 4), b.real)
        for name in ("fragment_part", "fragment_head", "fragment_owner"):
            b.buffer(name, b.parts, np.int32)
        b.buffer("fragment_count", b.boxes, np.int32)
        b.buffer("fragment_moments", (b.parts, b.terms), b.real)
        b.launch(
            "list_fragments", -(-b.boxes * 32 // BLOCK), BLOCK, parts.start, parts.x,
            parts.particle, "group", "fragment_xq", "fragment_part", *self._fragments[1:],
        )  # fmt: skip
        b.launch(
            "fragment_moments", b.boxes, BLOCK, self._groups, *self._fragments, "fragment_xq",
            "background", "fragment_moments", "totals", "undefined",
        )  # fmt: skip
        return "fragment_moments"

    def lattice_m2l(self, moments):
        return moments

    def l2p(self, parts, moments, local):
        b, terms = self._b, self._b.terms
        index, weight = coupling(b.order)
        sign = np.where(degrees(b.order) % 2, -1.0, 1.0)[:, None, None]
        b.table("coupling_index", index.transpose(1, 0, 2), np.int32)
        b.table("coupling_weight", (sign * weight).transpose(1, 0, 2), b.real)
        box_at = np.full(b.root.size, -1)
        box_at[b.program.buffers["slots"].data] = np.arange(b.boxes)
        b.table("box_at", box_at, np.int32)
        warps, rows = far_shape(b.order, b.real, b.device.shared)
        b.macros(FAR_WARPS=warps, FAR_ROWS=rows)
        shared = terms * (rows * b.real.itemsize + warps * COLUMN_BYTES)
        b.stage("l2p", "groups", far_groups=shared)
        b.launch(
            "far_groups", (b.root.size, -(-terms // rows)), 32 * warps, self._groups, "start",
            "fragment_owner", "fragment_count", "slots", "box_at", "in_space", "coupling_index",
            "coupling_weight", moments, "totals", "undefined",
        )  # fmt: skip
        return []

    def p2p(self, parts, near, out):
        b = self._b
        b.stage("p2p", "groups", near_groups=0, distant_groups=0)
        list_near(b, 4)
        sums = "parameters", "limit", "totals", "undefined"
        b.launch(
            "near_groups", b.boxes, BLOCK, np.int32(b.n), self._groups, *self._fragments,
            "fragment_xq", "fragment_part", parts.box, parts.weight, "offsets", "shifts",
            near.start, near.part, *sums,
        )  # fmt: skip
        b.launch(
            "distant_groups", -(-b.parts // BLOCK), BLOCK, np.int32(b.n), self._groups, parts.start,
            parts.x, parts.particle, "place", "group", parts.box, parts.weight, near.offset,
            near.start, near.part, *sums,
        )  # fmt: skip

    def gather(self, parts, out):
        b = self._b
        b.stage("gather", "groups", finish_groups=0)
        b.launch(
            "finish_groups", -(-int(self._groups) ** 2 // BLOCK), BLOCK, self._groups, "totals",
            "undefined", "background", "parameters", "energies",
        )  # fmt: skip
        return "energies", "energies"


def build_groups(specification: Specification, device: Device, groups: int) -> Program:
    """The program for the energies among a number of groups, without levels, of an order for which
    :func:`far_shape` has rows. The energies are half the sum of the buffer "energies" and its
    transpose.

    Raises:
        UnsupportedError: see :func:`fmm_openmm.backends.cuda.pipeline.description.build`.
    """
    b = builder(specification, device)
    return described(b, GroupsDescription(b, specification, groups))
