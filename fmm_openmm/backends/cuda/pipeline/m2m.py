"""The stage m2m: from moments of the leaves to those of the levels above and of the root grid,
and the sums of the trace term."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import TRACE_SIDE, Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import (
    TRANSLATE_THREADS,
    WARP,
    LevelTables,
    groups,
    half_of,
    parents,
)

TRACE_SUMS = 8
"""Number of sums in ``kernels/trace_levels.cu``."""

TRACE_LEVEL_TERMS = 11
"""Coefficients that it writes."""


def m2m(b: Builder, tables: LevelTables) -> list[str]:
    """Moments of all levels above the leaves, and the sums of the trace term."""
    pyramid = ["moments", *(f"moments{level}" for level in range(1, b.levels + 1))]
    b.stage("m2m", m2m=tables.tile_bytes, m2m_sum=0)
    _trace(b)
    for level in range(b.levels, 0, -1):
        half = half_of(level)
        b.launch(
            "m2m", (-(-parents(b, half) // tables.tile), 8), TRANSLATE_THREADS, np.int32(half),
            "child_tables", pyramid[level], "level_sums"
        )  # fmt: skip
        b.launch(
            "m2m_sum", (groups(b, half), -(-b.terms // 8)), 8 * WARP, np.int32(half),
            "root_slots", "level_sums", pyramid[level - 1]
        )  # fmt: skip
    return pyramid


def _trace(b: Builder) -> None:
    if b.lattice.background == 0.0:
        b.table("trace", np.zeros(TRACE_LEVEL_TERMS), np.float64)
        b.record("traced")
        return
    b.stage("m2m", "trace_levels", trace_leaves=0, trace_sums=0)
    half, squares = half_of(b.levels), np.int32(b.program.buffers["square"].shape[0])
    blocks = min(-(-8 * parents(b, half) // 256), 2 * b.device.multiprocessors)
    b.buffer("trace_partial", (blocks, TRACE_SUMS), np.float64)
    b.buffer("trace", TRACE_LEVEL_TERMS, np.float64)
    b.record("leaves")
    b.wait("leaves", TRACE_SIDE)
    b.launch(
        "trace_leaves", blocks, 256, np.int32(half), "parameters", "background",
        f"moments{b.levels}", "trace_partial", stream=TRACE_SIDE
    )  # fmt: skip
    b.launch(
        "trace_sums", 1, 256, np.int32(blocks), "trace_partial", squares, "square", "background",
        "trace", stream=TRACE_SIDE,
    )  # fmt: skip
    b.record("traced", TRACE_SIDE)
