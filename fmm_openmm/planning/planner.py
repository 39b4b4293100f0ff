"""Decides when boxes are kept, when they are translated or scaled, and when new ones are chosen.

The planner knows positions, cell and charges, but neither stages nor devices. Its callers keep the
evaluators for the boxes of a plan, by the plan's ``choice``.
"""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from fmm_openmm.arrays import bounds, is_on_device, to_host
from fmm_openmm.expansions.error import rounding_of_positions, single_noise
from fmm_openmm.planning.boxes import Boxes, Region
from fmm_openmm.planning.forces import ForceErrors, ForceLimits
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import ROUNDING_SHARE, SMALL_FORCES, FMMParameters
from fmm_openmm.specification import Specification

RECHECK_INTERVAL = 64
"""Evaluations of positions on the device in a region after which its boxes are compared with the
extent of the particles again: particles that leave the boxes are noticed at once, a region that has
become far too large is not."""

RECHECK_INTERVAL_IN_OPENMM = 10_000
"""The same inside OpenMM's context, where the positions must be fetched for it."""

CLOSE = "charges so close to each other"
"""What causes the error of single-precision coordinates, in warnings."""

MEASURED_MARGIN = 1.7
"""Expected errors over those measured at some positions, which covers their spread between
positions of a liquid."""

MAX_MOVES = 3
"""Moves of a region in a row for the same positions, of which one should suffice, before the
evaluation fails; counted inside OpenMM's context."""


class Change(Enum):
    """The change that a plan makes to the boxes used before."""

    KEEP = "keep"
    MOVE = "move"
    REPLACE = "replace"


@dataclass(frozen=True, eq=False)
class Plan:
    """Boxes for a cell and positions.

    Attributes:
        problem: the problem that the boxes were chosen for.
        boxes: the boxes, placed and scaled.
        change: relative to the last use of the boxes.
        choice: number of the choice that the boxes result from; plans with the same number differ
            only in place and scale.
    """

    problem: Problem
    boxes: Boxes
    change: Change
    choice: int

    @property
    def parameters(self) -> FMMParameters:
        """The parameters chosen with the boxes."""
        return self.boxes.parameters

    def specification(self, charges: np.ndarray) -> Specification:
        """The specification of an evaluator for the plan with these charges, shape (n,), e."""
        p, problem = self.parameters, self.problem
        return Specification(
            self.boxes.lattice,
            p.order,
            p.smoothing,
            charges,
            problem.exclusions,
            problem.minimum_image,
            np.dtype(p.precision),
            p.levels,
            p.m2l or Specification.m2l,
        )

    def place(self, boxes: Boxes) -> "Plan":
        """The plan with its boxes where they are now."""
        before, now = self.boxes, boxes
        stays = before.width == now.width and (
            before.origin is now.origin or np.array_equal(before.origin, now.origin)
        )
        change = Change.KEEP if stays else Change.MOVE
        return Plan(self.problem, boxes, change, self.choice)


class Planner:
    """Plans for one system.

    Args:
        problem: what to choose boxes for.
        memory: number of most recently used sets of boxes to remember; with two, a rejected change
            of the cell costs nothing.
        fixed_cell: whether, when a region is given up, the parameters are chosen for the problem's
            cell; else for the current cell.

    Attributes:
        problem: what boxes are chosen for at present.
        has_warned: whether it has warned about single precision, as it does once.
    """

    problem: Problem
    _kept_errors: ForceErrors

    def __init__(self, problem: Problem, memory: int = 1, fixed_cell: bool = False):
        self._memory, self._fixed_cell = memory, fixed_cell
        self._choices = 0
        self._reused = 0  # number of plans since the positions were examined
        self.has_warned = False
        self._last: FMMParameters | None = None  # parameters of the last region
        self.revise(problem)

    def revise(self, problem: Problem) -> None:
        """Plan for another problem from now on. Nothing changes if it is refused.

        Raises:
            ValueError: the request cannot be satisfied.
        """
        self._whole = None if problem.uses_region else problem.parameters
        self.problem = problem
        self._prepared: Boxes | None = None
        self._ratio: float | None = None  # arguments of ``FMMParameters.with_forces``
        self._rounding = 0.0
        self._errors_for: tuple = (None,) * 4  # what ``_kept_errors`` are for
        self._measured: dict[FMMParameters, FMMParameters] = {}  # those with measured errors
        self.forget()

    def forget(self) -> None:
        """Discard all boxes that were used."""
        self._used: tuple[Plan, ...] = ()
        self._cell: np.ndarray | None = None  # of the last plan of boxes over a whole cell

    @property
    def choices(self) -> tuple[int, ...]:
        """Numbers of the remembered choices, the most recently used first."""
        return tuple([plan.choice for plan in self._used])  # faster than a generator

    @property
    def latest(self) -> Boxes | None:
        """The boxes of the last plan; None before the first one."""
        return self._used[0].boxes if self._used else None

    @property
    def parameters(self) -> FMMParameters | None:
        """Parameters of boxes over the problem's cell, or of the last region; None before the first
        one."""
        return self._whole or self._last

    def with_forces(self, parameters: FMMParameters) -> FMMParameters:
        """The parameters with the errors expected given the last forces checked; unchanged before
        there are any."""
        if self._ratio is None:
            return parameters
        return parameters.with_forces(self._ratio * self.problem.load.field, self._rounding)

    def expected(self, parameters: FMMParameters) -> FMMParameters:
        """The parameters with the errors that were measured for them, times
        :data:`MEASURED_MARGIN`; where none were, :meth:`with_forces`."""
        return self._measured.get(parameters) or self.with_forces(parameters)

    def adopt_errors(self, rms: float, largest: float) -> None:
        """Expect of the parameters of the last plan the errors measured with them, RMS and largest,
        relative to the RMS force."""
        p = self._used[0].parameters
        measured = replace(
            p,
            expected_error=MEASURED_MARGIN * rms,
            expected_largest_error=MEASURED_MARGIN * largest,
        )
        self._measured = {**self._measured, p: measured}

    def prepare(self, positions: np.ndarray, cell: np.ndarray) -> None:
        """Choose a region, if the problem calls for one, for typical positions before any plan."""
        if self.problem.uses_region:
            self._prepared = self._chosen(positions, cell)
            self._last = self._prepared.parameters

    def plan(self, positions, cell: np.ndarray, left: bool = False) -> Plan:
        """The most recently used boxes that are suitable, else new ones.

        Args:
            positions: shape (n, 3), nm, on the host or the device, finite; read only for a region.
            cell: cell vectors, shape (3, 3), nm. Kept; it must never change.
            left: whether particles are known to have left the boxes, by whatever margin.
        """
        self._reused = 0
        if self._cell is not None and cell is self._cell:
            plan, *others = self._used
            if plan.change is not Change.KEEP:
                self._used = replace(plan, change=Change.KEEP), *others
            return self._used[0]
        if (
            self.problem.uses_region
            and (self.problem.gathers or not self._used)
            and is_on_device(positions)
        ):
            positions = to_host(positions)
        for known in self._used:
            boxes = self._fitted(known.boxes, positions, cell, left)
            if boxes:
                plan = known.place(boxes)
                rest = tuple(each for each in self._used if each is not known)
                break
        else:
            boxes = self._chosen(positions, cell)
            self._choices += 1
            plan = Plan(self.problem, boxes, Change.REPLACE, self._choices)
            rest = self._used
        self._used = (plan, *rest)[: self._memory]
        if self.problem.uses_region:
            self._last = plan.parameters
        else:
            self._cell = cell
        return plan

    def fits(self, positions: np.ndarray, cell: np.ndarray) -> bool:
        """Whether :meth:`plan` would return boxes that have been used."""
        return any(self._fitted(known.boxes, positions, cell) for known in self._used)

    def reuse(self, cell: np.ndarray) -> Plan | None:
        """The last region, without examining the particles; the caller notices if they have left
        it. None if there is no region, or if it is time to examine the particles again."""
        self._reused += 1
        if not (self.problem.uses_region and self._used and self._reused < RECHECK_INTERVAL):
            return None
        boxes = self._used[0].boxes.scaled(cell)
        return self._used[0].place(boxes) if boxes else None

    def preview(self, positions: np.ndarray | None, cell: np.ndarray) -> Boxes:
        """The boxes that a plan would have, without any change of state; a region as it was used
        last."""
        problem, latest = self.problem, self.latest
        if not problem.uses_region:
            return problem.filling(cell, latest)
        if latest:
            return latest
        if positions is None:
            raise ValueError("a region needs positions")
        return problem.region(positions, cell) or problem.filling(cell)

    def accepts(self, charges: np.ndarray, positions=None, cell: np.ndarray | None = None) -> bool:
        """Whether the boxes remain suitable for other charges; if not, the next plan has new ones.

        Args:
            charges: shape (n,), e.
            positions: shape (n, 3), nm, on the host. If given, they are examined too: the filled
                fraction of the cell, the fit of the region, and whether single precision suffices.
            cell: cell of the positions, which new boxes are chosen for; by default that of the
                problem.
        """
        problem, fits = self.problem.with_charges(charges), True
        if positions is not None:
            cell = problem.cell if cell is None else cell
            if problem.uses_region:
                region = self.latest and self.latest.scaled(cell)
                extent = bounds(problem.gather(positions, cell))
                fits = isinstance(region, Region) and region.cover(*extent) is not None
            else:
                problem = problem.with_positions(positions, cell)
            boxes = (self if problem is self.problem else Planner(problem)).preview(positions, cell)
            if boxes.parameters.precision == "single":
                least = ROUNDING_SHARE * problem.request.rounding_tolerance
                rounding = rounding_of_positions(
                    positions, charges, cell, problem.exclusions, boxes.width, least
                )
                problem = self._given_rounding(problem, rounding)
        return self._adopts(problem, cell, fits)

    def accepts_forces(
        self,
        charges: np.ndarray,
        squares: float,
        cubes: float,
        potential_squares: float = 0.0,
        cell: np.ndarray | None = None,
    ) -> bool:
        """Whether the parameters remain suitable for the forces of the last plan; if not, the next
        plan has new boxes.

        Args:
            charges, squares, cubes, potential_squares: as of :meth:`examine`.
            cell: cell which new boxes are chosen for; by default that of the problem.
        """
        return not self._used or self._adopts(
            self.examine(charges, squares, cubes, potential_squares), cell
        )

    def force_limits(self, charges: np.ndarray) -> ForceLimits:
        """Limits for charges, shape (n,), e, within which :meth:`accepts_forces` need not be asked
        about the forces of the last plan; beyond them it returns False or warns."""
        problem, boxes = self.problem, self._used[0].boxes
        single = boxes.parameters.precision == "single" and not self.has_warned
        return self._errors(charges).limits(
            problem.request,
            problem.request.expected(boxes.parameters),
            problem.load.field,
            problem.rounding_limit if single else None,
        )

    def _errors(self, charges: np.ndarray) -> ForceErrors:
        """Errors of the forces with the boxes of the last plan, kept for the next time."""
        boxes, problem = self._used[0].boxes, self.problem
        given = charges, boxes.parameters, boxes.lattice, problem
        if any(old is not new for old, new in zip(self._errors_for, given, strict=True)):
            ionic, smoothing = problem.load.ionic, boxes.parameters.smoothing
            noise = problem.cost.rounding * single_noise(ionic, smoothing)
            self._kept_errors = ForceErrors.from_boxes(
                charges, problem.exclusions, boxes, problem.load, noise
            )
            self._errors_for = given
        return self._kept_errors

    def _given_rounding(self, problem: Problem, error: float, case: str = CLOSE) -> Problem:
        """A problem given the force error that single precision causes in a case; warns of it
        once."""
        if self.has_warned:
            return problem
        found = problem.with_rounding(error, case)
        self.has_warned = found is problem and problem.rounding_limit < error < np.inf
        return found

    def _adopts(self, problem: Problem, cell: np.ndarray | None, fits: bool = True) -> bool:
        """Whether the boxes serve a problem; else it is planned for, in a cell, from now on."""
        if fits and problem is self.problem:
            return True
        self.revise(problem if cell is None else replace(problem, cell=cell))
        return False

    @property
    def is_examined(self) -> bool:
        """Whether fields have shown if the precision of the present boxes suffices."""
        return self._ratio is not None

    def examine(
        self, charges: np.ndarray, squares: float, cubes: float, potential_squares: float = 0.0
    ) -> Problem:
        """The problem; in double precision or with other parameters if the forces require it.

        Args:
            charges: shape (n,), e.
            squares, cubes: sums of q^2 E^2 and q^2 |E|^3 over the charges
                (:func:`fmm_openmm.expansions.error.force_sums`), with the fields of the last plan
                in units of its boxes; not finite where distances are rounded to zero.
            potential_squares: likewise the sum of q^2 phi^2, which matters with smoothing only.
        """
        problem, p = self.problem, self._used[0].boxes.parameters
        if not np.isfinite(squares + cubes):
            return self._given_rounding(problem, np.inf)
        errors = self._errors(charges)
        field = errors.field(squares)
        ratio = errors.ratio(field)
        stepped = errors.potential_error(field, potential_squares)
        coordinates = errors.rounding.error(squares, cubes)
        self._ratio = ratio
        self._rounding = float(
            np.hypot(errors.size * np.hypot(coordinates, stepped), errors.usual_noise)
        )
        if p.precision == "single":
            noise = float(np.hypot(errors.noise_error(field), stepped))
            case = CLOSE if coordinates >= noise else SMALL_FORCES
            problem = self._given_rounding(problem, max(coordinates, noise), case)
        return problem.with_field(ratio, problem.request.expected(self.with_forces(p)))

    def _fitted(
        self, boxes: Boxes | None, positions, cell: np.ndarray, left: bool = False
    ) -> Boxes | None:
        """The boxes adjusted to the cell and the positions; None if that is impossible."""
        boxes = boxes and boxes.scaled(cell)
        if not isinstance(boxes, Region):
            return boxes
        x = self.problem.gather(positions, cell, None if left else boxes.centre)
        return (Region.centred_on if left else Region.cover)(boxes, *bounds(x))

    def _chosen(self, positions, cell: np.ndarray) -> Boxes:
        """New boxes; over the whole periodic cell from the moment when these are cheaper."""
        if self.problem.uses_region:
            kept = self.latest
            strained = kept.strained(cell) if isinstance(kept, Region) else None
            region = (
                self._fitted(self._prepared, positions, cell)
                or self._fitted(strained, positions, cell)
                or self.problem.region(to_host(positions), cell, kept)
            )
            if region:
                return region
            problem = self.problem.over_whole_cell(positions, cell)
            self.revise(problem if self._fixed_cell else replace(problem, cell=cell))
        return self.problem.filling(cell, self.latest)
