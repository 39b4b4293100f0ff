"""Boxes and where they lie: over a whole periodic cell (:class:`Filling`), or over the particles
only (:class:`Region`): along axes without images, and along all axes of nearly empty periodic
cells.

The boxes of a region extend half a width beyond the particles on such a side. Particles that move
less than that change nothing. If the particles drift as a whole, the boxes are translated with
them. New boxes are chosen only when the particles outgrow them or shrink to a fraction of them.

Boxes over a whole cell, and those of a slab, deform with it. A uniform scaling changes nothing. A
strain of at most :data:`fmm_openmm.box.MAX_STRAIN` from the cell that the boxes were chosen for
keeps grid, parameters and near stencil, so that a barostat's trial moves change only the lattice
operator. With a larger strain boxes are chosen for the strained cell, which then is the reference:
a cell that fluctuates about the limit does not make them alternate.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import ORIGIN, BoxLattice, PaddedLattice, box_width
from fmm_openmm.planning.request import FMMParameters

SHRINKAGE = 8.0
"""Boxes in use over boxes needed, above which new ones are chosen."""


@dataclass(frozen=True, eq=False)
class Region:
    """Boxes that cover only the particles along the axes along which their lattice is padded; along
    the others they repeat and cover the cell.

    Attributes:
        parameters: the parameters chosen with the boxes.
        lattice: the boxes.
        width: mean box width, nm.
        corner: lowest corner of box 0, shape (3,), nm.
    """

    parameters: FMMParameters
    lattice: PaddedLattice
    width: float
    corner: np.ndarray

    def cover(self, low: np.ndarray, high: np.ndarray) -> "Region | None":
        """The boxes, translated if necessary, so that they cover particles between ``low`` and
        ``high``, shape (3,), nm; None if there are too few boxes, or far too many."""
        needed = span_over(high - low, self.heights, self.parameters.levels).tolist()
        few = math.prod(
            count if padded else 1
            for count, padded in zip(needed, self.lattice.padded, strict=True)
        )
        if self._padded_boxes > SHRINKAGE * few:
            return None
        lowest, highest = self._limits
        if (low >= lowest).all() and (high < highest).all():
            return self
        return self.centred_on(low, high)

    @cached_property
    def _padded_boxes(self) -> int:
        """Product of the numbers of boxes along padded axes."""
        return int(np.where(self.lattice.padded, self.lattice.span, 1).prod())

    @cached_property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest coordinates that the boxes cover, shape (3,), nm; infinite along axes
        along which they repeat."""
        padded, edge = self.lattice.padded, self.parameters.smoothing * self.heights
        low, high = self.corner + edge, self.corner + self.lattice.span * self.heights - edge
        return np.where(padded, low, -np.inf), np.where(padded, high, np.inf)

    def centred_on(self, low: np.ndarray, high: np.ndarray) -> "Region | None":
        """The boxes, translated so that particles between ``low`` and ``high``, shape (3,), nm, lie
        in the middle; None if there are too few boxes."""
        if self.outgrown(high - low).any():
            return None
        return replace(self, corner=corner_for(low, high, self.lattice, self.width))

    def outgrown(self, extent: np.ndarray) -> np.ndarray:
        """Axes along which particles of the given extent, shape (3,), nm, need more boxes; shape
        (3,), bool."""
        return extent > self.capacity

    @cached_property
    def capacity(self) -> np.ndarray:
        """Largest extent of particles that the boxes can cover, shape (3,), nm; infinite along axes
        along which they repeat."""
        edge = self.parameters.smoothing + ORIGIN
        return np.where(self.lattice.padded, (self.lattice.span - 2 * edge) * self.heights, np.inf)

    def scaled(self, cell: np.ndarray) -> "Region | None":
        """The boxes scaled to a periodic cell of the same shape, of any size; unchanged in free
        space; None if the shape differs."""
        if Boundary.from_cell(cell).is_open:
            return self
        vectors, finite = self.lattice.cell, np.isfinite(cell)
        width = float(np.cbrt(_volume(cell) / _volume(vectors)))
        if abs(width - self.width) < 1e-14 * width:  # rounding
            width = self.width
        if np.abs(cell[finite] / width - vectors[finite]).max() > 1e-12 * vectors[finite].max():
            return None
        if width == self.width:
            return self
        return replace(self, width=width, corner=self.corner * (width / self.width))

    def strained(self, cell: np.ndarray) -> "Region | None":
        """The boxes of a slab deformed to a cell of another shape, with parameters and near stencil
        kept; None for others, or if the strain is too large."""
        lattice = self.lattice.strained(cell)
        if lattice is None:
            return None
        width = float(cell[0, 0] / lattice.cell[0, 0])
        corner = self.corner * heights(lattice.boxes, width) / self.heights
        return replace(self, lattice=lattice, width=width, corner=corner)

    @cached_property
    def heights(self) -> np.ndarray:
        """Extent of a box along x, y and z, shape (3,), nm."""
        return heights(self.lattice.boxes, self.width)

    @property
    def filled(self) -> float:
        """Number of boxes whose volume the particles fill, roughly: the outermost have a margin."""
        span, padded = self.lattice.span, np.array(self.lattice.padded)
        return min(
            self.lattice.filled * self.lattice.size, float(np.maximum(span - padded, 1).prod())
        )

    @cached_property
    def centre(self) -> np.ndarray:
        """Centre of the boxes, shape (3,), nm."""
        return self.corner + self.lattice.span * self.heights / 2

    @cached_property
    def origin(self) -> np.ndarray:
        """Origin that makes the boxes of the stages coincide with these, shape (3,), nm."""
        return self.corner + ORIGIN * self.heights


@dataclass(frozen=True, eq=False)
class Filling:
    """Boxes over a whole periodic cell; parameters, lattice, width and origin as in
    :class:`Region`.

    The boxes serve every cell of the same shape, and cells that are strained by at most
    :data:`fmm_openmm.box.MAX_STRAIN`.
    """

    parameters: FMMParameters
    lattice: BoxLattice
    width: float
    origin = (0.0, 0.0, 0.0)

    @property
    def filled(self) -> float:
        """Number of boxes whose volume the particles fill, roughly."""
        return self.lattice.filled * self.lattice.size

    def scaled(self, cell: np.ndarray) -> "Filling | None":
        """The boxes scaled to a cell of the same shape, of any size; None if the shape differs."""
        width = self.lattice.width_in(cell)
        return None if width is None else Filling(self.parameters, self.lattice, width)

    def strained(self, cell: np.ndarray) -> "Filling | None":
        """The boxes deformed to a cell of another shape, with parameters and near stencil kept;
        None if the strain is too large."""
        lattice = self.lattice.strained(cell)
        if lattice is None:
            return None
        return replace(self, lattice=lattice, width=box_width(cell, lattice.counts))


Boxes = Region | Filling


def span_over(extent: np.ndarray, heights: np.ndarray | float, levels: int = 0) -> np.ndarray:
    """Numbers of boxes along the axes that cover particles of the given extent, shape (3,), nm;
    multiples of ``2^levels``."""
    return np.ceil((extent / heights + 1.0) / 2**levels).astype(np.int64) << levels


def corner_for(
    low: np.ndarray, high: np.ndarray, lattice: PaddedLattice, width: float
) -> np.ndarray:
    """Lowest corner of boxes centred on the particles, shape (3,), nm, but for ``ORIGIN``: the
    particles of symmetric clusters lie in planes through the centre. Boxes that repeat along an
    axis lie there as those of a :class:`Filling`."""
    middle = np.where(lattice.padded, (low + high) / 2, 0.0)
    half = np.where(lattice.padded, lattice.span / 2, 0.0)
    return middle - (half + ORIGIN) * heights(lattice.boxes, width)


def heights(boxes: np.ndarray, width: float) -> np.ndarray:
    """Extent of boxes along x, y and z, shape (3,), nm.

    Args:
        boxes: box vectors over the mean box width, lower triangular, shape (3, 3).
        width: mean box width, nm.
    """
    return np.diag(boxes) * width


def _volume(cell: np.ndarray) -> float:
    """Volume of a cell whose infinite axes are as long as its first."""
    lengths = np.diag(cell)
    return float(np.prod(np.where(np.isfinite(lengths), lengths, lengths[0])))
