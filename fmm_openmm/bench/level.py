r"""M2L of one level of an octree in a periodic cube, by operators of several kinds, chosen by name.

A level is a grid of ``side^3`` boxes, whose 8 children-to-a-parent structure needs an even side. Boxes are near within
``separation`` along every axis. The interaction list of a box holds the children of its parent's near boxes that are not near
itself, 189 for separation 1 and 875 for separation 2, periodic images as they come:

    Lambda(target) = sum over the list of A(target - source) M(source)          (A as in expansions/translations.py)

The operators are those of the FMM's levels (``backends/cuda/pipeline/m2l.py``), and

``p4_parity``     ``kernels/m2l_p4_parity.cu``     O(p^4), and by target terms of the same signs also sums over mirror images

What is here describes them, and needs no GPU; ``backends/cuda/executor.py`` runs them through CuPy.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline import parameter_block
from fmm_openmm.backends.cuda.pipeline.m2l import (
    P4,
    WARP,
    ByRotation,
    P4Dynamic,
    P4Symmetric,
    groups,
    harmonics_of,
    shares_of,
)
from fmm_openmm.backends.cuda.program import SETUP, Builder, Device, Program
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import degrees, term_count

UNIT = 8.0
"""Lengths in the kernels are in box widths over this, so that terms of any order fit into float32."""

BYTES_OF_ROWS, BLOCK_WARPS, PARITY_RESIDENT_WARPS = 256, 8, 16
"""Of ``p4_parity``: local expansions in the registers of a lane; warps a block and warps a multiprocessor, at most."""


@dataclass(frozen=True)
class Level:
    """What an operator is made for.

    Attributes:
        order: expansion order p, 1 to 20.
        side: boxes along each axis, even.
        separation: 1 or 2.
        dtype: of moments and local expansions, float32 or float64.
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
    """Reads the buffer "moments" and overwrites "local", both shape (terms, boxes) with x fastest, of the level's dtype,
    lengths in box widths. One stage, "m2l", after its setup.

    Raises:
        ValueError: there is no operator of that name.
        MemoryError: the device has too little shared memory.
    """
    if name not in OPERATORS:
        raise ValueError(f"`name` must be one of {', '.join(OPERATORS)}, got {name!r}")
    root = cube(level.separation)
    b, half = Builder(root, level.order, 0.0, 1, level.dtype, device), level.side // 2
    b.macros(REAL=real_type(b.real), ORDER=b.order, UNIT=UNIT, OPEN=0)
    b.macros(**{f"ROOT{k}": 1 for k in range(3)}, ROOT10=0, ROOT20=0, ROOT21=0)
    b.table("parameters", parameter_block(replace(root, boxes=UNIT * root.boxes), 1.0), np.float64)
    interactions = Interactions(root)
    b.table("interactions", interactions.list, np.int32)
    operator = OPERATORS[name](b, interactions)
    slabs, shares = 8 * groups(b, half), operator.shares(b, half)
    b.buffer("moments", (b.terms, level.boxes), b.real)
    b.buffer("level_moments", (slabs, b.terms, WARP), b.real)
    b.buffer("level_sums", (shares * slabs, b.terms, WARP), b.real)
    b.buffer("local", (b.terms, level.boxes), b.real)
    b.stage("m2l", file="m2l", to_slabs=0, from_slabs=0)
    b.launch("to_slabs", slabs, 8 * WARP, np.int32(half), "moments", "level_moments")
    operator.launch(b, half, "level_moments")
    b.launch(
        "from_slabs", (-(-level.boxes // 256), b.terms), 256, np.int32(half), np.int32(shares), "level_sums", "local"
    )  # fmt: skip
    return b.program


class _Cubes(BoxLattice):
    """Boxes that are near within ``near_radius`` along every axis."""

    @cached_property
    def near(self) -> np.ndarray:
        reach = int(self.near_radius)
        return np.array(list(product(range(-reach, reach + 1), repeat=3)))[:, ::-1]


def cube(separation: int) -> BoxLattice:
    """A root grid of one box, which is near its images within ``separation`` along every axis."""
    return _Cubes(np.eye(3, dtype=np.int64), np.eye(3), separation)


class P4Parity:
    """``kernels/m2l_p4_parity.cu``, for boxes that are cubes and near within a number of them along every axis."""

    def __init__(self, b: Builder, interactions: Interactions):
        vectors, group, sources = parity_list(interactions.lattice.near_radius)
        self._shape = shape = parity_shape(b.order, b.real.itemsize)
        self._groups, self._count = np.int32(len(group)), np.int32(sources.shape[1])
        rows = shape["TILES"] * shape["ROWS"]
        b.macros(**shape)
        harmonics_of(b, vectors)
        b.table("parity_groups", group, np.int32)
        b.table("parity_interactions", sources, np.int32)
        b.buffer("m2l_matrices", (len(vectors), b.terms, rows), b.real)
        b.stage(SETUP, file="m2l_p4_parity", matrices=0)
        b.launch("matrices", (-(-rows // 128), b.terms, len(vectors)), 128, "harmonics", "m2l_matrices")
        b.stage("m2l", file="m2l_p4_parity", m2l_p4_parity=0)

    def _blocks(self, b: Builder, half: int) -> tuple[int, int]:
        """Blocks of a share of a child position, and warps of each."""
        tiles, abreast = self._shape["TILES"], self._shape["ABREAST"]
        deep = min(self._shape["M2L_WARPS"] // abreast, groups(b, half))
        return -(-groups(b, half) // deep) * (tiles // abreast), abreast * deep

    def shares(self, b: Builder, half: int) -> int:
        """How many blocks share an interaction list."""
        blocks, warps = self._blocks(b, half)
        return shares_of(8 * blocks * warps, int(self._groups))

    def launch(self, b: Builder, half: int, moments: str) -> None:
        blocks, warps = self._blocks(b, half)
        b.launch(
            "m2l_p4_parity", (blocks, 8, self.shares(b, half)), WARP * warps, np.int32(half), self._groups, "parity_groups",
            self._count, "parity_interactions", "m2l_matrices", moments, "level_sums",
        )  # fmt: skip


OPERATORS = {"p4": P4, "p4_dynamic": P4Dynamic, "p4_symmetric": P4Symmetric, "p4_parity": P4Parity, "rotation": ByRotation}


def parity_shape(order: int, itemsize: int) -> dict[str, int]:
    """Macros of ``p4_parity``: the least number of tiles whose rows fit into registers."""
    l, m = degrees(order), np.concatenate([np.arange(-l, l + 1) for l in range(order + 1)])
    of_parity = np.bincount((m % 2 ^ (m < 0)) + 2 * (m < 0) + 4 * ((l + m) % 2))
    rows = {tiles: -(-int((-(-of_parity // tiles)).sum()) // 4) * 4 for tiles in (1, 2, 3, 4, 6, 8, 12, 16)}
    tiles = next(tiles for tiles in rows if rows[tiles] * itemsize <= BYTES_OF_ROWS)
    abreast = 3 if tiles % 3 == 0 else min(tiles, 4)
    warps = BLOCK_WARPS // abreast * abreast
    shape = {"TILES": tiles, "ROWS": rows[tiles], "ABREAST": abreast}
    return {**shape, "M2L_WARPS": warps, "BLOCKS": PARITY_RESIDENT_WARPS // warps}


def parity_list(separation: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lists in groups of translations that differ in signs, in the same order for all child positions.

    Returns:
        vectors: the distinct absolute values of the translations, shape ``(groups, 3)`` int64.
        group: shape ``(groups, 2)`` int32: the group's first source; 8 * its vector + bits of the axes whose signs differ
            within it; largest first.
        sources: as :attr:`Interactions.list`, without the number of the translation. Of the last child position, the
            n-th translation of a group is negative along the axes in the n-th subset of its bits; of the others, they are
            mirrored along the axes in which they differ from it.
    """
    axes, farthest = range(3), 2 * separation + 1
    vectors = [v for v in product(range(farthest + 1), repeat=3) if max(v) > separation]
    mirrors = [sum((0 < v[axis] < farthest) << axis for axis in axes) for v in vectors]
    groups = sorted(range(len(vectors)), key=lambda n: -mirrors[n].bit_count())
    group, lists = [], [[] for _ in range(8)]
    for n in groups:
        group.append((len(lists[0]), 8 * n + mirrors[n]))
        for target, mirror in product(range(8), (g for g in range(8) if g & ~mirrors[n] == 0)):
            negative = mirror ^ target ^ 7
            source = [(target >> axis & 1) - vectors[n][axis] * (-1) ** (negative >> axis & 1) for axis in axes]
            lists[target].append((*(s >> 1 for s in source), sum((s & 1) << axis for axis, s in enumerate(source))))
    return np.array(vectors), np.array(group, np.int32), np.array(lists, np.int32)
