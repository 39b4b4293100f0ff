r"""M2L of one level of an octree in a periodic cube, by operators chosen by name.

A level is a grid of ``side^3`` boxes; ``side`` must be even, because each parent has 2^3 children.
Boxes are near if they are within ``separation`` along every axis. The interaction list of a box
holds the children of its parent's near boxes that are not near the box itself, 189 for separation 1
and 875 for separation 2, including periodic images:

    Lambda(target) = sum over the list of A(target - source) M(source)
                     (A as in expansions/translations.py)

The operators are those of the FMM's levels (``backends/cuda/pipeline/m2l.py``). This module
describes them and needs no GPU; ``backends/cuda/execute/cupy/`` runs them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, groups
from fmm_openmm.backends.cuda.program import Device, Program
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import term_count
from fmm_openmm.implementations import M2L, implementation, names

OPERATORS = names(M2L, "cuda")

UNIT = 8.0
"""Lengths in the kernels are in box widths divided by this number, so that terms of any order fit
into float32."""


@dataclass(frozen=True)
class Level:
    """A level of boxes and the expansions on it.

    Attributes:
        order: expansion order p, 1 to 20.
        side: boxes along each axis, even.
        separation: 1 or 2.
        dtype: type of moments and local expansions, float32 or float64.
    """

    order: int
    side: int
    separation: int = 1
    dtype: type = np.float32

    def __post_init__(self):
        if not 1 <= self.order <= 20:
            raise ValueError(f"`order` must lie between 1 and 20, got {self.order}")
        if self.side < 2 or self.side % 2:
            raise ValueError(f"`side` must be even and positive, got {self.side}")
        if self.separation not in (1, 2):
            raise ValueError(f"`separation` must be 1 or 2, got {self.separation}")

    @property
    def terms(self) -> int:
        return term_count(self.order)

    @property
    def boxes(self) -> int:
        return self.side**3


def program(name: str, level: Level, device: Device) -> Program:
    """A program for M2L on a level by an operator.

    It reads the buffer "moments" and overwrites "local", both of shape (terms, boxes) with x
    fastest and of the level's dtype, lengths in box widths. Its stage is "m2l", after its setup.

    Raises:
        ValueError: there is no operator of that name.
        MemoryError: the device has too little shared memory.
    """
    if name not in OPERATORS:
        raise ValueError(f"`name` must be one of {', '.join(OPERATORS)}, got {name!r}")
    root = cube(level.separation)
    b, half = Builder(root, level.order, 0.0, 1, level.dtype, device), level.side // 2
    b.macros(REAL=real_type(b.real), ORDER=b.order, UNIT=UNIT)
    b.macros(**{f"PADDED{k}": 0 for k in range(3)})
    b.macros(**{f"ROOT{k}": 1 for k in range(3)}, ROOT10=0, ROOT20=0, ROOT21=0)
    b.table("parameters", parameter_block(replace(root, boxes=UNIT * root.boxes), 1.0), np.float64)
    interactions = Interactions(root)
    b.table("interactions", interactions.list, np.int32)
    operator = implementation(M2L, name, "cuda")(b, interactions)
    slabs, shares = 8 * groups(b, half), operator.shares(b, half)
    b.buffer("moments", (b.terms, level.boxes), b.real)
    b.buffer("level_moments", (slabs, b.terms, WARP), b.real)
    b.buffer("level_sums", (shares * slabs, b.terms, WARP), b.real)
    b.buffer("local", (b.terms, level.boxes), b.real)
    b.stage("m2l", "slabs", to_slabs=0, from_slabs=0)
    b.launch("to_slabs", slabs, 8 * WARP, np.int32(half), "moments", "level_moments")
    operator.launch(b, half, "level_moments")
    b.launch(
        "from_slabs", (-(-level.boxes // 256), b.terms), 256, np.int32(half), np.int32(shares),
        "level_sums", "local"
    )  # fmt: skip
    return b.program


class _Cubes(BoxLattice):
    """Boxes that are near if they are within ``near_radius`` along every axis."""

    @cached_property
    def near(self) -> np.ndarray:
        n = int(self.near_radius)
        return np.array(list(product(range(-n, n + 1), repeat=3)))[:, ::-1]


def cube(separation: int) -> BoxLattice:
    """A root grid of one cubic box, whose images within ``separation`` along every axis are
    near."""
    return _Cubes(np.eye(3, dtype=np.int64), np.eye(3), separation)
