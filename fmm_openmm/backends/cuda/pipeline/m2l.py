"""M2L operators between the boxes of a level, by name: their tables, and how their kernels are
launched.

``p4``            ``kernels/m2l_p4.cu``            O(p^4), loops mapped to threads as they stand
``p4_dynamic``    ``kernels/m2l_p4_dynamic.cu``    O(p^4), a block a parent, index work hoisted out
                                                   of the loops
``p4_symmetric``  ``kernels/m2l_p4_symmetric.cu``  O(p^4), matrices shared by the mirror images of
                                                   a translation
``p4_parity``     ``kernels/m2l_p4_parity.cu``     O(p^4), and by target terms of the same signs
                                                   also sums over mirror images
``rotation``      ``kernels/m2l_rotation.cu``      O(p^3), translations along an axis between
                                                   rotations, these in part by
                                                   ``kernels/m2l_planes.cu``

An operator is made once for all levels. It reads moments and overwrites ``level_sums``, local
expansions in shares, both in the slabs of ``kernels/common/levels.cuh``; what depends on the box
vectors is made when these are set up.
"""

from dataclasses import replace

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.program import SETUP, At, Builder
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees

WARP = 32

MIRRORED_WARPS = {64: 32, 112: 24, 256: 16}
"""Of ``p4_symmetric`` and ``p4_parity`` on a multiprocessor, by bytes of local expansions in the
registers of a lane."""

BLOCK_WARPS, MOMENTS_AHEAD = 8, 8
"""Of these: warps a block, at most; moments that a lane reads ahead."""

ROTATION_SHAPES = {
    4: (
        (4, 4, 8, 1, 1, 15, 15),
        (7, 4, 5, 1, 1, 36, 36),
        (8, 4, 4, 1, 1, 45, 45),
        (10, 4, 3, 1, 1, 66, 66),
        (13, 4, 2, 1, 1, 105, 105),
        (14, 4, 2, 1, 1, 120, 0),
        (19, 8, 1, 1, 1, 210, 0),
        (20, 8, 1, 2, 1, 210, 6),
    ),
    8: (
        (5, 4, 4, 1, 1, 21, 21),
        (8, 4, 2, 1, 1, 45, 45),
        (13, 4, 2, 1, 1, 105, 0),
        (15, 4, 1, 1, 1, 90, 0),
        (16, 4, 1, 1, 1, 82, 0),
        (18, 4, 1, 2, 2, 70, 0),
        (20, 3, 1, 2, 2, 60, 0),
    ),
}
"""Of ``rotation``, by bytes of a real: up to which order how many warps a block and blocks of a
multiprocessor, at most, parts of the work on terms of even and of odd parity, numbers of M' and
sums in registers. What was fastest on an H200."""

PLANES_BYTES = 2**30
"""Of moments turned into planes, and as many of sums: so many planes at once, but one at least."""

SHARE_SOURCES = 400
"""To add up the sums of another share takes ``rotation`` about as long as so many sources over
the square of the order."""

ENOUGH_WARPS = 8192
"""The interaction lists are shared out among warps until there are about so many."""


def parents(b: Builder, half: int) -> int:
    """Boxes that have children on the level whose parents' grid has ``half`` times as many boxes
    as the root grid."""
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
            "m2l_p4", (parents(b, half), 8), threads_of_pairs(b.order), np.int32(half), self._count,
            "interactions", "harmonics", moments, "level_sums",
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
            "m2l_p4_dynamic", parents(b, half), threads_of_pairs(b.order), np.int32(half),
            self._near, "near_parents", "translation_numbers", "harmonics", moments, "level_sums",
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
        if not b.lattice.are_cuboids:
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
    """``kernels/m2l_p4_symmetric.cu``."""

    name, abreast = "p4_symmetric", (1, 2, 3, 4, 8)


class P4Parity(Mirrored):
    """``kernels/m2l_p4_parity.cu``."""

    name, abreast = "p4_parity", (1, 2, 3, 4)


class ByRotation:
    """``kernels/m2l_rotation.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        self._interactions, (across, of) = interactions, interactions.planes
        shape, of_warp = rotation_shape(b.order, b.real.itemsize, b.device.shared)
        self._deep, self._of_warp, self._parts = (
            shape["M2L_WARPS"],
            of_warp,
            (shape["PARTS_EVEN"], shape["PARTS_ODD"]),
        )
        self._resident = shape["BLOCKS"] * shape["M2L_WARPS"] * b.device.multiprocessors
        self._count, self._planes = interactions.list.shape[1], len(across)
        b.macros(**shape)
        vectors = np.pad(interactions.translations, ((0, 0), (0, 1)))
        turns = np.concatenate([vectors, np.pad(across, ((0, 0), (0, 1)), constant_values=1)])
        self._first_plane = len(vectors)
        b.table(
            "planes_of_turns",
            np.pad(np.concatenate([across[of], across]), ((0, 0), (0, 1))),
            np.int32,
        )
        b.buffer("rotations", (len(turns), turn_length(b.order)), b.real)
        made_of(b, "rotations", turns, "planes_of_turns")
        b.stage("m2l", file="m2l_planes", to_planes=0, from_planes=0)
        b.stage("m2l", file="m2l_rotation", m2l_rotation=0)

    def shares(self, b: Builder, half: int) -> int:
        """How many sums ``from_planes`` leaves: those of all shares are added up."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        deep = min(self._deep, groups(b, half))
        blocks, slabs = -(-groups(b, half) // deep), 8 * groups(b, half)
        # of all levels: as much shared memory as the largest needs
        kernel = b.program.kernels["m2l_rotation"]
        b.program.kernels["m2l_rotation"] = replace(
            kernel, shared=max(kernel.shared, deep * self._of_warp)
        )
        without_shares = 8 * blocks * sum(self._parts) * self._planes
        sources = -(-self._count // self._planes)
        shares = fewest_rounds(
            self._resident // deep, without_shares, sources, SHARE_SOURCES / b.order**2
        )
        zeros, sums = int(b.lattice.is_open), slabs * shares * max(self._parts)
        fitting = max(PLANES_BYTES // ((sums + zeros) * b.terms * WARP * b.real.itemsize), 1)
        at_once = -(-self._planes // -(-self._planes // fitting))
        at_least(b, "turned_moments", at_once * (slabs + zeros))
        at_least(b, "plane_sums", at_once * sums)
        for first in range(0, self._planes, at_once):
            end = min(first + at_once, self._planes)
            start, entries = (f"{name}_{first}_{end}_{shares}" for name in ("lists_begin", "lists"))
            for name, values in zip(
                (start, entries), self._interactions.by_plane(first, end, shares), strict=True
            ):
                b.table(name, values, np.int32)
            count, initial = np.int32(end - first), np.int32(first == 0)
            planes = At("rotations", (self._first_plane + first) * turn_length(b.order))
            b.launch(
                "to_planes", (slabs + zeros, b.order + 1), WARP, np.int32(half), count, planes,
                moments, "turned_moments",
            )  # fmt: skip
            lists = sum(self._parts) * (end - first) * shares
            b.launch(
                "m2l_rotation", (blocks, 8, lists), WARP * deep, np.int32(half), np.int32(shares),
                start, entries, "rotations", "turned_moments", "plane_sums",
            )  # fmt: skip
            b.launch(
                "from_planes",
                (slabs, b.order + 1),
                WARP,
                initial,
                count,
                np.int32(shares),
                planes,
                "plane_sums",
                "level_sums",
            )


def at_least(b: Builder, name: str, slabs: int) -> None:
    """A buffer of all levels, of the size that the largest needs."""
    before = b.program.buffers.get(name)
    b.buffer(name, (max(slabs, before.shape[0] if before else 0), b.terms, WARP), b.real)


def harmonics_of(b: Builder, vectors: np.ndarray) -> None:
    b.buffer("harmonics", (len(vectors), (2 * b.order + 1) ** 2), b.real)
    made_of(b, "harmonics", vectors)


def made_of(b: Builder, kernel: str, vectors: np.ndarray, *more: str) -> None:
    """Have a kernel of ``kernels/translations.cu`` make the table of its name from vectors (k,
    3), box vectors, or (k, 4), and from more tables."""
    b.stage(SETUP, file="translations", **{kernel: 0})
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


def fewest_rounds(resident: int, blocks: int, sources: int, of_share: float) -> int:
    """How many blocks share a list: as few as keep the device busy to the end.

    Args:
        resident: blocks that run at once.
        blocks: without shares.
        sources: of a list.
        of_share: as how many sources it takes to add up a share.
    """

    def rounds(shares: int) -> float:
        """Sources that the last block to end has come to, with one more for each share, and what
        all shares take later."""
        return -(-blocks * shares // resident) * (-(-sources // shares) + 1) + of_share * shares

    return min(range(1, sources + 1), key=rounds)


def threads_of_pairs(order: int) -> int:
    """One for every (l, m >= 0), in full warps."""
    return -(-(order + 1) * (order + 2) // 2 // WARP) * WARP


def shares_of(warps: int, most: int) -> int:
    """How many blocks share an interaction list, if there are so many warps without that."""
    return max(1, min(ENOUGH_WARPS // warps, most))


def mirrored_shape(order: int, itemsize: int, abreast: tuple[int, ...]) -> dict[str, int]:
    """Macros of ``kernels/common/mirrors.cuh``: the least number of tiles whose rows
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


def rotation_shape(order: int, itemsize: int, shared: int) -> tuple[dict[str, int], int]:
    """Macros of ``rotation``, and the bytes of shared memory of a warp of a block.

    Args:
        shared: bytes of shared memory that a block may have; a multiprocessor has 1024 more, and
            each block takes as many.

    Raises:
        MemoryError: not even one warp fits.
    """
    _, warps, blocks, even, odd, frame, sums = next(
        shape for shape in ROTATION_SHAPES[itemsize] if order <= shape[0]
    )
    terms = (order + 1) * (order + 2) // 2
    of_frame = max(
        terms if even == 1 else (order + 2) ** 2 // 4, terms - order - 1 if odd == 1 else 0
    )
    frame, sums = min(frame, of_frame), min(sums, terms)
    of_warp, static = (
        itemsize * (of_frame - frame + terms - sums) * WARP,
        2 * itemsize * turn_length(order),
    )
    warps = min(warps, (shared - static) // max(of_warp, 1))
    if warps < 1:
        raise MemoryError(
            f"`m2l='rotation'` needs {of_warp + static} bytes of shared memory a block, "
            f"the device has {shared}"
        )
    blocks = min(blocks, (shared + 1024) // (warps * of_warp + static + 1024))
    shape = {
        "M2L_WARPS": warps,
        "BLOCKS": blocks,
        "PARTS_EVEN": even,
        "PARTS_ODD": odd,
        "FRAME_HELD": frame,
        "SUMS_HELD": sums,
    }
    return shape, of_warp


def turn_length(order: int) -> int:
    """Numbers of a ``Turn`` of ``kernels/common/rotation.cuh``."""
    return 4 * (order + 1)
