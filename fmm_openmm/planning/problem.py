"""What boxes and parameters are chosen for: a request, a load and a cell, on a backend."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fmm_openmm.box import BoxLattice, box_width
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import leaders
from fmm_openmm.planning.boxes import Filling, Region
from fmm_openmm.planning.cost import CPU_COST, CostModel
from fmm_openmm.planning.cover import cover
from fmm_openmm.planning.load import Load, filled_fraction
from fmm_openmm.planning.molecules import gathered
from fmm_openmm.planning.request import ROUNDING_SHARE, FMMParameters, Request
from fmm_openmm.planning.search import adapt_parameters
from fmm_openmm.planning.tuning import choose_tuned

SPARSE = 0.25
"""Filled fraction of a periodic cell from which on boxes that cover the particles
only are considered."""

IONIC_SLACK = 0.25
"""Growth of the ionic fraction that parameters outlast when charges change."""

CHARGED_SLACK = 0.4
"""Shrinkage of the charged fraction that they outlast.
Either lets the error estimate grow by a third."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What boxes and parameters are chosen for, and the boxes that are cheapest for it: in empty
    space those of a region; in a periodic cell such ones too where it is nearly empty and the
    request leaves grid and levels free, until boxes over the whole cell have turned out cheaper;
    else boxes over the whole cell.

    Attributes:
        request: tolerance and fixed values.
        load: the system.
        exclusions: shape (m, 2).
        minimum_image: whether they exclude nearest images.
        cell: vectors that ``parameters`` are chosen for, shape (3, 3), nm; None in empty space.
        cost: cost model of the backend.
        device: model of the GPU; None for the host.
        dearer: whether a region has turned out dearer than boxes over the whole cell.
    """

    request: Request
    load: Load
    exclusions: np.ndarray
    minimum_image: bool
    cell: np.ndarray | None
    cost: CostModel = CPU_COST
    device: str | None = None
    dearer: bool = False

    @property
    def follows(self) -> bool:
        """Whether the boxes are those of a region."""
        free = self.request.grid is None and not self.request.levels
        return self.cell is None or (free and self.load.filled <= SPARSE and not self.dearer)

    @cached_property
    def parameters(self) -> FMMParameters:
        """Parameters of boxes over the whole cell."""
        return choose_tuned(self.device, self.request, self.cell, self.load, self.cost)

    def filling(self, cell: np.ndarray, kept: Filling | None = None) -> Filling:
        """Boxes over the whole of a cell, shape (3, 3), nm: the first of those in use and those of
        :attr:`parameters` that serve it, else others, chosen for it.

        Args:
            kept: boxes in use.
        """
        for boxes in filter(None, (kept, self._chosen)):
            found = boxes.strained(cell)
            if found:
                return found
        return self._filling(
            adapt_parameters(self.parameters, self.request, cell, self.load, self.cost), cell
        )

    @cached_property
    def _chosen(self) -> Filling:
        return self._filling(self.parameters, self.cell)

    def _filling(self, p: FMMParameters, cell: np.ndarray) -> Filling:
        lattice = BoxLattice.from_cell(cell, p.counts, p.near_radius, self.load.filled)
        return Filling(p, lattice, box_width(cell, p.counts))

    def region(
        self, positions: np.ndarray, cell: np.ndarray | None, kept: Region | None = None
    ) -> Region | None:
        """:func:`fmm_openmm.planning.cover.cover` for positions, shape (n, 3), nm, as
        :meth:`gathered` moves them."""
        positions = self.gathered(positions, cell)
        return cover(self.request, self.load, self.cost, positions, cell, kept)

    def gathered(
        self, positions: np.ndarray, cell: np.ndarray | None, centre: np.ndarray | None = None
    ) -> np.ndarray:
        """Positions as :func:`gathered` moves them in a periodic cell."""
        return positions if cell is None else gathered(positions, self._leaders, cell, centre)

    @cached_property
    def _leaders(self) -> np.ndarray:
        return leaders(self.load.particles, self.exclusions, self.minimum_image)

    def including(self, charges: np.ndarray) -> "Problem":
        """This itself while parameters chosen for it meet the tolerance for other charges too, else
        one that covers both.

        They do not where bare ions are now and molecules were, or where far fewer particles carry
        the charge; and, in a region, where there is far more net charge.
        """
        load, other = self.load, Load.of(charges, self.exclusions, self.load.filled)
        alike = (
            other.ionic <= load.ionic + IONIC_SLACK
            and other.charged >= CHARGED_SLACK * load.charged
        )
        if alike and (other.net <= 2 * load.net + 20 or not self.follows):
            return self
        ionic, charged, net = (
            max(load.ionic, other.ionic),
            min(load.charged, other.charged),
            max(load.net, other.net),
        )
        return replace(self, load=replace(load, ionic=ionic, charged=charged, net=net))

    def seeing(self, positions: np.ndarray, cell: np.ndarray) -> "Problem":
        """This itself while as much of the cell is filled, else one for as much as
        the positions fill."""
        filled = filled_fraction(positions, cell)
        return (
            self
            if filled == self.load.filled
            else replace(self, load=replace(self.load, filled=filled), dearer=False)
        )

    def resolving(self, rounding: float) -> "Problem":
        """This itself while an error of coordinates in single precision is well below the
        tolerance, or single precision was asked for, which is warned of above the tolerance;
        else one of double precision."""
        tolerance = self.request.tolerance
        if self.request.precision == "auto" and not rounding <= ROUNDING_SHARE * tolerance:
            return replace(self, request=replace(self.request, precision="double"))
        if tolerance < rounding < np.inf:  # what coincides after rounding is an error
            warn(
                f"`tolerance={tolerance:g}` is out of reach in single precision for charges so "
                f"close to each other: rounding makes an error of about {rounding:.1g}; "
                "ask for `precision='double'`"
            )
        return self

    def over_cell(self, positions: np.ndarray, cell: np.ndarray) -> "Problem":
        """With boxes over the whole of the cell from now on."""
        return replace(self.seeing(positions, cell), dearer=True)
