"""Which boxes of a level interact by m2l, as tables of the kernels of m2l."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fmm_openmm.box import BoxLattice

CHILDREN = np.array([(c & 1, c >> 1 & 1, c >> 2) for c in range(8)])
"""Parities of the children of a box, shape (8, 3), in the order of the kernels."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """The interaction lists of m2l on a level. A target interacts with the children of the boxes
    near its parent that are not near itself; the lists are the same on all levels.

    Attributes:
        lattice: lattice of any level; only its near stencil is used.
    """

    lattice: BoxLattice

    @cached_property
    def sources(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The sources of a target for each of its eight child positions: offsets of the sources'
        parents (k, 3), their child positions (k,), and the offsets of the sources themselves (k,
        3). Neighbouring sources are next to each other."""
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
        return np.unique(-np.concatenate([offsets for _, _, offsets in self.sources]), axis=0)

    @cached_property
    def list(self) -> np.ndarray:
        """The sources of a target for each of its eight child positions as entries x, y, z of the
        parent's offset, and child position + 8 * (row of :attr:`translations`).

        Shape (8, count, 4) int32.
        """
        rows = [
            np.column_stack([parents, children + 8 * self.rows_of(-offsets)])
            for parents, children, offsets in self.sources
        ]
        return np.array(rows, np.int32)

    @cached_property
    def planes(self) -> tuple[np.ndarray, np.ndarray]:
        """Planes through the first box vector. Each of :attr:`translations` lies in one of them, on
        one of its two sides.

        Returns:
            across: a vector in each plane without a part along the first box vector, shape (planes,
                3) int64, box vectors.
            plane_of: the plane of each translation, shape (k,); the first one for those along the
                first box vector.
        """
        across = self.translations[:, 1:]
        lines = across // np.maximum(np.gcd(*across.T), 1)[:, None]
        lines *= np.where((lines[:, 0] < 0) | (lines[:, 0] == 0) & (lines[:, 1] < 0), -1, 1)[
            :, None
        ]
        distinct, plane_of = np.unique(lines, axis=0, return_inverse=True)  # the first is no line
        return np.pad(distinct[1:], ((0, 0), (1, 0))), np.maximum(plane_of.ravel() - 1, 0)

    def by_plane(self, first: int, end: int, shares: int) -> tuple[np.ndarray, np.ndarray]:
        """The lists of every child position and of planes first to end - 1, in shares, as the
        kernels of rotation read them.

        Returns:
            start: where share n of plane first + k of child position c begins, at
                ``(c * planes + k) * shares + n``; shape (8 * planes * shares + 1,) int32.
            entries: as :attr:`list`.
        """
        rows, counts = [], []
        for entries in self.list:
            of = self.planes[1][entries[:, 3] >> 3]
            for plane in range(first, end):
                here = np.array_split(entries[of == plane], shares)
                rows += here
                counts += [len(share) for share in here]
        return np.cumsum([0, *counts], dtype=np.int32), np.concatenate(rows)

    def rows_of(self, vectors: np.ndarray) -> np.ndarray:
        """Row of :attr:`translations` of each vector (..., 3); anything where it does not occur."""
        digits = 1 << np.array([42, 21, 0])
        return np.searchsorted(self.translations @ digits, vectors @ digits)
