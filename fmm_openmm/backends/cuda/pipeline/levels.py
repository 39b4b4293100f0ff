"""Levels below the root grid: the stages m2m, l2l and m2l.

Expansions of level k, the leaves' being those of the last, lie in the buffers ``moments<k>`` and
``local<k>``, in the slabs of ``kernels/common/levels.cuh``; those of the root grid in ``moments``
and ``local``, as without levels.
"""

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.lattice import TRACE_SIDE
from fmm_openmm.backends.cuda.pipeline.m2l import WARP, groups, made_of, parents
from fmm_openmm.backends.cuda.program import SETUP, Builder
from fmm_openmm.box import index_grid
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.translations import exchange
from fmm_openmm.implementations import M2L, implementation

LARGEST_ORDER = 20
"""Of expansions on levels: the registers and the shared memory of the kernels suffice for these."""

TRANSLATE_THREADS = 256
"""A block of m2m and l2l."""

M2L_ADD_WARPS = 8
"""A block of m2l_add."""

TRACE_SUMS = 8
"""Of ``kernels/trace_levels.cu``."""


def slots(b: Builder) -> np.ndarray:
    """Where the expansion of every leaf begins in slabs, first axis fastest,
    shape (boxes,) int64."""
    half = 2 ** (b.levels - 1)
    index = index_grid(0, b.lattice.span).reshape(-1, 3)
    n0, n1, _ = b.lattice.span // 2
    child, parent = index % 2 @ (1, 2, 4), index // 2 @ (1, n0, n0 * n1)
    return (child * groups(b, half) + parent // WARP) * (b.terms * WARP) + parent % WARP


class Levels:
    """Adds the tables and buffers of all levels; then its methods add the stages.

    Args:
        m2l: name of the operator.
    """

    def __init__(self, b: Builder, m2l: str):
        if b.order > LARGEST_ORDER:
            raise UnsupportedError(
                f"`order` must be at most {LARGEST_ORDER} with `levels` on a GPU, got {b.order}"
            )
        if b.boxes * b.terms >= 2**31 - 8 * WARP * b.terms:
            raise UnsupportedError(
                f"`levels` leads to {b.boxes} boxes, too many for a GPU with {b.terms} terms each"
            )
        self._b, rotated = b, m2l == "rotation"
        span, counts = b.root.span, b.root.counts
        self._tile = next(
            (n for n in (32, 16) if 2 * n * b.terms * b.real.itemsize <= b.device.shared), 8
        )
        self._memory = 2 * self._tile * b.terms * b.real.itemsize
        turns = np.concatenate([block.ravel() for block in exchange(b.order)])
        entries = 2 * len(turns) + b.order + 1 if rotated else b.terms**2
        b.macros(
            ROTATED=int(rotated),
            TRANSLATE_BOXES=self._tile,
            TRANSLATE_THREADS=TRANSLATE_THREADS,
            M2L_ADD_WARPS=M2L_ADD_WARPS,
            **{f"ROOT{k}": int(span[k]) for k in range(3)},
            **{f"ROOT{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
        )
        interactions = Interactions(b.lattice)
        b.table("root_slots", b.root.slots_of(span), np.int32)
        b.table("interactions", interactions.list, np.int32)
        b.table("exchange", turns, np.float64)
        b.buffer("shifts_of_children", (8, b.terms), np.float64)
        b.buffer("child_tables", (8, entries), b.real)
        apart = b.smoothing > 0 and b.real == np.float32
        b.macros(APART=int(apart))
        if apart:
            b.buffer(
                "zero_rows", (len(interactions.translations), -(-b.terms // 2) * 2), np.float64
            )
            made_of(b, "zero_rows", interactions.translations)
        else:
            b.table("zero_rows", [0.0], np.float64)
        b.stage(SETUP, file="children", shifts=0, child_tables=0)
        b.launch("shifts", 1, 8, "parameters", "shifts_of_children")
        b.launch(
            "child_tables", (-(-entries // 128), 8), 128, "exchange", "shifts_of_children",
            "parameters", "child_tables"
        )  # fmt: skip
        self._operator, self._count = (
            implementation(M2L, m2l, "cuda")(b, interactions),
            np.int32(interactions.list.shape[1]),
        )
        b.stage(SETUP)
        b.table("central0", [0.0], np.float64)  # the root grid's are in ``local``
        most = 1
        for level in range(1, b.levels + 1):
            slabs = 8 * groups(b, self._half(level))
            shape = b.terms, WARP
            b.buffer(f"moments{level}", (slabs + b.lattice.is_open, *shape), b.real)
            b.buffer(f"local{level}", (slabs, *shape), b.real)
            b.buffer(f"central{level}", (slabs, WARP), np.float64)
            most = max(most, slabs * self._operator.shares(b, self._half(level)))
            if b.lattice.is_open:
                b.memset(f"moments{level}")
        b.buffer("level_sums", (most, b.terms, WARP), b.real)

    @staticmethod
    def _half(level: int) -> int:
        """Boxes of the level above along an axis for one of the root grid."""
        return 2 ** (level - 1)

    def m2m(self) -> None:
        """Moments of all levels above the leaves, and the sums of the trace term."""
        b = self._b
        b.stage("m2m", m2m=self._memory, m2m_sum=0)
        self._trace()
        for level in range(b.levels, 0, -1):
            half = self._half(level)
            blocks, above = (
                -(-parents(b, half) // self._tile),
                f"moments{level - 1}" if level > 1 else "moments",
            )
            b.launch(
                "m2m", (blocks, 8), TRANSLATE_THREADS, np.int32(half), "child_tables",
                f"moments{level}", "level_sums"
            )  # fmt: skip
            b.launch(
                "m2m_sum", (groups(b, half), -(-b.terms // 8)), 8 * WARP, np.int32(half),
                "root_slots", "level_sums", above
            )  # fmt: skip

    def _trace(self) -> None:
        b = self._b
        if b.lattice.is_open:  # there is no background
            b.table("sums", np.zeros(TRACE_SUMS + 1), np.float64)
            b.record("traced")
            return
        b.stage("m2m", file="trace_levels", trace_leaves=0, trace_sums=0)
        half, squares = self._half(b.levels), np.int32(b.program.buffers["square"].shape[0])
        blocks = min(-(-8 * parents(b, half) // 256), 2 * b.device.multiprocessors)
        b.buffer("trace_partial", (blocks, TRACE_SUMS), np.float64)
        b.buffer("sums", TRACE_SUMS + 1, np.float64)
        b.record("leaves")
        b.wait("leaves", TRACE_SIDE)
        b.launch(
            "trace_leaves", blocks, 256, np.int32(half), "parameters", f"moments{b.levels}",
            "trace_partial", stream=TRACE_SIDE
        )  # fmt: skip
        b.launch(
            "trace_sums",
            1,
            256,
            np.int32(blocks),
            "trace_partial",
            squares,
            "square",
            "sums",
            stream=TRACE_SIDE,
        )
        b.record("traced", TRACE_SIDE)

    def descend(self) -> None:
        """Local expansions of the levels, from the root grid's down to the leaves'."""
        for level in range(1, self._b.levels + 1):
            self._l2l(level)
            self._m2l(level)

    def _l2l(self, level: int) -> None:
        b, half = self._b, self._half(level)
        b.stage(f"l2l{level}", file="l2l", l2l=self._memory)
        above, central = (
            (f"local{level - 1}", f"central{level - 1}") if level > 1 else ("local", "central0")
        )
        b.launch(
            "l2l", (-(-parents(b, half) // self._tile), 8), TRANSLATE_THREADS, np.int32(half),
            "root_slots", "child_tables", "shifts_of_children", above, central, f"local{level}",
            f"central{level}",
        )  # fmt: skip

    def _m2l(self, level: int) -> None:
        b, half, moments = self._b, self._half(level), f"moments{level}"
        b.stage(f"m2l{level}", file="m2l_add", m2l_add=0)
        self._operator.launch(b, half, moments)
        if level == 1:
            b.wait("traced")
        leaves, shares = np.int32(level == b.levels), np.int32(self._operator.shares(b, half))
        b.launch(
            "m2l_add", (groups(b, half), 8), WARP * M2L_ADD_WARPS, np.int32(half), leaves,
            self._count, "interactions", "zero_rows", moments, shares, "level_sums", "sums",
            "parameters", f"central{level}", f"local{level}",
        )  # fmt: skip
