"""The boxes of every rank: a range of the boxes each, with about as many parts as any other."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fmm_openmm.box import BoxLattice


@dataclass(frozen=True, eq=False)
class BoxShares:
    """The boxes that the ranks own.

    Attributes:
        ranges: range of each rank.
        owner: rank of each box, shape (boxes,).
        near: whether each box is near one of each rank's, shape (boxes, ranks).
    """

    ranges: list[slice]
    owner: np.ndarray
    near: np.ndarray

    @classmethod
    def balanced(
        cls, comm, lattice: BoxLattice, index: np.ndarray, parts: np.ndarray, alignment: int = 1
    ) -> "BoxShares":
        """Ranges of equal numbers of parts.

        Args:
            comm: the communicator.
            lattice: the boxes.
            index: vector of each box, shape (boxes, 3), in the order of the ranges.
            parts: number of parts of all ranks in each box, shape (boxes,).
            alignment: ranges begin at multiples of it.
        """
        below, size = np.cumsum(parts), len(parts)
        cuts = np.searchsorted(below, below[-1] * np.arange(1, comm.size) / comm.size)
        cuts = np.minimum(np.rint(cuts / alignment).astype(np.int64) * alignment, size)
        bounds = [0, *cuts.tolist(), size]
        ranges = [slice(*pair) for pair in pairwise(bounds)]
        mine = np.packbits(near_boxes(lattice, index[ranges[comm.rank]])[lattice.linear(index)])
        packed = np.empty((comm.size, len(mine)), np.uint8)
        comm.Allgather(mine, packed)
        near = np.unpackbits(packed, axis=1, count=size).astype(bool)
        owner = np.repeat(np.arange(comm.size), np.diff(bounds))
        return cls(ranges, owner, np.ascontiguousarray(near.T))


def near_boxes(lattice: BoxLattice, index: np.ndarray) -> np.ndarray:
    """Whether each box, in memory order, is near one of the boxes with given index vectors, shape
    (k, 3); those outside of the span hold nothing and are near to none."""
    near = np.zeros(lattice.size, bool)
    index = index[(index < lattice.span).all(1)]
    for offset in lattice.near:
        near[lattice.linear(index + offset)] = True
    return near
