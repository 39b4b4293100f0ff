"""Evaluations of the frames of a trajectory in any order.

A :class:`fmm_openmm.CoulombSolver` prefers boxes, parameters and lattice operators that it has used
before, so that its rounding errors depend on the frames evaluated earlier. Here they depend on
the frame and on the first frame only: however frames are shared among processes, each gets the same
result to the last bit.
"""

import copy
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fmm_openmm.arrays import bounds, is_on_device, to_device, to_host
from fmm_openmm.boundary import EMPTY_SPACE, Boundary
from fmm_openmm.box import Frame
from fmm_openmm.checks import check_positions
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.evaluation import Evaluation, shallow_copy
from fmm_openmm.integration.frame_placement import FramePlacement
from fmm_openmm.planning.boxes import Region
from fmm_openmm.planning.planner import Planner
from fmm_openmm.results import CoulombResult
from fmm_openmm.solver import CoulombSolver
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Evaluator

Evaluate: TypeAlias = Callable[["FrameSolver", Any, Any], Any]
"""A function of a solver, positions and box vectors of a frame, which returns its result or a
:class:`Queued` one."""

_kept: list[tuple[bytes, "FrameSolver"]] = []
_keeping = threading.Lock()


GROWTH = 1.25
"""Ratio of successive extents of the particles that boxes are chosen for where the particles have
outgrown those of the first frame."""


class Queued(NamedTuple):
    """A result that a GPU is still computing.

    Attributes:
        wait: waits for the GPU.
        result: waits, and returns the result; to be called once.
    """

    wait: Callable[[], None]
    result: Callable[[], Any]

    def then(self, change: Callable[[Any], Any]) -> "Queued":
        """The queued result of applying ``change`` to this one."""
        return Queued(self.wait, lambda: change(self.result()))


class FrameSolver:
    """A solver without a memory of the frames between the first and the present one.

    Boxes and precision of a frame are those that a solver would choose directly after the first
    frame. Where boxes cover only the particles, and these have outgrown the boxes of the first
    frame, the boxes are chosen for the first frame stretched by powers of :data:`GROWTH` along the
    axes, so that many frames share them. The particles of a slab or wire are placed by
    :class:`fmm_openmm.integration.frame_placement.FramePlacement`.

    Args:
        solver: a solver, which is not changed.
        positions: positions of the first frame, shape (n, 3), nm.
        box_vectors: box vectors of the first frame, shape (3, 3), nm; None for those of the solver.
            Ignored with an open boundary.
        evaluate: what is done with each frame, ``evaluate(frame_solver, positions, box_vectors)``.

    Raises:
        as :func:`fmm_openmm.box.unwrap` and :meth:`fmm_openmm.CoulombSolver.compute`.
    """

    def __init__(self, solver: CoulombSolver, positions, box_vectors, evaluate: Evaluate):
        self._boundary, self._evaluate = Boundary.from_name(solver.boundary), evaluate
        self._placement = FramePlacement.from_first(
            self._boundary, positions, box_vectors, solver.neutralization
        )
        self._first = self._placement.place(positions, box_vectors)
        self._start(fresh_copy(solver))

    def _start(self, solver: CoulombSolver) -> None:
        """Evaluate the first frame, and remember what the solver has chosen for it."""
        self._solver, self._is_sealed = solver, False
        self._stretched: dict[tuple[int, ...], Planner] = {}
        charges = solver.charges
        self._count, self._largest_charge = len(charges), float(np.abs(charges).max())
        self._present: tuple[Any, Evaluation, np.ndarray] | None = None
        self._evaluate(self, *self._first)
        _seal(solver.evaluation)
        self._is_sealed = True

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e."""
        return self._solver.charges

    def evaluate(self, positions, box_vectors):
        """The result for a frame, as the function given at creation computes it."""
        return self._evaluate(self, *self._placement.place(positions, box_vectors))

    def compute(self, positions, box_vectors, **wanted) -> CoulombResult:
        """See :meth:`fmm_openmm.CoulombSolver.compute`. On a GPU results may stay there."""
        solver = self._solver
        box_vectors = None if self._boundary.is_open else box_vectors
        if not self._is_sealed:
            return _computed(solver, positions, box_vectors, **wanted)
        evaluation = solver.evaluation
        present = _with_evaluation(solver, evaluation.separate())
        if evaluation.method == "fmm":
            present.evaluation.planner = copy.copy(self._planner(positions, box_vectors))
        result = _computed(present, positions, box_vectors, **wanted)
        if present.backend != solver.backend:  # the memory of the GPU did not suffice
            self._start(fresh_copy(present))
        if evaluation.method == "fmm":
            evaluation.planner.has_warned |= present.evaluation.planner.has_warned
        return result

    def read(self, positions, box_vectors, names: Sequence[str]) -> "dict[str, Any] | Queued":
        """Attributes of a :class:`fmm_openmm.CoulombResult`, on the host, by their names. Where a
        GPU has boxes over a periodic cell they are queued; a frame that is not valid, or whose
        forces need other parameters, is then computed again."""

        def computed(positions) -> dict[str, Any]:
            result = self.compute(positions, box_vectors, virial="virial" in names)
            return {name: to_host(getattr(result, name)) for name in names}

        if not self._can_queue("virial" in names):
            return computed(positions)
        if not self._can_be_copied(positions):
            positions = check_positions(to_host(positions), self._count)
        try:
            evaluation, cell = self._evaluation_in(box_vectors)
            frame, frames, limits = evaluation.queue_frame(
                positions, cell, names, self._largest_charge
            )
        except (MemoryError, UnsupportedError):  # which leave an evaluator empty
            self._solver.evaluation.evaluator_class.discard()
            self._present = None
            return computed(positions)

        def result() -> dict[str, Any]:
            frame.wait()
            energy, invalid, *sums = frame.found
            is_valid = invalid == 0 and limits.hold(*sums)
            found = {"energy": energy} | frame.copy() if is_valid else {}
            again = None if is_valid else frame.positions.copy()
            frames.release(frame)
            return found if is_valid else computed(again)

        return Queued(frame.wait, result)

    def _can_queue(self, virial: bool) -> bool:
        """Whether frames can be queued, of which the host examines only what the device finds."""
        evaluation = self._solver.evaluation
        return (
            self._is_sealed
            and not self._solver.has_term
            and evaluation.can_queue(virial)
            and evaluation.planner.is_examined
        )

    def _can_be_copied(self, positions) -> bool:
        """Whether positions are an array that the device can read and check."""
        is_array = type(positions) is np.ndarray and positions.shape == (self._count, 3)
        return is_array and positions.dtype in (np.float32, np.float64)

    def _evaluation_in(self, box_vectors) -> tuple[Evaluation, np.ndarray]:
        """An evaluation whose plans are those after the first frame, and the cell; both are kept
        for further frames with the same array of box vectors."""
        known, first = self._present, self._solver.evaluation
        if known is None or known[0] is not box_vectors:
            evaluation = known[1] if known else first.separate()
            if evaluation.planner.choices != first.planner.choices:  # more than scaled since then
                evaluation.planner = shallow_copy(first.planner)
            known = self._present = box_vectors, evaluation, self.cell(box_vectors)
        return known[1:]

    def _planner(self, positions, box_vectors) -> Planner:
        """The planner of the first frame; where the particles have outgrown its boxes, that of the
        first frame stretched."""
        planner = self._solver.evaluation.planner
        first = planner.latest
        if not isinstance(first, Region):  # boxes over the cell, or another solver's
            return planner
        capacity = first.capacity
        low, high = bounds(self._gathered(positions, box_vectors)[0])
        ratio = np.maximum((high - low) / capacity, 1.0)
        steps = np.ceil(np.log(ratio) / np.log(GROWTH)).astype(int)
        if not steps.any():
            return planner
        key = tuple(steps.tolist())
        if key not in self._stretched:
            typical, cell = self._gathered(*self._first)
            low, high = bounds(typical)
            extent = high - low
            axes = (steps > 0) & (extent > 0)
            factor, middle = np.ones(3), low + extent / 2
            factor[axes] = capacity[axes] * GROWTH ** steps[axes] / extent[axes]
            made = copy.copy(planner)
            made.revise(planner.problem)
            made.prepare(middle + factor * (typical - middle), cell)
            self._stretched[key] = made
        return self._stretched[key]

    def _gathered(self, positions, box_vectors) -> tuple[np.ndarray, np.ndarray]:
        """Checked positions, with the molecules of a nearly empty cell next to each other, and the
        cell, both in the coordinates that boxes are chosen in."""
        solver, cell = self._solver, self.cell(box_vectors)
        positions = check_positions(to_host(positions), len(solver.charges))
        if self._boundary.is_partial:
            frame = Frame.from_cell(cell)
            return positions @ frame.axes, frame.cell
        return solver.evaluation.planner.problem.gather(positions, cell), cell

    def cell(self, box_vectors) -> np.ndarray:
        """The cell of a frame, shape (3, 3), nm; in a periodic cell the given array itself."""
        if self._boundary.is_open:
            return EMPTY_SPACE
        given: Any = self._solver.box_vectors if box_vectors is None else box_vectors
        return given if self._boundary.fills_space else self._boundary.cell(given)


def _computed(solver: CoulombSolver, positions, box_vectors, **wanted) -> CoulombResult:
    """See :meth:`fmm_openmm.CoulombSolver.compute`; on the GPU where boxes cover a periodic cell,
    so that only what is read is copied back."""
    if "points" not in wanted and solver.evaluation.can_queue(**wanted):
        x = check_positions(to_host(positions), len(solver.charges))
        result = solver.compute(to_device(x), box_vectors, **wanted)
        if not is_on_device(result.potentials) or solver.evaluation.is_defined(result):
            return result
    return solver.compute(positions, box_vectors, **wanted)


def fresh_copy(solver: CoulombSolver) -> CoulombSolver:
    """A solver of the same arguments that has evaluated nothing yet, and that can be pickled."""
    return _with_evaluation(solver, solver.evaluation.fresh())


def _with_evaluation(solver: CoulombSolver, evaluation: Evaluation) -> CoulombSolver:
    """A solver of the same arguments with another evaluation."""
    made = copy.copy(solver)
    made.evaluation = evaluation
    return made


def _seal(evaluation: Evaluation) -> None:
    """Make the separate copies of an evaluation share evaluators."""
    if evaluation.method == "fmm":  # other methods remember nothing of the positions
        used = evaluation.used
        evaluation.evaluator_class = _Evaluators(
            evaluation.evaluator_class, used[0] if used else None
        )
        evaluation.evaluators = {}
    for variant in evaluation.variants.values():
        _seal(variant)


def frame_solver(recipe: bytes) -> FrameSolver:
    """The solver of a worker, made once for all of its tasks.

    Args:
        recipe: a pickled tuple of the arguments of a :class:`FrameSolver`, whose solver may be a
            function that returns it.
    """
    with _keeping:
        if not (_kept and _kept[0][0] == recipe):
            _kept.clear()
            solver, *arguments = pickle.loads(recipe)
            solver = solver if isinstance(solver, CoulombSolver) else solver()
            _kept.append((recipe, FrameSolver(solver, *arguments)))
        return _kept[0][1]


def discard_frame_solver() -> None:
    """Release the memory of the solver that :func:`frame_solver` keeps."""
    with _keeping:
        _kept.clear()


class _Evaluators:
    """Takes the place of the class of a backend's evaluators and keeps two of them.

    One is for the specification of the first frame, as it is or changed to another shape of the
    boxes; one is for the last specification that it could not be changed to. On a GPU a changed
    evaluator rounds differently from a new one: therefore the other one is never changed.

    Args:
        make: the class.
        first: an evaluator that has not been changed; None if there is none.
    """

    def __init__(self, make: Callable[[Specification], Evaluator], first: Evaluator | None):
        self._make, self._first = make, first
        self._other: Evaluator | None = None

    def discard(self) -> None:
        """Keep no evaluator."""
        self._first = self._other = None

    def __call__(self, wanted: Specification) -> Evaluator:
        for known in filter(None, (self._first, self._other)):
            if _computes(known, wanted):
                return known
        if self._first is not None and self._first.adopt(wanted):
            return self._first
        self._other = None  # its memory may be needed
        self._other = self._make(wanted)
        return self._other


def _computes(evaluator: Evaluator, wanted: Specification) -> bool:
    """Whether an evaluator of the same charges computes exactly what is wanted."""
    lattice, other = evaluator.lattice, wanted.lattice
    if not evaluator.specification.has_expansions_of(wanted):
        return False
    return lattice is other or (
        (lattice.padded, lattice.are_cuboids) == (other.padded, other.are_cuboids)
        and all(
            np.array_equal(getattr(lattice, name), getattr(other, name))
            for name in ("counts", "span", "boxes", "cell", "near")
        )
    )
