"""Choice of boxes that cover only the particles, along the axes without images; boxes along the
others repeat with the cell.

In a nearly empty cell that is periodic along all axes they cover only the particles along all. The
molecules are first translated by cell vectors so that they lie next to each other
(``molecules.py``); the lattice operator then covers all images but the nearest. This requires boxes
over at most half of the cell along x, y and z. It is done where the cost model finds such boxes
cheaper than boxes over the whole cell.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fmm_openmm.arrays import bounds
from fmm_openmm.boundary import EMPTY_SPACE, Boundary
from fmm_openmm.box import DISTANT, PaddedLattice, choose_counts, deformation
from fmm_openmm.errors import warn
from fmm_openmm.planning.boxes import Region, corner_for, heights, span_over
from fmm_openmm.planning.cost import CostModel
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import NEAR_RADII, FMMParameters, Request, warn_if_missed
from fmm_openmm.planning.search import Grid, cheapest, search

MAX_BOXES = 200_000
"""Largest number of boxes in a region; sparser systems get larger boxes."""

MAX_PER_BOX = 60.0
"""Particles in a filled box above which larger boxes are not considered."""

MAX_DEFORMATION = 3.0
"""Largest deformation of boxes that are considered. In a narrow slab or wire whose particles are
far apart, a longer box has its neighbours beyond the largest near radius and thousands of images
within it."""

MAX_DEFORMATION_OF_LEVELS = 1.3
"""The same with levels, unless all boxes are deformed more. Levels set a smallest number of boxes
along the cell, so that wider boxes are only longer along axes without images, and expansions
between long boxes side by side diverge."""

MIN_LONG = 1024
"""Boxes that are always allowed where fewer would be deformed more than that."""

STEP = 1.12
"""Ratio of successive box widths that are considered."""

GROWTH = 0.2
"""Margin of new boxes, relative to the extent of the particles, along axes on which the previous
boxes were too few. Without it a particle that escapes would require new boxes all the time."""

FARTHER = 2.0
"""Extent of the particles over that which the previous boxes can cover, up to which their
parameters may be kept."""

COARSENESS = 3e-6
"""Relative RMS force error of float32 coordinates for each nm of box width above 1 nm, at molecular
distances: ten times the error of water, twice that of ions at random positions."""

COARSENESS_EXAMINED = 1.2e-6
"""The same where every evaluation examines its forces, twice that of ions at random positions."""

NET_NOISE = 6e-7
"""Relative rounding error of the potential of a net charge in float32 (:func:`_rounding`), fitted
to water droplets with net charges."""


def cover(
    request: Request,
    load: Load,
    cost: CostModel,
    positions: np.ndarray,
    cell: np.ndarray,
    kept: Region | None = None,
) -> Region | None:
    """The cheapest region, with its parameters, whose estimated error satisfies the request.

    Between periodic images along some axes, order, near radius and smoothing of the boxes used
    before are kept as long as the estimate allows, where the shape of the cell has changed or
    particles have moved apart by less than :data:`FARTHER`: to search for all of them takes a
    second.

    Args:
        positions: shape (n, 3), nm.
        cell: cell vectors, shape (3, 3), nm.
        kept: region used before.

    Returns:
        None if boxes over the whole periodic cell are cheaper.

    Raises:
        ValueError: particles are too far apart for the cell of a slab or wire.
    """
    low, high = bounds(positions)
    extent = high - low
    boundary = Boundary.from_cell(cell)
    if kept and boundary.is_partial and (extent < FARTHER * kept.capacity).all():
        adapted = _adapted(request, load, cost, positions, cell, kept)
        if adapted:
            return adapted
    if kept:
        extent *= 1.0 + GROWTH * kept.outgrown(extent)
    padded = np.array((True, True, True) if boundary.fills_space else boundary.free)
    grids = list(_grids(positions, extent, request.levels or 0, padded, cell))
    if request.levels:
        grids = [grid for grid in grids if grid.deformation <= MAX_DEFORMATION_OF_LEVELS] or grids
    if boundary.fills_space:
        closest = request.near_radius or NEAR_RADII[0]
        grids = [grid for grid in grids if _is_alone(grid.lattice(closest))]
        if not grids:
            return None
    if not grids:
        narrowest = np.diag(cell)[~padded].min()
        raise ValueError(
            f"`positions` and `points` span {extent[padded].max():.4g} nm along a direction "
            f"without images, too far for a cell of {narrowest:.4g} nm: remove what is so far away"
        )
    by_root = {_root(grid.counts): grid for grid in grids}
    radius = float(extent[padded].max()) / 2

    def covering(precision: str) -> tuple[float, FMMParameters, float]:
        model = cost.double or cost if precision == "double" else cost
        resolved = replace(request, precision=precision)
        best = search(resolved, grids, load, model, only_first=True)[0]
        seconds, found = best.seconds, best.parameters
        if precision == "double":
            return seconds, found, 0.0
        rounding = _rounding(by_root[found.grid], radius, found.smoothing, load.net, cost.examined)
        return seconds, found, rounding

    seconds, found, rounding = covering(
        request.resolve_precision(load.ionic, cost.rounding, cost.examined)
    )
    if request.precision == "auto" and rounding > 0.5 * request.rounding_tolerance:
        seconds, found, rounding = covering("double")
    chosen = found.with_rounding(rounding)
    if boundary.fills_space:
        same = replace(request, precision=chosen.precision)
        limit, filling = cheapest(same, cell, load, cost)
        allowed = max(request.tolerance, request.expected(filling))
        if seconds > limit or request.expected(chosen) > allowed:
            return None
    if rounding > request.rounding_tolerance:
        rounding *= request.tolerance / request.rounding_tolerance
        warn(
            f"`tolerance={request.tolerance:g}` is out of reach in single precision for "
            f"particles this far apart: rounding alone makes an error of {rounding:.1e}"
        )
    else:
        warn_if_missed(request, request.expected(found), "these particles")
    grid = by_root[chosen.grid]
    filled = min(1.0, len(positions) / (grid.per_box * np.diag(chosen.counts).prod()))
    lattice = grid.lattice(chosen.near_radius, filled)
    return Region(chosen, lattice, grid.width, corner_for(low, high, lattice, grid.width))


def _adapted(
    request: Request,
    load: Load,
    cost: CostModel,
    positions: np.ndarray,
    cell: np.ndarray,
    kept: Region,
) -> Region | None:
    """A region with the parameters used before; None if its estimated error would be too large."""
    names = ("order", "near_radius", "smoothing")
    before = {name: getattr(kept.parameters, name) for name in names}
    if before == {name: getattr(request, name) for name in names}:
        return None  # there is nothing to keep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would name parameters that nobody has given
        found = cover(replace(request, **before), load, cost, positions, cell, kept)
    allowed = max(request.tolerance, request.expected(kept.parameters))
    return found if found and request.expected(found.parameters) <= allowed else None


def _is_alone(lattice: PaddedLattice) -> bool:
    """Whether the boxes cover at most half of the periodic cell along each axis, and the images are
    far enough away for the lattice operator."""
    half = 2 * lattice.span <= np.diag(lattice.cell)
    return bool(half.all()) and lattice.gap >= lattice.near_radius + DISTANT


def _rounding(
    grid: "_RegionGrid", radius: float, smoothing: float, net: float, examined: bool
) -> float:
    """Relative RMS force error of float32 that occurs only in regions.

    Two contributions. Coordinates in wide boxes resolve distances less well. And a net charge Q
    makes a potential Q / R, which the slopes of the smoothing weights turn into forces, as in
    :func:`single_noise`. In units of box widths this potential exceeds the field of the
    neighbours, q / a^2 at a density of 1 / a^3, by the factor x below, and the field of the net
    charge by R.
    """
    width = grid.width
    coarse = (COARSENESS_EXAMINED if examined else COARSENESS) * max(0.0, width - 1.0)
    if not (smoothing > 0.0 and net > 0.0 and radius > 0.0):
        return coarse
    x = net / (radius / width) / grid.per_box ** (2 / 3)
    return float(np.hypot(coarse, NET_NOISE / smoothing**0.5 / (1.0 / x + width / radius)))


@dataclass(frozen=True)
class _RegionGrid(Grid):
    """A candidate grid of boxes that cover only the particles.

    Attributes:
        lattice: makes the lattice of the leaves for a near radius and a filled fraction.
        width: mean box width, nm.
    """

    lattice: Callable[..., PaddedLattice]
    width: float = 1.0


def _grids(
    positions: np.ndarray,
    extent: np.ndarray,
    levels: int,
    padded: np.ndarray,
    cell: np.ndarray,
) -> Iterator[_RegionGrid]:
    """Candidates that cover ``extent``, shape (3,), nm, along the axes that are ``padded``, shape
    (3,), and the cell along the others: from small boxes to boxes so large that all are near, none
    with more than ``MAX_BOXES``."""
    extent = np.where(padded, extent, np.diag(cell))
    vectors = np.where(padded[:, None], np.eye(3), cell)
    along = positions @ np.linalg.inv(vectors) * np.diag(vectors)
    points = np.where(padded, positions - positions.min(0), along)
    longest = float(extent.max()) or 1.0

    def first_width(most: int) -> float:
        width = longest / most if extent.any() else longest
        while span_over(extent, width).astype(float).prod() > most:
            width *= STEP
        return width

    def is_compact(_: np.ndarray, boxes: np.ndarray, __: float) -> bool:
        return deformation(boxes, np.eye(3, dtype=np.int64)) <= MAX_DEFORMATION

    width = first_width(min(MAX_BOXES, 16 * len(positions) + 64))
    is_narrow = not is_compact(*_layout(extent, width, levels, cell, padded))
    if is_narrow:
        width = min(width, first_width(4 * MIN_LONG))  # two boxes across count as one
    is_divided = levels > 0 and not padded.all()
    if is_divided:  # there are 2^levels boxes or more along the cell, however wide they are
        finest = float(np.diag(cell)[~padded].min()) / 2**levels
        width = min(width, max(finest, first_width(MAX_BOXES)))

    def grid(counts: np.ndarray, boxes: np.ndarray, width: float) -> _RegionGrid:
        lattice = partial(
            PaddedLattice,
            counts,
            levels=levels,
            cell=cell / width,
            padded=tuple(padded.tolist()),
            boxes=boxes,
        )
        per_box = _companions(points, np.diag(counts), heights(boxes, width), padded)
        shape = deformation(boxes, np.eye(3, dtype=np.int64))
        return _RegionGrid(counts >> levels, per_box, lattice, shape, width)

    seen: set[bytes] = set()
    while width < longest:
        layout = _layout(extent, width, levels, cell, padded)
        # else the same number of boxes, only wider
        if layout[0].tobytes() not in seen and is_compact(*layout):
            found = grid(*layout)
            if found.per_box > MAX_PER_BOX and len(seen) > 2:
                break
            if found.per_box > 1.4 or seen or is_narrow or is_divided:
                seen.add(layout[0].tobytes())
                yield found
        width *= STEP
    for width in (longest / 2, longest):  # the smallest of three and of two boxes across
        layout = _layout(extent, width, levels, cell, padded)
        if layout[0].tobytes() not in seen and is_compact(*layout):
            yield grid(*layout)


def _layout(
    extent: np.ndarray, width: float, levels: int, cell: np.ndarray, padded: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Boxes of about the given width, nm: their counts, shape (3, 3), their vectors over their mean
    width, shape (3, 3), and their mean width, nm."""
    root = width * 2**levels
    repeated = np.where(padded[:, None], EMPTY_SPACE, cell)
    counts = choose_counts(repeated, root) << levels
    vectors = np.where(padded[:, None], root * np.eye(3), cell)
    boxes = np.linalg.solve(counts.astype(float), vectors) / width
    scale = float(np.cbrt(np.prod(np.diag(boxes))))
    span = np.where(padded, span_over(extent, width, levels), np.diag(counts))
    np.fill_diagonal(counts, span)
    return counts, boxes / scale, width * scale


def _root(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The ``grid`` of parameters with these counts."""
    return tuple(map(tuple, counts.tolist()))


def _companions(
    points: np.ndarray, span: np.ndarray, heights: np.ndarray, padded: np.ndarray
) -> float:
    """Mean number of particles in the box of a particle.

    Args:
        points: positions from the lowest corner of the particles, along repeated axes along the
            vectors of the cell, shape (n, 3), nm.
        span: numbers of boxes, shape (3,).
        heights: heights of the boxes, shape (3,), nm.
        padded: the axes along which the boxes cover only the particles, shape (3,).
    """
    index = np.floor(points / heights + 0.5).astype(np.int64)
    index[:, ~padded] %= span[~padded]
    number = np.ravel_multi_index(tuple(np.minimum(index, span - 1).T), tuple(span))
    count = np.bincount(number).astype(float)
    return float(count @ count) / len(points)
