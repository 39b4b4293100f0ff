"""Which boxes of a level interact by m2l, as tables of the kernels ``kernels/m2l_*.cu``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fmm_openmm.box import BoxLattice

CHILDREN = np.array([(c & 1, c >> 1 & 1, c >> 2) for c in range(8)])
"""Of a box, shape (8, 3), as the kernels number them."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Which boxes of a level interact by m2l: children of near parents that are not near
    themselves, the same on all levels.

    Attributes:
        lattice: of any level, for its near stencil.
    """

    lattice: BoxLattice

    @cached_property
    def _sources(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For every child position of the target: offsets of the sources' parents (k, 3), their
        child positions (k,), and the offsets of the sources themselves (k, 3). Sorted so that
        neighbouring sources follow each other."""
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
        """For every child position its sources: their parents' x, y, z, and child + 8 * (row of
        :attr:`translations`).

        Shape (8, count, 4) int32.
        """
        rows = [
            np.column_stack([parents, children + 8 * self._number(-offsets)])
            for parents, children, offsets in self._sources
        ]
        return np.array(rows, np.int32)

    @cached_property
    def planes(self) -> tuple[np.ndarray, np.ndarray]:
        """Planes through the first box vector, on one side or the other of which each of
        :attr:`translations` lies.

        Returns:
            across: a vector in each plane without a part along the first box vector, shape (planes,
                3) int64, box vectors.
            of: the plane of each translation, shape (k,); of those along the first box vector the
                first.
        """
        across = self.translations[:, 1:]
        lines = across // np.maximum(np.gcd(*across.T), 1)[:, None]
        lines *= np.where((lines[:, 0] < 0) | (lines[:, 0] == 0) & (lines[:, 1] < 0), -1, 1)[
            :, None
        ]
        distinct, of = np.unique(lines, axis=0, return_inverse=True)  # the first is no line
        return np.pad(distinct[1:], ((0, 0), (1, 0))), np.maximum(of.ravel() - 1, 0)

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

    @cached_property
    def number(self) -> np.ndarray:
        """Row of :attr:`translations` from the children of each near parent to those of a box, -1
        where these are near.

        Shape (near, 8 sources, 8 targets) int32.
        """
        offsets = 2 * self.lattice.near[:, None, None] + CHILDREN[:, None] - CHILDREN
        return np.where(self.lattice.is_near(offsets), -1, self._number(-offsets)).astype(np.int32)

    @cached_property
    def mirrored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
            sources: as :attr:`list`, without the number of the translation. The n-th translation of
                a group is the vector, mirrored by h and by the n-th subset of the axes.
        """
        vectors = np.unique(np.abs(self.translations), axis=0)
        number = {vector: n for n, vector in enumerate(map(tuple, vectors.tolist()))}
        group, sources = [], []
        for position, (parents, children, offsets) in enumerate(self._sources):
            images: dict[int, dict[int, tuple]] = {}
            mirrors = (offsets > 0) @ (1, 2, 4)  # the translation is target - source
            for parent, child, offset, mirror in zip(
                parents, children, offsets, mirrors, strict=True
            ):
                images.setdefault(number[tuple(np.abs(offset).tolist())], {})[int(mirror)] = (
                    *parent,
                    child,
                )
            zeros = (vectors == 0) @ (1, 2, 4)
            found = [
                (n, *each)
                for n, of in images.items()
                for each in _groups(of, zeros[n], 7 - position)
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

    def _number(self, vectors: np.ndarray) -> np.ndarray:
        """Row of :attr:`translations` of each vector (..., 3); anything where it does not occur."""
        digits = 1 << np.array([42, 21, 0])
        return np.searchsorted(self.translations @ digits, vectors @ digits)


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
