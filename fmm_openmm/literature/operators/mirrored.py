"""M2L by O(p^4) operations, with matrices shared by the mirror images of a translation."""

from collections.abc import Iterator

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, groups
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees
from fmm_openmm.literature.operators.p4 import harmonics_of

MIRRORED_WARPS = {64: 32, 112: 24, 256: 16}
"""Warps of ``p4_symmetric`` and ``p4_parity`` on a multiprocessor, by bytes of local expansions in
the registers of a lane."""

BLOCK_WARPS, MOMENTS_AHEAD = 8, 8
"""Warps of a block of these operators, at most; moments that a lane reads ahead."""

ENOUGH_WARPS = 8192
"""The interaction lists are shared out among warps until there are about so many."""


class Mirrored:
    """``kernels/literature/mirrors.cuh``, for boxes that are cuboids.

    Attributes:
        name: of the operator.
        abreast: how many tiles a block may hold; what was fastest on an H200.
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
        harmonics_of(b, vectors)
        b.table("mirrored_groups", group, np.int32)
        b.table("mirrored_interactions", sources, np.int32)
        b.buffer("m2l_matrices", (len(vectors), b.terms, rows), b.real)
        b.stage(SETUP, file="m2l_matrices", matrices=0)
        b.launch(
            "matrices", (-(-rows // 128), b.terms, len(vectors)), 128, "harmonics", "m2l_matrices"
        )
        b.stage("m2l", file=self._kernel, **{self._kernel: 0})

    def _blocks(self, b: Builder, half: int) -> tuple[int, int]:
        """Blocks of a share of a child position, and warps of each.

        Raises:
            MemoryError: the level has 2^32 moments, which the kernels do not count.
        """
        if (8 * groups(b, half) + 1) * b.terms * WARP > 2**32:
            raise MemoryError(
                f"`m2l='{self.name}'` needs less than 2^32 moments a level: use 'rotation'"
            )
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
            self._kernel, (blocks, 8, self.shares(b, half)), WARP * warps, np.int32(half),
            self._groups, "mirrored_groups", self._count, "mirrored_interactions", "m2l_matrices",
            moments, "level_sums",
        )  # fmt: skip


class P4Symmetric(Mirrored):
    """``kernels/literature/m2l_p4_symmetric.cu``."""

    name, abreast = "p4_symmetric", (1, 2, 3, 4, 8)


class P4Parity(Mirrored):
    """``kernels/literature/m2l_p4_parity.cu``."""

    name, abreast = "p4_parity", (1, 2, 3, 4)


def mirrored_lists(interactions: Interactions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lists in groups of translations that are mirror images of each other, for boxes that
    are cuboids.

    The mirrors of a group are h g, with one h for all g among some axes, so that it has 1, 2, 4
    or 8 sources; sets of axes and of mirrors are bits 1, 2, 4 of x, y, z. The lists of all
    child positions are mirror images of one, and so are their groups. Of cubes that are near
    within a number of them along every axis, h is the same for all groups of a child position.

    Returns:
        vectors: the distinct absolute values of the translations, shape (matrices, 3) int64.
        group: shape (8, groups, 2) int32: the group's first source; 64 * its vector + 8 * h +
            its axes; largest first.
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
            (n, *each) for n, of in images.items() for each in _groups(of, zeros[n], 7 - position)
        ]
        first = 0
        for n, axes, h, members in sorted(found, key=lambda each: (-len(each[-1]), each[0])):
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
    """Split sources by their mirrors into groups, largest first: axes, h, and sources of h g for
    all g among the axes.

    Args:
        zero: axes whose mirrors change nothing; no bits of ``images``.
        preferred: bits of h where it is free to choose.
    """
    for axes in sorted(range(8), key=lambda axes: -axes.bit_count()):
        for fixed in (h for h in range(8) if not h & (axes | zero)):
            h = fixed | preferred & (axes | zero)
            members = [(h ^ g) & ~zero for g in range(8) if g & axes == g]
            if not axes & zero and images.keys() >= set(members):
                yield axes, h, [images.pop(mirror) for mirror in members]


def shares_of(warps: int, most: int) -> int:
    """How many blocks share an interaction list, if there are so many warps without that."""
    return max(1, min(ENOUGH_WARPS // warps, most))


def mirrored_shape(order: int, itemsize: int, abreast: tuple[int, ...]) -> dict[str, int]:
    """Macros of ``kernels/literature/mirrors.cuh``: the least number of tiles whose rows
    fit into registers."""
    l, m = degrees(order), np.concatenate([np.arange(-l, l + 1) for l in range(order + 1)])
    of_parity = np.bincount((m % 2 ^ (m < 0)) + 2 * (m < 0) + 4 * ((l + m) % 2))
    rows = {
        tiles: -(-int((-(-of_parity // tiles)).sum()) // 4) * 4
        for tiles in (1, 2, 3, 4, 6, 8, 12, 16)
    }
    tiles = next(tiles for tiles in rows if rows[tiles] * itemsize <= max(MIRRORED_WARPS))
    side_by_side = max(n for n in abreast if tiles % n == 0)
    warps = BLOCK_WARPS // side_by_side * side_by_side
    resident = next(
        warps for held, warps in MIRRORED_WARPS.items() if rows[tiles] * itemsize <= held
    )
    shape = {"TILES": tiles, "ROWS": rows[tiles], "ABREAST": side_by_side, "AHEAD": MOMENTS_AHEAD}
    return {**shape, "M2L_WARPS": warps, "BLOCKS": resident // warps}
