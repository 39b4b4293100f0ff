"""The stage l2l: from local expansions of a level's boxes to those of their children."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import (
    TRANSLATE_THREADS,
    LevelTables,
    half_of,
    parents,
)


def l2l(b: Builder, tables: LevelTables, local: str, level: int) -> str:
    """Local expansions of a level from those of the level above."""
    half = half_of(level)
    b.stage(f"l2l{level}", "l2l", l2l=tables.tile_bytes)
    b.launch(
        "l2l", (-(-parents(b, half) // tables.tile), 8), TRANSLATE_THREADS, np.int32(half),
        "root_slots", "child_tables", "shifts_of_children", local, f"central{level - 1}",
        f"local{level}", f"central{level}",
    )  # fmt: skip
    return f"local{level}"
