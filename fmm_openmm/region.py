"""Where boxes are: over a whole periodic cell (:class:`Filling`), or, with an open boundary and in periodic cells that are
nearly empty, where the particles are (:class:`Region`): how these cubic ones are chosen, and how they follow the particles.

These reach half a width beyond the particles on every side. While these move less than that, nothing changes; a cloud
that moves as a whole takes its boxes along; only one that outgrows them, or shrinks to a fraction of them, gets new ones.

In a periodic cell molecules are moved by cell vectors to where they lie side by side (:func:`gathered`), and all images but the
nearest are left to the lattice operator. That takes boxes over at most half of the cell along x, y and z, and pays where the
cost model finds them cheaper than boxes over the whole cell.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fmm_openmm.box import DISTANT, EMPTY_SPACE, ORIGIN, BoxLattice, OpenLattice, box_width
from fmm_openmm.parameters import NEAR_RADII, CostModel, FMMParameters, Grid, Load, Request, ranked, search

SPARSE = 0.25
"""Filled fraction of a periodic cell from which on boxes that cover the particles only are considered."""

MOST_BOXES = 200_000
"""Boxes that cover the particles, at most: sparser systems get larger boxes."""

CROWDED = 60.0
"""Particles in a filled box from which larger boxes are not considered."""

STEP = 1.12
"""Ratio of one width to the next that is considered."""

GROWTH = 0.2
"""How much farther than the particles new boxes reach along an axis on which the old ones were too few: a particle that flies
away would need new ones all the time."""

SHRINKAGE = 8.0
"""Times more boxes than the particles need, from which new ones are chosen."""

COARSENESS = 3e-5
"""Relative RMS force error of float32 coordinates for each nm by which boxes are wider than 1 nm, for particles at molecular
distances."""

NET_NOISE = 6e-7
"""Of the potential of a net charge in float32, see :func:`_rounding`. Fitted to droplets of water with net charges."""


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
        """These boxes, moved if need be to cover the particles between ``low`` and ``high``, shape (3,), nm; None if they
        are too few, or far too many."""
        edge = self.parameters.smoothing * self.width
        size = self.lattice.span * self.width
        if self.lattice.span.prod() > SHRINKAGE * _span(high - low, self.width, self.parameters.levels).prod():
            return None
        if (low - edge >= self.corner).all() and (high + edge < self.corner + size).all():
            return self
        return self.centred(low, high)

    def centred(self, low: np.ndarray, high: np.ndarray) -> "Region | None":
        """These boxes, moved so that the particles between ``low`` and ``high``, shape (3,), nm, are in their middle; None if
        they are too few."""
        if self.outgrown(high - low).any():
            return None
        return replace(self, corner=_corner(low, high, self.lattice.span, self.width))

    def outgrown(self, extent: np.ndarray) -> np.ndarray:
        """The axes along which particles of this extent, shape (3,), nm, need more boxes, shape (3,) bool."""
        edge = self.parameters.smoothing + ORIGIN
        return extent + 2 * edge * self.width > self.lattice.span * self.width

    def scaled(self, cell: np.ndarray | None) -> "Region | None":
        """These boxes in a periodic cell of the same shape, however large, or without one; None if its shape is another."""
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
    """Boxes over a whole periodic cell; parameters, lattice, width and origin as of a :class:`Region`."""

    parameters: FMMParameters
    lattice: BoxLattice
    width: float
    origin = (0.0, 0.0, 0.0)

    @classmethod
    def of(cls, cell: np.ndarray, parameters: FMMParameters, filled: float) -> "Filling":
        """Those that the parameters give a cell of which this fraction holds particles."""
        counts = parameters.counts
        return cls(parameters, BoxLattice.from_cell(cell, counts, parameters.near_radius, filled), box_width(cell, counts))

    def scaled(self, cell: np.ndarray) -> "Filling | None":
        """These boxes in a cell of the same shape, however large; None if its shape is another."""
        return replace(self, width=box_width(cell, self.lattice.counts)) if self.lattice.same_shape(cell) else None


def is_sparse(request: Request, filled: float) -> bool:
    """Whether boxes that cover the particles only are considered, in a periodic cell of which this fraction is filled."""
    return filled <= SPARSE and request.grid is None and not request.levels


def gathered(positions: np.ndarray, leaders: np.ndarray, cell: np.ndarray, centre: np.ndarray | None = None) -> np.ndarray:
    """Positions in a periodic cell, moved by cell vectors to where they lie side by side; shape (n, 3), nm.

    Args:
        positions: shape (n, 3), nm.
        leaders: for each particle the one that it moves with, shape (n,); molecules stay as they are.
        cell: vectors in reduced form, shape (3, 3), nm.
        centre: of the place, shape (3,), nm; without it the largest gaps along z, y and x are left empty.
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


def choose_region(
    request: Request,
    positions: np.ndarray,
    load: Load,
    cost: CostModel,
    kept: Region | None = None,
    cell: np.ndarray | None = None,
) -> Region | None:
    """The cheapest boxes and parameters whose estimated error meets the request.

    Args:
        request: tolerance and fixed values; no ``grid``.
        positions: shape (n, 3), nm; :func:`gathered` in a periodic cell.
        load: the system; what is empty is seen in the positions.
        cost: cost model of the backend.
        kept: boxes that were used before.
        cell: periodic cell vectors, shape (3, 3), nm; None in empty space.

    Returns:
        None if boxes over the whole periodic cell are cheaper.
    """
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
        rounding = _rounding(width, longest / 2, per_box, found.smoothing, load.net)
        return seconds, replace(found, expected_error=float(np.hypot(found.expected_error, rounding))), rounding

    seconds, chosen, rounding = cheapest(request.resolve_precision(load.ionic, cost.rounding))
    if request.precision == "auto" and rounding > 0.5 * request.tolerance:
        seconds, chosen, _ = cheapest("double")
    if cell is not None:
        limit, filling = ranked(replace(request, precision=chosen.precision), cell, load, cost)[0]
        if seconds > limit or chosen.expected_error > max(request.tolerance, filling.expected_error):
            return None
    (width, per_box), span = widths[chosen.grid], np.diag(chosen.counts)
    corner = _corner(low, high, span, width)
    filled = min(1.0, len(positions) / (per_box * span.prod()))
    return Region(chosen, OpenLattice(span, chosen.near_radius, filled, levels, whole / width), width, corner)


def _is_alone(lattice: OpenLattice) -> bool:
    """Whether the boxes cover half of the periodic cell at most, and images are far enough away for the lattice operator."""
    half = 2 * lattice.span <= np.diag(lattice.cell)
    return bool(half.all()) and lattice.gap >= lattice.near_radius + DISTANT


def _rounding(width: float, radius: float, per_box: float, smoothing: float, net: float) -> float:
    """Relative RMS force error that float32 makes in open space only.

    Wide boxes resolve distances less. A net charge Q makes a potential Q / R that the slopes of the weights multiply, as in
    :func:`single_noise`; in box widths it exceeds the field of neighbours, q / a^2 at a density of 1 / a^3, by the factor x
    below, and that of the net charge by R.
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
    """Candidates for boxes that reach over ``extent``, shape (3,), nm: from small ones to those of which all are near, none
    with more than ``MOST_BOXES``; ``widths`` gets the width and the particles in a filled box of each."""
    low = positions.min(0)
    longest = float(extent.max()) or 1.0
    most = min(MOST_BOXES, 16 * len(positions) + 64)
    width = longest / most if extent.any() else longest
    while _span(extent, width).astype(float).prod() > most:
        width *= STEP
    found = 0
    while width < longest:
        span = _span(extent, width, levels)
        per_box = _companions(positions, low, span, width)
        if per_box > CROWDED and found > 2:
            break
        if per_box > 1.4 or found:
            found += 1
            yield _grid(span, per_box, width, levels, widths, cell)
        width *= STEP
    span = _span(extent, longest, levels)
    yield _grid(span, _companions(positions, low, span, longest), longest, levels, widths, cell)


def _grid(span: np.ndarray, per_box: float, width: float, levels: int, widths: dict, cell: np.ndarray) -> Grid:
    root = np.diag(span >> levels)
    widths[tuple(map(tuple, root.tolist()))] = width, per_box
    return Grid(root, per_box, partial(OpenLattice, span, levels=levels, cell=cell / width))


def _companions(positions: np.ndarray, low: np.ndarray, span: np.ndarray, width: float) -> float:
    """Mean number of particles in the box of a particle."""
    index = ((positions - low) / width + 0.5).astype(np.int64)
    number = np.ravel_multi_index(tuple(np.minimum(index, span - 1).T), tuple(span))
    count = np.bincount(number).astype(float)
    return float(count @ count) / len(positions)
