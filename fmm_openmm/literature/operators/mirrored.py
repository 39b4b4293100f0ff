"""M2L by O(p^4) operations, with matrices shared by the mirror images of a translation."""

from collections.abc import Iterator

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, groups
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees
from fmm_openmm.literature.operators.p4 import add_harmonics

MIRRORED_WARPS = {64: 32, 112: 24, 256: 16}
"""Warps per multiprocessor of ``p4_symmetric`` and ``p4_parity``, by the bytes of local expansions
in the registers of a lane."""

BLOCK_WARPS, MOMENTS_AHEAD = 8, 8
"""Maximum warps per block of these operators; moments that a lane loads in advance."""

TARGET_WARPS = 8192
"""Approximate number of warps; interaction lists are divided to provide as many."""


class Mirrored:
    """Operators of ``kernels/literature/mirrors.cuh``, for rectangular boxes.

    Attributes:
        name: name of the operator.
        abreast: numbers of tiles that a block may hold; the fastest ones on an H200.
    """

    name: str
    abreast: tuple[int, ...]

    def __init__(self, b: Builder, interactions: Interactions):
        if not b.lattice.are_cuboids:
            raise UnsupportedError(f"`m2l='{self.name}'` needs rectangular boxes: use 'rotation'")
        self._shape = shape = mirrored_shape(b.order, b.real.itemsize, self.abreast)
        vectors, group, sources = mirrored_lists(interactions)
        self._kernel, rows = f"m2l_{self.name}", shape["TILES"] * shape["ROWS"]
        self._groups, self._count = np.int32(group.shape[1]), np.int32(sources.shape[1])
        b.macros(**shape)
        add_harmonics(b, vectors)
        b.table("mirrored_groups", group, np.int32)
        b.table("mirrored_interactions", sources, np.int32)
        b.buffer("m2l_matrices", (len(vectors), b.terms, rows), b.real)
        b.stage(SETUP, "m2l_matrices", matrices=0)
        b.launch(
            "matrices", (-(-rows // 128), b.terms, len(vectors)), 128, "harmonics", "m2l_matrices"
        )
        b.stage("m2l", self._kernel, **{self._kernel: 0})

    def _blocks(self, b: Builder, half: int) -> tuple[int, int]:
        """Blocks per share and child position, and warps per block.

        Raises:
            MemoryError: the level has 2^32 moments or more, which exceeds the kernels' indices.
        """
        if (8 * groups(b, half) + 1) * b.terms * WARP > 2**32:
            raise MemoryError(
                f"`m2l='{self.name}'` needs less than 2^32 moments a level: use 'rotation'"
            )
        tiles, abreast = self._shape["TILES"], self._shape["ABREAST"]
        deep = min(self._shape["M2L_WARPS"] // abreast, groups(b, half))
        return -(-groups(b, half) // deep) * (tiles // abreast), abreast * deep

    def shares(self, b: Builder, half: int) -> int:
        """Number of blocks that share an interaction list."""
        blocks, warps = self._blocks(b, half)
        return shares_of(8 * blocks * warps, int(self._groups))

    def launch(self, b: Builder, half: int, moments: str) -> None:
        blocks, warps = self._blocks(b, half)
        b.launch(
            self._kernel, (blocks, 8, self.shares(b, half)), WARP * warps, np.int32(half),
            self._groups, "mirrored_groups", self._count, "mirrored_interactions", "m2l_matrices",
            moments, "level_sums",
        )  # fmt: skip


class P4Symmetric(Mirrored):
    """The operator of ``kernels/literature/m2l_p4_symmetric.cu``."""

    name, abreast = "p4_symmetric", (1, 2, 3, 4, 8)


class P4Parity(Mirrored):
    """The operator of ``kernels/literature/m2l_p4_parity.cu``."""

    name, abreast = "p4_parity", (1, 2, 3, 4)


def mirrored_lists(interactions: Interactions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The interaction lists in groups of translations that are mirror images of each other, for
    rectangular boxes.

    The mirrors of a group are h g with one h and all products g of mirrors along some axes, so that
    it has 1, 2, 4 or 8 sources. Bits 1, 2 and 4 represent x, y and z in sets of axes and of
    mirrors. The lists of all child positions are mirror images of one list, and so are their
    groups. For cubic boxes with a cubic near stencil, h is the same for all groups of a child
    position.

    Returns:
        vectors: the distinct absolute values of the translations, shape (matrices, 3) int64.
        group: the group's first source, and 64 * its vector + 8 * h + its axes; shape
            (8, groups, 2) int32, largest groups first.
        sources: as :attr:`Interactions.list`, without the number of the translation. The n-th
            translation of a group is the vector, mirrored by h and by the n-th subset of the axes.
    """
    vectors = np.unique(np.abs(interactions.translations), axis=0)
    number = {vector: n for n, vector in enumerate(map(tuple, vectors.tolist()))}
    group, sources = [], []
    for position, (parents, children, offsets) in enumerate(interactions.sources):
        images: dict[int, dict[int, tuple]] = {}
        mirrors = (offsets > 0) @ (1, 2, 4)  # the translation is target - source
        for parent, child, offset, mirror in zip(parents, children, offsets, mirrors, strict=True):
            images.setdefault(number[tuple(np.abs(offset).tolist())], {})[int(mirror)] = (
                *parent,
                child,
            )
        zeros = (vectors == 0) @ (1, 2, 4)
        found = [
            (n, *split)
            for n, by_mirror in images.items()
            for split in _groups(by_mirror, zeros[n], 7 - position)
        ]
        first = 0
        for n, axes, h, members in sorted(found, key=lambda split: (-len(split[-1]), split[0])):
            group.append((first, 64 * n + 8 * h + axes))
            sources += members
            first += len(members)
    return (
        vectors,
        np.array(group, np.int32).reshape(8, -1, 2),
        np.array(sources, np.int32).reshape(8, -1, 4),
    )


def _groups(
    images: dict[int, tuple], zero: int, preferred: int
) -> Iterator[tuple[int, int, list[tuple]]]:
    """Split sources by their mirrors into groups, largest first: axes, h, and the sources h g for
    all products g of mirrors along these axes.

    Args:
        zero: axes whose mirrors have no effect, and which are not among the bits of ``images``.
        preferred: bits of h that are used if they can be chosen freely.
    """
    for axes in sorted(range(8), key=lambda axes: -axes.bit_count()):
        for fixed in (h for h in range(8) if not h & (axes | zero)):
            h = fixed | preferred & (axes | zero)
            members = [(h ^ g) & ~zero for g in range(8) if g & axes == g]
            if not axes & zero and images.keys() >= set(members):
                yield axes, h, [images.pop(mirror) for mirror in members]


def shares_of(warps: int, maximum: int) -> int:
    """Number of blocks that should share an interaction list, given the warps without sharing."""
    return max(1, min(TARGET_WARPS // warps, maximum))


def mirrored_shape(order: int, itemsize: int, abreast: tuple[int, ...]) -> dict[str, int]:
    """Macros of ``kernels/literature/mirrors.cuh``, with the smallest number of tiles whose rows
    fit into registers."""
    l, m = degrees(order), np.concatenate([np.arange(-l, l + 1) for l in range(order + 1)])
    terms_by_parity = np.bincount((m % 2 ^ (m < 0)) + 2 * (m < 0) + 4 * ((l + m) % 2))
    rows = {
        tiles: -(-int((-(-terms_by_parity // tiles)).sum()) // 4) * 4
        for tiles in (1, 2, 3, 4, 6, 8, 12, 16)
    }
    tiles = next(tiles for tiles in rows if rows[tiles] * itemsize <= max(MIRRORED_WARPS))
    block_tiles = max(n for n in abreast if tiles % n == 0)
    warps = BLOCK_WARPS // block_tiles * block_tiles
    resident = next(
        warps for capacity, warps in MIRRORED_WARPS.items() if rows[tiles] * itemsize <= capacity
    )
    shape = {"TILES": tiles, "ROWS": rows[tiles], "ABREAST": block_tiles, "AHEAD": MOMENTS_AHEAD}
    return {**shape, "M2L_WARPS": warps, "BLOCKS": resident // warps}
