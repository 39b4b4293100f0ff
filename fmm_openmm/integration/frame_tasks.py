"""The frames of a trajectory as tasks, computed in turn or by an executor."""

import copy
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import openmm

from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.frames import Frame, count_frames, read_frames
from fmm_openmm.errors import AnalysisError
from fmm_openmm.integration.frame_placement import FramePlacement
from fmm_openmm.integration.frame_solver import (
    Evaluate,
    Queued,
    discard_frame_solver,
    frame_solver,
    fresh_copy,
)
from fmm_openmm.integration.validation import charges_and_cell, electrostatics
from fmm_openmm.openmp import at_most_threads
from fmm_openmm.progress import show_progress
from fmm_openmm.solver import CoulombSolver

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Given: TypeAlias = CoulombSolver | ChargeSystem | openmm.System | Callable[[], CoulombSolver]
"""Arguments from which a solver is made."""

CHUNK = 16
"""Largest number of frames in one task of an executor."""

CHUNK_BYTES = 2**24
"""Size of the positions in one task above which it has a single frame."""

TASKS = 32
"""Smallest number of tasks that a trajectory of known length is divided into, if it has so many
frames."""

PENDING_BYTES = 2**30
"""Size of the positions in all tasks that wait for an executor, above which no more are read."""

AHEAD = 3
"""Frames that are queued on a GPU after the one whose result is waited for."""


class FrameTasks:
    """The frames of a trajectory, and what becomes of them.

    Args:
        frames, given, executor, progress, threads: as in :func:`fmm_openmm.analyse`.

    Attributes:
        first: the first frame; None if there is none.
        solver: that of the frames, which has evaluated nothing yet, or a function that makes it;
            None if there are no frames.
        done: numbers of the frames that have been computed.
    """

    def __init__(
        self,
        frames: Any,
        given: Given,
        executor: "Executor | None",
        progress: bool,
        threads: int | None,
    ):
        self._executor, self._progress, self._threads = executor, progress, threads
        box_vectors = box_of(given)
        self._reading = _Reading(read_frames(frames, _count_particles(given)), box_vectors)
        self._total = count_frames(frames)
        self.first = next(self._reading, None)
        self.solver = None if self.first is None else make_solver(given, self.first)
        self.done: list[int] = []
        self._failed: Part | None = None

    def results(self, evaluate: Evaluate) -> Iterator[tuple[int, Any]]:
        """Numbers of frames, and what ``evaluate(solver, positions, box_vectors)`` makes of them,
        in the order of the frames up to an error; ``solver`` is a
        :class:`fmm_openmm.integration.frame_solver.FrameSolver`."""
        if self.first is None or self.solver is None:
            return
        how = make_recipe(self.solver, self.first, evaluate), self._threads
        frames = chain([self.first], self._reading)
        numbered = ((number, f.positions, f.box_vectors) for number, f in enumerate(frames))
        if self._executor:
            tasks = _tasks(_copied(numbered), _chunk(self.first, self._total))
            parts = _in_parallel(self._executor, partial(evaluate_frames, *how), tasks)
        else:
            parts = _in_turn(*how, numbered)
        try:
            with show_progress("analysing", self._total, self._progress) as advance:
                for part in parts:
                    if part.fault and not self._failed:
                        self._failed = part
                    self.done += part.rows
                    yield from part.rows.items()
                    advance(len(part.rows))
        finally:
            discard_frame_solver()

    def check(self, arrays: dict[str, np.ndarray]) -> None:
        """Raise the error that has ended the work early, if there was one.

        Args:
            arrays: the results so far.
        """
        part = self._failed or Part({}, self._reading.fault, len(self.done))
        if part.fault is None:
            return
        if not self.done and part.number is not None:
            raise part.fault
        where = "the executor has failed" if part.number is None else f"frame {part.number}"
        what = f"{type(part.fault).__name__}: {part.fault}".rstrip(".")
        several = f"{len(self.done)}{'' if self._total is None else f' of {self._total}'} frames"
        raise AnalysisError(
            f"{where} ({what}): {several} are done", np.array(self.done, np.int64), arrays
        ) from part.fault


class _Reading:
    """Frames up to the first one that cannot be read.

    Args:
        frames: to read.
        box_vectors: box vectors of frames that have none, shape (3, 3), nm, or None.

    Attributes:
        fault: the error in reading it.
    """

    def __init__(self, frames: Iterator[Frame], box_vectors: np.ndarray | None):
        self._frames, self._box_vectors = frames, box_vectors
        self.fault: Exception | None = None

    def __iter__(self) -> "_Reading":
        return self

    def __next__(self) -> Frame:
        try:
            frame = next(self._frames)
        except StopIteration:
            raise
        except Exception as error:
            self.fault = error
            raise StopIteration from error
        return within_box(frame, self._box_vectors)


@dataclass
class Part:
    """Results of a task.

    Attributes:
        rows: the results of frames, by their numbers.
        fault: the error that ended it.
        number: number of the frame that raised the error; None if the executor raised it.
    """

    rows: dict[int, Any] = field(default_factory=dict)
    fault: Exception | None = None
    number: int | None = None


def _count_particles(given) -> int | None:
    if isinstance(given, CoulombSolver):
        return len(given.charges)
    if isinstance(given, openmm.System):
        return given.getNumParticles()
    return len(given) if isinstance(given, ChargeSystem) else None


def make_recipe(
    solver: CoulombSolver | Callable[[], CoulombSolver], first: Frame, evaluate: Evaluate
) -> bytes:
    """Pickled arguments from which :func:`fmm_openmm.integration.frame_solver.frame_solver` makes
    its solver.

    Args:
        solver: the result of :func:`make_solver`.
        first: the first frame.
        evaluate: as in :meth:`FrameTasks.results`.

    Raises:
        TypeError: the function that makes the solver cannot be pickled.
    """
    try:
        return pickle.dumps((solver, first.positions, first.box_vectors, evaluate))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "`solver_or_system` must be a function that can be pickled, such as functools.partial "
            f"of one of a module: {error}"
        ) from error


def within_box(frame: Frame, box_vectors: np.ndarray | None) -> Frame:
    """A frame that has box vectors, else the same frame with these, shape (3, 3), nm."""
    return frame if frame.box_vectors is not None else frame._replace(box_vectors=box_vectors)


def box_of(given: Given) -> np.ndarray | None:
    """The box vectors of a System at which OpenMM wraps particles, shape (3, 3), nm."""
    if not isinstance(given, openmm.System):
        return None
    definition, _ = electrostatics(given)
    return charges_and_cell(given, definition)[1]


def make_solver(given: Given, first: Frame) -> CoulombSolver | Callable[[], CoulombSolver]:
    """A solver that can be pickled, or the function that makes it.

    Args:
        first: the first frame.
    """
    if isinstance(given, CoulombSolver):
        return fresh_copy(given)
    if isinstance(given, ChargeSystem):
        return given.solver()
    if isinstance(given, openmm.System):
        definition, _ = electrostatics(given)
        charges, cell = charges_and_cell(given, definition)
        structure, arrays = definition.structure, (first.positions, first.box_vectors)
        neutralizer = definition.options.neutralizer(structure.boundary)
        placement = FramePlacement.from_first(structure.boundary, *arrays, neutralizer)
        placed, _ = placement.place(*arrays)
        return structure.solver(definition.options, charges, cell, placed)
    if not callable(given):
        raise TypeError(
            "`solver_or_system` must be a CoulombSolver, a ChargeSystem, an openmm.System or a "
            f"function that returns a solver, got {type(given).__name__}"
        )
    return given


def _chunk(frame: Frame, total: int | None) -> int:
    """Number of frames in a task."""
    fitting = CHUNK_BYTES // max(1, np.asarray(frame.positions).nbytes)
    wanted = CHUNK if total is None else total // TASKS
    return max(1, min(CHUNK, fitting, wanted))


def _copied(numbered: Iterator[tuple]) -> Iterator[tuple]:
    """Numbered frames of which the source may use the arrays again while they wait. Equal box
    vectors in turn are one array, by which a worker recognises them."""
    kept: Any = None
    for number, positions, box_vectors in numbered:
        are_arrays = type(kept) is type(box_vectors) is np.ndarray
        if not (are_arrays and np.array_equal(kept, box_vectors)):
            kept = copy.deepcopy(box_vectors)
        yield number, copy.deepcopy(positions), kept


def _tasks(numbered: Iterator[tuple], chunk: int) -> Iterator[list[tuple]]:
    """Lists of at most ``chunk`` numbered frames."""
    while task := list(islice(numbered, chunk)):
        yield task


def _in_turn(recipe: bytes, threads: int | None, task: Iterable[tuple]) -> Iterator[Part]:
    """A part for each frame, up to one that makes an error; arguments as of
    :func:`evaluate_frames`."""
    with at_most_threads(threads), closing(_parts(recipe, task)) as parts:
        for part in parts:
            yield part
            if part.fault:
                return


def _parts(recipe: bytes, task: Iterable[tuple]) -> Generator[Part]:
    """A part for each frame. Of frames that are queued, :data:`AHEAD` more are begun before the
    result of one is waited for."""
    queued: deque[tuple[int, Queued]] = deque()
    try:
        for number, positions, box_vectors in task:
            part = _part(number, _evaluate, recipe, positions, box_vectors)
            found = part.rows.get(number)
            if is_queued := isinstance(found, Queued):
                queued.append((number, found))
            while len(queued) > (AHEAD if is_queued else 0):
                first, waiting = queued.popleft()
                yield _part(first, waiting.result)
            if not is_queued:
                yield part
        while queued:
            first, waiting = queued.popleft()
            yield _part(first, waiting.result)
    finally:
        for _, waiting in queued:
            waiting.wait()


def _evaluate(recipe: bytes, positions, box_vectors):
    return frame_solver(recipe).evaluate(positions, box_vectors)


def _part(number: int, evaluate: Callable, *arguments) -> Part:
    """The result of a frame, or its error."""
    try:
        return Part({number: evaluate(*arguments)})
    except Exception as error:
        return Part({}, error, number)


def _in_parallel(executor, work, tasks: Iterator[list]) -> Iterator[Part]:
    """Parts in the order of the tasks, up to the first with an error; after it the others that
    are done."""
    pending: deque[Future] = deque()
    limit = 1
    try:
        while True:
            try:
                while len(pending) < limit and (task := next(tasks, None)):
                    pending.append(executor.submit(work, task))
                    size = sum(np.asarray(positions).nbytes for _, positions, _ in task)
                    limit = max(2, PENDING_BYTES // size)
                if not pending:
                    return
                part = pending.popleft().result()
            except Exception as error:
                part = Part(fault=error)
            yield part
            if part.fault:
                break
        for future in pending:
            future.cancel()
        for future in pending:
            with suppress(Exception):
                yield future.result()
    finally:
        for future in pending:
            future.cancel()


def evaluate_frames(recipe: bytes, threads: int | None, task: list[tuple]) -> Part:
    """The results of some frames, up to one that makes an error.

    Args:
        recipe: as :func:`make_recipe` returns it.
        threads: as in :func:`fmm_openmm.analyse`.
        task: number, positions and box vectors of each frame.
    """
    whole = Part()
    for part in _in_turn(recipe, threads, task):
        whole.rows |= part.rows
        whole.fault, whole.number = part.fault, part.number
    return whole
