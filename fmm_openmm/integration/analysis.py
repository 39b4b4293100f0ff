"""``analyse``: electrostatics of every frame of a trajectory, without a simulation."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

import numpy as np
import openmm

from fmm_openmm.checks import check_choice
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.integration.validation import charges_and_cell, electrostatics
from fmm_openmm.progress import show_progress
from fmm_openmm.solver import CoulombSolver

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import DTypeLike

QUANTITIES = ("energy", "forces", "potentials", "fields")

CHUNK = 16
"""Frames in one task of an executor."""


def analyse(
    frames: Iterable,
    solver_or_system: "CoulombSolver | ChargeSystem | openmm.System",
    quantities: Sequence[str] = ("energy",),
    executor: "Executor | None" = None,
    progress: bool = True,
    *,
    dtype: "DTypeLike" = np.float64,
) -> dict[str, np.ndarray]:
    """Coulomb energies, forces, potentials or fields of every frame of a trajectory.

    Exceptions and Lennard-Jones interactions are not part of them.

    Args:
        frames: an ``mdtraj.Trajectory``, or an iterable of frames: positions, shape (n, 3), nm, or
            a tuple of positions and box vectors, shape (3, 3), nm. Frames without box vectors have
            the box of the solver or System.
        solver_or_system: a solver; or charges, box and exclusions, of which a solver is made: with
            the options of the FMMForce of a System, else with the default options.
        quantities: any of "energy", "forces", "potentials" and "fields", the attributes of
            :class:`fmm_openmm.CoulombResult`.
        executor: computes frames in parallel, for instance a
            ``concurrent.futures.ProcessPoolExecutor``; all frames are then read first. A frame
            uses all cores by itself: an executor pays with one worker a GPU or a node.
        progress: show on stderr, in a terminal or a notebook, how many frames are done.
        dtype: type of the arrays other than energies.

    Returns:
        An array for each quantity, by its name, with one row a frame: "energy" (frames,), kJ/mol;
        "forces" and "fields" (frames, n, 3), kJ/mol/nm and kJ/mol/nm/e; "potentials" (frames, n),
        kJ/mol/e.

    Raises:
        ValueError, TypeError: an argument is invalid.
        UnsupportedError: the System has no single force with charges.

    Example:
        >>> import numpy as np, fmm_openmm as fmm
        >>> solver = fmm.CoulombSolver([1.0, -1.0], 3 * np.eye(3))
        >>> frames = [[[0, 0, 0], [0, 0, distance]] for distance in (0.3, 0.4)]
        >>> analyse(frames, solver)["energy"].round()
        array([-464., -349.])
    """
    if isinstance(quantities, str):
        raise TypeError(f"`quantities` must be a sequence of names, got {quantities!r}")
    for name in quantities:
        check_choice(name, QUANTITIES, "quantities")
    pairs = _pairs(frames)
    first = list(islice(pairs, 1))
    solver, has_box = _solver(solver_or_system, first[0][0] if first else None)
    pairs = ((x, box if has_box else None) for x, box in chain(first, pairs))
    evaluate = partial(_evaluate, solver, tuple(quantities), dtype)
    with show_progress(
        "analysing", getattr(frames, "__len__", lambda: None)(), progress
    ) as advance:
        chunks: Iterator[list[tuple]]
        if executor is None:
            chunks = map(evaluate, ([pair] for pair in pairs))
        else:
            chunks = executor.map(evaluate, _chunks(pairs))
        rows = []
        for chunk in chunks:
            rows += chunk
            advance(len(chunk))
    columns = zip(*rows, strict=True) if rows else repeat(())
    return {name: np.array(column) for name, column in zip(quantities, columns, strict=False)}


def _solver(given, positions) -> tuple[CoulombSolver, bool]:
    """A solver, and whether it takes box vectors.

    Args:
        positions: those of the first frame, shape (n, 3), nm; None if there is no frame.
    """
    if isinstance(given, CoulombSolver):
        return given, True
    if isinstance(given, ChargeSystem):
        return given.solver(), given.box_vectors is not None
    if not isinstance(given, openmm.System):
        raise TypeError(
            "`solver_or_system` must be a CoulombSolver, a ChargeSystem or an openmm.System, "
            f"got {type(given).__name__}"
        )
    definition, _ = electrostatics(given)
    charges, cell = charges_and_cell(given, definition)
    solver = definition.structure.solver(definition.options, charges, cell, positions)
    return solver, not definition.boundary.is_open


def _pairs(frames: Iterable) -> Iterator[tuple]:
    """Positions and box vectors, or None, of every frame."""
    if hasattr(frames, "unitcell_vectors") and hasattr(frames, "xyz"):  # of MDTraj
        boxes = frames.unitcell_vectors
        yield from zip(frames.xyz, repeat(None) if boxes is None else boxes, strict=False)
        return
    for frame in frames:
        yield frame if isinstance(frame, tuple) else (frame, None)


def _chunks(pairs: Iterator[tuple]) -> Iterator[list[tuple]]:
    while chunk := list(islice(pairs, CHUNK)):
        yield chunk


def _evaluate(
    solver: CoulombSolver, quantities: tuple[str, ...], dtype, chunk: list[tuple]
) -> list[tuple]:
    """The quantities of some frames."""
    rows = []
    for positions, box_vectors in chunk:
        result = solver.compute(positions, box_vectors)
        rows.append(
            tuple(
                float(result.energy) if name == "energy" else getattr(result, name).astype(dtype)
                for name in quantities
            )
        )
    return rows
