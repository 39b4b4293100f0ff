"""Choice of order, near radius and box lattice for a tolerance: the cheapest parameters, by the
cost model, whose estimated error is small enough.

The error estimate (``expansions/error.py``) depends on geometry alone. The cost model describes the
backend, its times and its rounding.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from fmm_openmm.box import DISTANT, BoxLattice, choose_counts, counts_matrix, deformation
from fmm_openmm.expansions.error import estimate_error, far_distances, largest_ratio, single_noise
from fmm_openmm.octree import is_nested
from fmm_openmm.planning.cost import CPU_COST, CostModel
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import (
    NEAR_RADII,
    SMALL_FORCES,
    FMMParameters,
    Request,
    add_rounding,
    warn_if_missed,
)

ORDER_LIMIT = (6.0, 3.2)
"""Largest order considered, as a constant plus a multiple of the near radius. Beyond it, a few
pairs in facing corners of boxes dominate the error."""

BOXES_PER_PARTICLE = 64
"""Largest number of boxes for each particle, empty ones included; for nearly coincident particles
the search would otherwise not end."""

DEFORMATION_LIMIT = 1.08
"""Deformation of the boxes (:func:`fmm_openmm.box.deformation`) above which another grid is
chosen."""


def _grids(request: Request, cell: np.ndarray, load: Load):
    """Candidate root grids, in order of the number of particles in a filled box. If nearly all
    boxes would be empty, larger boxes are added, down to as many boxes as particles."""
    if request.grid is not None:
        yield counts_matrix(request.grid)
        return
    seen = set()
    volume, across = float(np.prod(np.diag(cell))), 2 ** (request.levels or 0)
    crowds = [1.5, 2.2, 3.2, 4.6, 6.5, 9.5, 12.0, 14.0, 17.0, 20.0, 30.0]
    while crowds[-1] * load.filled < 1.0:
        crowds.append(3.0 * crowds[-1])
    for per_box in crowds:
        filled = max(1 / BOXES_PER_PARTICLE, per_box * load.filled)
        counts = choose_counts(cell, across * np.cbrt(volume * min(1.0, filled / load.particles)))
        if counts.tobytes() not in seen:
            seen.add(counts.tobytes())
            yield counts


def choose_parameters(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel = CPU_COST
) -> FMMParameters:
    """The cheapest parameters whose estimated error satisfies the request. Values that the request
    fixes are used as they are.

    Args:
        request: tolerance and fixed values.
        cell: box vectors in reduced form, shape (3, 3), nm.
        load: the properties of the system.
        cost: cost model of the backend.
    """
    _, chosen = cheapest(request, cell, load, cost)
    _warn_if_missed(request, chosen, load)
    return chosen


def candidates(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel = CPU_COST
) -> list[FMMParameters]:
    """The candidates of :func:`choose_parameters`, cheapest first.

    For each grid, near radius and smoothing the candidate is the lowest order that keeps all
    promises of :meth:`Request.promises_kept`, or as many as any candidate keeps. If no estimated
    error satisfies the request, the list holds the most accurate parameters, with a warning.
    """
    found = [candidate.parameters for candidate in ranked(request, cell, load, cost)]
    _warn_if_missed(request, found[0], load)
    return found


def _warn_if_missed(request: Request, chosen: FMMParameters, load: Load) -> None:
    case = "this cell" if load.field == 1.0 else SMALL_FORCES
    warn_if_missed(request, request.expected(chosen), case)


def cheapest(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel
) -> tuple[float, FMMParameters]:
    """Seconds and parameters of the first of :func:`ranked`. Solvers of the same system, as those
    of replicas and of copies of a force, search for it once."""
    if request.grid is not None:  # a list may stand for it, which has no hash
        grid = counts_matrix(request.grid).tolist()
        request = replace(request, grid=tuple(map(tuple, grid)))
    return _kept_cheapest(request, np.asarray(cell, float).tobytes(), load, cost)


@lru_cache(256)
def _kept_cheapest(
    request: Request, cell: bytes, load: Load, cost: CostModel
) -> tuple[float, FMMParameters]:
    vectors = np.frombuffer(cell).reshape(3, 3)
    first = ranked(request, vectors, load, cost, only_first=True)[0]
    return first.seconds, first.parameters


def ranked(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel, only_first: bool = False
) -> list["Candidate"]:
    """:func:`candidates` with the seconds of the cost model; ``only_first`` see :func:`search`."""
    precision = request.resolve_precision(load.ionic, cost.rounding, cost.examined)
    if precision == "double":
        cost = cost.double or cost
    grids = (
        Grid(
            counts,
            load.particles / max(1.0, load.filled * float(np.prod(np.diag(leaves)))),
            partial(BoxLattice.from_cell, cell, leaves),
            deformation(cell, counts),
        )
        for counts, leaves in (
            (grid, grid << (request.levels or 0)) for grid in _grids(request, cell, load)
        )
    )
    return search(replace(request, precision=precision), grids, load, cost, only_first)


@dataclass(frozen=True)
class Grid:
    """A candidate grid of boxes.

    Attributes:
        counts: integer matrix of the parameters' ``grid``, shape (3, 3).
        per_box: mean number of particles in a filled leaf.
        lattice: makes the lattice of the leaves for a near radius.
        deformation: :func:`fmm_openmm.box.deformation` of the boxes.
    """

    counts: np.ndarray
    per_box: float
    lattice: Callable[[float], BoxLattice]
    deformation: float = 1.0


def search(
    request: Request,
    grids: Iterable[Grid],
    load: Load,
    cost: CostModel,
    only_first: bool = False,
) -> list["Candidate"]:
    """The candidates on the given grids, cheapest first, as :func:`ranked` gives them for all
    grids; the precision of the request must be resolved.

    Args:
        only_first: of the others some may be missing: errors are not estimated for what takes
            longer even with order 1.
    """
    noise = np.array([_noise(request, smoothing, load, cost) for smoothing in request.smoothings])
    reachable = noise.min()
    if reachable > request.rounding_tolerance:
        reachable *= request.tolerance / request.rounding_tolerance
        unit = 10.0 ** np.floor(np.log10(reachable))
        smallest = float(np.ceil(reachable / unit) * unit)
        raise ValueError(
            f"`tolerance` must be at least {smallest:.1g} in single precision for these charges, "
            f"got {request.tolerance!r}: ask for `precision='double'`"
        )
    trials = [
        Trial(request, grid, lattice, load, cost, noise)
        for grid, lattice in _stencils(request, grids)
    ]
    if not trials:
        what = (
            f"`levels` must be fewer for boxes of this shape, got {request.levels!r}"
            if request.near_radius is None
            else "`near_radius` must be larger with `levels` for boxes of this shape, "
            f"got {request.near_radius!r}"
        )
        raise ValueError(f"{what}: near boxes must have near parents")
    least = [trial.least_seconds if only_first else 0.0 for trial in trials]
    for promises in (3, 2, 1):
        found, best = [], np.inf
        for k in np.argsort(least, kind="stable"):
            if least[k] > best:
                break
            for each in trials[k].lowest_orders(promises):
                found.append((each.seconds, k, each))
                best = min(best, each.seconds)
        if found:
            return [each for *_, each in sorted(found, key=lambda entry: entry[:2])]
    return [min(trials, key=lambda trial: trial.expected.min()).most_accurate()]


class Trial:
    """A grid and a near radius, and the expected errors with every smoothing (rows) and every order
    (columns), which are estimated when they are first asked for.

    Args:
        noise: error due to rounding with every smoothing, shape (rows,).

    Attributes:
        orders: shape (columns,).
    """

    def __init__(
        self,
        request: Request,
        grid: Grid,
        lattice: BoxLattice,
        load: Load,
        cost: CostModel,
        noise: np.ndarray,
    ):
        self._request, self._grid, self._lattice = request, grid, lattice
        self._load, self._cost, self._noise = load, cost, noise
        longest = int(ORDER_LIMIT[0] + ORDER_LIMIT[1] * lattice.near_radius)
        self.orders = np.arange(1, longest + 1) if request.order is None else np.r_[request.order]
        self._widths = np.array(request.smoothings)[:, None]
        self._filled = load.particles / (grid.per_box * lattice.size)

    @cached_property
    def truncation(self) -> np.ndarray:
        """Expected RMS error, shape (rows, columns); those of all levels add up."""
        load, per_box = self._load, self._grid.per_box
        distances = far_distances(self._lattice)
        by_level = [
            estimate_error(
                distances,
                self.orders,
                self._widths,
                load.charged * per_box * 8**above,
                self._grid.deformation,
                load.ionic,
                load.charged * load.particles,
            )
            for above in range((self._request.levels or 0) + 1)
        ]
        return np.sum(by_level, axis=0) / load.field

    @cached_property
    def _ratio(self) -> np.ndarray:
        return largest_ratio(self.orders, self._widths)

    @cached_property
    def _errors(self) -> tuple[np.ndarray, np.ndarray]:
        """RMS and largest expected error of a force with rounding, shape (rows, columns)."""
        largest = self.truncation * np.minimum(self._ratio, self._load.particles**0.5)
        return add_rounding(self.truncation, largest, self._noise[:, None])

    @cached_property
    def expected(self) -> np.ndarray:
        """Expected error with rounding, in the norm of the tolerance, shape (rows, columns)."""
        return self._request.in_norm(*self._errors)

    @property
    def least_seconds(self) -> float:
        """A bound of the seconds of all candidates, which grow with order and smoothing."""
        return self._seconds(int(self.orders[0]), min(self._request.smoothings))

    def lowest_orders(self, promises: int) -> Iterator["Candidate"]:
        """The lowest order that keeps a number of promises, for every smoothing that has one."""
        kept = promises <= self._request.promises_kept(
            self._widths, self.expected, self.truncation, self.truncation * self._ratio
        )
        for row in np.flatnonzero(kept.any(1)):
            yield self._at(row, kept[row].argmax())

    def most_accurate(self) -> "Candidate":
        """The candidate with the smallest expected error."""
        return self._at(*np.unravel_index(self.expected.argmin(), self.expected.shape))

    def _at(self, row, column) -> "Candidate":
        seconds = self._seconds(int(self.orders[column]), self._request.smoothings[row])
        return Candidate(seconds, self, row, column)

    def _seconds(self, order: int, smoothing: float) -> float:
        lattice = self._lattice
        return self._cost(
            self._load.particles * (1.0 + 2.0 * smoothing) ** 3,
            self._filled,
            lattice.size,
            lattice.neighbours,
            order,
            self._request.levels or 0,
            lattice.in_rows,
        )

    def parameters(self, row, column) -> FMMParameters:
        """The parameters with a smoothing and an order."""
        request, order = self._request, int(self.orders[column])
        error, largest = (float(errors[row, column]) for errors in self._errors)
        return FMMParameters(
            order,
            self._lattice.near_radius,
            tuple(map(tuple, self._grid.counts.tolist())),
            request.smoothings[row],
            request.levels or 0,
            request.precision,
            error,
            request.operator(order, self._cost),
            largest,
        )


class Candidate(NamedTuple):
    """The parameters of a trial with one smoothing and one order, made only where they are used.

    Attributes:
        seconds: time by the cost model.
        trial: the trial.
        row, column: index into its arrays.
    """

    seconds: float
    trial: Trial
    row: int
    column: int

    @property
    def parameters(self) -> FMMParameters:
        return self.trial.parameters(self.row, self.column)


def _noise(request: Request, smoothing: float, load: Load, cost: CostModel) -> float:
    """Relative RMS force error due to rounding; 0 in double precision."""
    return (
        cost.rounding * single_noise(load.ionic, smoothing)
        if request.precision == "single"
        else 0.0
    )


def _stencils(request: Request, grids: Iterable[Grid]) -> Iterator[tuple[Grid, BoxLattice]]:
    """Each grid with the lattice of its leaves, for every near radius that is possible for it."""
    radii = NEAR_RADII if request.near_radius is None else (float(request.near_radius),)
    for grid in grids:
        for radius in radii:
            lattice = grid.lattice(radius)
            apart = lattice.gap >= radius + DISTANT or (
                lattice.gap >= radius and not len(lattice.occurring(lattice.far))
            )
            if apart and (not request.levels or is_nested(lattice)):
                yield grid, lattice


def adapt_parameters(
    chosen: FMMParameters,
    request: Request,
    cell: np.ndarray,
    load: Load,
    cost: CostModel = CPU_COST,
) -> FMMParameters:
    """Parameters for a cell whose shape differs from the one that ``chosen`` was made for.

    The grid is kept as long as its boxes are nearly cubic, order and near radius as long as the
    estimate allows. The result depends only on ``chosen`` and the present cell, not on the cells
    in between. Warns if it misses the tolerance and ``chosen`` did not.
    """
    counts = chosen.grid
    if request.grid is None and deformation(cell, np.array(counts)) > DEFORMATION_LIMIT:
        attempts = [request]
    else:
        kept = {
            name: getattr(chosen, name)
            for name in ("precision", "order", "near_radius", "smoothing")
        }
        attempts = [replace(request, grid=counts, **kept), replace(request, grid=counts)]
    for attempt in attempts:
        _, found = cheapest(attempt, cell, load, cost)
        if request.expected(found) <= max(request.tolerance, request.expected(chosen)):
            return found
    if request.expected(chosen) <= request.tolerance:
        warn_if_missed(request, request.expected(found))
    return found
