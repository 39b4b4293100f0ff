"""Which boxes serve: when they stay, when they move, and when others are chosen.

The planner knows positions, cell and charges, and neither stages nor devices: whoever asks it keeps
what computes on the boxes of a plan, by the plan's ``choice``.
"""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from fmm_openmm.arrays import bounds, is_on_device, to_host
from fmm_openmm.checks import FARTHEST, check_positions
from fmm_openmm.expansions.error import rounding_error, rounding_of_positions
from fmm_openmm.planning.boxes import Boxes, Region
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import ROUNDING_SHARE, FMMParameters

RECHECK_INTERVAL = 64
"""Evaluations of positions on the device, with boxes that follow the particles, after which
these are compared with their extent again: particles that leave show at once, boxes that have
become too many do not."""


class Change(Enum):
    """What a plan does to the boxes that served before."""

    KEEP = "keep"
    MOVE = "move"
    REPLACE = "replace"


@dataclass(frozen=True, eq=False)
class Plan:
    """Boxes that serve a cell and cover the positions.

    Attributes:
        problem: what they were chosen for.
        boxes: in their place.
        change: from where they were when they were used last.
        choice: number of the choice that they come from: plans of the same number differ in place
            and scale only.
    """

    problem: Problem
    boxes: Boxes
    change: Change
    choice: int

    @property
    def parameters(self) -> FMMParameters:
        """What was chosen for the boxes."""
        return self.boxes.parameters

    def place(self, boxes: Boxes) -> "Plan":
        """These boxes where they are now."""
        before, now = self.boxes, boxes
        stays = before.width == now.width and np.array_equal(before.origin, now.origin)
        return replace(self, boxes=boxes, change=Change.KEEP if stays else Change.MOVE)


class Planner:
    """Plans for one system.

    Args:
        problem: what to choose boxes for.
        memory: boxes that stay known, those used last: with two a rejected change of the cell costs
            nothing.
        fixed_cell: whether parameters of boxes over the whole cell stay chosen for the problem's
            cell when a region is given up, else for the cell of that moment.

    Attributes:
        problem: what boxes are chosen for now.
    """

    problem: Problem

    def __init__(self, problem: Problem, memory: int = 1, fixed_cell: bool = False):
        self._memory, self._fixed_cell = memory, fixed_cell
        self._choices = 0
        self._trusted = 0  # plans since the positions were looked at
        self._warned = False  # of single precision
        self._last: FMMParameters | None = None  # of a region
        self.revise(problem)

    def revise(self, problem: Problem) -> None:
        """Choose for another problem from now on. Nothing changes if it is refused.

        Raises:
            ValueError: the request cannot be met.
        """
        self._whole = None if problem.follows else problem.parameters
        self.problem = problem
        self._foreseen: Boxes | None = None
        self.forget()

    def forget(self) -> None:
        """Know no boxes that were used."""
        self._used: tuple[Plan, ...] = ()

    @property
    def choices(self) -> tuple[int, ...]:
        """Numbers of the boxes known, those used last first."""
        return tuple(plan.choice for plan in self._used)

    @property
    def _latest(self) -> Boxes | None:
        return self._used[0].boxes if self._used else None

    @property
    def parameters(self) -> FMMParameters | None:
        """Parameters of boxes over the problem's cell, or of the region planned last; None without
        one."""
        return self._whole or self._last

    def foresee(self, positions: np.ndarray, cell: np.ndarray | None) -> None:
        """Choose a region for typical positions, if it is one that serves, before any plan."""
        if self.problem.follows:
            self._foreseen = self._chosen(positions, cell)
            self._last = self._foreseen.parameters

    def plan(self, positions, cell: np.ndarray | None, left: bool = False) -> Plan:
        """The boxes used last that serve, or others.

        Args:
            positions: shape (n, 3), nm, on the host or the device; read only where boxes follow
                the particles.
            cell: vectors, shape (3, 3), nm; None in empty space.
            left: whether particles are known to have left the boxes, however close to their border.
        """
        self._trusted = 0
        if (
            self.problem.follows
            and (cell is not None or not self._used)
            and is_on_device(positions)
        ):
            positions = check_positions(to_host(positions), self.problem.load.particles)
        for known in self._used:
            boxes = self._fitted(known.boxes, positions, cell, left)
            if boxes:
                plan = known.place(boxes)
                others = [each for each in self._used if each is not known]
                break
        else:
            boxes = self._chosen(positions, cell)
            self._choices += 1
            plan = Plan(self.problem, boxes, Change.REPLACE, self._choices)
            others = self._used
        self._used = (plan, *others)[: self._memory]
        if self.problem.follows:
            self._last = plan.parameters
        return plan

    def trust(self, cell: np.ndarray | None) -> Plan | None:
        """The region used last, without a look at the particles: the caller sees whether they have
        left it. None where there is none, or it is time to look again."""
        self._trusted += 1
        if not (self.problem.follows and self._used and self._trusted < RECHECK_INTERVAL):
            return None
        boxes = self._used[0].boxes.scaled(cell)
        return boxes and self._used[0].place(boxes)

    def expect(self, positions: np.ndarray | None, cell: np.ndarray | None) -> Boxes:
        """The boxes that would serve, without changing anything; those of a region as they were
        used last."""
        latest = self._latest
        region = self.problem.follows and (latest or self.problem.region(positions, cell))
        return region or self.problem.filling(cell, latest)

    def review(self, charges: np.ndarray, positions=None, cell: np.ndarray | None = None) -> bool:
        """Whether boxes go on to serve with other charges; if not, the next plan has others.

        Args:
            charges: shape (n,), e.
            positions: shape (n, 3), nm, on the host, if they are to be looked at too: how much of
                the cell they fill, whether a region still suits, and whether single precision does.
            cell: of the positions; boxes are then chosen for it.
        """
        problem, fits = self.problem.including(charges), True
        if positions is not None:
            if problem.follows:
                region = self._latest and self._latest.scaled(cell)
                extent = bounds(problem.gathered(positions, cell))
                fits = region is not None and region.around(*extent) is not None
            else:
                problem = problem.seeing(positions, cell)
            boxes = (self if problem is self.problem else Planner(problem)).expect(positions, cell)
            if boxes.parameters.precision == "single":
                least = ROUNDING_SHARE * problem.request.tolerance
                problem = problem.resolving(
                    rounding_of_positions(
                        positions, charges, cell, problem.exclusions, boxes.width, least
                    )
                )
        if fits and problem is self.problem:
            return True
        self.revise(problem if cell is None else replace(problem, cell=cell))
        return False

    def resolve(self, charges: np.ndarray, fields: np.ndarray) -> Problem:
        """The problem, or one of double precision if the fields that the last plan has given,
        shape (n, 3), in units of its boxes, tell that it takes that."""
        boxes = self._used[0].boxes
        if boxes.parameters.precision == "double" or self._warned:
            return self.problem
        per_box = len(charges) / (self.problem.load.filled * boxes.lattice.size)
        error = rounding_error(charges, fields, per_box)
        problem = self.problem.resolving(error)
        self._warned = problem is self.problem and problem.request.tolerance < error < np.inf
        return problem

    def _fitted(
        self, boxes: Boxes | None, positions, cell: np.ndarray | None, left: bool = False
    ) -> Boxes | None:
        """The boxes as they serve the cell and cover the positions; None if they cannot."""
        boxes = boxes and boxes.scaled(cell)
        if not (boxes and self.problem.follows):
            return boxes
        x = self.problem.gathered(positions, cell, None if left else boxes.centre)
        low, high = bounds(x)
        if not max(np.abs(low).max(), np.abs(high).max()) <= FARTHEST:  # they lie on the device
            check_positions(to_host(x), self.problem.load.particles)
        return (Region.centred if left else Region.around)(boxes, low, high)

    def _chosen(self, positions, cell: np.ndarray | None) -> Boxes:
        """Boxes other than those known; over the whole of a periodic cell from when these are
        cheaper."""
        if self.problem.follows:
            region = self._fitted(self._foreseen, positions, cell) or self.problem.region(
                to_host(positions), cell, self._latest
            )
            if region:
                return region
            problem = self.problem.over_cell(positions, cell)
            self.revise(problem if self._fixed_cell else replace(problem, cell=cell))
        return self.problem.filling(cell, self._latest)
