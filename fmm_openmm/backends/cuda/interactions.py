"""Which boxes of a level interact by m2l, as tables of the kernels ``kernels/m2l_*.cu``."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fmm_openmm.box import BoxLattice

CHILDREN = np.array([(c & 1, c >> 1 & 1, c >> 2) for c in range(8)])
"""Of a box, shape (8, 3), as the kernels number them."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Which boxes of a level interact by m2l: children of near parents that are not near themselves, the same on all levels.

    Attributes:
        lattice: of any level, for its near stencil.
    """

    lattice: BoxLattice

    @cached_property
    def _sources(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For every child position of the target: offsets of the sources' parents (k, 3), their child positions (k,), and the
        offsets of the sources themselves (k, 3). Sorted so that neighbouring sources follow each other."""
        found = []
        for target in CHILDREN:
            parents = np.tile(self.lattice.near, (8, 1))
            children = np.repeat(np.arange(8), len(self.lattice.near))
            offsets = 2 * parents + CHILDREN[children] - target
            far = ~self.lattice.is_near(offsets)
            found.append((parents[far], children[far], offsets[far]))
        return found

    @cached_property
    def translations(self) -> np.ndarray:
        """The vectors from source to target that occur, shape (k, 3) int64, box vectors."""
        return np.unique(-np.concatenate([offsets for _, _, offsets in self._sources]), axis=0)

    @cached_property
    def list(self) -> np.ndarray:
        """For every child position its sources: their parents' x, y, z, and child + 8 * (row of :attr:`translations`).

        Shape (8, count, 4) int32.
        """
        rows = [
            np.column_stack([parents, children + 8 * self._number(-offsets)]) for parents, children, offsets in self._sources
        ]
        return np.array(rows, np.int32)

    @cached_property
    def number(self) -> np.ndarray:
        """Row of :attr:`translations` from the children of each near parent to those of a box, -1 where these are near.

        Shape (near, 8 sources, 8 targets) int32.
        """
        offsets = 2 * self.lattice.near[:, None, None] + CHILDREN[:, None] - CHILDREN
        return np.where(self.lattice.is_near(offsets), -1, self._number(-offsets)).astype(np.int32)

    @cached_property
    def mirrored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lists sorted by the absolute values of the translations, for boxes that are cuboids.

        Returns:
            vectors: the distinct ones, shape (matrices, 3) int64.
            group: shape (8, groups, 2) int32, of 1, 2, 4 or 8 sources with one matrix: the first one; its vector * 4 + log2 of
                their number; largest first.
            sources: as :attr:`list`, with the signs of the translation (bit set: negative) in place of its number.
        """
        vectors = np.unique(np.abs(self.translations), axis=0)
        number = {vector: n for n, vector in enumerate(map(tuple, vectors.tolist()))}
        group, sources = [], []
        for parents, children, offsets in self._sources:
            groups: dict[tuple, list] = {}
            signs = (offsets > 0) @ (1, 2, 4)  # the translation is target - source
            for parent, child, offset, sign in zip(parents, children, offsets, signs, strict=True):
                groups.setdefault(tuple(np.abs(offset).tolist()), []).insert(0, (*parent, child + 8 * sign))
            split = [(k, key) for key, entries in groups.items() for k in range(4) if len(entries) >> k & 1]
            first = 0
            for k, key in sorted(split, key=lambda each: (-each[0], each[1])):
                group.append((first, 4 * number[key] + k))
                sources += [groups[key].pop() for _ in range(1 << k)]
                first += 1 << k
        return vectors, np.array(group, np.int32).reshape(8, -1, 2), np.array(sources, np.int32).reshape(8, -1, 4)

    def _number(self, vectors: np.ndarray) -> np.ndarray:
        """Row of :attr:`translations` of each vector (..., 3); anything where it does not occur."""
        digits = 1 << np.array([42, 21, 0])
        return np.searchsorted(self.translations @ digits, vectors @ digits)
