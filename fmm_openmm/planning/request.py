"""A user's request, and the parameters that satisfy it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import counts_matrix
from fmm_openmm.checks import check_choice
from fmm_openmm.display import html_table
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import ROUNDING_RATIO, single_noise
from fmm_openmm.expansions.harmonics import irregular_in_range
from fmm_openmm.implementations import M2L
from fmm_openmm.options import check_options, option
from fmm_openmm.planning.cost import CostModel

PRECISIONS = ("auto", "single", "double")

ERROR_NORMS = ("rms", "max")

TOLERANCE = 5e-4
"""Default relative RMS force error, equal to OpenMM's default ``ewaldErrorTolerance``."""

TOLERANCES = (1e-10, 0.1)
"""Smallest and largest tolerance."""

NEAR_RADII = (1.87, 2.34, 2.64, 2.91, 3.08, 3.24, 3.53, 3.87, 4.18, 4.64, 5.15)
"""Near radii considered: midway between the distances of a cubic lattice, so that boxes that
deviate from cubes by a few percent have the same near stencil."""

SMOOTHINGS = (0.0, 0.00625, 0.009, 0.0125, 0.02, 0.03, 0.05)
"""Half widths of the transition regions considered, in box widths; 0: no smoothing. All half widths
above 0.006 conserve energy equally well. Wide regions split more particles into parts, narrow ones
make larger errors."""

LARGEST = 6.0
"""Largest error of a single force, relative to tolerance times RMS force, that parameters are
chosen for: about that of PME."""

CONSERVING = 8e-5
"""Expected error up to which energy is conserved without smoothing. When a particle changes boxes
the energy jumps by the truncation error: water at 300 K drifts by 1e5 to 2e5 kT/ns/dof times the
square of the expected error, which is 0.001 at this value."""

ROUNDING_SHARE = 0.5
"""Largest error of single-precision coordinates, relative to the tolerance, at which
``precision="auto"`` uses single precision."""

NOISE_MARGIN = 1.4
"""Margin of the rounding error of single precision over
:func:`fmm_openmm.expansions.error.single_noise`."""

SINGLE_FLOOR = 5e-6
"""Smallest tolerance available in single precision; below it ``precision="auto"`` is double."""

MAX_ORDER = 40
"""Highest order of the expansions."""

MAX_LEVELS = 8
"""Largest number of levels: 2^24 leaves in each root box."""

MAX_BOXES = 2**24
"""Largest number of leaves that ``grid`` and ``levels`` may ask for, a hundred times those of ten
million atoms."""


def add_rounding(error: ArrayLike, largest: ArrayLike, rounding: ArrayLike):
    """RMS and largest error of the forces with a relative RMS error due to rounding added in
    quadrature."""
    return np.hypot(error, rounding), np.hypot(largest, np.multiply(ROUNDING_RATIO, rounding))


@dataclass(frozen=True, repr=False)
class FMMParameters:
    """Parameters of a solver.

    Attributes:
        order: expansion order p.
        near_radius: boxes are near if their centres are within this many box widths.
        grid: integer matrix of the box lattice, shape (3, 3), ``box_vectors = grid @ boxes``;
            diagonal for a rectangular cell. With an open boundary its diagonal holds the numbers
            of cubic boxes that cover the particles. With levels it describes the root grid.
        smoothing: half width of the transition regions, in box widths.
        levels: number of levels below the root grid, whose boxes are ``2^levels`` times wider than
            the leaves.
        precision: "single" or "double".
        expected_error: estimated relative RMS force error (``docs/explanation/accuracy.md``).
        m2l: operator between boxes of the levels below the root grid, a key of
            :data:`fmm_openmm.implementations.M2L`; None without such levels.
        expected_largest_error: estimated largest error of the force on a particle, relative to the
            RMS force; infinite where it has not been estimated.
    """

    order: int
    near_radius: float
    grid: tuple[tuple[int, int, int], ...]
    smoothing: float
    levels: int
    precision: str
    expected_error: float
    m2l: str | None = None
    expected_largest_error: float = np.inf

    @property
    def counts(self) -> np.ndarray:
        """Integer matrix of the leaves, ``2^levels grid``, int64."""
        return np.array(self.grid, dtype=np.int64) << self.levels

    def with_rounding(self, rounding: float) -> "FMMParameters":
        """The parameters with a relative RMS force error due to rounding added in quadrature."""
        return self.with_forces(1.0, rounding)

    def with_forces(self, ratio: float, rounding: float) -> "FMMParameters":
        """The parameters with the errors that they have given the forces of an evaluation.

        Args:
            ratio: :meth:`fmm_openmm.planning.forces.ForceErrors.ratio`.
            rounding: relative RMS error due to rounding.
        """
        error, largest = add_rounding(
            ratio * self.expected_error, ratio * self.expected_largest_error, rounding
        )
        return replace(self, expected_error=float(error), expected_largest_error=float(largest))

    def _rows(self) -> list[tuple[str, str]]:
        """Names and values, for people."""
        grid = np.array(self.grid)
        if np.array_equal(grid, np.diag(np.diag(grid))):
            boxes = " x ".join(map(str, np.diag(grid)))
        else:
            boxes = str(grid.tolist())
        rows = [
            ("order", str(self.order)),
            ("near radius", f"{self.near_radius:g}"),
            ("grid", boxes),
            ("smoothing", f"{self.smoothing:g}"),
        ]
        if self.levels:
            rows += [("levels", str(self.levels)), ("m2l", str(self.m2l))]
        rows += [("precision", self.precision), ("expected error", f"{self.expected_error:.1e}")]
        return rows

    def __repr__(self) -> str:
        return f"FMMParameters({', '.join(map(' '.join, self._rows()))})"

    def _repr_html_(self) -> str:
        return html_table(self._rows(), caption="FMM parameters")


class SolverKeywords(TypedDict, total=False):
    """Keywords for :class:`SolverOptions` in the form that type checkers read, without tolerance
    and precision."""

    order: int | None
    grid: tuple[int, int, int] | Sequence[Sequence[int]] | None
    near_radius: float | None
    smoothing: float | None
    levels: int | None
    error_norm: str


@dataclass(frozen=True)
class SolverOptions:
    """The options that solver and force share; None for values to be chosen. Checked on creation.

    Raises:
        ValueError, TypeError: a value is out of range; the message names option and value.
    """

    tolerance: float = option(
        TOLERANCE, "relative force error to meet", kind=float, limits=TOLERANCES
    )
    order: int | None = option(
        None,
        "order of the expansions",
        ". If None, this and the next three are chosen for the tolerance",
        kind=int,
        limits=(1, MAX_ORDER),
    )
    grid: tuple[int, int, int] | Sequence[Sequence[int]] | None = option(
        None,
        "numbers of boxes along a, b and c",
        ", or the 3 x 3 integer matrix of the box lattice. Where the boundary is not periodic "
        "along all three, the grid is chosen for the particles and cannot be given",
        kind=int,
        check=counts_matrix,
        nargs=3,
        metavar="N",
    )
    near_radius: float | None = option(
        None,
        "largest distance between the centres of near boxes, in box widths",
        kind=float,
        limits=(1.0, 8.0),
    )
    smoothing: float | None = option(
        None,
        "half width of the transition from box to box, in box widths; 0 for none",
        kind=float,
        limits=(0.0, 0.2),
    )
    levels: int | None = option(
        None,
        "levels of an octree below the grid",
        "; none by default",
        kind=int,
        limits=(0, MAX_LEVELS),
    )
    precision: str = option(
        "auto",
        "precision of the arithmetic",
        '; "auto" chooses it for the tolerance',
        choices=PRECISIONS,
    )
    error_norm: str = option(
        "rms",
        "norm of the force error that meets the tolerance",
        ': "rms" for the RMS error over all particles, "max" for the largest error of a particle, '
        "both relative to the RMS force",
        choices=ERROR_NORMS,
    )

    def __post_init__(self):
        check_options(self)
        edges = [1] if self.grid is None else np.diag(counts_matrix(self.grid)).tolist()
        boxes = math.prod(edges) << 3 * (self.levels or 0)
        if boxes > MAX_BOXES:
            raise ValueError(
                f"`grid` and `levels` must make at most {MAX_BOXES} boxes, got {boxes} with "
                f"grid={self.grid!r} and levels={self.levels!r}"
            )
        if self.precision == "single" and self.tolerance < SINGLE_FLOOR:
            raise ValueError(
                f"`tolerance` must be at least {SINGLE_FLOOR:g} in single precision, got "
                f"{self.tolerance!r}: ask for `precision='double'`"
            )

    def check_boundary(self, boundary: Boundary) -> None:
        """Refuse a grid where boxes follow the particles.

        Raises:
            ValueError: a grid was given, and cell and images do not fill space.
        """
        if self.grid is not None and not boundary.fills_space:
            raise ValueError(
                f"`grid` must be None with `boundary={boundary.name!r}`, where it is chosen for "
                f"the particles, got {self.grid!r}"
            )


class RequestKeywords(SolverKeywords, total=False):
    """Keywords for :class:`Request` in the form that type checkers read, without tolerance and
    precision."""

    m2l: str | None


@dataclass(frozen=True)
class Request(SolverOptions):
    """The options of a user of the solver."""

    m2l: str | None = option(
        None,
        "operator between the boxes of levels",
        ': "rotation" or, on a CPU, "p4". Operators of the literature for comparison, all '
        'deprecated, are "p4" on a GPU and, only there, "p4_dynamic" and, for rectangular boxes, '
        '"p4_symmetric" and "p4_parity". If None, the operator is chosen by the order',
        check=lambda value: check_choice(value, tuple(M2L), "m2l"),
    )

    def __post_init__(self):
        super().__post_init__()
        if self.m2l is not None and not self.levels:
            raise ValueError(
                f"`m2l` must be None without `levels` below the root grid, got {self.m2l!r}"
            )

    def resolve_precision(self, ionic: float, rounding: float = 1.0, examined: bool = False) -> str:
        """ "single" or "double": as requested, or single if rounding is well below the tolerance
        and the order not too high.

        Args:
            ionic: ionic fraction of the charges.
            rounding, examined: attributes of the cost model.
        """
        if self.precision != "auto":
            return self.precision
        closest = self.near_radius or NEAR_RADII[0]
        if self.order and not irregular_in_range(2 * self.order, closest, np.float32):
            return "double"
        # ions make the sums noisier; where forces are examined, that is left to them
        common = 0.0 if examined and self.smoothing is None else ionic
        widest = NOISE_MARGIN * single_noise(common, self.smoothings[-1])
        least = max(SINGLE_FLOOR, rounding * max(widest, 3.0 * single_noise(ionic, 0.0)))
        return "single" if self.rounding_tolerance >= least else "double"

    @property
    def rounding_tolerance(self) -> float:
        """The tolerance for the relative RMS force error that rounding makes."""
        return self.tolerance / (ROUNDING_RATIO if self.error_norm == "max" else 1.0)

    def in_norm(self, rms, largest):
        """The error of the forces in the norm of the tolerance: the RMS error or the largest."""
        return largest if self.error_norm == "max" else rms

    def expected(self, parameters: FMMParameters) -> float:
        """The error that parameters are expected to have, in the norm of the tolerance."""
        return self.in_norm(parameters.expected_error, parameters.expected_largest_error)

    def operator(self, order: int, cost: CostModel) -> str | None:
        """The ``m2l`` for expansions of an order; None without levels below the root grid."""
        if not self.levels:
            return None
        return self.m2l or ("p4" if order < cost.rotation else "rotation")

    @property
    def smoothings(self) -> tuple[float, ...]:
        """Half widths of the transition regions to choose from, in box widths, the widest last."""
        return SMOOTHINGS if self.smoothing is None else (float(self.smoothing),)

    def promises_kept(
        self,
        smoothing: np.ndarray,
        expected: np.ndarray,
        truncation: np.ndarray,
        largest: np.ndarray,
    ) -> np.ndarray:
        """Number of promises that parameters keep, each of which includes those before it; of
        parameters in arrays that are broadcast against each other.

        1: the expected error is within the tolerance. 2: energy is conserved, or the user has
        chosen the smoothing. 3: no single force has an error above :data:`LARGEST`.

        Args:
            smoothing: half width of the transition regions, box widths.
            expected: expected error in the norm of the tolerance.
            truncation: expected RMS error without rounding.
            largest: expected largest error of a force without rounding, in a system of any size.
        """
        conserves = (smoothing > 0.0) | (self.smoothing is not None) | (truncation <= CONSERVING)
        bounded = largest <= LARGEST * self.tolerance
        return (expected <= self.tolerance) * (1 + conserves * (1 + bounded))


SMALL_FORCES = "forces as small as these"
"""The case of fields that cancel, as in cold crystals, in warnings."""


def warn_if_missed(request: Request, expected_error: float, case: str = "this cell") -> None:
    """Warn if the smallest error attainable in a case exceeds the tolerance, naming the options
    that the user has fixed."""
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
