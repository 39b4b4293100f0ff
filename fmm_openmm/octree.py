"""Levels of boxes: the root grid, and below it boxes of half the width, each box halved along its
three box vectors.

Level 0 is the root grid, ``levels`` the leaves. A box has eight children, told apart by their
``parity``: box i of a level is the child of parity ``i mod 2`` of box ``i // 2`` of the level
above. All levels have boxes of one shape, so in widths of its own boxes every level is the same
lattice with other counts, and near means the same stencil.

Two boxes of a level interact by m2l if their parents are near and they are not; parents that are
not near have interacted above, and at the root all images that are not near in one convolution.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from fmm_openmm.box import BoxLattice, index_grid

PARITIES = np.array(list(product((0, 1), repeat=3)))
"""Of the eight children, shape (8, 3)."""


def from_parent(boxes: np.ndarray) -> np.ndarray:
    """Centres of the eight children relative to their parent's, shape (8, 3), widths of a child."""
    return (PARITIES - 0.5) @ boxes


def children(array: np.ndarray, counts: np.ndarray, parity: np.ndarray) -> np.ndarray:
    """The children of one parity of a level's ``array`` (boxes, ...), as a view (n2, n1, n0, ...)
    over their parents.

    Args:
        counts: of the level, shape (3, 3). Box numbers run along the first axis fastest.
    """
    n0, n1, n2 = np.diag(counts)
    c0, c1, c2 = parity
    return array.reshape(n2, n1, n0, *array.shape[1:])[c2::2, c1::2, c0::2]


def is_nested(lattice: BoxLattice) -> bool:
    """Whether near boxes always have near parents, without which levels would
    count some boxes twice."""
    return all(lattice.is_near((parity + lattice.near) // 2).all() for parity in PARITIES)


@dataclass(frozen=True, eq=False)
class Octree:
    """The boxes of all levels.

    Attributes:
        leaf: the lattice of the leaves; its counts are multiples of ``2^levels``.
        levels: levels below the root grid.
    """

    leaf: BoxLattice
    levels: int

    @cached_property
    def lattices(self) -> tuple[BoxLattice, ...]:
        """Of every level, the root first."""
        return tuple(self.leaf.coarsened(self.levels - level) for level in range(self.levels + 1))

    @property
    def root(self) -> BoxLattice:
        return self.lattices[0]

    @cached_property
    def interactions(self) -> tuple[np.ndarray, ...]:
        """For each parity of the target the offsets of the boxes it interacts with by m2l,
        shape (k, 3) int64."""
        found = []
        for parity in PARITIES:
            offsets = (2 * self.leaf.near[:, None] + PARITIES - parity).reshape(-1, 3)
            found.append(offsets[~self.leaf.is_near(offsets)])
        return tuple(found)

    @cached_property
    def offsets(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The offsets of all interactions, once each, shape (k, 3) int64, and for each parity
        the rows of its own."""
        offsets, rows = np.unique(np.concatenate(self.interactions), axis=0, return_inverse=True)
        return offsets, np.split(rows.ravel(), np.cumsum([*map(len, self.interactions)])[:-1])

    @cached_property
    def from_root(self) -> np.ndarray:
        """Centre of every leaf relative to that of its box of the root grid, shape (leaves, 3),
        widths of a leaf."""
        index = index_grid(0, np.diag(self.leaf.counts)).reshape(-1, 3)
        across = 2**self.levels
        return (index % across + 0.5 - across / 2) @ self.leaf.boxes


def parities(lattice: BoxLattice) -> np.ndarray:
    """Row of ``PARITIES`` of every box, shape (boxes,) int64."""
    out = np.empty(lattice.size, np.int64)
    for row, parity in enumerate(PARITIES):
        children(out, lattice.counts, parity)[:] = row
    return out
