"""From a tolerance to order, near radius and box lattice: the error estimate says what is allowed,
the cost model what is best.

Both are separate on purpose: the estimate (``expansions/error.py``) knows geometry only, the cost
model what depends on the backend: times, and how well float32 is used.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fmm_openmm.box import DISTANT, BoxLattice, choose_counts, counts_matrix, deformation
from fmm_openmm.checks import check_choice, check_integer, check_number
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import (
    charged_fraction,
    estimate_error,
    far_distances,
    ionic_fraction,
    largest_ratio,
    net_charge,
    single_noise,
)
from fmm_openmm.octree import is_nested

PRECISIONS = ("auto", "single", "double")

TOLERANCE = 5e-4
"""Default relative RMS force error, equal to OpenMM's default ``ewaldErrorTolerance``."""

SMOOTHINGS = (0.0, 0.00625, 0.009, 0.0125, 0.02, 0.03, 0.05)
"""Widths of the transition regions considered, box widths; 0: none. All others conserve the
energy alike, below 0.006 no longer; wide ones make more parts of particles,
narrow ones larger errors."""

LARGEST = 6.0
"""Largest error of a single force, over tolerance and RMS force, that parameters are chosen for:
about that of PME."""

CONSERVING = 8e-5
"""Expected error up to which the energy is conserved without smoothing. Where particles change
boxes it jumps by the truncation error: water of 300 K drifts by 1e5 to 2e5 kT/ns/dof times the
square of the expected error, 0.001 at this one."""

ROUNDING_SHARE = 0.5
"""Largest error of coordinates in single precision, over the tolerance, at which
``precision="auto"`` stays single."""

SINGLE_FLOOR = 5e-6
"""Smallest tolerance that single precision is offered for; "auto" precision is double below it."""

NEAR_RADII = (1.87, 2.34, 2.64, 2.91, 3.08, 3.24, 3.53, 3.87, 4.18, 4.64, 5.15)
"""Near radii considered: midway between the distances of a cubic lattice, so that boxes which
are a few percent off a cube have the same near stencil."""

ORDER_LIMIT = (6.0, 3.2)
"""Largest order considered, a constant and a multiple of the near radius: beyond it a few pairs
in facing corners of boxes dominate the error."""

BOXES_PER_PARTICLE = 64
"""Most boxes considered, empty ones included: particles that nearly coincide would
ask for any number."""

MOST_LEVELS = 10
"""Below one box there are a thousand million leaves then."""

M2L = ("p4", "p4_dynamic", "p4_symmetric", "p4_parity", "rotation")
"""Operators between the boxes of levels."""

GPU_M2L = ("p4_dynamic", "p4_symmetric", "p4_parity")
"""Those that are on the GPU only."""

DEFORMATION_LIMIT = 1.08
"""Deformation of the boxes, as in :func:`fmm_openmm.box.deformation`,
from which another grid is chosen."""


@dataclass(frozen=True)
class CostModel:
    """Seconds an evaluation takes on one backend, as a sum over its stages' work.

    Attributes:
        pair: a pair of parts in p2p.  part_term: a part and a term in p2m and l2p.  part: a part in
            the other stages.
        box_term: a box and a term in the FFTs.  box_term2: a box and a pair of terms in the
            convolution.
        order: an order, in the latency of the chain of stages of the far field.
        strewn: a box and a term where neighbours are strewn over memory (``BoxLattice.in_rows``).
        box_near: a box and a box of its near stencil.  box: a box that holds particles, in p2p.
        at_once: boxes that p2p works on side by side, so that fewer take as long, and the last of
            many half as long.
        beside: what the far field takes at least, with p2p beside it.
        rotation: order from which m2l by rotation is faster than by matrices.
        rounding: error of float32 arithmetic over :func:`fmm_openmm.expansions.error.single_noise`,
            which is a CPU's.
        double: the model of float64, if that is another.
    """

    pair: float
    part_term: float
    part: float
    box_term: float
    box_term2: float
    box_near: float
    box: float = 0.0
    order: float = 0.0
    at_once: float = 0.0
    beside: float = 0.0
    strewn: float = 0.0
    rotation: int = 1
    rounding: float = 1.0
    double: "CostModel | None" = None

    def __call__(
        self,
        parts: float,
        filled: float,
        boxes: int,
        near: int,
        order: int,
        levels: int = 0,
        in_rows: bool = True,
    ) -> float:
        terms = (order + 1) ** 2
        box_term = self.box_term if in_rows else self.box_term + self.strewn
        root = boxes / 8**levels
        # a box has eight times as many near ones as its parent
        interactions = 8 / 7 * (boxes - root) * filled * 7 * near
        pairs = self.pair * parts * (parts / (filled * boxes) * near)
        side_by_side = pairs * self.at_once / (filled * boxes)
        return (
            max(pairs + side_by_side / 2, side_by_side - self.beside)
            + parts * (self.part + self.part_term * terms)
            + root * (box_term * terms + self.box_term2 * terms * terms)
            + interactions * self.box_term2 * terms * terms
            + boxes * filled * (self.box_near * near + self.box)
            + self.order * order
        )


CPU_COST = CostModel(
    pair=3.8e-10, part_term=2e-9, part=1.5e-7, box_term=3.4e-8, box_term2=3.2e-10, box_near=2.7e-8,
    rotation=9
)  # fmt: skip
"""One thread of an AMD EPYC at float32, fitted to timings of the 21,480-atom water
of ``docs/accuracy.md``."""

CUDA_COST = CostModel(
    pair=5.9e-13, part_term=6.5e-14, part=1.24e-9, box_term=2.9e-12, box_term2=1.75e-13,
    box_near=1.9e-11, box=2.9e-9, order=2.05e-6, at_once=2100, beside=2e-5, strewn=1.6e-11,
    rounding=2.15, double=CostModel(
        pair=2.5e-12, part_term=2.4e-12, part=7e-11, box_term=2e-11, box_term2=1.15e-13,
        box_near=1.1e-11, box=7.8e-10, at_once=2100, beside=2e-5, strewn=3.2e-11,
    ),
)  # fmt: skip
"""An NVIDIA H200. In float32 fitted to whole MD steps of water, 21,384 to 922,752 atoms, within
3 %, beside the Lennard-Jones pairs of the oxygens: ``part`` holds what parts cost that only
smoothing makes, so times without it come out too long, by the same for all. ``strewn`` was
fitted to dodecahedra, the model of float64 to the stages' times at 962,280 atoms. ``rounding``
covers the 1.0e-5 of TIP4P-Ew water at a smoothing of 0.025: reciprocal roots are approximate,
and all sums are in float32."""


@dataclass(frozen=True)
class FMMParameters:
    """What a solver uses.

    Attributes:
        order: expansion order p.
        near_radius: near means box centres within this many box widths.
        grid: integer matrix of the box lattice, shape (3, 3), ``box_vectors = grid @ boxes``;
            diagonal for a rectangular cell. With an open boundary the number of cubic boxes that
            cover the particles, as a diagonal. With levels that of the root grid.
        smoothing: width of the transition regions, box widths.
        levels: levels below the root grid: the leaves are ``2^levels`` times narrower than its
            boxes.
        precision: "single" or "double".
        expected_error: the relative RMS force error these should give (``docs/accuracy.md``).
        m2l: operator between boxes of the levels below the root grid, of :data:`M2L`; None without
            any.
    """

    order: int
    near_radius: float
    grid: tuple[tuple[int, int, int], ...]
    smoothing: float
    levels: int
    precision: str
    expected_error: float
    m2l: str | None = None

    @property
    def counts(self) -> np.ndarray:
        """``2^levels grid``, of the leaves, as an int64 array."""
        return np.array(self.grid, dtype=np.int64) << self.levels


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the choice is ours. Checked on creation.

    Raises:
        ValueError, TypeError: a value out of range, named with what came.
    """

    tolerance: float = TOLERANCE
    precision: str = "auto"
    order: int | None = None
    grid: object = None
    near_radius: float | None = None
    smoothing: float | None = None
    levels: int | None = None
    m2l: str | None = None

    def __post_init__(self):
        check_choice(self.precision, PRECISIONS, "precision")
        check_number(self.tolerance, "tolerance", 1e-10, 0.1)
        if self.precision == "single" and self.tolerance < SINGLE_FLOOR:
            raise ValueError(
                f"`tolerance` must be at least {SINGLE_FLOOR:g} in single precision, got "
                f"{self.tolerance!r}: ask for `precision='double'`"
            )
        if self.order is not None:
            check_integer(self.order, "order", 1, 40)
        if self.near_radius is not None:
            check_number(self.near_radius, "near_radius", 1.0, 8.0)
        if self.smoothing is not None:
            check_number(self.smoothing, "smoothing", 0.0, 0.2)
        if self.grid is not None:
            counts_matrix(self.grid)
        if self.levels is not None:
            check_integer(self.levels, "levels", 0, MOST_LEVELS)
        if self.m2l is not None:
            check_choice(self.m2l, M2L, "m2l")
            if not self.levels:
                raise ValueError(
                    f"`m2l` must be None without `levels` below the root grid, got {self.m2l!r}"
                )

    def resolve_precision(self, ionic: float, rounding: float = 1.0) -> str:
        """ "single" or "double": single where it was asked for, or allowed and rounding is well
        below the tolerance."""
        if self.precision != "auto":
            return self.precision
        noise = rounding * single_noise(ionic, self.smoothings[-1])
        return "single" if self.tolerance >= max(SINGLE_FLOOR, 1.4 * noise) else "double"

    def operator(self, order: int, cost: CostModel) -> str | None:
        """The ``m2l`` for expansions of that order; None without levels below the root grid."""
        if not self.levels:
            return None
        return self.m2l or ("p4" if order < cost.rotation else "rotation")

    @property
    def smoothings(self) -> tuple[float, ...]:
        """Widths of the transition regions to choose from, the widest last."""
        return SMOOTHINGS if self.smoothing is None else (float(self.smoothing),)

    def promises(self, truncation: float, error: float, order: int, smoothing: float) -> int:
        """How much of what is promised parameters keep: 0 if their expected error is above the
        tolerance, 1 if it is not, 2 if they conserve the energy as well, or smoothing was asked for
        or declined, and 3 if no single force is far off.

        Args:
            truncation: the expected error without that of the arithmetic.
            error: the expected error.
        """
        if error > self.tolerance:
            return 0
        if smoothing == 0.0 and self.smoothing is None and truncation > CONSERVING:
            return 1
        return 3 if truncation * largest_ratio(order, smoothing) <= LARGEST * self.tolerance else 2


@dataclass(frozen=True)
class Load:
    """What has to be computed, as far as accuracy and cost depend on it.

    Attributes:
        particles: number of particles.
        filled: fraction of the cell that holds them, a power of 1/2.
        ionic: ionic fraction of the charges (``expansions/error.py``).
        charged: fraction of the particles that carry the charge, likewise; that of three-site water
            where nothing is known.
        net: net charge over the RMS charge.
    """

    particles: int
    filled: float
    ionic: float
    charged: float = 2 / 3
    net: float = 0.0

    @classmethod
    def of(cls, charges: np.ndarray, exclusions: np.ndarray, filled: float = 1.0) -> "Load":
        """The load of charges (n,) and excluded pairs (k, 2)."""
        return cls(
            len(charges),
            filled,
            ionic_fraction(charges, exclusions),
            charged_fraction(charges),
            net_charge(charges),
        )


LEAST_FILLED = 2.0**-30
"""Of a cell: a droplet of a million atoms fills so much of a cell of 20 um."""


def filled_fraction(positions: np.ndarray, cell: np.ndarray) -> float:
    """Fraction of the cell that the particles fill, from how many companions most have in a box, as
    a power of 1/2.

    1 for every liquid and solid, so that there nothing depends on the positions; less for droplets
    and slabs. Up to half of the particles may be in one place without a change.
    """
    n, companions = len(positions), 8.0
    scaled = positions @ np.linalg.inv(cell)
    scaled -= np.floor(scaled)
    fraction = 1.0
    for _ in range(8):
        width = np.cbrt(np.prod(np.diag(cell)) * min(1.0, fraction * companions / n))
        grid = np.maximum(1, np.rint(np.diag(cell) / width)).astype(np.int64)
        index = np.minimum((scaled * grid).astype(np.int64), grid - 1)
        count = np.unique(index @ [1, grid[0], grid[0] * grid[1]], return_counts=True)[1]
        found = float(np.median(np.repeat(count - 1.0, count)))
        expected = n / float(grid.prod())
        refined = max(expected / max(found, expected), LEAST_FILLED)
        if refined > 0.7 * fraction:
            break
        fraction = refined
    return 1.0 if fraction > 0.6 else 0.5 ** round(-np.log2(fraction))


def _grids(request: Request, cell: np.ndarray, load: Load):
    """Candidate root grids, by number of particles in a filled box: where nearly all boxes would
    be empty also those of larger boxes, until there are as many as particles."""
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
    """The cheapest parameters whose estimated error meets the request; what the request fixes is
    obeyed.

    Args:
        request: tolerance and fixed values.
        cell: box vectors in reduced form, shape (3, 3), nm.
        load: the system.
        cost: cost model of the backend.
    """
    return candidates(request, cell, load, cost)[0]


def candidates(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel = CPU_COST
) -> list[FMMParameters]:
    """What :func:`choose_parameters` chooses from, cheapest first: for each grid, near radius
    and smoothing the lowest order that keeps what :meth:`Request.promises` tells, or as much of
    it as is possible. If no estimated error meets the request, the most accurate alone,
    with a warning."""
    found = [chosen for _, chosen in ranked(request, cell, load, cost)]
    tell_if_missed(request, found[0].expected_error)
    return found


def tell_if_missed(request: Request, expected_error: float, case: str = "this cell") -> None:
    """Warn if the least error that is expected of a case exceeds the tolerance; names what the
    request fixes."""
    if expected_error <= request.tolerance:
        return
    names = ("order", "grid", "near_radius", "smoothing", "levels")
    given = [f"`{name}`" for name in names if getattr(request, name) is not None]
    if given:
        case += f" with the {' and '.join(', '.join(given).rsplit(', ', 1))} given"
    warn(
        f"`tolerance={request.tolerance:g}` is out of reach for {case}: "
        f"the best expected error is {expected_error:.1e}"
    )


def ranked(
    request: Request, cell: np.ndarray, load: Load, cost: CostModel
) -> list[tuple[float, FMMParameters]]:
    """:func:`candidates` with the seconds of the cost model."""
    precision = request.resolve_precision(load.ionic, cost.rounding)
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
    return search(replace(request, precision=precision), grids, load, cost)


@dataclass(frozen=True)
class Grid:
    """A candidate for the boxes.

    Attributes:
        counts: integer matrix of the parameters' ``grid``, shape (3, 3).
        per_box: mean number of particles in a leaf that holds any.
        lattice: the lattice of the leaves with a given near radius.
        deformation: of the boxes, as in :func:`fmm_openmm.box.deformation`.
    """

    counts: np.ndarray
    per_box: float
    lattice: Callable[[float], BoxLattice]
    deformation: float = 1.0


def search(
    request: Request, grids: Iterable[Grid], load: Load, cost: CostModel
) -> list[tuple[float, FMMParameters]]:
    """:func:`ranked` on the given grids; the precision must be resolved."""
    reachable = min(_noise(request, smoothing, load, cost) for smoothing in request.smoothings)
    if reachable > request.tolerance:
        raise ValueError(
            f"`tolerance` must be at least {reachable:.1g} in single precision for these charges, "
            f"got {request.tolerance!r}: ask for `precision='double'`"
        )
    found, best = {1: [], 2: [], 3: []}, None  # by what they keep, at least
    for grid, lattice in _stencils(request, grids):
        distances = far_distances(lattice)
        for smoothing in request.smoothings:
            missing = [1, 2, 3]
            for seconds, chosen, kept in _by_order(
                request, grid, lattice, distances, smoothing, load, cost
            ):
                if best is None or chosen.expected_error < best[1].expected_error:
                    best = seconds, chosen
                while missing and missing[0] <= kept:
                    found[missing.pop(0)].append((seconds, chosen))
                if not missing:
                    break
    found = found[3] or found[2] or found[1]
    if best is None:
        what, given = "`levels` must be fewer", request.levels
        if request.near_radius is not None:
            what, given = "`near_radius` must be larger with `levels`", request.near_radius
        raise ValueError(
            f"{what} for boxes of this shape, got {given!r}: near boxes must have near parents"
        )
    return sorted(found or [best], key=lambda each: each[0])


def _noise(request: Request, smoothing: float, load: Load, cost: CostModel) -> float:
    """Relative RMS force error of the arithmetic, 0 in double precision."""
    return (
        cost.rounding * single_noise(load.ionic, smoothing)
        if request.precision == "single"
        else 0.0
    )


def _stencils(request: Request, grids: Iterable[Grid]) -> Iterator[tuple[Grid, BoxLattice]]:
    """Each grid with the lattice of its leaves, for every near radius that is possible there."""
    radii = NEAR_RADII if request.near_radius is None else (float(request.near_radius),)
    for grid in grids:
        for radius in radii:
            lattice = grid.lattice(radius)
            if lattice.gap >= radius + DISTANT and (not request.levels or is_nested(lattice)):
                yield grid, lattice


def _by_order(
    request: Request,
    grid: Grid,
    lattice: BoxLattice,
    distances: np.ndarray,
    smoothing: float,
    load: Load,
    cost: CostModel,
) -> Iterator[tuple[float, FMMParameters, int]]:
    """Seconds and parameters of every order, the lowest first, and what they keep. The
    truncation errors of all levels add up."""
    levels, radius = request.levels or 0, lattice.near_radius
    parts, filled = (
        load.particles * (1.0 + 2.0 * smoothing) ** 3,
        load.particles / (grid.per_box * lattice.size),
    )
    noise, counts = _noise(request, smoothing, load, cost), tuple(map(tuple, grid.counts.tolist()))
    orders = (
        range(1, int(ORDER_LIMIT[0] + ORDER_LIMIT[1] * radius) + 1)
        if request.order is None
        else (request.order,)
    )
    for order in orders:
        truncation = sum(
            estimate_error(
                distances,
                order,
                smoothing,
                load.charged * grid.per_box * 8**above,
                grid.deformation,
                load.ionic,
                load.charged * load.particles,
            )
            for above in range(levels + 1)
        )
        error = float(np.hypot(noise, truncation))
        seconds = cost(
            parts, filled, lattice.size, lattice.neighbours, order, levels, lattice.in_rows
        )
        m2l = request.operator(order, cost)
        chosen = FMMParameters(
            order, radius, counts, smoothing, levels, request.precision, error, m2l
        )
        yield seconds, chosen, request.promises(truncation, error, order, smoothing)


def adapt_parameters(
    chosen: FMMParameters,
    request: Request,
    cell: np.ndarray,
    load: Load,
    cost: CostModel = CPU_COST,
) -> FMMParameters:
    """Parameters for a cell of another shape than the one ``chosen`` was made for.

    The grid stays while its boxes are nearly cubes, and so do order and near radius while the
    estimate allows them: a function of ``chosen`` and the present cell only, whatever the cell was
    in between. Warns if these miss the tolerance and ``chosen`` did not.
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
        found = ranked(attempt, cell, load, cost)[0][1]
        if found.expected_error <= max(request.tolerance, chosen.expected_error):
            return found
    if chosen.expected_error <= request.tolerance:
        tell_if_missed(request, found.expected_error)
    return found
