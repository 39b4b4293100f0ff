"""The tables and buffers of levels below the root grid, for the stages m2m, l2l and m2l.

Expansions of level k, the leaves' being those of the last, lie in the buffers ``moments<k>`` and
``local<k>``, in the slabs of ``kernels/common/levels.cuh``; those of the root grid in ``moments``
and ``local``, as without levels.
"""

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import index_grid
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.translations import exchange
from fmm_openmm.implementations import M2L, implementation

LARGEST_ORDER = 20
"""Largest order of expansions on levels, for which registers and shared memory of the kernels
suffice."""

TRANSLATE_THREADS = 256
"""Threads of a block of m2m and l2l."""

WARP = 32
"""Boxes of a slab."""


def half_of(level: int) -> int:
    """Number of boxes of the level above along each axis per box of the root grid."""
    return 2 ** (level - 1)


def parents(b: Builder, half: int) -> int:
    """Boxes that have children on the level whose parents' grid has ``half`` times as many boxes
    as the root grid."""
    return int(b.root.span.prod()) * half**3


def groups(b: Builder, half: int) -> int:
    """Warps that hold the boxes of one child position."""
    return -(-parents(b, half) // WARP)


def slots(b: Builder) -> np.ndarray:
    """Position in slabs of the first term of every leaf's expansion, first axis of the leaves
    fastest, shape (boxes,) int64."""
    index = index_grid(0, b.lattice.span).reshape(-1, 3)
    n0, n1, _ = b.lattice.span // 2
    child, parent = index % 2 @ (1, 2, 4), index // 2 @ (1, n0, n0 * n1)
    slab = child * groups(b, half_of(b.levels)) + parent // WARP
    return slab * (b.terms * WARP) + parent % WARP


class LevelTables:
    """Adds the tables and buffers of all levels.

    Args:
        m2l: name of the operator.

    Attributes:
        operator: that operator.
        sources: number of a box's sources in m2l.
        tile: boxes that a block of m2m or l2l translates.
        tile_bytes: shared memory of such a block.
    """

    def __init__(self, b: Builder, m2l: str):
        _check(b)
        self.tile = next(
            (n for n in (32, 16) if 2 * n * b.terms * b.real.itemsize <= b.device.shared), 8
        )
        self.tile_bytes = 2 * self.tile * b.terms * b.real.itemsize
        span, counts = b.root.span, b.root.counts
        b.macros(
            TRANSLATE_BOXES=self.tile,
            TRANSLATE_THREADS=TRANSLATE_THREADS,
            **{f"ROOT{k}": int(span[k]) for k in range(3)},
            **{f"ROOT{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
        )
        b.table("root_slots", b.root.slots_of(span), np.int32)
        interactions = Interactions(b.lattice)
        self.sources = interactions.list.shape[1]
        b.table("interactions", interactions.list, np.int32)
        _zero_rows(b, interactions)
        _translations(b, rotated=m2l == "rotation")
        self.operator = implementation(M2L, m2l, "cuda")(b, interactions)
        self._expansions(b)

    def _expansions(self, b: Builder) -> None:
        b.stage(SETUP)
        b.table("central0", [0.0], np.float64)  # the root grid's are in ``local``
        most = 1
        for level in range(1, b.levels + 1):
            slabs = 8 * groups(b, half_of(level))
            shape = b.terms, WARP
            b.buffer(f"moments{level}", (slabs + b.lattice.is_padded, *shape), b.real)
            b.buffer(f"local{level}", (slabs, *shape), b.real)
            b.buffer(f"central{level}", (slabs, WARP), np.float64)
            most = max(most, slabs * self.operator.shares(b, half_of(level)))
            if b.lattice.is_padded:
                b.memset(f"moments{level}")
        b.buffer("level_sums", (most, b.terms, WARP), b.real)


def _check(b: Builder) -> None:
    if b.order > LARGEST_ORDER:
        raise UnsupportedError(
            f"`order` must be at most {LARGEST_ORDER} with `levels` on a GPU, got {b.order}"
        )
    if b.boxes * b.terms >= 2**31 - 8 * WARP * b.terms:
        raise UnsupportedError(
            f"`levels` leads to {b.boxes} boxes, too many for a GPU with {b.terms} terms each"
        )


def _zero_rows(b: Builder, interactions: Interactions) -> None:
    """Tables with which m2l translates charges to potentials in double precision, apart from the
    other terms."""
    apart = b.smoothing > 0 and b.real == np.float32
    b.macros(APART=int(apart))
    if apart:
        b.buffer("zero_rows", (len(interactions.translations), -(-b.terms // 2) * 2), np.float64)
        made_of(b, "zero_rows", interactions.translations)
    else:
        b.table("zero_rows", [0.0], np.float64)


def _translations(b: Builder, rotated: bool) -> None:
    """The tables of m2m and l2l."""
    turns = np.concatenate([block.ravel() for block in exchange(b.order)])
    entries = 2 * len(turns) + b.order + 1 if rotated else b.terms**2
    b.macros(ROTATED=int(rotated))
    b.table("exchange", turns, np.float64)
    b.buffer("shifts_of_children", (8, b.terms), np.float64)
    b.buffer("child_tables", (8, entries), b.real)
    b.stage(SETUP, "children", shifts=0, child_tables=0)
    b.launch("shifts", 1, 8, "parameters", "shifts_of_children")
    b.launch(
        "child_tables", (-(-entries // 128), 8), 128, "exchange", "shifts_of_children",
        "parameters", "child_tables"
    )  # fmt: skip


def made_of(b: Builder, kernel: str, vectors: np.ndarray, *more: str) -> None:
    """Add the kernel of ``kernels/setup/translations.cu`` that computes the table of the same name
    from vectors, shape (k, 3) or (k, 4), box vectors, and from further tables."""
    b.stage(SETUP, "translations", **{kernel: 0})
    b.table(f"{kernel}_vectors", np.pad(vectors, ((0, 0), (0, 4 - vectors.shape[1]))), np.int32)
    b.launch(
        kernel,
        -(-len(vectors) // 64),
        64,
        np.int32(len(vectors)),
        f"{kernel}_vectors",
        *more,
        "parameters",
        kernel,
    )
