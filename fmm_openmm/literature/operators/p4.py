"""M2L by O(p^4) operations per pair of boxes, with a direct mapping of loops to threads or with
index work hoisted out of the loops."""

import numpy as np

from fmm_openmm.backends.cuda.interactions import CHILDREN, Interactions
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, made_of, parents


class P4:
    """The operator of ``kernels/literature/m2l_p4.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        add_harmonics(b, interactions.translations)
        b.stage("m2l", "m2l_p4", m2l_p4=0)
        self._count = np.int32(interactions.list.shape[1])

    def shares(self, b: Builder, half: int) -> int:
        """Number of blocks that share an interaction list."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        b.launch(
            "m2l_p4", (parents(b, half), 8), threads_of_pairs(b.order), np.int32(half), self._count,
            "interactions", "harmonics", moments, "level_sums",
        )  # fmt: skip


class P4Dynamic:
    """The operator of ``kernels/literature/m2l_p4_dynamic.cu``."""

    def __init__(self, b: Builder, interactions: Interactions):
        add_harmonics(b, interactions.translations)
        b.stage("m2l", "m2l_p4_dynamic", m2l_p4_dynamic=0)
        near = interactions.lattice.near
        self._near = np.int32(len(near))
        b.table("near_parents", np.pad(near, ((0, 0), (0, 1))), np.int32)
        b.table("translation_numbers", rows_by_parent(interactions), np.int32)

    def shares(self, b: Builder, half: int) -> int:
        """Number of blocks that share an interaction list."""
        return 1

    def launch(self, b: Builder, half: int, moments: str) -> None:
        b.launch(
            "m2l_p4_dynamic", parents(b, half), threads_of_pairs(b.order), np.int32(half),
            self._near, "near_parents", "translation_numbers", "harmonics", moments, "level_sums",
        )  # fmt: skip


def add_harmonics(b: Builder, vectors: np.ndarray) -> None:
    """Add a buffer of irregular harmonics of the given vectors."""
    b.buffer("harmonics", (len(vectors), (2 * b.order + 1) ** 2), b.real)
    made_of(b, "harmonics", vectors)


def threads_of_pairs(order: int) -> int:
    """Threads for all pairs (l, m >= 0), in full warps."""
    return -(-(order + 1) * (order + 2) // 2 // WARP) * WARP


def rows_by_parent(interactions: Interactions) -> np.ndarray:
    """Rows of :attr:`Interactions.translations` from the children of each near parent to those of a
    box, -1 if they are near each other.

    Shape (near, 8 sources, 8 targets) int32.
    """
    lattice = interactions.lattice
    offsets = 2 * lattice.near[:, None, None] + CHILDREN[:, None] - CHILDREN
    return np.where(lattice.is_near(offsets), -1, interactions.rows_of(-offsets)).astype(np.int32)
