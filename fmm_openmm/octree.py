"""Levels of boxes: the root grid, and levels below it, in each of which every box is halved along
its three box vectors.

Level 0 is the root grid, level ``levels`` holds the leaves. The eight children of a box differ in
their ``parity``: box i of a level is the child of parity ``i mod 2`` of box ``i // 2`` of the level
above. The boxes of all levels have the same shape. In units of its box width every level is
therefore the same lattice with other counts, and the near stencil is the same.

Two boxes of a level interact by m2l if their parents are near and they are not. Parents that are
not near have interacted at the level above; at the root, one convolution covers all images that are
not near.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from fmm_openmm.box import BoxLattice, index_grid

PARITIES = np.array(list(product((0, 1), repeat=3)))
"""Parities of the eight children, shape (8, 3)."""


def from_parent(boxes: np.ndarray) -> np.ndarray:
    """Centres of the eight children relative to the centre of their parent, shape (8, 3), in box
    widths of the children."""
    return (PARITIES - 0.5) @ boxes


def children(array: np.ndarray, counts: np.ndarray, parity: np.ndarray) -> np.ndarray:
    """View of the children of one parity, shape (n2, n1, n0, ...), indexed by their parents.

    Args:
        array: values at the boxes of a level, shape (boxes, ...); box numbers run fastest along the
            first axis.
        counts: counts matrix of the level, shape (3, 3).
        parity: shape (3,).
    """
    n0, n1, n2 = np.diag(counts)
    c0, c1, c2 = parity
    return array.reshape(n2, n1, n0, *array.shape[1:])[c2::2, c1::2, c0::2]


def is_nested(lattice: BoxLattice) -> bool:
    """Whether near boxes always have near parents; otherwise levels would count some boxes
    twice."""
    return bool(lattice.is_near((PARITIES[:, None] + lattice.near) // 2).all())


@dataclass(frozen=True, eq=False)
class Octree:
    """The box lattices of all levels.

    Attributes:
        leaf: the lattice of the leaves; its counts are multiples of ``2^levels``.
        levels: number of levels below the root grid.
    """

    leaf: BoxLattice
    levels: int

    @cached_property
    def lattices(self) -> tuple[BoxLattice, ...]:
        """Lattices of all levels, the root first."""
        return tuple(self.leaf.coarsened(self.levels - level) for level in range(self.levels + 1))

    @property
    def root(self) -> BoxLattice:
        """Lattice of the root grid."""
        return self.lattices[0]

    @cached_property
    def interactions(self) -> tuple[np.ndarray, ...]:
        """For each parity of a target box, offsets of the boxes that it interacts with by m2l,
        shape (k, 3), int64."""
        found = []
        for parity in PARITIES:
            offsets = (2 * self.leaf.near[:, None] + PARITIES - parity).reshape(-1, 3)
            found.append(offsets[~self.leaf.is_near(offsets)])
        return tuple(found)

    @cached_property
    def offsets(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Distinct offsets of all interactions, shape (k, 3), int64, and for each parity the rows
        of its offsets."""
        offsets, rows = np.unique(np.concatenate(self.interactions), axis=0, return_inverse=True)
        return offsets, np.split(rows.ravel(), np.cumsum([*map(len, self.interactions)])[:-1])

    @cached_property
    def from_root(self) -> np.ndarray:
        """Centres of the leaves relative to the centres of their boxes in the root grid, shape
        (leaves, 3), in box widths of the leaves."""
        index = index_grid(0, np.diag(self.leaf.counts)).reshape(-1, 3)
        across = 2**self.levels
        return (index % across + 0.5 - across / 2) @ self.leaf.boxes


def parities(lattice: BoxLattice) -> np.ndarray:
    """Row of ``PARITIES`` for every box, shape (boxes,), int64."""
    out = np.empty(lattice.size, np.int64)
    for row, parity in enumerate(PARITIES):
        children(out, lattice.counts, parity)[:] = row
    return out
