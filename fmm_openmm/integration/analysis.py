"""``analyse``: electrostatics of every frame of a trajectory, without a simulation."""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import openmm

from fmm_openmm.checks import check_choice, check_integer
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.frames import Frame, count_frames, read_frames
from fmm_openmm.errors import AnalysisError
from fmm_openmm.integration.frame_solver import (
    discard_frame_solver,
    frame_solver,
    fresh_copy,
)
from fmm_openmm.integration.validation import charges_and_cell, electrostatics
from fmm_openmm.openmp import at_most_threads, breaks_when_forked
from fmm_openmm.progress import show_progress
from fmm_openmm.solver import CoulombSolver

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from numpy.typing import DTypeLike

Given: TypeAlias = CoulombSolver | ChargeSystem | openmm.System | Callable[[], CoulombSolver]
"""What a solver is made of."""

QUANTITIES = ("energy", "forces", "potentials", "fields")

CHUNK = 16
"""Largest number of frames in one task of an executor."""

CHUNK_BYTES = 2**24
"""Size of the positions in one task above which it has a single frame."""

TASKS = 32
"""Smallest number of tasks that a trajectory of known length is divided into, if it has so many
frames."""

PENDING_BYTES = 2**30
"""Size of the positions in all tasks that wait for an executor, above which no more are read."""

FORKED = (
    "; a process that is forked after an evaluation in this one ends at once: give the executor "
    "`mp_context=multiprocessing.get_context('spawn')`"
)


def analyse(
    frames: Any,
    solver_or_system: Given,
    quantities: Sequence[str] = ("energy",),
    executor: "Executor | None" = None,
    progress: bool = True,
    *,
    threads: int | None = None,
    dtype: "DTypeLike" = np.float64,
) -> dict[str, np.ndarray]:
    """Coulomb energies, forces, potentials or fields of every frame of a trajectory.

    Exceptions and Lennard-Jones interactions are not part of them.

    Boxes, parameters and precision of a frame depend on it and on the first frame only. Any
    executor therefore gives the same results as none, to the last bit, on processors and GPUs of
    one model.

    Args:
        frames: the path of a file (DCD, XTC, NetCDF, ...; PDB or mmCIF), an
            ``mdtraj.Trajectory``, a Universe, an AtomGroup or a reader of MDAnalysis, an
            ``openmm.app.PDBFile``; or an iterable of frames: positions, shape (n, 3), nm, or a
            tuple of positions and box vectors, shape (3, 3), nm, or chunks of ``mdtraj.iterload``.
            Frames without box vectors have the box of the solver or System.
        solver_or_system: a solver, which is left as it is; or charges, box and exclusions, of which
            a solver is made: with the options of the FMMForce of a System, else with the default
            options. Or a function without arguments that returns a solver, for instance
            ``functools.partial(charges.solver, backend="cuda")``: each worker calls it, so that it
            may have a GPU where the caller has none.
        quantities: any of "energy", "forces", "potentials" and "fields", the attributes of
            :class:`fmm_openmm.CoulombResult`.
        executor: computes frames in parallel: anything with the interface of
            ``concurrent.futures.Executor``, such as a ``ProcessPoolExecutor``, the executor of a
            Dask client or the ``MPIPoolExecutor`` of mpi4py. At most 1 GiB of positions is read
            ahead.
        progress: show on stderr, in a terminal or a notebook, how many frames are done.
        threads: largest number of threads that an evaluation on a CPU uses; by default all cores.
            With a worker for each core 1 is best.
        dtype: type of the arrays other than energies.

    Returns:
        An array for each quantity, by its name, with one row a frame: "energy" (frames,), kJ/mol;
        "forces" and "fields" (frames, n, 3), kJ/mol/nm and kJ/mol/nm/e; "potentials" (frames, n),
        kJ/mol/e.

    Raises:
        ValueError, TypeError: an argument is invalid, or the first frame.
        UnsupportedError: the System has no single force with charges.
        AnalysisError: a later frame is invalid or cannot be read, or the executor has failed; the
            results so far are in its attribute ``arrays``.

    Example:
        >>> import numpy as np, fmm_openmm as fmm
        >>> solver = fmm.CoulombSolver([1.0, -1.0], 3 * np.eye(3))
        >>> frames = [[[0, 0, 0], [0, 0, distance]] for distance in (0.3, 0.4)]
        >>> analyse(frames, solver)["energy"].round()
        array([-464., -349.])
    """
    quantities, threads = check_arguments(quantities, threads)
    reading = _Reading(read_frames(frames, _count_particles(solver_or_system)))
    first = list(islice(reading, 1))
    done, total = _Done(quantities), count_frames(frames)
    try:
        if first:
            recipe = make_recipe(solver_or_system, first[0])
            work = partial(evaluate_frames, recipe, done.quantities, dtype, threads)
            tasks = _tasks(chain(first, reading), _chunk(first[0], total) if executor else 1)
            with show_progress("analysing", total, progress) as advance:
                for part in (
                    _in_parallel(executor, work, tasks) if executor else _in_turn(work, tasks)
                ):
                    done.add(part)
                    advance(len(part.rows))
    finally:
        discard_frame_solver()
    done.check(reading.fault, total)
    return done.arrays


def check_arguments(
    quantities: Sequence[str], threads: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Check arguments of :func:`analyse`."""
    if isinstance(quantities, str):
        raise TypeError(f"`quantities` must be a sequence of names, got {quantities!r}")
    for name in quantities:
        check_choice(name, QUANTITIES, "quantities")
    if threads is not None:
        threads = check_integer(threads, "threads", 1, 2**16)
    return tuple(quantities), threads


class _Reading:
    """Frames up to the first one that cannot be read.

    Attributes:
        fault: the error in reading it.
    """

    def __init__(self, frames: Iterator[Frame]):
        self._frames = frames
        self.fault: Exception | None = None

    def __iter__(self) -> "_Reading":
        return self

    def __next__(self) -> Frame:
        try:
            return next(self._frames)
        except StopIteration:
            raise
        except Exception as error:
            self.fault = error
            raise StopIteration from error


@dataclass
class Part:
    """Results of a task.

    Attributes:
        rows: the quantities of frames, by their numbers.
        fault: the error that ended it.
        number: of the frame that made the error; None if the executor did.
    """

    rows: dict[int, tuple] = field(default_factory=dict)
    fault: Exception | None = None
    number: int | None = None


@dataclass
class _Done:
    """Results so far."""

    quantities: tuple[str, ...]
    rows: dict[int, tuple] = field(default_factory=dict)
    failed: Part | None = None

    def add(self, part: Part) -> None:
        """Add the results of a task."""
        self.rows |= part.rows
        if part.fault and not self.failed:
            self.failed = part

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The results by quantity, in the order of the frames."""
        rows = [self.rows[number] for number in sorted(self.rows)]
        columns = zip(*rows, strict=True) if rows else repeat(())
        return {
            name: np.array(values) for name, values in zip(self.quantities, columns, strict=False)
        }

    def check(self, unread: Exception | None, total: int | None) -> None:
        """Raise the error that has ended the analysis, if there was one.

        Args:
            unread: the error in reading the frame after the last one.
            total: number of frames, if it is known.
        """
        part = self.failed or Part({}, unread, len(self.rows))
        if part.fault is None:
            return
        if not self.rows and part.number is not None:
            raise part.fault
        where = "the executor has failed" if part.number is None else f"frame {part.number}"
        what = f"{type(part.fault).__name__}: {part.fault}".rstrip(".")
        if not self.rows and isinstance(part.fault, BrokenExecutor) and breaks_when_forked():
            what += FORKED
        several = f"{len(self.rows)}{'' if total is None else f' of {total}'} frames"
        raise AnalysisError(
            f"{where} ({what}): {several} are done",
            np.array(sorted(self.rows), np.int64),
            self.arrays,
        ) from part.fault


def _count_particles(given) -> int | None:
    if isinstance(given, CoulombSolver):
        return len(given.charges)
    if isinstance(given, openmm.System):
        return given.getNumParticles()
    return len(given) if isinstance(given, ChargeSystem) else None


def make_recipe(solver_or_system: Given, first: Frame) -> bytes:
    """What :func:`fmm_openmm.integration.frame_solver.frame_solver` makes its solver of.

    Args:
        solver_or_system: as in :func:`analyse`.
        first: the first frame.
    """
    solver = _solver(solver_or_system, first.positions)
    return pickle.dumps((solver, first.positions, first.box_vectors))


def _solver(given: Given, positions) -> CoulombSolver | Callable[[], CoulombSolver]:
    """A solver that can be pickled, or the function that makes it.

    Args:
        positions: those of the first frame, shape (n, 3), nm.
    """
    if isinstance(given, CoulombSolver):
        return fresh_copy(given)
    if isinstance(given, ChargeSystem):
        return given.solver()
    if isinstance(given, openmm.System):
        definition, _ = electrostatics(given)
        charges, cell = charges_and_cell(given, definition)
        return definition.structure.solver(definition.options, charges, cell, positions)
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


def _tasks(frames: Iterable[Frame], chunk: int) -> Iterator[list[tuple]]:
    """Lists of numbers, positions and box vectors."""
    numbered = ((number, f.positions, f.box_vectors) for number, f in enumerate(frames))
    while task := list(islice(numbered, chunk)):
        yield task


def _in_turn(work, tasks: Iterator[list]) -> Iterator[Part]:
    for task in tasks:
        part = work(task)
        yield part
        if part.fault:
            return


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


def evaluate_frames(
    recipe: bytes, quantities: tuple[str, ...], dtype, threads: int | None, task: list[tuple]
) -> Part:
    """The quantities of some frames, up to one that makes an error.

    Args:
        recipe: as :func:`make_recipe` returns it.
        quantities, dtype, threads: as in :func:`analyse`.
        task: of each frame its number, positions and box vectors.
    """
    part = Part()
    with at_most_threads(threads):
        for number, positions, box_vectors in task:
            try:
                result = frame_solver(recipe).compute(positions, box_vectors)
                part.rows[number] = tuple(
                    float(result.energy)
                    if name == "energy"
                    else getattr(result, name).astype(dtype)
                    for name in quantities
                )
            except Exception as error:
                part.fault, part.number = error, number
                break
    return part
