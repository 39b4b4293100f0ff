"""Where boxes are: over a whole periodic cell (:class:`Filling`), or, with an open boundary and in
periodic cells that are nearly empty, where the particles are (:class:`Region`): which of them serve
(:class:`Placement`), how the cubic ones of a region are chosen, and how they follow the particles.

These reach half a width beyond the particles on every side. While these move less than that,
nothing changes; a cloud that moves as a whole takes its boxes along; only one that outgrows them,
or shrinks to a fraction of them, gets new ones.

In a periodic cell molecules are moved by cell vectors to where they lie side by side
(:func:`gathered`), and all images but the nearest are left to the lattice operator. That takes
boxes over at most half of the cell along x, y and z, and pays where the cost model finds them
cheaper than boxes over the whole cell.

Boxes over a whole cell follow it. A uniform scaling changes nothing; a strain of at most
:data:`fmm_openmm.box.MAX_STRAIN` from the cell they were chosen for keeps grid, parameters and near
stencil, so that a barostat's trial moves change only the lattice operator; a larger one has them
chosen anew, for the cell that asked for it. So there is no border near which they alternate.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from fmm_openmm.box import DISTANT, EMPTY_SPACE, ORIGIN, BoxLattice, OpenLattice, box_width
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import leaders
from fmm_openmm.parameters import (
    CPU_COST,
    NEAR_RADII,
    ROUNDING_SHARE,
    CostModel,
    FMMParameters,
    Grid,
    Load,
    Request,
    adapt_parameters,
    filled_fraction,
    ranked,
    search,
    tell_if_missed,
)
from fmm_openmm.tuning import choose_tuned

SPARSE = 0.25
"""Filled fraction of a periodic cell from which on boxes that cover the particles
only are considered."""

IONIC_SLACK = 0.25
"""Growth of the ionic fraction that parameters outlast when charges change."""

CHARGED_SLACK = 0.4
"""Shrinkage of the charged fraction that they outlast.
Either lets the error estimate grow by a third."""

MOST_BOXES = 200_000
"""Boxes that cover the particles, at most: sparser systems get larger boxes."""

CROWDED = 60.0
"""Particles in a filled box from which larger boxes are not considered."""

STEP = 1.12
"""Ratio of one width to the next that is considered."""

GROWTH = 0.2
"""How much farther than the particles new boxes reach along an axis on which the old ones were
too few: a particle that flies away would need new ones all the time."""

SHRINKAGE = 8.0
"""Times more boxes than the particles need, from which new ones are chosen."""

COARSENESS = 3e-6
"""Relative RMS force error of float32 coordinates for each nm by which boxes are wider than 1
nm, for particles at molecular distances: ten times that of water, twice that of a gas of ions at
random places."""

NET_NOISE = 6e-7
"""Of the potential of a net charge in float32, see :func:`_rounding`.
Fitted to droplets of water with net charges."""


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
            > SHRINKAGE * _span(high - low, self.width, self.parameters.levels).prod()
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
        return replace(self, corner=_corner(low, high, self.lattice.span, self.width))

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
        """Of the boxes, shape (3,), nm."""
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


@dataclass(frozen=True, eq=False)
class Placement:
    """Which boxes serve a system: in empty space those of a region; in a periodic cell these too
    where it is nearly empty and the request leaves grid and levels free, until boxes over the whole
    cell have turned out cheaper; else these.

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
        """Of boxes over the whole cell."""
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
        """The cheapest boxes that cover the particles, and parameters, whose estimated error meets
        the request.

        Args:
            positions: shape (n, 3), nm.
            cell: periodic cell vectors, shape (3, 3), nm; None in empty space.
            kept: boxes that were used before.

        Returns:
            None if boxes over the whole periodic cell are cheaper.
        """
        request, load, cost, positions = (
            self.request,
            self.load,
            self.cost,
            self.gathered(positions, cell),
        )
        widths: dict = {}
        low, high = positions.min(0), positions.max(0)
        extent = high - low
        if kept:
            extent *= 1.0 + GROWTH * kept.outgrown(extent)
        levels = request.levels or 0
        whole = EMPTY_SPACE if cell is None else cell
        grids = list(_grids(positions, extent, levels, widths, whole))
        if cell is not None:
            closest = request.near_radius or NEAR_RADII[0]
            grids = [grid for grid in grids if _is_alone(grid.lattice(closest))]
            if not grids:
                return None
        longest = float(extent.max())

        def cheapest(precision: str) -> tuple[float, FMMParameters, float]:
            model = cost.double or cost if precision == "double" else cost
            seconds, found = search(replace(request, precision=precision), grids, load, model)[0]
            if precision == "double":
                return seconds, found, 0.0
            width, per_box = widths[found.grid]
            return seconds, found, _rounding(width, longest / 2, per_box, found.smoothing, load.net)

        seconds, found, rounding = cheapest(request.resolve_precision(load.ionic, cost.rounding))
        if request.precision == "auto" and rounding > 0.5 * request.tolerance:
            seconds, found, rounding = cheapest("double")
        chosen = replace(found, expected_error=float(np.hypot(found.expected_error, rounding)))
        if cell is not None:
            limit, filling = ranked(replace(request, precision=chosen.precision), cell, load, cost)[
                0
            ]
            if seconds > limit or chosen.expected_error > max(
                request.tolerance, filling.expected_error
            ):
                return None
        if rounding > request.tolerance:
            warn(
                f"`tolerance={request.tolerance:g}` is out of reach in single precision for "
                f"particles this far apart: rounding alone makes an error of {rounding:.1e}"
            )
        else:
            tell_if_missed(request, found.expected_error, "these particles")
        (width, per_box), span = widths[chosen.grid], np.diag(chosen.counts)
        corner = _corner(low, high, span, width)
        filled = min(1.0, len(positions) / (per_box * span.prod()))
        return Region(
            chosen,
            OpenLattice(span, chosen.near_radius, filled, levels, whole / width),
            width,
            corner,
        )

    def gathered(
        self, positions: np.ndarray, cell: np.ndarray | None, centre: np.ndarray | None = None
    ) -> np.ndarray:
        """Positions as :func:`gathered` moves them in a periodic cell."""
        return positions if cell is None else gathered(positions, self._leaders, cell, centre)

    @cached_property
    def _leaders(self) -> np.ndarray:
        return leaders(self.load.particles, self.exclusions, self.minimum_image)

    def including(self, charges: np.ndarray) -> "Placement":
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

    def seeing(self, positions: np.ndarray, cell: np.ndarray) -> "Placement":
        """This itself while as much of the cell is filled, else one for as much as
        the positions fill."""
        filled = filled_fraction(positions, cell)
        return (
            self
            if filled == self.load.filled
            else replace(self, load=replace(self.load, filled=filled), dearer=False)
        )

    def resolving(self, rounding: float) -> "Placement":
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

    def over_cell(self, positions: np.ndarray, cell: np.ndarray) -> "Placement":
        """With boxes over the whole of the cell from now on."""
        return replace(self.seeing(positions, cell), dearer=True)


def gathered(
    positions: np.ndarray, leaders: np.ndarray, cell: np.ndarray, centre: np.ndarray | None = None
) -> np.ndarray:
    """Positions in a periodic cell, moved by cell vectors to where they lie side by side; shape (n,
    3), nm.

    Args:
        positions: shape (n, 3), nm.
        leaders: for each particle the one that it moves with, shape (n,); molecules stay as they
            are.
        cell: vectors in reduced form, shape (3, 3), nm.
        centre: of the place, shape (3,), nm; without it the largest gaps along z, y and x are left
            empty.
    """
    x, moved = positions[leaders], positions.copy()
    for axis in (2, 1, 0):
        period = cell[axis, axis]
        low = _emptiest(x[:, axis], period) if centre is None else centre[axis] - period / 2
        shift = np.floor((x[:, axis] - low) / period)[:, None] * cell[axis]
        x -= shift
        moved -= shift
    return moved


def _emptiest(x: np.ndarray, period: float) -> float:
    """The middle of the largest gap between coordinates, shape (n,), that repeat with a period."""
    x = np.sort(np.mod(x, period))
    gaps = np.diff(x, append=x[0] + period)
    widest = int(gaps.argmax())
    return float(x[widest] + gaps[widest] / 2)


def _is_alone(lattice: OpenLattice) -> bool:
    """Whether the boxes cover half of the periodic cell at most, and images are far enough away
    for the lattice operator."""
    half = 2 * lattice.span <= np.diag(lattice.cell)
    return bool(half.all()) and lattice.gap >= lattice.near_radius + DISTANT


def _rounding(width: float, radius: float, per_box: float, smoothing: float, net: float) -> float:
    """Relative RMS force error that float32 makes in open space only.

    Wide boxes resolve distances less. A net charge Q makes a potential Q / R that the
    slopes of the weights multiply, as in :func:`single_noise`; in box widths it exceeds the field
    of neighbours, q / a^2 at a density of 1 / a^3, by the factor x below, and that of the net
    charge by R.
    """
    coarse = COARSENESS * max(0.0, width - 1.0)
    if not (smoothing > 0.0 and net > 0.0 and radius > 0.0):
        return coarse
    x = net / (radius / width) / per_box ** (2 / 3)
    return float(np.hypot(coarse, NET_NOISE / smoothing**0.5 / (1.0 / x + width / radius)))


def _span(extent: np.ndarray, width: float, levels: int = 0) -> np.ndarray:
    """Boxes along each axis that cover particles of the given extent; multiples of ``2^levels``."""
    return np.ceil((extent / width + 1.0) / 2**levels).astype(np.int64) << levels


def _corner(low: np.ndarray, high: np.ndarray, span: np.ndarray, width: float) -> np.ndarray:
    """Centred, but for ``ORIGIN``: symmetric clusters have planes of particles in their middle."""
    return (low + high) / 2 - (span / 2 + ORIGIN) * width


def _grids(positions: np.ndarray, extent: np.ndarray, levels: int, widths: dict, cell: np.ndarray):
    """Candidates for boxes that reach over ``extent``, shape (3,), nm: from small ones to those
    of which all are near, none with more than ``MOST_BOXES``; ``widths`` gets the width and the
    particles in a filled box of each."""
    low = positions.min(0)
    longest = float(extent.max()) or 1.0
    most = min(MOST_BOXES, 16 * len(positions) + 64)
    width = longest / most if extent.any() else longest
    while _span(extent, width).astype(float).prod() > most:
        width *= STEP
    found = 0
    while width < longest:
        span = _span(extent, width, levels)
        if _root(span, levels) not in widths:  # else as many boxes, wider than they need be
            per_box = _companions(positions, low, span, width)
            if per_box > CROWDED and found > 2:
                break
            if per_box > 1.4 or found:
                found += 1
                yield _grid(span, per_box, width, levels, widths, cell)
        width *= STEP
    span = _span(extent, longest, levels)
    if _root(span, levels) not in widths:
        yield _grid(span, _companions(positions, low, span, longest), longest, levels, widths, cell)


def _root(span: np.ndarray, levels: int) -> tuple[tuple[int, ...], ...]:
    """The ``grid`` of parameters with these leaves."""
    return tuple(map(tuple, np.diag(span >> levels).tolist()))


def _grid(
    span: np.ndarray, per_box: float, width: float, levels: int, widths: dict, cell: np.ndarray
) -> Grid:
    root = _root(span, levels)
    widths[root] = width, per_box
    return Grid(
        np.array(root), per_box, partial(OpenLattice, span, levels=levels, cell=cell / width)
    )


def _companions(positions: np.ndarray, low: np.ndarray, span: np.ndarray, width: float) -> float:
    """Mean number of particles in the box of a particle."""
    index = ((positions - low) / width + 0.5).astype(np.int64)
    number = np.ravel_multi_index(tuple(np.minimum(index, span - 1).T), tuple(span))
    count = np.bincount(number).astype(float)
    return float(count @ count) / len(positions)
