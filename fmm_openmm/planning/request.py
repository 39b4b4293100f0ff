"""A user's request, and the parameters that satisfy it."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.box import counts_matrix
from fmm_openmm.checks import check_choice, check_integer, check_number
from fmm_openmm.errors import warn
from fmm_openmm.expansions.error import largest_ratio, single_noise
from fmm_openmm.implementations import M2L
from fmm_openmm.planning.cost import CostModel

PRECISIONS = ("auto", "single", "double")

TOLERANCE = 5e-4
"""Default relative RMS force error, equal to OpenMM's default ``ewaldErrorTolerance``."""

SMOOTHINGS = (0.0, 0.00625, 0.009, 0.0125, 0.02, 0.03, 0.05)
"""Widths of the transition regions considered, in box widths; 0: no smoothing. All widths above
0.006 conserve energy equally well. Wide regions split more particles into parts, narrow ones make
larger errors."""

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

SINGLE_FLOOR = 5e-6
"""Smallest tolerance available in single precision; below it ``precision="auto"`` is double."""

MAX_LEVELS = 10
"""Largest number of levels: 2^30 leaves in each root box."""


@dataclass(frozen=True)
class FMMParameters:
    """Parameters of a solver.

    Attributes:
        order: expansion order p.
        near_radius: boxes are near if their centres are within this many box widths.
        grid: integer matrix of the box lattice, shape (3, 3), ``box_vectors = grid @ boxes``;
            diagonal for a rectangular cell. With an open boundary its diagonal holds the numbers
            of cubic boxes that cover the particles. With levels it describes the root grid.
        smoothing: width of the transition regions, in box widths.
        levels: number of levels below the root grid, whose boxes are ``2^levels`` times wider than
            the leaves.
        precision: "single" or "double".
        expected_error: estimated relative RMS force error (``docs/explanation/accuracy.md``).
        m2l: operator between boxes of the levels below the root grid, a key of
            :data:`fmm_openmm.implementations.M2L`; None without such levels.
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
        """Integer matrix of the leaves, ``2^levels grid``, int64."""
        return np.array(self.grid, dtype=np.int64) << self.levels


@dataclass(frozen=True)
class Request:
    """The options of a user; None for what is to be chosen. Checked on creation.

    Raises:
        ValueError, TypeError: a value is out of range; the message names option and value.
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
            check_integer(self.levels, "levels", 0, MAX_LEVELS)
        if self.m2l is not None:
            check_choice(self.m2l, tuple(M2L), "m2l")
            if not self.levels:
                raise ValueError(
                    f"`m2l` must be None without `levels` below the root grid, got {self.m2l!r}"
                )

    def resolve_precision(self, ionic: float, rounding: float = 1.0) -> str:
        """ "single" or "double": as requested, or single if rounding is well below the
        tolerance."""
        if self.precision != "auto":
            return self.precision
        noise = rounding * single_noise(ionic, self.smoothings[-1])
        return "single" if self.tolerance >= max(SINGLE_FLOOR, 1.4 * noise) else "double"

    def operator(self, order: int, cost: CostModel) -> str | None:
        """The ``m2l`` for expansions of an order; None without levels below the root grid."""
        if not self.levels:
            return None
        return self.m2l or ("p4" if order < cost.rotation else "rotation")

    @property
    def smoothings(self) -> tuple[float, ...]:
        """Widths of the transition regions to choose from, in box widths, the widest last."""
        return SMOOTHINGS if self.smoothing is None else (float(self.smoothing),)

    def promises_kept(self, truncation: float, error: float, order: int, smoothing: float) -> int:
        """Number of promises that parameters keep, each of which includes those before it.

        1: the expected error is within the tolerance. 2: energy is conserved, or the user has
        chosen the smoothing. 3: no single force has an error above :data:`LARGEST`.

        Args:
            truncation: expected error without rounding.
            error: expected error.
            order: expansion order.
            smoothing: width of the transition regions, in box widths.
        """
        if error > self.tolerance:
            return 0
        if smoothing == 0.0 and self.smoothing is None and truncation > CONSERVING:
            return 1
        return 3 if truncation * largest_ratio(order, smoothing) <= LARGEST * self.tolerance else 2


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
