"""Where boxes are, and how they follow: over a whole periodic cell (:class:`Filling`), or, with an
open boundary and in periodic cells that are nearly empty, where the particles are
(:class:`Region`).

The boxes of a region reach half a width beyond the particles on every side. While these move less
than that, nothing changes; a cloud that moves as a whole takes its boxes along; only one that
outgrows them, or shrinks to a fraction of them, gets new ones.

Boxes over a whole cell follow it. A uniform scaling changes nothing; a strain of at most
:data:`fmm_openmm.box.MAX_STRAIN` from the cell they were chosen for keeps grid, parameters and near
stencil, so that a barostat's trial moves change only the lattice operator; a larger one has them
chosen anew, for the cell that asked for it. So there is no border near which they alternate.
"""

from dataclasses import dataclass, replace

import numpy as np

from fmm_openmm.box import ORIGIN, BoxLattice, OpenLattice, box_width
from fmm_openmm.planning.request import FMMParameters

SHRINKAGE = 8.0
"""Times more boxes than the particles need, from which new ones are chosen."""


@dataclass(frozen=True, eq=False)
class Region:
    """Boxes somewhere in space.

    Attributes:
        parameters: what was chosen for them.
        lattice: the boxes.
        width: of a box, nm.
        corner: lowest corner of box 0, shape (3,), nm.
    """

    parameters: FMMParameters
    lattice: OpenLattice
    width: float
    corner: np.ndarray

    def around(self, low: np.ndarray, high: np.ndarray) -> "Region | None":
        """These boxes, moved if need be to cover the particles between ``low`` and ``high``,
        shape (3,), nm; None if they are too few, or far too many."""
        edge = self.parameters.smoothing * self.width
        size = self.lattice.span * self.width
        if (
            self.lattice.span.prod()
            > SHRINKAGE * span_over(high - low, self.width, self.parameters.levels).prod()
        ):
            return None
        if (low - edge >= self.corner).all() and (high + edge < self.corner + size).all():
            return self
        return self.centred(low, high)

    def centred(self, low: np.ndarray, high: np.ndarray) -> "Region | None":
        """These boxes, moved so that the particles between ``low`` and ``high``, shape (3,), nm,
        are in their middle; None if they are too few."""
        if self.outgrown(high - low).any():
            return None
        return replace(self, corner=corner_for(low, high, self.lattice.span, self.width))

    def outgrown(self, extent: np.ndarray) -> np.ndarray:
        """The axes along which particles of this extent, shape (3,), nm, need more boxes,
        shape (3,) bool."""
        edge = self.parameters.smoothing + ORIGIN
        return extent + 2 * edge * self.width > self.lattice.span * self.width

    def scaled(self, cell: np.ndarray | None) -> "Region | None":
        """These boxes in a periodic cell of the same shape, however large, or without one; None
        if its shape is another."""
        if cell is None:
            return self
        width = float(np.cbrt(np.prod(np.diag(cell)) / np.prod(np.diag(self.lattice.cell))))
        if abs(width - self.width) < 1e-14 * width:  # rounding
            width = self.width
        if np.abs(cell / width - self.lattice.cell).max() > 1e-12 * self.lattice.cell.max():
            return None
        return replace(self, width=width, corner=self.corner * (width / self.width))

    @property
    def centre(self) -> np.ndarray:
        """The middle of the boxes, shape (3,), nm."""
        return self.corner + self.lattice.span * self.width / 2

    @property
    def origin(self) -> np.ndarray:
        """What the stages take for the origin, shape (3,), nm, so that their boxes are these."""
        return self.corner + ORIGIN * self.width


@dataclass(frozen=True, eq=False)
class Filling:
    """Boxes over a whole periodic cell; parameters, lattice, width and origin as of a
    :class:`Region`.

    They serve every cell of their shape, and those that are strained by at most
    :data:`fmm_openmm.box.MAX_STRAIN`.
    """

    parameters: FMMParameters
    lattice: BoxLattice
    width: float
    origin = (0.0, 0.0, 0.0)

    def scaled(self, cell: np.ndarray) -> "Filling | None":
        """These boxes in a cell of the same shape, however large; None if its shape is another."""
        return (
            replace(self, width=box_width(cell, self.lattice.counts))
            if self.lattice.same_shape(cell)
            else None
        )

    def strained(self, cell: np.ndarray) -> "Filling | None":
        """These boxes in a cell of another shape, with their parameters and near stencil; None
        if it is strained too much."""
        lattice = self.lattice.strained(cell)
        return lattice and replace(self, lattice=lattice, width=box_width(cell, lattice.counts))


Boxes = Region | Filling


def span_over(extent: np.ndarray, width: float, levels: int = 0) -> np.ndarray:
    """Boxes along each axis that cover particles of the given extent; multiples of ``2^levels``."""
    return np.ceil((extent / width + 1.0) / 2**levels).astype(np.int64) << levels


def corner_for(low: np.ndarray, high: np.ndarray, span: np.ndarray, width: float) -> np.ndarray:
    """Centred, but for ``ORIGIN``: symmetric clusters have planes of particles in their middle."""
    return (low + high) / 2 - (span / 2 + ORIGIN) * width
