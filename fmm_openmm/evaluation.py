"""Evaluations of a ``CoulombSolver``: plans, evaluators of a backend, precision, and the reaction
to a lack of memory."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from fmm_openmm.arrays import bounds, is_on_device, to_host
from fmm_openmm.backends import backend_class, choose_backend, fallback, open_sum
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice
from fmm_openmm.charge_sets import EVALUATION, CoulombMatrix, DeviceCoulombMatrix
from fmm_openmm.checks import (
    check_charges,
    check_extent,
    check_points,
    check_points_shape,
    check_positions,
)
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.implementations import M2L, check_m2l
from fmm_openmm.planning.boxes import Boxes, Region
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.forces import ForceLimits
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Plan, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import MAX_ORDER, Request
from fmm_openmm.results import (
    MAX_POTENTIAL,
    ChargeSetsResult,
    CoulombResult,
    MeasuredErrors,
    largest_potential,
    like,
    name_coincidence,
    split,
    spread,
)
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Evaluator
from fmm_openmm.sums import SumPlanner
from fmm_openmm.units import COULOMB_CONSTANT

T = TypeVar("T")

MORE_ORDERS = 5
"""Additional orders with which an evaluation shows the truncation error to a few percent."""

MAX_MEASURED_ORDER = MAX_ORDER - MORE_ORDERS
"""Highest order whose errors can be measured; chosen orders are lower."""

SETS_PER_EXAMINATION = 20
"""Calls with sets of charges on a device of which the first also evaluates the solver's own
charges, whose forces are examined. That takes as long as the matrix of three sets."""


class Evaluation:
    """Evaluations of point charges whose arguments have been checked.

    Positions and cells are in the frame that the solver computes in. Positions are checked here;
    those on a device stay there.

    Args:
        charges: shape (n,), e.
        cell: cell vectors that parameters are chosen for, shape (3, 3), nm, infinite along axes
            without images.
        request: tolerance and fixed values.
        exclusions: excluded pairs, shape (m, 2).
        minimum_image: whether exclusions apply to nearest images.
        method, backend: see :class:`fmm_openmm.CoulombSolver`. "auto" may change to the CPU where
            the memory of a GPU does not suffice.
        positions: typical positions, shape (n, 3), nm; None if there are none.

    Attributes:
        method: the method.
        backend: name of the backend in use.
        boundary: the boundary of the cell.
        planner: chooses the boxes.
        evaluators: the stages that have been made, by the choice of their plans.
        evaluator_class: makes stages for a specification.
        variants: evaluations of the same particles with other options, by name.

    Raises:
        ValueError, UnsupportedError: see :class:`fmm_openmm.CoulombSolver`.
    """

    backend: str
    evaluator_class: Any
    _last: tuple[int, Any] | None  # of the last evaluation on the device: choice and evaluator
    _limits: tuple[BoxLattice, ForceLimits] | None  # boxes of a plan, and limits of its forces
    _looks_back = True  # examines the forces on the device at the next evaluation
    _sets_left: int  # calls with sets of charges before the next examination

    def __init__(
        self,
        charges: np.ndarray,
        cell: np.ndarray,
        request: Request,
        exclusions: np.ndarray,
        minimum_image: bool = False,
        method: str = "fmm",
        backend: str = "auto",
        positions: np.ndarray | None = None,
    ):
        self._host_charges, self._device_charges = charges, None  # the latter if newer
        self._count = len(charges)
        self._request, self.method, self.boundary = request, method, Boundary.from_cell(cell)
        self._automatic = backend == "auto"
        backend = choose_backend(backend)
        backend_class(backend)  # refuses what this machine cannot do
        if request.m2l:
            check_m2l(request.m2l, backend)
        load = Load.from_charges(charges, exclusions)
        problem = Problem(request, load, exclusions, minimum_image, cell)
        if positions is not None:
            problem = problem.with_positions(positions, cell)
        problem = self._on_backend(backend, problem)
        # with a memory of two plans a rejected change of the box costs nothing
        self.planner: Any = (
            Planner(problem, memory=2, fixed_cell=True)
            if method == "fmm"
            else SumPlanner(method, problem)
        )
        self.evaluators: dict[int, Any] = {}
        self.variants: dict[str, Evaluation] = {}
        self._forget_forces()
        if method == "fmm" and positions is not None:
            self.planner.prepare(positions, cell)  # type: ignore[union-attr]

    def fresh(self) -> "Evaluation":
        """A copy that has evaluated nothing yet, and that can be pickled.

        What earlier evaluations have shown, such as that double precision is needed, is forgotten.
        """
        problem, precision = self.planner.problem, self._request.precision
        load = replace(problem.load, field=1.0)
        if problem.prefers_cell or problem.request.precision != precision or load != problem.load:
            request = replace(problem.request, precision=precision)
            problem = replace(problem, request=request, load=load, prefers_cell=False)
        made = copy.copy(self)
        made.evaluators, made.variants = {}, {}
        made._forget_forces()
        made.planner = copy.copy(self.planner)
        made.planner.revise(problem)
        return made

    def separate(self) -> "Evaluation":
        """A copy with the same evaluators, whose evaluations leave no trace in the plans of this
        one, and are examined at once."""
        made = shallow_copy(self)
        made.planner, made.evaluators = shallow_copy(self.planner), dict(self.evaluators)
        made._last, made._looks_back, made._sets_left = None, False, 0
        made.variants = {name: variant.separate() for name, variant in self.variants.items()}
        return made

    @property
    def charges(self) -> np.ndarray:
        """The charges on the host, shape (n,), e; copied from the device where they are newer."""
        if self._device_charges is not None:
            self._host_charges = check_charges(to_host(self._device_charges))
            self._device_charges = None
        return self._host_charges

    @property
    def newest_charges(self) -> Any:
        """The charges, shape (n,), e, on the device if they were set there."""
        return self.charges if self._device_charges is None else self._device_charges

    def set_charges(self, charges: Any) -> None:
        """Replace the charges, shape (n,), e, checked on the host or float64 on a device."""
        with EVALUATION:
            self._look_back()
            if is_on_device(charges):
                self._device_charges = charges
            else:
                self._limits = None
                if not self.planner.accepts(charges):
                    self.evaluators = {}
                self._host_charges, self._device_charges = charges, None
            self.variants = {}
            for evaluator in self.evaluators.values():
                evaluator.set_charges(charges)

    def compute(self, positions, cell: np.ndarray) -> CoulombResult:
        """The result for positions, shape (n, 3), nm, in a cell."""
        return self._retried(lambda: self._evaluated(positions, cell))

    def can_queue(self, virial: bool = False) -> bool:
        """Whether :meth:`queue` can be used: on a GPU, with boxes over a whole periodic cell, and
        without levels for the virial."""
        problem = self.planner.problem
        fills = self.method == "fmm" and not problem.uses_region
        return self.backend == "cuda" and fills and not (virial and problem.request.levels)

    def queue(self, fill: Callable[[Any], Any], cell: np.ndarray, virial: bool = False) -> Any:
        """Queue an evaluation of positions and charges on the device, if :meth:`can_queue`.

        Args:
            fill: called with the program, whose ``buffers`` are arrays of the device by name;
                queues positions, shape (n, 3), nm, in "positions" and charges, shape (n,), e, in
                "charges", or returns the launch of a kernel that writes both. The charges are then
                those of this evaluation alone.
            cell: cell vectors, shape (3, 3), nm.
            virial: whether the virial is computed, too.

        Returns:
            the program, with "energy", shape (1,), "forces", "potentials", "fields" and "virial" as
            of a :class:`CoulombResult` among the buffers, which the next evaluation overwrites.
        """

        def queued():
            plan = self.planner.plan(None, cell)
            evaluator = self._evaluator_for(plan)
            evaluator = evaluator.with_virial if virial else evaluator
            evaluator.queue(fill, plan.boxes.width)
            return evaluator, evaluator.run

        return self._retried(lambda: self._suited(queued))

    def queue_frame(
        self, positions: np.ndarray, cell: np.ndarray, names: Sequence[str], largest_charge: float
    ) -> tuple[Any, Any, ForceLimits]:
        """Queue an evaluation of positions on the host, which the caller examines, if
        :meth:`can_queue` and forces have been examined before.

        Args:
            positions: shape (n, 3), nm, float32 or float64; copied.
            cell: cell vectors, shape (3, 3), nm. Kept; it must never change.
            names: the quantities wanted, attributes of a :class:`CoulombResult`.
            largest_charge: the largest absolute value of the charges, e.

        Returns:
            the evaluation, a :class:`fmm_openmm.backends.cuda.frames.QueuedFrame`; the
            :class:`fmm_openmm.backends.cuda.frames.FrameQueue` that takes back its memory; and the
            limits within which its forces suit the parameters.
        """
        with EVALUATION:
            plan = self.planner.plan(None, cell)
            evaluator = self.evaluators.get(plan.choice)
            if evaluator is None or evaluator.lattice is not plan.boxes.lattice:
                self.evaluators = {}  # of which none is changed to this shape
                evaluator = self._evaluator_for(plan)
            evaluator = evaluator.with_virial if "virial" in names else evaluator
            largest = MAX_POTENTIAL * largest_charge
            copied = [name for name in names if name != "energy"]
            frame = evaluator.queue_frame(positions, plan.boxes.width, largest, copied)
            return frame, evaluator.frames, self._force_limits()

    def is_defined(self, result: CoulombResult) -> bool:
        """Whether the last result, which is on the device, is defined for all particles. If not, an
        evaluation on the host names particles at the same place."""
        boxes = self.planner.latest
        largest = MAX_POTENTIAL * float(np.abs(self.charges).max())
        limit = largest * COULOMB_CONSTANT / boxes.width
        return float(abs(result.potentials).max()) <= limit  # False for NaN

    def with_virial(self, positions, cell: np.ndarray) -> CoulombResult:
        """The result with the virial."""
        chosen = self._for_virial
        if chosen is not self:
            return like(chosen.with_virial(to_host(positions), cell), positions)
        return like(self._retried(lambda: self._evaluated(positions, cell, virial=True)), positions)

    @property
    def _for_virial(self) -> "Evaluation":
        """The evaluation that computes the virial: this one or, with levels, and for a GPU in a
        nearly empty periodic cell, a variant on the CPU."""
        problem = self.planner.problem
        covers_particles = problem.uses_region and self.boundary.fills_space
        if not problem.request.levels and not (covers_particles and self.backend == "cuda"):
            return self
        request = replace(self._request, levels=None, m2l=None, grid=None)
        backend = "reference" if self.backend == "reference" else "cpu"
        return self._variant("virial", self.charges, request, backend)

    def at_points(self, positions, cell: np.ndarray, points, virial: bool) -> CoulombResult:
        """The result with potentials and fields at points, shape (m, 3), nm."""
        if self._stays_on_device(positions) and self._expands_at_points:
            return self._at_points_on_device(positions, cell, points, virial)
        x = check_positions(to_host(positions), self._count)
        return like(self._at_points(x, cell, check_points(to_host(points)), virial), positions)

    def _at_points(
        self, positions: np.ndarray, cell, points: np.ndarray, virial: bool
    ) -> CoulombResult:
        """The result with potentials and fields at points: from expansions and sources, or, by a
        method without boxes and on a GPU where boxes do not cover the cell, as for additional
        particles without charge."""
        if self.method == "fmm" and (self._expands_at_points or self.backend != "cuda"):
            if virial and self._separates_virial:
                result = self._at_points(positions, cell, points, False)
                return replace(result, virial=self.with_virial(positions, cell).virial)
            chosen = (self._for_virial if virial else self)._for_points(positions, cell, points)
            return chosen._retried(lambda: chosen._evaluated(positions, cell, virial, points))
        n = len(positions)
        charges = np.concatenate([self.charges, np.zeros(len(points))])
        variant = self._variant("points", charges, self._request, self.backend, self.method)
        try:
            x = np.concatenate([positions, points])
            both = variant.compute(x, cell)
        except ValueError:  # on a GPU particles without charge must not lie on charges
            apart = ~self.boundary.coincide(points, positions, cell)
            if apart.all():
                raise
            if not apart.any():
                known = self.with_virial if virial else self.compute
                return spread(known(positions, cell), apart)
            result = self._at_points(positions, cell, points[apart], virial)
            return spread(result, apart)
        return split(both, n, self.with_virial(positions, cell).virial if virial else None)

    def _for_points(self, positions: np.ndarray, cell, points: np.ndarray) -> "Evaluation":
        """The evaluation that computes potentials at points from expansions: this one or, if its
        boxes cover only the particles, a variant whose boxes cover the whole periodic cell or, with
        another boundary, also the points."""
        if self._expands_at_points:
            return self
        if self.backend == "cuda":
            variant = self._variant("points", self.charges, self._request, "cpu")
            return variant._for_points(positions, cell, points)
        fills, known = self.boundary.fills_space, self.variants.get("points")
        particles = len(positions) + (0 if fills else len(points))
        if known is None or known.planner.problem.load.particles != particles:
            problem = self.planner.problem
            if fills:
                problem = problem.over_whole_cell(positions, cell)
            else:
                charges = np.concatenate([self.charges, np.zeros(len(points))])
                load = Load.from_charges(charges, problem.exclusions)
                problem = replace(problem, load=load)
            known = self.variants["points"] = self.separate()
            known.planner.revise(problem)
            known.evaluators = {}
        return known

    @property
    def _separates_virial(self) -> bool:
        """Whether virial and points are computed with different boxes: in a nearly empty periodic
        cell, where the virial with boxes over the whole cell would take ten large lattice
        operators."""
        return self.boundary.fills_space and not self._expands_at_points

    @property
    def _expands_at_points(self) -> bool:
        """Whether expansions and sources give potentials at points: boxes must cover the cell."""
        problem = self.planner.problem
        levels = self.backend == "cuda" and problem.request.levels
        fills = self.method == "fmm" and self.boundary.fills_space and not problem.uses_region
        return fills and not levels

    def _at_points_on_device(self, positions, cell, points, virial: bool) -> CoulombResult:
        """The result with potentials and fields at points, on the device."""
        if is_on_device(points):
            check_points_shape(points.shape)
        else:
            points = check_points(points)
        result = (self.with_virial if virial else self.compute)(positions, cell)
        if self.backend != "cuda":  # the memory of the GPU did not suffice
            return self.at_points(positions, cell, points, virial)
        with EVALUATION:
            evaluator = self._evaluator_for(self.planner.plan(positions, cell))
            evaluator = evaluator.with_virial if virial else evaluator
            potentials, fields = evaluator.compute_at(points)
        undefined = ~(abs(potentials) < np.inf)
        potentials[undefined] = fields[undefined] = np.nan
        return replace(result, point_potentials=potentials, point_fields=fields)

    def sets(
        self,
        positions,
        cell: np.ndarray,
        charges,
        fields: bool,
        points,
        virial: bool,
        potentials: bool = True,
    ) -> ChargeSetsResult:
        """The result for sets of charges, shape (K, n), e."""
        if not potentials and (points is not None or virial):
            result = self.sets(positions, cell, charges, False, points, virial)
            return replace(result, potentials=None)
        if points is None and not virial:
            matrix: Any = self.matrix(positions, cell, is_kept=False)
            found = matrix.evaluate(charges, fields) if potentials else matrix.energies(charges)
            return like(found, positions)
        chosen, x = self, check_positions(to_host(positions), self._count)
        if virial:
            chosen = chosen._for_virial
        if virial and points is not None and chosen._separates_virial:
            result = self.sets(positions, cell, charges, fields, points, False)
            virials = self.sets(positions, cell, charges, False, None, True).virial
            return replace(result, virial=virials)
        if points is not None:
            points = check_points(to_host(points))
            chosen = chosen._for_points(x, cell, points)
        matrix = chosen.matrix(x, cell, points)
        result = matrix.evaluate(charges, fields, points, virial)
        return like(replace(result, volume=volume(cell)), positions)

    def measure_errors(self, positions, cell: np.ndarray) -> MeasuredErrors:
        """Errors of the forces at these positions, which the planner then expects: the difference
        from expansions of a higher order in double precision, with the particles displaced relative
        to the boxes, so that not even rounding errors of coordinates agree."""
        order = self._request.order
        if order is not None and order > MAX_MEASURED_ORDER:
            raise UnsupportedError(
                f"`measure_errors` needs an order of at most {MAX_MEASURED_ORDER}, got {order}"
            )
        forces = to_host(self.compute(positions, cell).forces)
        x = check_positions(to_host(positions), self._count)
        with EVALUATION:
            plan = self._planned(x, cell, None)
            p, width = plan.parameters, plan.boxes.width
            finer = replace(
                plan.specification(self.charges),
                order=p.order + MORE_ORDERS,
                dtype=np.dtype(np.float64),
                m2l=Specification.m2l,
            )
            in_boxes, max_potential = self._in_boxes(plan, x, cell)
            in_boxes = in_boxes + _displacement(plan.boxes, in_boxes)
            potentials, fields = self.evaluator_class(finer).evaluate(in_boxes, width)
            exact = self._checked(potentials, fields, x, cell, width, max_potential).forces
            errors = MeasuredErrors.from_forces(forces, exact)
            self.planner.adopt_errors(errors.rms, errors.largest)
        return errors

    def matrix(
        self, positions, cell: np.ndarray, points: np.ndarray | None = None, is_kept: bool = True
    ) -> CoulombMatrix | DeviceCoulombMatrix:
        """The Coulomb matrix at these positions, which evaluates sets of charges; on the host also
        at points. The solver's own charges are evaluated first, since their forces decide on
        parameters and precision; on a device, unless the matrix is kept or takes long to use, once
        in :data:`SETS_PER_EXAMINATION` calls and without waiting for it."""
        if self._stays_on_device(positions) and not self.planner.problem.request.levels:
            with EVALUATION:
                self._look_back()
            if is_kept or not self._sets_left or not self.planner.is_examined:
                self._retried(lambda: self._evaluated(positions, cell, waits=is_kept))
            if self.backend == "cuda":  # else the memory of the GPU did not suffice
                with EVALUATION:
                    self._sets_left -= 1
                    plan = self.planner.plan(positions, cell)
                    evaluator, boxes = self._evaluator_for(plan), plan.boxes
                    particles = evaluator.charge_sets(positions, boxes.width, boxes.origin)
                return DeviceCoulombMatrix(particles)
        positions = check_positions(to_host(positions), self._count)
        self._retried(lambda: self._evaluated(positions, cell, points=points))
        with EVALUATION:
            plan = self._planned(positions, cell, points)
            x, max_potential = self._in_boxes(plan, positions, cell)
            particles = self._evaluator_for(plan).charge_sets(x, plan.boxes.width)
        return CoulombMatrix(
            particles,
            plan.boxes.origin,
            plan.boxes.width,
            max_potential,
            lambda particle: self._refuse_coincidence(particle, positions, cell),
        )

    def _variant(
        self, name: str, charges: np.ndarray, request: Request, backend: str, method: str = "fmm"
    ) -> "Evaluation":
        """An evaluation with other options, for charges of which the first are those of this one;
        kept under its name as long as their number stays."""
        known = self.variants.get(name)
        if known is None or len(known.charges) != len(charges):
            problem = self.planner.problem
            known = self.variants[name] = Evaluation(
                charges,
                problem.cell,
                request,
                problem.exclusions,
                problem.minimum_image,
                method,
                backend,
            )
        return known

    def _retried(self, evaluate: Callable[[], Any]) -> Any:
        """The result of ``evaluate``. Where memory does not suffice, it is called again without the
        evaluators of other shapes, and then on the CPU if the backend was chosen automatically."""
        with EVALUATION:
            while True:
                kept = bool(self.evaluators)
                try:
                    return evaluate()
                except (MemoryError, UnsupportedError) as error:
                    fault = error.with_traceback(None)  # which holds device memory
                self.evaluators = {}
                self._forget_forces()
                self.planner.forget()
                # the memory held for other shapes may suffice
                if not (kept and isinstance(fault, MemoryError)):
                    self._fall_back(fault)

    def _planned(self, positions: np.ndarray, cell: np.ndarray, points: np.ndarray | None) -> Plan:
        """The plan for positions, and for points if there are any, on the host."""
        around = positions if points is None else np.concatenate([positions, points])
        return self.planner.plan(around, cell)

    def _evaluated(
        self,
        positions,
        cell: np.ndarray,
        virial: bool = False,
        points: np.ndarray | None = None,
        waits: bool = False,
    ) -> CoulombResult:
        """The result, also at points on the host where :meth:`_for_points` has chosen this
        evaluation. With ``waits`` forces on a device are examined at once."""
        if self._stays_on_device(positions):
            return self._evaluated_on_device(positions, cell, virial, waits)
        positions = check_positions(to_host(positions), self._count)
        width, max_potential, work = 1.0, MAX_POTENTIAL, None
        if self.method == "fmm":
            plan = self._planned(positions, cell, points)
            x, max_potential = self._in_boxes(plan, positions, cell)
            width, evaluator = plan.boxes.width, self._evaluator_for(plan)
            if virial:
                potentials, fields, work = evaluator.evaluate_with_virial(x, width)
            else:
                potentials, fields = evaluator.evaluate(x, width)
            problem = self._examined(potentials, fields)
            if problem is not self.planner.problem:
                return self._replanned(problem, positions, cell, virial, points)
        else:
            potentials, fields = map(to_host, self._sum().evaluate(positions))
        result = self._checked(potentials, fields, positions, cell, width, max_potential)
        if points is not None:
            at_points = evaluator.evaluate_at(x, points - plan.boxes.origin, width)  # type: ignore[attr-defined]
            result = result.with_points(at_points, self.charges, width, max_potential)
        if work is not None:
            work = work * (COULOMB_CONSTANT / width) + np.eye(3) * (result.energy / 3)
        return replace(result, virial=work, volume=volume(cell))

    def _examined(self, potentials: np.ndarray, fields: np.ndarray) -> Problem:
        """The problem given the potentials and fields of the last plan, see
        :meth:`Planner.examine`; potentials matter with smoothing only. Points that its load counts
        are particles without charge."""
        points, charges = self.planner.problem.load.particles - self._count, self.charges
        is_smoothed = self.planner.latest.parameters.smoothing > 0.0
        sums = force_sums(charges, fields, potentials if is_smoothed else None)
        counted = np.append(charges, np.zeros(points)) if points else charges
        return self.planner.examine(counted, *sums)

    def _stays_on_device(self, positions) -> bool:
        """Whether positions are evaluated where they are, on a device."""
        if not is_on_device(positions) or self.backend != "cuda":
            return False
        if positions.shape != (self._count, 3):
            raise ValueError(
                f"`positions` must have shape ({self._count}, 3), got {positions.shape}"
            )
        return True

    @staticmethod
    def _in_boxes(plan: Plan, positions: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, float]:
        """Positions relative to the boxes of a plan, and the potential of particles at the same
        place in units of the largest charge per box width."""
        boxes = plan.boxes
        if not isinstance(boxes, Region):
            return positions, MAX_POTENTIAL
        x = plan.problem.gather(positions, cell, boxes.centre) - boxes.origin
        return x, largest_potential(boxes.width)

    def _evaluated_on_device(
        self, positions, cell: np.ndarray, virial: bool, waits: bool
    ) -> CoulombResult:
        if self.method != "fmm":
            return self._summed_on_device(positions)
        return self._suited(lambda: self._placed_on_device(positions, cell, virial), waits)

    def _placed_on_device(
        self, positions, cell: np.ndarray, virial: bool
    ) -> tuple[Any, CoulombResult]:
        """The evaluator and the result on the device, with boxes that cover the particles."""
        plan = self.planner.reuse(cell)
        if plan and plan.choice in self.evaluators:
            found = self._computed(positions, plan, cell, virial)
            if np.isfinite(to_host(found[1].energy)).all():  # else particles have left the boxes
                return found
        if self.planner.problem.uses_region:
            check_extent(positions, self._count)
        return self._computed(positions, self.planner.plan(positions, cell), cell, virial)

    def _computed(
        self, positions, plan: Plan, cell: np.ndarray, virial: bool
    ) -> tuple[Any, CoulombResult]:
        """The evaluator and the result of a plan, on the device; NaN if a particle lies outside of
        a region."""
        boxes, evaluator = plan.boxes, self._evaluator_for(plan)
        if virial:
            evaluator = evaluator.with_virial
        found = evaluator.compute(positions, boxes.width, boxes.origin)
        if virial:
            found = *found, volume(cell)
        return evaluator, CoulombResult(*found)

    def _forget_forces(self) -> None:
        """Forget the last evaluation on the device and the limits of its forces."""
        self._last = self._limits = None
        self._sets_left = 0

    def _suited(self, evaluate: Callable[[], tuple[Any, T]], waits: bool = False) -> T:
        """The result of an evaluation on the device, with parameters that suit its forces.

        An evaluation is waited for, and its forces are examined, if it is the first with its
        parameters, in a region, whose energy is read in any case, or of a separate copy. Others
        are examined at the next evaluation.

        Args:
            evaluate: returns the evaluator, whose work it has queued, and the result.
            waits: whether to wait in any case.
        """
        self._look_back()
        self._sets_left = SETS_PER_EXAMINATION
        while True:
            evaluator, result = evaluate()
            is_examined, problem = self.planner.is_examined, self.planner.problem
            examines = waits or not (is_examined and self._looks_back) or problem.uses_region
            if examines:
                evaluator.wait()
            if not examines or self._suits(evaluator):
                self._last = self.planner.choices[0], evaluator
                return result

    def _look_back(self) -> None:
        """Examine the forces of the last evaluation on the device, if it has been completed, and
        warn if its error was too large."""
        last, self._last = self._last, None
        if last and self.planner.is_examined and self.planner.choices[:1] == last[:1]:
            self._suits(last[1], is_past=True)

    def _suits(self, evaluator: Any, is_past: bool = False) -> bool:
        """Whether the parameters suit the forces of the last evaluation on the device; if not, the
        next plan has others."""
        planner, problem = self.planner, self.planner.problem
        if planner.is_examined and self._force_limits().hold(*evaluator.force_sums):
            return True
        evaluator.wait()
        if not np.isfinite(evaluator.force_sums).all():
            return True  # as the results show
        charges = evaluator.copy_charges()
        suited = planner.examine(charges, *evaluator.force_sums)
        if suited is problem:
            self._limits = planner.latest.lattice, planner.force_limits(charges)
            return True
        error = problem.request.expected(planner.with_forces(planner.latest.parameters))
        if is_past and error > problem.request.tolerance:
            warn(
                f"`tolerance={problem.request.tolerance:g}` was missed at the last positions on "
                f"the device, whose expected error is {error:.1e}: other parameters suit the "
                "forces from now on"
            )
        planner.revise(suited)
        self.evaluators, self._limits = {}, None
        return False

    def _force_limits(self) -> ForceLimits:
        """Limits of the forces for the last plan and the last charges known on the host."""
        boxes: Any = self.planner.latest
        if self._limits is None or self._limits[0] is not boxes.lattice:
            self._limits = boxes.lattice, self.planner.force_limits(self._host_charges)
        return self._limits[1]

    def _replanned(
        self, problem: Problem, positions, cell: np.ndarray, virial: bool, points: np.ndarray | None
    ) -> CoulombResult:
        """Evaluate with plans for another problem and keep these unless the evaluation fails."""
        before = copy.copy(self.planner), self.evaluators
        self.planner.revise(problem)
        self.evaluators = {}
        try:
            return self._evaluated(positions, cell, virial, points)
        except BaseException:
            self.planner, self.evaluators = before
            raise

    def _summed_on_device(self, positions) -> CoulombResult:
        """The result of a method without boxes, on the device."""
        evaluator = self._sum()
        return CoulombResult.on_device(evaluator.charges, *evaluator.evaluate(positions))

    def _sum(self):
        """The method without boxes, made on first use."""
        if not self.evaluators:
            p = self.planner.parameters
            dtype = np.dtype(p.precision).type
            make = open_sum(self.backend, p.method)
            pairs = self.planner.problem.exclusions
            self.evaluators[0] = make(self.charges, pairs, dtype, *p.settings)
        return self.evaluators[0]

    def _checked(
        self, potentials, fields, positions, cell, width: float, max_potential: float
    ) -> CoulombResult:
        """The result in kJ/mol and nm, after a check for coincident charges."""
        result = CoulombResult.from_boxes(self.charges, potentials, fields, width, max_potential)
        bad = np.flatnonzero(np.isnan(result.potentials) & (self.charges != 0.0))
        if len(bad):
            self._refuse_coincidence(bad[0], positions, cell)
        return result

    def _refuse_coincidence(self, particle: int, positions, cell: np.ndarray) -> None:
        pairs, nearest = self.planner.problem.exclusions, self.planner.problem.minimum_image
        raise ValueError(name_coincidence(particle, positions, cell, self.charges, pairs, nearest))

    def _fall_back(self, fault: Exception) -> None:
        """Change to the CPU backend if the backend was chosen automatically; else raise
        ``fault``."""
        problem = self.planner.problem
        m2l = problem.request.m2l
        if self.backend != "cuda" or not self._automatic or (m2l and "cpu" not in M2L[m2l]):
            raise fault
        warn(fallback(fault))
        self.planner.revise(self._on_backend("cpu", problem))

    def _on_backend(self, backend: str, problem: Problem) -> Problem:
        """Select a backend and return the problem for it."""
        self.backend, self.evaluator_class = backend, backend_class(backend)
        cost = CUDA_COST if backend == "cuda" else CPU_COST
        return replace(problem, cost=cost, device=self.evaluator_class.device())

    @property
    def used(self) -> list[Evaluator]:
        """The stages in use, the most recently used first."""
        made = self.evaluators
        return [made[choice] for choice in self.planner.choices if choice in made]

    def _evaluator_for(self, plan: Plan) -> Any:
        """The stages for a plan: those made for its choice, else stages of a forgotten plan that
        can adopt its boxes, else new ones."""
        if plan.choice in self.evaluators:
            return self.evaluators[plan.choice]
        wanted = plan.specification(self.charges)
        made, known = self.evaluators.items(), self.planner.choices
        spare = [
            evaluator
            for choice, evaluator in made
            if choice not in known and evaluator.adopt(wanted)
        ]
        self.evaluators = {choice: evaluator for choice, evaluator in made if choice in known}
        self.evaluators[plan.choice] = spare[0] if spare else self.evaluator_class(wanted)
        return self.evaluators[plan.choice]


def _displacement(boxes: Boxes, positions: np.ndarray) -> np.ndarray:
    """A twentieth of a box width along each axis, shape (3,), nm, by which particles can be
    displaced within boxes.

    Args:
        positions: relative to the boxes, shape (n, 3), nm.
    """
    step = np.full(3, boxes.width / 20)
    if isinstance(boxes, Region):  # towards the side with more space
        low, high = bounds(positions)
        step[low + high > 2 * (boxes.centre - boxes.origin)] *= -1.0
    return step


def shallow_copy(instance: T) -> T:
    """A shallow copy of an instance of a plain class, in a third of the time of ``copy.copy``."""
    made = object.__new__(type(instance))
    vars(made).update(vars(instance))
    return made


def volume(cell: np.ndarray) -> float | None:
    """Volume of a cell, nm^3; None unless it is periodic along all directions."""
    found = float(cell[0, 0] * cell[1, 1] * cell[2, 2])
    return found if math.isfinite(found) else None
