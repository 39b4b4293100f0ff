"""M2L operators between the boxes of a level, by name: their tables, and how their kernels are launched.

``p4``            ``kernels/m2l_p4.cu``            O(p^4), loops mapped to threads as they stand
``p4_dynamic``    ``kernels/m2l_p4_dynamic.cu``    O(p^4), a block a parent, index work hoisted out of the loops
``p4_symmetric``  ``kernels/m2l_p4_symmetric.cu``  O(p^4), matrices shared by the mirror images of a translation
``p4_parity``     ``kernels/m2l_p4_parity.cu``     O(p^4), and by target terms of the same signs also sums over mirror images
``rotation``      ``kernels/m2l_rotation.cu``      O(p^3), translations along z between rotations; of high orders
                  ``kernels/m2l_rotation_tiles.cu``, on tensor cores

An operator is made once for all levels. It reads moments and overwrites ``level_sums``, local expansions in shares, both in the
slabs of ``kernels/common/levels.cuh``; what depends on the box vectors is made when these are set up.
"""

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.program import SETUP, Builder
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees

WARP = 32

MIRRORED_WARPS = {64: 32, 112: 24, 256: 16}
"""Of ``p4_symmetric`` and ``p4_parity`` on a multiprocessor, by bytes of local expansions in the registers of a lane."""

BLOCK_WARPS, MOMENTS_AHEAD = 8, 8
"""Of these: warps a block, at most; moments that a lane reads ahead."""

ROTATION_SHAPES = {
    4: ((7, 1, 16, 81, 0), (8, 8, 2, 81, 0), (11, 12, 1, 42, 0), (12, 12, 1, 30, 0), (14, 12, 1, 90, 1), (17, 1, 8, 90, 1),
        (20, 4, 1, 90, 1)),
    8: ((9, 1, 8, 0, 0), (13, 5, 1, 0, 1), (20, 1, 8, 0, 1)),
}  # fmt: skip
"""Of ``rotation``, by bytes of a real: up to which order how many warps a block, blocks of a multiprocessor and terms of a lane
in registers, at most, and whether passes share their code. What was fastest on an H200."""

TILE_SHAPES = {
    4: dict.fromkeys((18, 19, 20), (5, 3)),
    8: {14: (4, 3), **dict.fromkeys((15, 16, 17, 18), (4, 2)), 19: (8, 1), 20: (8, 1)},
}
"""Of ``rotation`` on tensor cores, by bytes of a real and order: warps a block, and blocks of a multiprocessor. Of orders where
it is faster on an H200."""

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
    """``kernels/m2l_rotation_tiles.cu`` of the orders in :data:`TILE_SHAPES` if a block may have the shared memory, else
    ``kernels/m2l_rotation.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        vectors = interactions.translations
        tiles = tile_shape(b.order, b.real.itemsize, b.device.shared)
        self._tiles, self._count = tiles is not None, np.int32(interactions.list.shape[1])
        self._shape, memory = tiles or rotation_shape(b.order, b.real.itemsize, b.device.shared)
        b.macros(**self._shape)
        if tiles:
            self._kernel, self._table = "m2l_rotation_tiles", "rotation_tiles"
            b.buffer("rotation_tiles", (len(vectors), tile_numbers(b.order, b.real.itemsize)), b.real)
            b.table("rotation_tiles_vectors", np.pad(vectors, ((0, 0), (0, 1))), np.int32)
            b.stage(SETUP, file="m2l_rotation_tiles", rotation_tiles=0)
            b.launch("rotation_tiles", len(vectors), 256, "rotation_tiles_vectors", "parameters", "rotation_tiles")
        else:
            self._kernel, self._table = "m2l_rotation", "rotations"
            b.buffer("rotations", (len(vectors), 6 * (b.order + 1)), b.real)
            made_of(b, "rotations", vectors)
        b.stage("m2l", file=self._kernel, **{self._kernel: memory})

    def _blocks(self, b: Builder, half: int) -> tuple[int, int]:
        """Blocks of a share of a child position, and warps of each."""
        if self._tiles:
            return groups(b, half), self._shape["M2L_WARPS"]
        warps = min(self._shape["M2L_WARPS"], groups(b, half))
        return -(-groups(b, half) // warps), warps

    def shares(self, b: Builder, half: int) -> int:
        """How many blocks share an interaction list: as few as keep the device busy to the end."""
        blocks, warps = self._blocks(b, half)
        resident, count = self._shape["BLOCKS"] * b.device.multiprocessors, int(self._count)

        def rounds(shares: int) -> int:
            """Sources that the last block to end has come to, with one more for each share."""
            return -(-8 * blocks * shares // resident) * (-(-count // shares) + 1)

        return min(range(1, shares_of(8 * blocks * warps, count) + 1), key=rounds)

    def launch(self, b: Builder, half: int, moments: str) -> None:
        blocks, warps = self._blocks(b, half)
        b.launch(
            self._kernel, (blocks, 8, self.shares(b, half)), WARP * warps, np.int32(half), self._count, "interactions",
            self._table, moments, "level_sums",
        )  # fmt: skip


OPERATORS = {"p4": P4, "p4_dynamic": P4Dynamic, "p4_symmetric": P4Symmetric, "p4_parity": P4Parity, "rotation": ByRotation}


def harmonics_of(b: Builder, vectors: np.ndarray) -> None:
    b.buffer("harmonics", (len(vectors), (2 * b.order + 1) ** 2), b.real)
    made_of(b, "harmonics", vectors)


def made_of(b: Builder, kernel: str, vectors: np.ndarray) -> None:
    """Have a kernel of ``kernels/translations.cu`` make the table of its name from vectors (k, 3), box vectors."""
    b.stage(SETUP, file="translations", **{kernel: 0})
    b.table(f"{kernel}_vectors", np.pad(vectors, ((0, 0), (0, 1))), np.int32)
    b.launch(kernel, -(-len(vectors) // 64), 64, np.int32(len(vectors)), f"{kernel}_vectors", "parameters", kernel)


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
    _, warps, blocks, most, rolled = next(shape for shape in ROTATION_SHAPES[itemsize] if order <= shape[0])
    kept = [(order + 1 - m) * (order + 2 - m) - (order + 1 if m == 0 else 0) for m in range(order + 2)]
    keep = next(m for m, terms in enumerate(kept) if terms <= most)
    terms, parameters = (order + 1) ** 2, itemsize * 6 * (order + 1)

    def memory(warps: int, near: int) -> int:
        return parameters + itemsize * ((1 + near) * terms - kept[keep]) * WARP * warps

    def fitting(warps: int, near: int) -> int:
        """Blocks of a multiprocessor."""
        return (shared + 1024) // (memory(warps, near) + 1024)

    warps = next((n for n in range(warps, 0, -1) if memory(n, 0) <= shared), 0)
    if not warps:
        raise MemoryError(f"`m2l='rotation'` needs {memory(1, 0)} bytes of shared memory a block, the device has {shared}")
    near = int(memory(warps, 1) <= shared and fitting(warps, 1) >= blocks)
    shape = {"M2L_WARPS": warps, "BLOCKS": min(blocks, fitting(warps, near)), "KEEP": keep}
    return shape | {"NEAR_SUMS": near, "ROLLED": rolled}, memory(warps, near)


def tile_shape(order: int, itemsize: int, shared: int) -> tuple[dict[str, int], int] | None:
    """As :func:`rotation_shape`, of ``kernels/m2l_rotation_tiles.cu``; None if it is not for this order, or does not fit."""
    warps, blocks = TILE_SHAPES[itemsize].get(order, (0, 0))
    memory = (order + 1) * (order + 1 | 1) * (WARP + 32 // itemsize) * itemsize
    if not warps or memory > shared:
        return None
    return {"M2L_WARPS": warps, "BLOCKS": min(blocks, (shared + 1024) // (memory + 1024))}, memory


def tile_numbers(order: int, itemsize: int) -> int:
    """Of a translation in the table of ``kernels/m2l_rotation_tiles.cu``: 16 bytes a lane and tile in two directions, phases,
    powers."""
    tiles = sum(2 * (l // 8 + 1) ** 2 for l in range(order + 1))
    return 2 * tiles * WARP * 16 // itemsize + 4 * (order + 1)
