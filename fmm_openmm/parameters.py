"""From a tolerance to order, near radius and box lattice: the error estimate says what is allowed, the cost model what is best.

Both are separate on purpose: the estimate (``expansions/error.py``) knows geometry only, the cost model times only.
"""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.box import BoxLattice, box_width, choose_counts, counts_matrix, deformation
from fmm_openmm.checks import check_integer, check_number
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.error import estimate_error

TOLERANCE = 5e-4
"""Default relative RMS force error, equal to OpenMM's default ``ewaldErrorTolerance``."""

SMOOTHING = 0.1
"""Default width of the transition regions, box widths."""

SINGLE_FLOOR = 5e-6
"""Smallest tolerance float32 reaches; "auto" precision is double below it."""

NEAR_RADII = (1.75, 2.3, 2.5, 2.9, 3.2, 3.5, 3.8, 4.2)
MAX_ORDER = 24
DEFORMATION_LIMIT = 1.12


@dataclass(frozen=True)
class CostModel:
    """Seconds an evaluation takes on one backend, as a sum over its stages' work.

    Attributes:
        pair: a pair of parts in p2p.  part_term: a part and a term in p2m and l2p.  part: a part in the other stages.
        box_term: a box and a term in the FFTs.  box_term2: a box and a pair of terms in the convolution.
        box_near: a box and a box of its near stencil.
    """

    pair: float
    part_term: float
    part: float
    box_term: float
    box_term2: float
    box_near: float

    def __call__(self, parts: float, boxes: int, near: int, order: int) -> float:
        terms = (order + 1) ** 2
        return (
            self.pair * parts * parts / boxes * near
            + parts * (self.part + self.part_term * terms)
            + boxes * (self.box_term * terms + self.box_term2 * terms * terms + self.box_near * near)
        )


CPU_COST = CostModel(pair=4e-10, part_term=4e-9, part=1e-7, box_term=1.5e-8, box_term2=2.5e-10, box_near=2e-8)


@dataclass(frozen=True)
class FMMParameters:
    """What a solver uses.

    Attributes:
        order: expansion order p.
        near_radius: near means box centres within this many box widths.
        grid: integer matrix of the box lattice, shape (3, 3), ``box_vectors = grid @ boxes``; diagonal for a
            rectangular cell.
        smoothing: width of the transition regions, box widths.
        levels: levels below the root grid, 0.
        precision: "single" or "double".
        expected_error: the relative RMS force error these should give (``docs/accuracy.md``).
    """

    order: int
    near_radius: float
    grid: tuple[tuple[int, int, int], ...]
    smoothing: float
    levels: int
    precision: str
    expected_error: float

    @property
    def counts(self) -> np.ndarray:
        """``grid`` as an int64 array."""
        return np.array(self.grid, dtype=np.int64)


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the choice is ours. Checked on creation.

    Raises:
        ValueError, TypeError: a value out of range, named with what came.
        UnsupportedError: levels other than 0.
    """

    tolerance: float = TOLERANCE
    precision: str = "auto"
    order: int | None = None
    grid: object = None
    near_radius: float | None = None
    smoothing: float | None = None
    levels: int | None = None

    def __post_init__(self):
        if self.precision not in ("auto", "single", "double"):
            raise ValueError(f"`precision` must be 'auto', 'single' or 'double', got {self.precision!r}")
        check_number(self.tolerance, "tolerance", 1e-10, 0.1)
        if self.precision == "single" and self.tolerance < SINGLE_FLOOR:
            raise ValueError(
                f"`tolerance` must be at least {SINGLE_FLOOR:g} in single precision, got {self.tolerance!r}: "
                "ask for `precision='double'`"
            )
        if self.order is not None:
            check_integer(self.order, "order", 1, 40)
        if self.near_radius is not None:
            check_number(self.near_radius, "near_radius", 1.0, 8.0)
        if self.smoothing is not None:
            check_number(self.smoothing, "smoothing", 0.0, 0.45)
        if self.grid is not None:
            counts_matrix(self.grid)
        if self.levels is not None and check_integer(self.levels, "levels", 0, 20) != 0:
            raise UnsupportedError(f"`levels` must be 0, got {self.levels}: only the single-level method is available")

    @property
    def resolved_precision(self) -> str:
        if self.precision != "auto":
            return self.precision
        return "single" if self.tolerance >= SINGLE_FLOOR else "double"


def _pick_order(request: Request, lattice: BoxLattice, smoothing: float) -> tuple[int, float] | None:
    """Smallest order whose estimate meets the tolerance, with the estimate; None where none does."""
    orders = range(1, MAX_ORDER + 1) if request.order is None else (request.order,)
    for order in orders:
        error = estimate_error(lattice, order, smoothing)
        if error <= request.tolerance or request.order is not None:
            return order, error
    return None


def _grids(request: Request, cell: np.ndarray, particles: float):
    if request.grid is not None:
        yield counts_matrix(request.grid)
        return
    seen = set()
    volume = float(np.prod(np.diag(cell)))
    for per_box in (1.5, 2.2, 3.2, 4.6, 6.5, 9.5, 14.0, 20.0, 30.0):
        counts = choose_counts(cell, np.cbrt(volume * min(1.0, per_box / particles)))
        if counts.tobytes() not in seen:
            seen.add(counts.tobytes())
            yield counts


def choose_parameters(request: Request, cell: np.ndarray, particles: int, cost: CostModel = CPU_COST) -> FMMParameters:
    """The cheapest parameters whose estimated error meets the request; what the request fixes is obeyed.

    Args:
        request: tolerance and fixed values.
        cell: box vectors in reduced form, shape (3, 3), nm.
        particles: number of particles.
        cost: cost model of the backend.
    """
    smoothing = SMOOTHING if request.smoothing is None else float(request.smoothing)
    parts = particles * (1.0 + 2.0 * smoothing) ** 3
    radii = NEAR_RADII if request.near_radius is None else (float(request.near_radius),)
    best, fallback = None, None
    for counts in _grids(request, cell, particles):
        for radius in radii:
            lattice = BoxLattice.from_cell(cell, counts, radius)
            found = _pick_order(request, lattice, smoothing)
            if found is None:
                continue
            order, error = found
            seconds = cost(parts, lattice.size, len(lattice.near), order)
            candidate = (seconds, order, radius, counts, error)
            if error <= request.tolerance and (best is None or seconds < best[0]):
                best = candidate
            if fallback is None or error < fallback[4]:
                fallback = candidate
    if best is None:
        best = fallback
    if best is None:
        raise ValueError(
            f"`tolerance` {request.tolerance:g} cannot be reached with the fixed order, near_radius and grid: free one of them"
        )
    _, order, radius, counts, error = best
    return FMMParameters(
        order, radius, tuple(map(tuple, counts.tolist())), smoothing, 0, request.resolved_precision, float(error)
    )


def fits(cell: np.ndarray, counts: np.ndarray) -> bool:
    """Whether the boxes of ``counts`` are still nearly cubes in this cell."""
    return deformation(cell, counts) <= DEFORMATION_LIMIT


__all__ = ["TOLERANCE", "CostModel", "FMMParameters", "Request", "box_width", "choose_parameters", "fits"]
