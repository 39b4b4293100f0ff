"""What boxes and parameters are chosen for: request, load, cell and backend."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice, box_width
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import leaders
from fmm_openmm.planning.boxes import Boxes, Filling, Region
from fmm_openmm.planning.cost import CPU_COST, CostModel
from fmm_openmm.planning.cover import cover
from fmm_openmm.planning.load import Load, filled_fraction
from fmm_openmm.planning.molecules import gather
from fmm_openmm.planning.request import ROUNDING_SHARE, FMMParameters, Request
from fmm_openmm.planning.search import adapt_parameters
from fmm_openmm.planning.tuning import choose_tuned

SPARSE_FRACTION = 0.25
"""Filled fraction of a periodic cell up to which a region is considered."""

FIELD_SLACK = {"rms": (2.0, 8.0), "max": (1.0, 8.0)}
"""Factors by which forces may be smaller, and larger, than parameters were chosen for, by the norm
of the error. Forces of other liquids are smaller by less than the first one, which the margin of
the estimate of the RMS error covers; that of the largest error has none."""

IONIC_SLACK = 0.25
"""Largest growth of the ionic fraction for which parameters are kept when charges change."""

CHARGED_SLACK = 0.4
"""Smallest ratio of new to old charged fraction for which they are kept. Either change lets the
error estimate grow by a third."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The data that boxes and parameters are chosen from, and the cheapest boxes for them.

    Where an axis has no images these are the boxes of a region. A cell that is periodic along all
    has boxes over the whole cell, unless it is nearly empty and the request leaves grid and levels
    free: then it also has a region, until boxes over the whole cell have proved cheaper.

    Attributes:
        request: tolerance and fixed values.
        load: the properties of the system.
        exclusions: excluded pairs, shape (m, 2).
        minimum_image: whether exclusions apply to nearest images.
        cell: cell vectors that ``parameters`` are chosen for, shape (3, 3), nm.
        cost: cost model of the backend.
        device: model of the GPU; None on the host.
        prefers_cell: whether boxes over the whole cell have proved cheaper than a region.
    """

    request: Request
    load: Load
    exclusions: np.ndarray
    minimum_image: bool
    cell: np.ndarray
    cost: CostModel = CPU_COST
    device: str | None = None
    prefers_cell: bool = False

    @cached_property
    def boundary(self) -> Boundary:
        """The boundary of the cell."""
        return Boundary.from_cell(self.cell)

    @cached_property
    def uses_region(self) -> bool:
        """Whether the boxes cover only the particles."""
        free = self.request.grid is None and not self.request.levels
        return not self.boundary.fills_space or (
            free and self.load.filled <= SPARSE_FRACTION and not self.prefers_cell
        )

    @cached_property
    def parameters(self) -> FMMParameters:
        """Parameters of boxes over the whole cell."""
        return choose_tuned(self.device, self.request, self.cell, self.load, self.cost)

    def filling(self, cell: np.ndarray, kept: Boxes | None = None) -> Filling:
        """Boxes over the whole of a cell.

        The boxes in use or else those of :attr:`parameters` if they can be deformed to the cell;
        else boxes chosen for it.

        Args:
            cell: cell vectors, shape (3, 3), nm.
            kept: boxes in use; a region is not kept.
        """
        for boxes in (kept, self._chosen):
            if isinstance(boxes, Filling) and (found := boxes.strained(cell)):
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
        self, positions: np.ndarray, cell: np.ndarray, kept: Boxes | None = None
    ) -> Region | None:
        """:func:`fmm_openmm.planning.cover.cover` for positions, shape (n, 3), nm, after
        :meth:`gather`; ``kept`` are the boxes in use."""
        x = self.gather(positions, cell)
        known = kept if isinstance(kept, Region) else None
        return cover(self.request, self.load, self.cost, x, cell, known)

    def gather(
        self, positions: np.ndarray, cell: np.ndarray, centre: np.ndarray | None = None
    ) -> np.ndarray:
        """Positions after :func:`fmm_openmm.planning.molecules.gather` where :attr:`gathers`, else
        unchanged."""
        return gather(positions, self._leaders, cell, centre) if self.gathers else positions

    @property
    def gathers(self) -> bool:
        """Whether molecules are translated next to each other before boxes cover them."""
        return self.uses_region and self.boundary.fills_space

    @cached_property
    def _leaders(self) -> np.ndarray:
        return leaders(self.load.particles, self.exclusions, self.minimum_image)

    def with_charges(self, charges: np.ndarray) -> "Problem":
        """The problem with other charges: itself as long as its parameters keep the tolerance, else
        a problem that covers both sets of charges.

        Parameters fail where bare ions replace neutral molecules, where far fewer particles carry
        the charge and, in a region, where the net charge is far larger.
        """
        load, other = self.load, Load.from_charges(charges, self.exclusions, self.load.filled)
        alike = (
            other.ionic <= load.ionic + IONIC_SLACK
            and other.charged >= CHARGED_SLACK * load.charged
        )
        if alike and (other.net <= 2 * load.net + 20 or not self.uses_region):
            return self
        ionic, charged, net = (
            max(load.ionic, other.ionic),
            min(load.charged, other.charged),
            max(load.net, other.net),
        )
        return replace(self, load=replace(load, ionic=ionic, charged=charged, net=net))

    def with_positions(self, positions: np.ndarray, cell: np.ndarray) -> "Problem":
        """The problem with the filled fraction of these positions; itself if that is the same, or
        if boxes follow the particles in any case."""
        if not self.boundary.fills_space:
            return self
        filled = filled_fraction(positions, cell)
        return (
            self
            if filled == self.load.filled
            else replace(self, load=replace(self.load, filled=filled), prefers_cell=False)
        )

    @property
    def rounding_limit(self) -> float:
        """The force error of single-precision coordinates above which :meth:`with_rounding`
        does something about it."""
        share = ROUNDING_SHARE if self.request.precision == "auto" else 1.0
        return share * self.request.rounding_tolerance

    def with_rounding(self, rounding: float, case: str) -> "Problem":
        """The problem given the force error that single precision causes in a case: itself if the
        error is well below the tolerance, else the problem in double precision.

        An explicit request for single precision is kept, with a warning that names the case if the
        error exceeds the tolerance.
        """
        if rounding <= self.rounding_limit:
            return self
        if self.request.precision == "auto":
            return replace(self, request=replace(self.request, precision="double"))
        tolerance, limit = self.request.tolerance, self.request.rounding_tolerance
        if rounding < np.inf:  # infinite: coincident after rounding, an error elsewhere
            warn(
                f"`tolerance={tolerance:g}` is out of reach in single precision for {case}: "
                f"rounding makes an error of about {rounding * tolerance / limit:.1g}; "
                "ask for `precision='double'`"
            )
        return self

    def with_field(self, ratio: float, error: float) -> "Problem":
        """The problem given the RMS force: itself if its parameters suit the force.

        Args:
            ratio: :meth:`fmm_openmm.planning.forces.ForceErrors.ratio`.
            error: expected error of the parameters given the RMS force, in the norm of the
                tolerance.
        """
        smaller, larger = FIELD_SLACK[self.request.error_norm]
        assumed = ratio * self.load.field
        too_small = assumed > smaller and error > self.request.tolerance
        if not (too_small or (self.load.field < 1.0 and assumed * larger < 1.0)):
            return self
        field = 0.5 ** max(0, math.ceil(math.log2(ratio)))
        return replace(self, load=replace(self.load, field=field))

    def over_whole_cell(self, positions: np.ndarray, cell: np.ndarray) -> "Problem":
        """The problem with boxes over the whole cell, for these positions."""
        return replace(self.with_positions(positions, cell), prefers_cell=True)
