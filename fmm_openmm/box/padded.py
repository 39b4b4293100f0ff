"""Boxes that cover the particles only, along some axes or all."""

from functools import cached_property
from itertools import count, product

import numpy as np

from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.box.grid import counts_matrix, is_smooth
from fmm_openmm.box.lattice import DISTANT, BoxLattice
from fmm_openmm.box.stencil import index_grid, near_stencil

CUBES = np.eye(3)
"""Vectors of boxes that need not fit into a cell."""


class PaddedLattice(BoxLattice):
    """Boxes with empty boxes around them: ``span`` boxes along each axis, within a lattice so much
    larger that a circular convolution over it is the plain one, and that no box has a near one
    through the boundary. Its lengths are even.

    Every particle must lie in a box with ``0 <= index < span``. In a periodic cell the images of
    the particles are far away: they are in no box of the lattice, only in the lattice operator.

    Along axes that are not ``padded`` the boxes repeat, as those of a :class:`BoxLattice` do.

    Args:
        counts: ``span``, shape (3,) int64, or with it on the diagonal the integer matrix of the
            boxes that repeat, shape (3, 3), whose other components along padded axes are 0;
            multiples of ``2^levels``.
        levels: levels above this lattice, up to the root grid, the one whose lengths are chosen;
            the others follow it.
        cell: periodic cell vectors in reduced form, shape (3, 3), box widths, whatever their
            relation to the boxes along padded axes.
        padded: the axes along which the boxes are padded with empty ones.
        boxes: box vectors over the mean box width, shape (3, 3), determinant 1.
    """

    _span: np.ndarray
    _levels: int
    _cell: np.ndarray
    _padded: tuple[bool, bool, bool]

    def __init__(
        self,
        counts: np.ndarray,
        near_radius: float,
        filled: float = 1.0,
        levels: int = 0,
        cell: np.ndarray = EMPTY_SPACE,
        padded: tuple[bool, bool, bool] = (True, True, True),
        boxes: np.ndarray = CUBES,
    ):
        counts = counts_matrix(counts)
        span, reach = np.diag(counts).copy(), np.abs(near_stencil(boxes, near_radius)).max(0)
        lengths = [
            2 * next(m for m in count(max(n, -(-(n + far) // 2))) if is_smooth(m)) if empty else n
            for n, far, empty in zip((span >> levels).tolist(), reach, padded, strict=True)
        ]
        np.fill_diagonal(counts, np.array(lengths) << levels)
        super().__init__(counts, boxes, near_radius, filled)
        object.__setattr__(self, "_span", span)
        object.__setattr__(self, "_levels", levels)
        object.__setattr__(self, "_cell", np.array(cell, float))
        object.__setattr__(self, "_padded", padded)

    def strained(self, cell: np.ndarray) -> "PaddedLattice | None":
        """These boxes in another cell of a slab, shape (3, 3), with the same near stencil, and
        their height scaled like the other lengths on average; None for others, with levels, or if
        the cell strains :attr:`unstrained` by more than :data:`fmm_openmm.box.MAX_STRAIN`."""
        if self.padded != (False, False, True) or self._levels:
            return None
        before, boxes = self.unstrained.boxes, np.zeros((3, 3))
        boxes[:2, :2] = np.linalg.solve(self.counts[:2, :2].astype(float), cell[:2, :2])
        area = boxes[0, 0] * boxes[1, 1] / (before[0, 0] * before[1, 1])
        boxes[2] = np.sqrt(area) * before[2]
        width = np.cbrt(np.prod(np.diag(boxes)))
        boxes /= width
        if not self.unstrained.is_strained_to(boxes):
            return None
        made = object.__new__(PaddedLattice)
        changed = {"boxes": boxes, "strained_from": self.unstrained, "_cell": cell / width}
        made.__dict__.update(self.__getstate__() | changed)
        return made

    def coarsened(self, levels: int) -> "PaddedLattice":
        if not levels:
            return self
        counts = self.counts.copy()
        np.fill_diagonal(counts, self.span)
        return PaddedLattice(
            counts >> levels,
            self.near_radius,
            self.filled,
            self._levels - levels,
            self.cell / 2**levels,
            self.padded,
            self.boxes,
        )

    @property
    def span(self) -> np.ndarray:
        """Boxes along each axis, shape (3,) int64."""
        return self._span

    @property
    def padded(self) -> tuple[bool, bool, bool]:
        """Along which axes the lattice is padded with empty boxes, so that none of its boxes is an
        image of another."""
        return self._padded

    @property
    def cell(self) -> np.ndarray:
        """Periodic cell vectors, shape (3, 3), box widths; infinite along axes without images."""
        return self._cell

    @property
    def background(self) -> float:
        """Density of the background that neutralises a unit charge in the cell, per box volume;
        0 in free space."""
        return self.boundary.background(self.cell)

    @cached_property
    def gap(self) -> float:
        """Distance from a box of the span to the nearest image of another that is not itself a box
        of the lattice, box widths."""
        beyond = np.maximum(np.abs(self._shifts) - (self.span - 1), 0.0)
        return float(np.linalg.norm(beyond, axis=1).min(initial=np.inf))

    @property
    def images(self) -> np.ndarray:
        """Displacements of the images that are not boxes of the lattice, up to `DISTANT` box widths
        farther than the nearest, shape (m, 3), box widths."""
        found = (
            self._shifts[:, None] + index_grid(1 - self.span, self.span).reshape(-1, 3)
        ).reshape(-1, 3)
        return found[np.linalg.norm(found, axis=1) <= self.gap + DISTANT]

    @property
    def has_images(self) -> tuple[bool, bool, bool]:
        """Along which axes the particles have images that are not boxes of the lattice."""
        a, b, c = map(all, zip(self.padded, self.boundary.periodic, strict=True))
        return a, b, c

    @property
    def _shifts(self) -> np.ndarray:
        """Displacements of the images of a box in the nearest two cells along the axes of
        :attr:`has_images`, shape (k, 3), box widths."""
        ranges = [range(-2, 3) if images else range(1) for images in self.has_images]
        numbers = np.array(list(product(*ranges)))
        return numbers[numbers.any(1)] @ self.boundary.vectors(self.cell)

    @cached_property
    def neighbours(self) -> float:
        """Mean number of near boxes per box of the span, the box itself included."""
        share = np.where(self.padded, 1.0 - np.abs(self.near) / self.span, 1.0)
        return float(np.maximum(0.0, share).prod(1).sum())

    def occurring(self, offsets: np.ndarray) -> np.ndarray:
        """Those of the offsets, shape (m, 3), that occur between two boxes of the span or their
        images."""
        apart = (np.abs(offsets) < self.span) | ~np.array(self.padded)
        return offsets[apart.all(1)]
