"""The stage m2l, and its operator between the boxes of a level: its tables and launches.

``kernels/m2l_rotation.cu`` translates along an axis between rotations, some of which
``kernels/m2l_planes.cu`` computes: O(p^3). The operators of :mod:`fmm_openmm.literature.operators`
have the same interface.

An operator is made once for all levels. It reads moments and overwrites ``level_sums``, local
expansions in shares, both in the slabs of ``kernels/common/levels.cuh``. The set-up makes what
depends on the box vectors.
"""

from dataclasses import replace

import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import (
    WARP,
    LevelTables,
    groups,
    half_of,
    made_of,
)
from fmm_openmm.backends.cuda.program import At

M2L_ADD_WARPS = 8
"""Warps of a block of m2l_add."""

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
"""Launch shapes of ``rotation``, by bytes of a real: largest order, warps in a block, blocks on a
multiprocessor at most, parts of the work on terms of even and of odd parity, numbers of M' and of
sums in registers. The fastest on an H200."""

PLANES_BYTES = 2**30
"""Bytes for moments rotated into planes, and as many for sums, which limit the number of planes at
a time; at least one plane."""

SHARE_SOURCES = 400
"""Cost of adding up the sums of another share in ``rotation``, in sources, times the square of the
order."""


def m2l(b: Builder, tables: LevelTables, moments: str, local: str, level: int) -> str:
    """Add the contributions of the interaction lists of a level to its local expansions."""
    half, operator = half_of(level), tables.operator
    b.stage(f"m2l{level}", "m2l_add", m2l_add=0)
    b.macros(M2L_ADD_WARPS=M2L_ADD_WARPS)
    operator.launch(b, half, moments)
    if level == 1:
        b.wait("traced")
    b.launch(
        "m2l_add", (groups(b, half), 8), WARP * M2L_ADD_WARPS, np.int32(half),
        np.int32(level == b.levels), np.int32(tables.sources), "interactions", "zero_rows",
        moments, np.int32(operator.shares(b, half)), "level_sums", "trace", "parameters",
        f"central{level}", local,
    )  # fmt: skip
    return local


class ByRotation:
    """M2L by rotation, O(p^3): the kernels of ``kernels/m2l_rotation.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        self._interactions, (across, plane_of) = interactions, interactions.planes
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
            np.pad(np.concatenate([across[plane_of], across]), ((0, 0), (0, 1))),
            np.int32,
        )
        b.buffer("rotations", (len(turns), turn_length(b.order)), b.real)
        made_of(b, "rotations", turns, "planes_of_turns")
        b.stage("m2l", "m2l_planes", to_planes=0, from_planes=0)
        b.stage("m2l", "m2l_rotation", m2l_rotation=0)

    def shares(self, b: Builder, half: int) -> int:
        """Number of partial sums that ``from_planes`` writes, to be added up."""
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
        zeros, sums = int(b.lattice.is_padded), slabs * shares * max(self._parts)
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
    """Add a buffer that all levels share, or enlarge it to the given number of slabs."""
    before = b.program.buffers.get(name)
    b.buffer(name, (max(slabs, before.shape[0] if before else 0), b.terms, WARP), b.real)


def fewest_rounds(resident: int, blocks: int, sources: int, of_share: float) -> int:
    """Number of blocks that share a list: the smallest that keeps the device busy to the end.

    Args:
        resident: number of blocks that run at once.
        blocks: number of blocks without shares.
        sources: number of sources of a list.
        of_share: cost of adding up a share, in sources.
    """

    def rounds(shares: int) -> float:
        """Time in sources: of the blocks that run one after the other, each with one more for its
        overhead, and of adding up the shares."""
        return -(-blocks * shares // resident) * (-(-sources // shares) + 1) + of_share * shares

    return min(range(1, sources + 1), key=rounds)


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
    """Numbers of a ``Rotation`` of ``kernels/common/rotation.cuh``."""
    return 4 * (order + 1)
