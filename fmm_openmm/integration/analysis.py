"""``analyse``: electrostatics of every frame of a trajectory, without a simulation."""

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.checks import check_choice, check_integer
from fmm_openmm.integration.frame_solver import FrameSolver, Queued
from fmm_openmm.integration.frame_tasks import FrameTasks, Given

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import DTypeLike

QUANTITIES = ("energy", "forces", "potentials", "fields", "virial")

EXACT = ("energy", "virial")
"""Quantities that are always float64."""


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
    """Coulomb energies, forces, potentials, fields or virials of every frame of a trajectory.

    The results do not include exceptions and Lennard-Jones interactions.

    Many programs wrap particles along all box vectors. In a slab or wire, particles are therefore
    translated by the box vectors without images until they are contiguous, as by
    :class:`fmm_openmm.FMMForce`, and then translated together to the image next to the particles of
    the first frame. This is done with the box vectors of the System for frames without box vectors;
    otherwise the positions of such frames are used as they are.

    Boxes, parameters and precision of a frame depend only on that frame and on the first one. The
    results are therefore bitwise identical with any executor and without one, on processors and
    GPUs of one model.

    Args:
        frames: the path of a file (DCD, XTC, NetCDF, ...; PDB or mmCIF), an
            ``mdtraj.Trajectory``, a Universe, an AtomGroup or a reader of MDAnalysis, an
            ``openmm.app.PDBFile``, which has one box for all models, where the path of a file gives
            each its own; or an iterable of frames: positions, shape (n, 3), nm, or a
            tuple of positions and box vectors, shape (3, 3), nm; or an iterable of paths, or of
            chunks of ``mdtraj.iterload``. Frames without box vectors have the box of the solver or
            System.
        solver_or_system: a solver, which is left as it is; or charges, box and exclusions, of which
            a solver is made: with the options of the FMMForce of a System, else with the default
            options. Or a function without arguments that returns a solver and can be pickled, for
            instance ``functools.partial(charges.solver, backend="cuda")``: each worker calls it, so
            that it may have a GPU where the caller has none.
        quantities: any of "energy", "forces", "potentials", "fields" and "virial", the attributes
            of :class:`fmm_openmm.CoulombResult`.
        executor: computes frames in parallel: anything with the interface of
            ``concurrent.futures.Executor``, such as a ``ProcessPoolExecutor``, the executor of a
            Dask client or the ``MPIPoolExecutor`` of mpi4py. At most 1 GiB of positions is read
            ahead.
        progress: show on stderr, in a terminal or a notebook, how many frames are done.
        threads: largest number of threads that an evaluation on a CPU uses; by default all cores.
            With a worker for each core 1 is best.
        dtype: float64, or float32 for arrays other than energies and virials.

    Returns:
        An array for each quantity, by its name, with one row per frame: "energy" (frames,), kJ/mol;
        "forces" and "fields" (frames, n, 3), kJ/mol/nm and kJ/mol/nm/e; "potentials" (frames, n),
        kJ/mol/e; "virial" (frames, 3, 3), kJ/mol.

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
    quantities, threads = check_arguments(quantities, threads, dtype)
    work = FrameTasks(frames, solver_or_system, executor, progress, threads)
    rows = [row for _, row in work.results(partial(evaluate_quantities, quantities, dtype))]
    columns = zip(*rows, strict=True) if rows else repeat(())
    arrays = {name: np.array(values) for name, values in zip(quantities, columns, strict=False)}
    work.check(arrays)
    return arrays


def check_arguments(
    quantities: Sequence[str], threads: int | None, dtype: "DTypeLike"
) -> tuple[tuple[str, ...], int | None]:
    """Check arguments of :func:`analyse`."""
    if isinstance(quantities, str):
        raise TypeError(f"`quantities` must be a sequence of names, got {quantities!r}")
    for name in quantities:
        check_choice(name, QUANTITIES, "quantities")
    if threads is not None:
        threads = check_integer(threads, "threads", 1, 2**16)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise ValueError(f"`dtype` must be float32 or float64, got {dtype!r}")
    return tuple(quantities), threads


def evaluate_quantities(
    quantities: tuple[str, ...], dtype, solver: FrameSolver, positions, box_vectors
) -> tuple | Queued:
    """The quantities of a frame."""
    found = solver.read(positions, box_vectors, quantities)
    row = partial(_row, quantities, dtype)
    return found.then(row) if isinstance(found, Queued) else row(found)


def _row(quantities: tuple[str, ...], dtype, found: dict[str, Any]) -> tuple:
    """Quantities by name as they are returned."""
    row: list[Any] = []
    for name in quantities:
        values = found[name]
        if name == "energy":  # shape (1,) from a GPU
            row.append(values if type(values) is float else float(np.ravel(values)[0]))
        else:
            row.append(values if name in EXACT else values.astype(dtype, copy=False))
    return tuple(row)
