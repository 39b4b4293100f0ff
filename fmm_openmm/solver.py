"""``CoulombSolver``: Coulomb energies, forces, potentials and fields of point charges, periodic
or in free space."""

import copy
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends import BACKENDS, backend_class, choose_backend, fallback, open_sum
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import check_box_vectors
from fmm_openmm.checks import (
    check_charges,
    check_choice,
    check_exclusions,
    check_extent,
    check_positions,
)
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.implementations import M2L, METHODS, SUMS, warn_if_literature
from fmm_openmm.options import lists_options, suggests_keywords
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Plan, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import TOLERANCE, FMMParameters, Request, RequestKeywords
from fmm_openmm.results import MAX_POTENTIAL, CoulombResult, name_coincidence
from fmm_openmm.stages import Evaluator
from fmm_openmm.sums import SumParameters, SumPlanner
from fmm_openmm.units import COULOMB_CONSTANT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

_evaluation = threading.Lock()
"""Serialises evaluations: each uses all cores, and not every threading layer of Numba is
thread-safe."""


@lists_options(Request)
class CoulombSolver:
    r"""Coulomb interaction of n point charges by the fast multipole method.

    .. math:: U = \frac{k_e}{2} \sum_{i,j} \sum_{n}{}' \frac{q_i q_j}{|x_i - x_j - n|}
                  - k_e \sum_{(i,j)\ excluded} \frac{q_i q_j}{|x_i - x_j|}

    The sum over n runs over all periodic images; the prime omits i = j at n = 0. The boundary is
    tin-foil, and a uniform background neutralises a net charge, as in OpenMM's PME. With
    ``boundary="open"`` the particles are in free space: only n = 0 contributes, the net charge is
    arbitrary, and potentials vanish at infinity.

    Args:
        charges: shape (n,), e.
        box_vectors: rows a, b, c in OpenMM's reduced form, shape (3, 3), nm; None with an open
            boundary.
        exclusions: excluded pairs, shape (m, 2).
        tolerance: largest relative RMS force error ``|F - F_exact| / |F_exact|``, 1e-10 to 0.1.
        boundary: "periodic" or "open".
        precision: "single", "double", or "auto". With "auto" single precision is used for
            tolerances down to 5e-6 on a CPU and 1e-5 on a GPU, for bare ions down to 5.3e-6 and
            2.7e-5. The solver changes to double precision at the first evaluation in which charges
            are so close to each other that single precision would miss the tolerance.
        backend: "cuda", "cpu", "reference" (readable and slow), or "auto": "cuda" if it is usable
            and its memory suffices, else "cpu". A warning gives the reason; without an NVIDIA GPU
            it is only logged (``fmm_openmm``, level INFO).
        exclusions_periodic: exclude the nearest image of a pair instead of the image that the
            positions give. No effect with an open boundary.
        positions: typical positions, shape (n, 3), nm. They are used only to estimate how much of
            the cell is empty, which makes droplets, slabs and single molecules much faster; without
            them the cell is assumed to be filled. In a nearly empty cell the boxes cover only the
            particles, as with an open boundary, as long as the particles stay together and neither
            ``grid`` nor ``levels`` is given. With an open boundary the parameters are chosen for
            these positions, else for those of the first evaluation.
        method: "fmm"; with an open boundary also "direct", the sum over all pairs, or (deprecated)
            "treecode", an octree whose distant cells act through their moments. ``order`` then is
            the order of the moments; other explicit parameters apply only to the FMM.
        options: explicit parameters, see :class:`FMMParameters`.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names argument and value.
        UnsupportedError: backend "cuda" without CuPy or a GPU, or a method or ``m2l`` that is not
            available with the other arguments.

    Warns:
        DeprecationWarning: a method or ``m2l`` of the literature, which is there for comparison.
    """

    @suggests_keywords(like=Request)
    def __init__(
        self,
        charges: "ArrayLike",
        box_vectors: "ArrayLike | None",
        exclusions: "ArrayLike | None" = None,
        tolerance: float = TOLERANCE,
        boundary: str = "periodic",
        precision: str = "auto",
        backend: str = "auto",
        *,
        exclusions_periodic: bool = False,
        positions: "ArrayLike | None" = None,
        method: str = "fmm",
        **options: "Unpack[RequestKeywords]",
    ):
        self._boundary = Boundary.from_name(boundary)
        self._method = check_choice(method, METHODS, "method")
        check_choice(backend, BACKENDS, "backend")
        self._charges = check_charges(charges)
        if method != "fmm":
            _check_method(method, self._boundary, backend)
        if self._boundary.is_open:
            self._cell(box_vectors)
        elif box_vectors is None:
            raise ValueError(
                f"`box_vectors` must be given with `boundary={boundary!r}`: "
                "use `boundary='open'` for free space"
            )
        else:
            self._box_vectors = check_box_vectors(box_vectors)
        if not self._boundary.fills_space:
            _check_grid(options.get("grid"), self._boundary)
        self._exclusions = check_exclusions(exclusions, len(self._charges))
        minimum_image = bool(exclusions_periodic) and not self._boundary.is_open
        request = Request(tolerance, precision=precision, **options)
        self._automatic = backend == "auto"
        backend = choose_backend(backend)
        backend_class(backend)  # refuses what this machine cannot do
        if request.m2l:
            _check_m2l(request.m2l, backend)
        if method != "fmm":
            warn_if_literature("method", SUMS, method, backend, "fmm")
        if positions is not None:
            positions = check_positions(positions, len(self._charges))
        load, cell = Load.from_charges(self._charges, self._exclusions), self._cell(None)
        problem = Problem(request, load, self._exclusions, minimum_image, cell)
        if positions is not None:
            problem = problem.with_positions(positions, cell)
        problem = self._on_backend(backend, problem)
        # with a memory of two plans a rejected change of the box costs nothing
        self._planner: Any = (
            Planner(problem, memory=2, fixed_cell=True)
            if method == "fmm"
            else SumPlanner(method, problem)
        )
        self._evaluators: dict[int, Any] = {}  # by the choice of their plans
        if method == "fmm" and positions is not None:
            self._planner.prepare(positions, cell)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        request, found = self._planner.problem.request, self._planner.parameters
        return (
            f"CoulombSolver({len(self._charges)} particles, {len(self._exclusions)} exclusions, "
            f"{self._boundary.name}, tolerance {request.tolerance:g}, "
            f"backend {self._backend!r}, "
            f"{'parameters not chosen yet' if found is None else found})"
        )

    @property
    def parameters(self) -> FMMParameters | SumParameters:
        """The parameters for the box vectors given at creation, with the expected errors.

        If the boxes cover only the particles, the parameters used last. The expected errors are
        relative to the forces of an ordinary liquid until an evaluation of positions on the host
        has found the RMS force, and from then on to that.

        Raises:
            ValueError: the parameters depend on positions, and there are none yet.
        """
        found = self._planner.parameters
        if found is None:
            raise ValueError(
                "`parameters` are chosen for positions: give `positions`, or call `compute` first"
            )
        return found if self._method != "fmm" else self._planner.with_forces(found)

    @property
    def backend(self) -> str:
        """The backend in use."""
        return self._backend

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e; a copy."""
        return self._charges.copy()

    def set_charges(self, charges: "ArrayLike") -> None:
        """Replace the charges, shape (n,), e.

        Exclusions are kept. Parameters are kept too, unless bare ions replace neutral molecules,
        far fewer particles carry the charge or, with an open boundary, the net charge becomes far
        larger."""
        charges = check_charges(charges)
        if charges.shape != self._charges.shape:
            raise ValueError(
                f"`charges` must have shape {self._charges.shape} as at creation, "
                f"got {charges.shape}"
            )
        with _evaluation:
            if not self._planner.accepts(charges):
                self._evaluators = {}
            self._charges = charges
            for evaluator in self._evaluators.values():
                evaluator.set_charges(charges)

    def compute(
        self, positions: "ArrayLike", box_vectors: "ArrayLike | None" = None
    ) -> CoulombResult:
        """Energy, forces, potentials and fields.

        Args:
            positions: shape (n, 3), nm; wrapped into the box or not. With backend "cuda" they may
                be any CuPy array. The results then stay on the device, in the precision of the
                solver, the energy with shape (1,). The call does not wait for the device, errors
                show as NaN, and whether single precision suffices is not checked. With an open
                boundary, or in a nearly empty cell, the energy is read back to see whether the
                boxes cover the particles, and invalid positions raise errors.
            box_vectors: shape (3, 3), nm, if they differ from those given at creation; None with an
                open boundary. A uniform scaling costs nothing. Another shape rebuilds the lattice
                operator, as do particles that leave the space covered by the boxes. A strain of
                more than two percent has grid and parameters chosen anew.

        Raises:
            MemoryError: with backend "cuda", device memory does not suffice. All of it is released,
                and the solver remains usable.
            UnsupportedError: the order is too high for single precision; with backend "cuda", the
                kernels cannot be compiled here.
            ValueError: wrong shapes, coordinates that are not finite or far out of range, or
                coincident charged particles that are not excluded; with backend "cuda" also if one
                of the two has no charge.

        Warns:
            UserWarning: ``precision="single"`` misses the tolerance because charges are too close
                to each other; once.
        """
        cell = self._cell(box_vectors)
        with _evaluation:
            while True:
                kept = bool(self._evaluators)
                try:
                    return self._evaluated(positions, cell)
                except (MemoryError, UnsupportedError) as error:
                    fault = error.with_traceback(None)  # which holds device memory
                self._evaluators = {}
                self._planner.forget()
                # the memory held for other shapes may suffice
                if not (kept and isinstance(fault, MemoryError)):
                    self._fall_back(fault)

    def _evaluated(self, positions, cell: np.ndarray | None) -> CoulombResult:
        on_device = is_on_device(positions) and self._backend == "cuda"
        if not on_device:
            positions = check_positions(to_host(positions), len(self._charges))
        elif positions.shape != (len(self._charges), 3):
            raise ValueError(
                f"`positions` must have shape ({len(self._charges)}, 3), got {positions.shape}"
            )
        if on_device:
            return self._evaluated_on_device(positions, cell)
        width, max_potential = 1.0, MAX_POTENTIAL
        if self._method == "fmm":
            plan = self._planner.plan(positions, cell)
            x, boxes, width = positions, plan.boxes, plan.boxes.width
            if plan.problem.uses_region:
                x = plan.problem.gather(positions, cell, boxes.centre) - boxes.origin
                max_potential *= min(max(1.0, width), 2e3)  # boxes of sparse systems are wide
            potentials, fields = self._evaluator_for(plan).evaluate(x, width)
            problem = self._planner.check_precision(self._charges, fields)
            if problem is not self._planner.problem:
                return self._replanned(problem, positions, cell)
        else:
            potentials, fields = map(to_host, self._sum().evaluate(positions))
        return self._checked(potentials, fields, positions, cell, width, max_potential)

    def _evaluated_on_device(self, positions, cell: np.ndarray | None) -> CoulombResult:
        if self._method != "fmm":
            return self._summed_on_device(positions)
        plan = self._planner.reuse(cell)
        if plan and plan.choice in self._evaluators:
            result = self._computed(positions, plan)
            if np.isfinite(to_host(result.energy)).all():  # else particles have left the boxes
                return result
        if self._planner.problem.uses_region:
            check_extent(positions, len(self._charges))
        return self._computed(positions, self._planner.plan(positions, cell))

    def _computed(self, positions, plan: Plan) -> CoulombResult:
        """The result of a plan, on the device; NaN if a particle lies outside of a region."""
        boxes = plan.boxes
        found = self._evaluator_for(plan).compute(positions, boxes.width, boxes.origin)  # type: ignore[attr-defined]
        return CoulombResult(*(array.copy() for array in found))

    def _replanned(self, problem: Problem, positions, cell: np.ndarray | None) -> CoulombResult:
        """Evaluate with plans for another problem and keep these unless the evaluation fails."""
        before = copy.copy(self._planner), self._evaluators
        self._planner.revise(problem)
        self._evaluators = {}
        try:
            return self._evaluated(positions, cell)
        except BaseException:
            self._planner, self._evaluators = before
            raise

    def _summed_on_device(self, positions) -> CoulombResult:
        """The result of a method without boxes, on the device."""
        evaluator = self._sum()
        potentials, fields = evaluator.evaluate(positions)
        potentials *= COULOMB_CONSTANT
        fields *= COULOMB_CONSTANT
        charges = evaluator.charges
        return CoulombResult(
            (0.5 * charges @ potentials).reshape(1), charges[:, None] * fields, potentials, fields
        )

    def _sum(self):
        """The method without boxes, made on first use."""
        if not self._evaluators:
            p = self._planner.parameters
            dtype = np.dtype(p.precision).type
            make = open_sum(self._backend, p.method)
            self._evaluators[0] = make(self._charges, self._exclusions, dtype, *p.settings)  # type: ignore[call-arg]
        return self._evaluators[0]

    def _checked(
        self, potentials, fields, positions, cell, width: float, max_potential: float
    ) -> CoulombResult:
        """The result in kJ/mol and nm, after a check for coincident charges."""
        result = CoulombResult.from_boxes(self._charges, potentials, fields, width, max_potential)
        bad = np.flatnonzero(np.isnan(result.potentials) & (self._charges != 0.0))
        if len(bad):
            minimum_image = self._planner.problem.minimum_image
            raise ValueError(
                name_coincidence(
                    bad[0], positions, cell, self._charges, self._exclusions, minimum_image
                )
            )
        return result

    def _fall_back(self, fault: Exception) -> None:
        """Change to the CPU backend if the backend was chosen automatically; else raise
        ``fault``."""
        problem = self._planner.problem
        m2l = problem.request.m2l
        if self._backend != "cuda" or not self._automatic or (m2l and "cpu" not in M2L[m2l]):
            raise fault
        warn(fallback(fault))
        self._planner.revise(self._on_backend("cpu", problem))

    def _on_backend(self, backend: str, problem: Problem) -> Problem:
        """Select a backend and return the problem for it."""
        self._backend, self._evaluator_class = backend, backend_class(backend)
        cost = CUDA_COST if backend == "cuda" else CPU_COST
        return replace(problem, cost=cost, device=self._evaluator_class.device())

    def parameters_for(self, box_vectors: "ArrayLike | None") -> FMMParameters:
        """The parameters for the given box vectors: those in use or chosen at creation, as long as
        the boxes nearly keep their shape."""
        cell = self._cell(box_vectors)
        if self._planner.problem.uses_region:
            return self.parameters  # type: ignore[return-value]
        return self._planner.with_forces(self._planner.preview(None, cell).parameters)

    @property
    def _used_evaluators(self) -> list[Evaluator]:
        """The stages in use, the most recently used first."""
        made = self._evaluators
        return [made[choice] for choice in self._planner.choices if choice in made]

    def _evaluator_for(self, plan: Plan) -> Evaluator:
        """The stages for a plan: those made for its choice, else stages of a forgotten plan that
        can adopt its boxes, else new ones."""
        if plan.choice in self._evaluators:
            return self._evaluators[plan.choice]
        wanted = plan.specification(self._charges)
        made, known = self._evaluators.items(), self._planner.choices
        spare = [
            evaluator
            for choice, evaluator in made
            if choice not in known and evaluator.adopt(wanted)
        ]
        self._evaluators = {choice: evaluator for choice, evaluator in made if choice in known}
        self._evaluators[plan.choice] = spare[0] if spare else self._evaluator_class(wanted)
        return self._evaluators[plan.choice]

    def _cell(self, box_vectors) -> np.ndarray | None:
        """The cell of the box vectors in use; None with an open boundary."""
        if self._boundary.is_open:
            if box_vectors is not None:
                raise ValueError("`box_vectors` must be None with `boundary='open'`")
            return None
        return self._boundary.cell(
            self._box_vectors if box_vectors is None else check_box_vectors(box_vectors)
        )


def _check_method(method: str, boundary: Boundary, backend: str) -> None:
    """Refuse arguments that a method without boxes does not support."""
    if not boundary.is_open:
        raise UnsupportedError(
            f"`method={method!r}` needs `boundary='open'`, got {boundary.name!r}"
        )
    if backend == "reference":
        raise UnsupportedError(
            f"`method={method!r}` is not available with `backend='reference'`: use 'cpu' or 'cuda'"
        )


def _check_m2l(m2l: str, backend: str) -> None:
    """Refuse an operator that the backend does not implement; warn about one of the literature."""
    if backend not in M2L[m2l]:
        raise UnsupportedError(
            f"`m2l={m2l!r}` needs `backend='cuda'`, got {backend!r}: use 'p4' or 'rotation'"
        )
    warn_if_literature("m2l", M2L, m2l, backend, "rotation")


def _check_grid(grid, boundary: Boundary) -> None:
    """Refuse a grid where boxes follow the particles."""
    if grid is not None:
        raise ValueError(
            f"`grid` must be None with `boundary={boundary.name!r}`, where it is chosen for the "
            f"particles, got {grid!r}"
        )
