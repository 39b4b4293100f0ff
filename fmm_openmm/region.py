"""Open boundary: the cubic boxes that cover the particles, how they are chosen, and how they follow the particles.

The boxes reach half a width beyond the particles on every side. While these move less than that, nothing changes; a cloud
that moves as a whole takes its boxes along; only one that outgrows them, or shrinks to a fraction of them, gets new ones.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fmm_openmm.box import ORIGIN, OpenLattice
from fmm_openmm.parameters import CostModel, FMMParameters, Grid, Load, Request, search

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
        if (low - edge >= self.corner).all() and (high + edge <= self.corner + size).all():
            return self
        if not self.outgrown(high - low).any():
            return replace(self, corner=_corner(low, high, self.lattice.span, self.width))
        return None

    def outgrown(self, extent: np.ndarray) -> np.ndarray:
        """The axes along which particles of this extent, shape (3,), nm, need more boxes, shape (3,) bool."""
        edge = self.parameters.smoothing + ORIGIN
        return extent + 2 * edge * self.width > self.lattice.span * self.width

    @property
    def origin(self) -> np.ndarray:
        """What the stages take for the origin, shape (3,), nm, so that their boxes are these."""
        return self.corner + ORIGIN * self.width


def choose_region(
    request: Request, positions: np.ndarray, load: Load, cost: CostModel, kept: Region | None = None
) -> Region:
    """The cheapest boxes and parameters whose estimated error meets the request.

    Args:
        request: tolerance and fixed values; no ``grid``.
        positions: shape (n, 3), nm.
        load: the system; what is empty is seen in the positions.
        cost: cost model of the backend.
        kept: boxes that were used before.
    """
    widths: dict = {}
    low, high = positions.min(0), positions.max(0)
    extent = high - low
    if kept:
        extent *= 1.0 + GROWTH * kept.outgrown(extent)
    levels = request.levels or 0
    grids = list(_grids(positions, extent, levels, widths))
    longest = float(extent.max())

    def cheapest(precision: str) -> tuple[FMMParameters, float]:
        model = cost.double or cost if precision == "double" else cost
        found = search(replace(request, precision=precision), grids, load, model)[0]
        if precision == "double":
            return found, 0.0
        width, per_box = widths[found.grid]
        rounding = _rounding(width, longest / 2, per_box, found.smoothing, load.net)
        return replace(found, expected_error=float(np.hypot(found.expected_error, rounding))), rounding

    chosen, rounding = cheapest(request.resolve_precision(load.ionic))
    if request.precision == "auto" and rounding > 0.5 * request.tolerance:
        chosen, _ = cheapest("double")
    (width, per_box), span = widths[chosen.grid], np.diag(chosen.counts)
    corner = _corner(low, high, span, width)
    filled = min(1.0, len(positions) / (per_box * span.prod()))
    return Region(chosen, OpenLattice(span, chosen.near_radius, filled, levels), width, corner)


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


def _grids(positions: np.ndarray, extent: np.ndarray, levels: int, widths: dict):
    """Candidates for boxes that reach over ``extent``, shape (3,), nm: from small ones to those of which all are near, none
    with more than ``MOST_BOXES``; ``widths`` gets the width and the particles in a filled box of each."""
    low = positions.min(0)
    longest = float(extent.max())
    if longest == 0.0:
        longest = 1.0
    most = min(MOST_BOXES, 16 * len(positions) + 64)
    width = longest / most
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
            yield _grid(span, per_box, width, levels, widths)
        width *= STEP
    span = _span(extent, longest, levels)
    yield _grid(span, _companions(positions, low, span, longest), longest, levels, widths)


def _grid(span: np.ndarray, per_box: float, width: float, levels: int, widths: dict) -> Grid:
    root = np.diag(span >> levels)
    widths[tuple(map(tuple, root.tolist()))] = width, per_box
    return Grid(root, per_box, partial(OpenLattice, span, levels=levels))


def _companions(positions: np.ndarray, low: np.ndarray, span: np.ndarray, width: float) -> float:
    """Mean number of particles in the box of a particle."""
    index = ((positions - low) / width + 0.5).astype(np.int64)
    number = np.ravel_multi_index(tuple(np.minimum(index, span - 1).T), tuple(span))
    count = np.bincount(number).astype(float)
    return float(count @ count) / len(positions)
