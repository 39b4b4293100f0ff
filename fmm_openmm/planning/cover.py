"""Choice of boxes that cover the particles only.

In a periodic cell molecules are moved by cell vectors to where they lie side by side
(``molecules.py``), and all images but the nearest are left to the lattice operator. That takes
boxes over at most half of the cell along x, y and z, and pays where the cost model finds them
cheaper than boxes over the whole cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fmm_openmm.box import DISTANT, EMPTY_SPACE, OpenLattice
from fmm_openmm.errors import warn
from fmm_openmm.planning.boxes import Region, corner_for, span_over
from fmm_openmm.planning.cost import CostModel
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import FMMParameters, Request, tell_if_missed
from fmm_openmm.planning.search import NEAR_RADII, Grid, ranked, search

MOST_BOXES = 200_000
"""Boxes that cover the particles, at most: sparser systems get larger boxes."""

CROWDED = 60.0
"""Particles in a filled box from which larger boxes are not considered."""

STEP = 1.12
"""Ratio of one width to the next that is considered."""

GROWTH = 0.2
"""How much farther than the particles new boxes reach along an axis on which the old ones were
too few: a particle that flies away would need new ones all the time."""

COARSENESS = 3e-6
"""Relative RMS force error of float32 coordinates for each nm by which boxes are wider than 1
nm, for particles at molecular distances: ten times that of water, twice that of a gas of ions at
random places."""

NET_NOISE = 6e-7
"""Relative rounding error of the potential of a net charge in float32, see :func:`_rounding`.
Fitted to droplets of water with net charges."""


def cover(
    request: Request,
    load: Load,
    cost: CostModel,
    positions: np.ndarray,
    cell: np.ndarray | None,
    kept: Region | None = None,
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
    low, high = positions.min(0), positions.max(0)
    extent = high - low
    if kept:
        extent *= 1.0 + GROWTH * kept.outgrown(extent)
    levels = request.levels or 0
    whole = EMPTY_SPACE if cell is None else cell
    grids = list(_grids(positions, extent, levels, whole))
    if cell is not None:
        closest = request.near_radius or NEAR_RADII[0]
        grids = [grid for grid in grids if _is_alone(grid.lattice(closest))]
        if not grids:
            return None
    by_root = {_root(grid.counts): grid for grid in grids}
    radius = float(extent.max()) / 2

    def cheapest(precision: str) -> tuple[float, FMMParameters, float]:
        model = cost.double or cost if precision == "double" else cost
        seconds, found = search(replace(request, precision=precision), grids, load, model)[0]
        if precision == "double":
            return seconds, found, 0.0
        rounding = _rounding(by_root[found.grid], radius, found.smoothing, load.net)
        return seconds, found, rounding

    seconds, found, rounding = cheapest(request.resolve_precision(load.ionic, cost.rounding))
    if request.precision == "auto" and rounding > 0.5 * request.tolerance:
        seconds, found, rounding = cheapest("double")
    chosen = replace(found, expected_error=float(np.hypot(found.expected_error, rounding)))
    if cell is not None:
        same = replace(request, precision=chosen.precision)
        limit, filling = ranked(same, cell, load, cost)[0]
        allowed = max(request.tolerance, filling.expected_error)
        if seconds > limit or chosen.expected_error > allowed:
            return None
    if rounding > request.tolerance:
        warn(
            f"`tolerance={request.tolerance:g}` is out of reach in single precision for "
            f"particles this far apart: rounding alone makes an error of {rounding:.1e}"
        )
    else:
        tell_if_missed(request, found.expected_error, "these particles")
    grid, span = by_root[chosen.grid], np.diag(chosen.counts)
    filled = min(1.0, len(positions) / (grid.per_box * span.prod()))
    lattice = OpenLattice(span, chosen.near_radius, filled, levels, whole / grid.width)
    return Region(chosen, lattice, grid.width, corner_for(low, high, span, grid.width))


def _is_alone(lattice: OpenLattice) -> bool:
    """Whether the boxes cover half of the periodic cell at most, and images are far enough away
    for the lattice operator."""
    half = 2 * lattice.span <= np.diag(lattice.cell)
    return bool(half.all()) and lattice.gap >= lattice.near_radius + DISTANT


def _rounding(grid: "_CubicGrid", radius: float, smoothing: float, net: float) -> float:
    """Relative RMS force error that float32 makes in open space only.

    Wide boxes resolve distances less. A net charge Q makes a potential Q / R that the
    slopes of the weights multiply, as in :func:`single_noise`; in box widths it exceeds the field
    of neighbours, q / a^2 at a density of 1 / a^3, by the factor x below, and that of the net
    charge by R.
    """
    width = grid.width
    coarse = COARSENESS * max(0.0, width - 1.0)
    if not (smoothing > 0.0 and net > 0.0 and radius > 0.0):
        return coarse
    x = net / (radius / width) / grid.per_box ** (2 / 3)
    return float(np.hypot(coarse, NET_NOISE / smoothing**0.5 / (1.0 / x + width / radius)))


@dataclass(frozen=True)
class _CubicGrid(Grid):
    """A candidate of cubic boxes of some width, nm."""

    width: float = 1.0


def _grids(
    positions: np.ndarray, extent: np.ndarray, levels: int, cell: np.ndarray
) -> Iterator[_CubicGrid]:
    """Candidates for boxes that reach over ``extent``, shape (3,), nm: from small ones to those
    of which all are near, none with more than ``MOST_BOXES``."""
    low = positions.min(0)
    longest = float(extent.max()) or 1.0
    most = min(MOST_BOXES, 16 * len(positions) + 64)
    width = longest / most if extent.any() else longest
    while span_over(extent, width).astype(float).prod() > most:
        width *= STEP

    def grid(span: np.ndarray, per_box: float, width: float) -> _CubicGrid:
        lattice = partial(OpenLattice, span, levels=levels, cell=cell / width)
        return _CubicGrid(np.diag(span >> levels), per_box, lattice, width=width)

    seen = set()
    while width < longest:
        span = span_over(extent, width, levels)
        if tuple(span) not in seen:  # else as many boxes, wider than they need be
            per_box = _companions(positions, low, span, width)
            if per_box > CROWDED and len(seen) > 2:
                break
            if per_box > 1.4 or seen:
                seen.add(tuple(span))
                yield grid(span, per_box, width)
        width *= STEP
    span = span_over(extent, longest, levels)
    if tuple(span) not in seen:
        yield grid(span, _companions(positions, low, span, longest), longest)


def _root(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The ``grid`` of parameters with these counts."""
    return tuple(map(tuple, counts.tolist()))


def _companions(positions: np.ndarray, low: np.ndarray, span: np.ndarray, width: float) -> float:
    """Mean number of particles in the box of a particle."""
    index = ((positions - low) / width + 0.5).astype(np.int64)
    number = np.ravel_multi_index(tuple(np.minimum(index, span - 1).T), tuple(span))
    count = np.bincount(number).astype(float)
    return float(count @ count) / len(positions)
