"""What every rank has: a range of the boxes, with about as many parts as any other, and on GPUs
planes of the Fourier grid."""

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


@dataclass(frozen=True, eq=False)
class PlaneShares:
    """The planes of the Fourier grid, by its first index, that the ranks transform: those of their
    own boxes where planes consist of layers of boxes, as in rectangular cells.

    Attributes:
        ranges: range of each rank, of the planes that hold boxes.
        sent: for each rank, which of the boxes of this one are in its planes.
        received: for each rank, the places in the planes of this one of boxes that it sends.
        are_boxes: whether the planes of every rank are its boxes, in their order.
    """

    ranges: list[slice]
    sent: list[np.ndarray]
    received: list[np.ndarray]
    are_boxes: bool

    @classmethod
    def of(cls, rank: int, lattice: BoxLattice, boxes: list[slice]) -> "PlaneShares":
        """The planes for ranks with given boxes."""
        slots, size = lattice.slots_of(lattice.span), plane_size(lattice)
        plane = slots // size
        if layer := layer_size(lattice):
            ranges = [slice(share.start // layer, share.stop // layer) for share in boxes]
        else:
            ranges = even_ranges(int(plane.max()) + 1, len(boxes))
        owner = np.searchsorted([each.stop for each in ranges], plane, side="right")
        mine = np.flatnonzero(owner == rank)
        cuts = np.searchsorted(mine, [share.start for share in boxes[1:]])
        return cls(
            ranges,
            [np.flatnonzero(owner[boxes[rank]] == other) for other in range(len(boxes))],
            np.split(slots[mine] - size * ranges[rank].start, cuts),
            bool(layer) and np.array_equal(slots, np.arange(len(slots))),
        )


def plane_size(lattice: BoxLattice) -> int:
    """Points of a plane of the Fourier grid."""
    return int(np.prod(lattice.fft_shape[1:]))


def layer_size(lattice: BoxLattice) -> int:
    """Boxes of a layer along the last axis if each layer is in a plane of its own of the Fourier
    grid, in the same order; else 0."""
    slots, layer = lattice.slots_of(lattice.span), int(lattice.span[:2].prod())
    alike = np.array_equal(slots // plane_size(lattice), np.arange(len(slots)) // layer)
    return layer if alike else 0


def even_ranges(count: int, ranks: int) -> list[slice]:
    """``count`` items in a range for each rank, as even as possible."""
    bounds = [count * rank // ranks for rank in range(ranks + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def near_boxes(lattice: BoxLattice, index: np.ndarray) -> np.ndarray:
    """Whether each box, in memory order, is near one of the boxes with given index vectors, shape
    (k, 3); those outside of the span hold nothing and are near to none."""
    near = np.zeros(lattice.size, bool)
    index = index[(index < lattice.span).all(1)]
    for offset in lattice.near:
        near[lattice.linear(index + offset)] = True
    return near
