"""M2L operators between the boxes of a level, by name: their tables, and how their kernels are launched.

``p4``            ``kernels/m2l_p4.cu``            O(p^4), loops mapped to threads as they stand
``p4_dynamic``    ``kernels/m2l_p4_dynamic.cu``    O(p^4), a block a parent, index work hoisted out of the loops
``p4_symmetric``  ``kernels/m2l_p4_symmetric.cu``  O(p^4), matrices shared by the mirror images of a translation
``p4_parity``     ``kernels/m2l_p4_parity.cu``     O(p^4), and by target terms of the same signs also sums over mirror images
``rotation``      ``kernels/m2l_rotation.cu``      O(p^3), translations along an axis between rotations; of high orders
                  ``kernels/m2l_rotation_split.cu``; both between the kernels of ``kernels/m2l_planes.cu``

An operator is made once for all levels. It reads moments and overwrites ``level_sums``, local expansions in shares, both in the
slabs of ``kernels/common/levels.cuh``; what depends on the box vectors is made when these are set up.
"""

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.program import SETUP, At, Builder
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees

WARP = 32

MIRRORED_WARPS = {64: 32, 112: 24, 256: 16}
"""Of ``p4_symmetric`` and ``p4_parity`` on a multiprocessor, by bytes of local expansions in the registers of a lane."""

BLOCK_WARPS, MOMENTS_AHEAD = 8, 8
"""Of these: warps a block, at most; moments that a lane reads ahead."""

ROTATION_SHAPES = {4: ((7, 1, 16), (8, 4, 4), (9, 4, 3), (14, 8, 1)), 8: ((7, 1, 8), (9, 8, 1))}
"""Of ``rotation``, by bytes of a real: up to which order how many warps a block and blocks of a multiprocessor, at most. What
was fastest on an H200."""

SPLIT_SHAPES = {
    4: ((16, 4, 3, 2, 1), (19, 4, 4, 1, 1), (20, 4, 2, 2, 1)),
    8: ((11, 4, 3, 2, 1), (13, 4, 2, 2, 1), (14, 4, 3, 1, 1), (20, 4, 2, 1, 1)),
}
"""Of ``rotation`` at higher orders: up to which order how many warps a group, groups a block, sources at once and blocks of a
multiprocessor, at most. What was fastest on an H200."""

PLANES_WARPS = 4
"""Of a block of ``kernels/m2l_planes.cu``."""

PLANES_BYTES = 2**30
"""Of moments turned into planes, and of sums: as many planes at once, and shares of an interaction list, as fit."""

ENOUGH_WARPS = 8192
"""The interaction lists are shared out among warps until there are about so many."""


def parents(b: Builder, half: int) -> int:
    """Boxes that have children on the level whose parents' grid has ``half`` times as many boxes as the root grid."""
    return int(b.root.span.prod()) * half**3


def groups(b: Builder, half: int) -> int:
    """Warps that hold the boxes of one child position."""
    return -(-parents(b, half) // WARP)


class P4:
    """``kernels/m2l_p4.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        harmonics_of(b, interactions.translations)
        b.stage("m2l", file="m2l_p4", m2l_p4=0)
        self._count = np.int32(interactions.list.shape[1])

    def shares(self, b: Builder, half: int) -> int:
        """How many blocks share an interaction list."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        b.launch(
            "m2l_p4", (parents(b, half), 8), threads_of_pairs(b.order), np.int32(half), self._count, "interactions",
            "harmonics", moments, "level_sums",
        )  # fmt: skip


class P4Dynamic:
    """``kernels/m2l_p4_dynamic.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        harmonics_of(b, interactions.translations)
        b.stage("m2l", file="m2l_p4_dynamic", m2l_p4_dynamic=0)
        near = interactions.lattice.near
        self._near = np.int32(len(near))
        b.table("near_parents", np.pad(near, ((0, 0), (0, 1))), np.int32)
        b.table("translation_numbers", interactions.number, np.int32)

    def shares(self, b: Builder, half: int) -> int:
        """How many blocks share an interaction list."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        b.launch(
            "m2l_p4_dynamic", parents(b, half), threads_of_pairs(b.order), np.int32(half), self._near, "near_parents",
            "translation_numbers", "harmonics", moments, "level_sums",
        )  # fmt: skip


class Mirrored:
    """``kernels/common/mirrors.cuh``, for boxes that are cuboids.

    Attributes:
        name: of the operator.
        abreast: how many tiles a block may hold; what was fastest on an H200.
    """

    name: str
    abreast: tuple[int, ...]

    def __init__(self, b: Builder, interactions: Interactions):
        if np.tril(b.lattice.boxes, -1).any():
            raise UnsupportedError(f"`m2l='{self.name}'` needs rectangular boxes: use 'rotation'")
        self._shape = shape = mirrored_shape(b.order, b.real.itemsize, self.abreast)
        vectors, group, sources = interactions.mirrored
        self._kernel, rows = f"m2l_{self.name}", shape["TILES"] * shape["ROWS"]
        self._groups, self._count = np.int32(group.shape[1]), np.int32(sources.shape[1])
        b.macros(**shape)
        harmonics_of(b, vectors)
        b.table("mirrored_groups", group, np.int32)
        b.table("mirrored_interactions", sources, np.int32)
        b.buffer("m2l_matrices", (len(vectors), b.terms, rows), b.real)
        b.stage(SETUP, file="m2l_matrices", matrices=0)
        b.launch("matrices", (-(-rows // 128), b.terms, len(vectors)), 128, "harmonics", "m2l_matrices")
        b.stage("m2l", file=self._kernel, **{self._kernel: 0})

    def _blocks(self, b: Builder, half: int) -> tuple[int, int]:
        """Blocks of a share of a child position, and warps of each.

        Raises:
            MemoryError: the level has 2^32 moments, which the kernels do not count.
        """
        if (8 * groups(b, half) + 1) * b.terms * WARP > 2**32:
            raise MemoryError(f"`m2l='{self.name}'` needs less than 2^32 moments a level: use 'rotation'")
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
            self._kernel, (blocks, 8, self.shares(b, half)), WARP * warps, np.int32(half), self._groups, "mirrored_groups",
            self._count, "mirrored_interactions", "m2l_matrices", moments, "level_sums",
        )  # fmt: skip


class P4Symmetric(Mirrored):
    """``kernels/m2l_p4_symmetric.cu``."""

    name, abreast = "p4_symmetric", (1, 2, 3, 4, 8)


class P4Parity(Mirrored):
    """``kernels/m2l_p4_parity.cu``."""

    name, abreast = "p4_parity", (1, 2, 3, 4)


class ByRotation:
    """``kernels/m2l_rotation.cu`` up to the last order in :data:`ROTATION_SHAPES`, then ``kernels/m2l_rotation_split.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        self._interactions, (across, of) = interactions, interactions.planes
        size, shared = b.real.itemsize, b.device.shared
        if b.order <= ROTATION_SHAPES[size][-1][0]:
            self._kernel, (shape, memory) = "m2l_rotation", rotation_shape(b.order, size, shared)
            self._warps, self._deep = 1, shape["M2L_WARPS"]
        else:
            self._kernel, (shape, memory) = "m2l_rotation_split", split_shape(b.order, size, shared)
            self._warps, self._deep = shape["SHARES"], shape["GROUPS"]
        self._resident = shape["BLOCKS"] * b.device.multiprocessors
        self._count, self._planes = interactions.list.shape[1], len(across)
        b.macros(**shape, PLANES_WARPS=PLANES_WARPS)
        vectors = np.pad(interactions.translations, ((0, 0), (0, 1)))
        turns = np.concatenate([vectors, np.pad(across, ((0, 0), (0, 1)), constant_values=1)])
        self._first_plane = len(vectors)
        b.table("planes_of_turns", np.pad(np.concatenate([across[of], across]), ((0, 0), (0, 1))), np.int32)
        b.buffer("rotations", (len(turns), 4 * (b.order + 1)), b.real)
        made_of(b, "rotations", turns, "planes_of_turns")
        b.stage("m2l", file="m2l_planes", to_planes=0, from_planes=0)
        b.stage("m2l", file=self._kernel, **{self._kernel: memory})

    def shares(self, b: Builder, half: int) -> int:
        """How many sums there are: those of the shares of an interaction list are added up."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        deep = min(self._deep, groups(b, half))
        blocks, slabs = -(-groups(b, half) // deep), 8 * groups(b, half)
        with_zeros = slabs + b.lattice.is_open
        fitting = max(PLANES_BYTES // (with_zeros * b.terms * WARP * b.real.itemsize), 1)
        at_once = -(-self._planes // -(-self._planes // fitting))
        firsts = range(0, self._planes, at_once)
        most = max(PLANES_BYTES // (slabs * b.terms * WARP * b.real.itemsize), 1)
        shares = fewest_rounds(self._resident, 8 * blocks, self._count, self._planes, min(most, 2 * self._planes))
        at_least(b, "turned_moments", at_once * with_zeros)
        at_least(b, "plane_sums", shares * slabs)
        for first in firsts:
            end = min(first + at_once, self._planes)
            start, entries = (f"{name}_{first}_{end}_{shares}" for name in ("lists_begin", "lists"))
            for name, values in zip((start, entries), self._interactions.by_plane(first, end, shares), strict=True):
                b.table(name, values, np.int32)
            planes = At("rotations", (self._first_plane + first) * 4 * (b.order + 1))
            b.launch(
                "to_planes", with_zeros, WARP * PLANES_WARPS, np.int32(half), np.int32(end - first), planes, moments,
                "turned_moments",
            )  # fmt: skip
            b.launch(
                self._kernel, (blocks, 8, shares), WARP * self._warps * deep, np.int32(half), np.int32(first == 0), start,
                entries, "rotations", planes, "turned_moments", "plane_sums",
            )  # fmt: skip
        b.launch("from_planes", slabs, WARP * PLANES_WARPS, np.int32(shares), "plane_sums", "level_sums")


OPERATORS = {"p4": P4, "p4_dynamic": P4Dynamic, "p4_symmetric": P4Symmetric, "p4_parity": P4Parity, "rotation": ByRotation}


def at_least(b: Builder, name: str, slabs: int) -> None:
    """A buffer of all levels, of the size that the largest needs."""
    before = b.program.buffers.get(name)
    b.buffer(name, (max(slabs, before.shape[0] if before else 0), b.terms, WARP), b.real)


def harmonics_of(b: Builder, vectors: np.ndarray) -> None:
    b.buffer("harmonics", (len(vectors), (2 * b.order + 1) ** 2), b.real)
    made_of(b, "harmonics", vectors)


def made_of(b: Builder, kernel: str, vectors: np.ndarray, *more: str) -> None:
    """Have a kernel of ``kernels/translations.cu`` make the table of its name from vectors (k, 3), box vectors, or (k, 4), and
    from more tables."""
    b.stage(SETUP, file="translations", **{kernel: 0})
    b.table(f"{kernel}_vectors", np.pad(vectors, ((0, 0), (0, 4 - vectors.shape[1]))), np.int32)
    b.launch(kernel, -(-len(vectors) // 64), 64, np.int32(len(vectors)), f"{kernel}_vectors", *more, "parameters", kernel)


def fewest_rounds(resident: int, blocks: int, sources: int, planes: int, most: int) -> int:
    """How many blocks, at most ``most``, share an interaction list: as few as keep the device busy to the end.

    Args:
        resident: blocks that run at once.
        blocks: without shares.
        sources, planes: of an interaction list.
    """

    def rounds(shares: int) -> int:
        """Sources that the last block to end has come to, with one more for each share and plane."""
        return -(-blocks * shares // resident) * (-(-sources // shares) + -(-planes // shares))

    return min(range(1, most + 1), key=rounds)


def threads_of_pairs(order: int) -> int:
    """One for every (l, m >= 0), in full warps."""
    return -(-(order + 1) * (order + 2) // 2 // WARP) * WARP


def shares_of(warps: int, most: int) -> int:
    """How many blocks share an interaction list, if there are so many warps without that."""
    return max(1, min(ENOUGH_WARPS // warps, most))


def mirrored_shape(order: int, itemsize: int, abreast: tuple[int, ...]) -> dict[str, int]:
    """Macros of ``kernels/common/mirrors.cuh``: the least number of tiles whose rows fit into registers."""
    l, m = degrees(order), np.concatenate([np.arange(-l, l + 1) for l in range(order + 1)])
    of_parity = np.bincount((m % 2 ^ (m < 0)) + 2 * (m < 0) + 4 * ((l + m) % 2))
    rows = {tiles: -(-int((-(-of_parity // tiles)).sum()) // 4) * 4 for tiles in (1, 2, 3, 4, 6, 8, 12, 16)}
    tiles = next(tiles for tiles in rows if rows[tiles] * itemsize <= max(MIRRORED_WARPS))
    side_by_side = max(n for n in abreast if tiles % n == 0)
    warps = BLOCK_WARPS // side_by_side * side_by_side
    resident = next(warps for held, warps in MIRRORED_WARPS.items() if rows[tiles] * itemsize <= held)
    shape = {"TILES": tiles, "ROWS": rows[tiles], "ABREAST": side_by_side, "AHEAD": MOMENTS_AHEAD}
    return {**shape, "M2L_WARPS": warps, "BLOCKS": resident // warps}


def rotation_shape(order: int, itemsize: int, shared: int) -> tuple[dict[str, int], int]:
    """Macros of ``rotation``, and the bytes of shared memory of a block.

    Args:
        shared: bytes of shared memory that a block may have; a multiprocessor has 1024 more, and each block takes as many.

    Raises:
        MemoryError: not even one warp fits.
    """
    _, warps, blocks = next(shape for shape in ROTATION_SHAPES[itemsize] if order <= shape[0])
    of_warp, static = itemsize * (order + 1) ** 2 * WARP, turn_bytes(order, itemsize)
    warps = min(warps, (shared - static) // of_warp)
    if warps < 1:
        raise MemoryError(f"`m2l='rotation'` needs {of_warp + static} bytes of shared memory a block, the device has {shared}")
    blocks = min(blocks, (shared + 1024) // (warps * of_warp + static + 1024))
    return {"M2L_WARPS": warps, "BLOCKS": blocks}, warps * of_warp


def split_shape(order: int, itemsize: int, shared: int) -> tuple[dict[str, int], int]:
    """As :func:`rotation_shape`, of ``kernels/m2l_rotation_split.cu``."""
    _, shares, most, sources, blocks = next(shape for shape in SPLIT_SHAPES[itemsize] if order <= shape[0])

    def dynamic(groups: int, sources: int) -> int:
        return groups * sources * itemsize * (order + 1) ** 2 * WARP

    def static(groups: int, sources: int) -> int:
        return sources * (2 * turn_bytes(order, itemsize) + 4 * WARP * groups) + 16

    every = ((g, s) for g in range(most, 0, -1) for s in range(sources, 0, -1))
    fitting = [each for each in every if dynamic(*each) + static(*each) <= shared]
    if not fitting:
        needed = dynamic(1, 1) + static(1, 1)
        raise MemoryError(f"`m2l='rotation'` needs {needed} bytes of shared memory a block, the device has {shared}")
    each = groups, sources = fitting[0]
    blocks = min(blocks, (shared + 1024) // (dynamic(*each) + static(*each) + 1024))
    shape = {"SHARES": shares, "GROUPS": groups, "SOURCES": sources, "BLOCKS": blocks}
    return shape, dynamic(*each)


def turn_bytes(order: int, itemsize: int) -> int:
    """Of a ``Turn`` of ``kernels/common/rotation.cuh``."""
    return itemsize * 4 * (order + 1)
