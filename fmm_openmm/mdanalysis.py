"""``CoulombAnalysis``: electrostatics of a trajectory as an analysis of MDAnalysis."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import ResultsGroup

from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.frames import Frame, frame_of_timestep
from fmm_openmm.convert.packages import check_lengths
from fmm_openmm.integration.analysis import check_arguments, evaluate_quantities
from fmm_openmm.integration.frame_solver import discard_frame_solver
from fmm_openmm.integration.frame_tasks import (
    Given,
    box_of,
    evaluate_frames,
    make_recipe,
    make_solver,
    within_box,
)

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe
    from numpy.typing import DTypeLike


class CoulombAnalysis(AnalysisBase):
    """Coulomb energies, forces, potentials, fields or virials of the frames of a trajectory.

    The results are bitwise identical to those of :func:`fmm_openmm.analyse` for the same frames,
    with each of MDAnalysis' backends "serial", "multiprocessing" and "dask". The class requires
    MDAnalysis 2.8 or newer.

    Args:
        atoms: a Universe, or an AtomGroup, with the particles of the solver in their order.
        solver_or_system: as in :func:`fmm_openmm.analyse`; by default
            ``ChargeSystem.from_mdanalysis(atoms)``.
        quantities, threads, dtype: as in :func:`fmm_openmm.analyse`.
        verbose: show a progress bar, with the backend "serial".

    Attributes:
        results: has an array for each quantity, by its name, with one row per frame: ``energy``
            (frames,), kJ/mol; ``forces`` and ``fields`` (frames, n, 3), kJ/mol/nm and kJ/mol/nm/e;
            ``potentials`` (frames, n), kJ/mol/e; ``virial`` (frames, 3, 3), kJ/mol.

    Raises:
        ValueError, TypeError, UnsupportedError: as :func:`fmm_openmm.analyse`.
    """

    _analysis_algorithm_is_parallelizable = True

    @classmethod
    def get_supported_backends(cls) -> tuple[str, ...]:
        """Names of the backends of MDAnalysis that :meth:`run` takes."""
        return "serial", "multiprocessing", "dask"

    def __init__(
        self,
        atoms: "Universe | AtomGroup",
        solver_or_system: "Given | None" = None,
        quantities: Sequence[str] = ("energy",),
        *,
        threads: int | None = None,
        dtype: "DTypeLike" = np.float64,
        verbose: bool = False,
    ):
        super().__init__(atoms.universe.trajectory, verbose=verbose)
        check_lengths(atoms.universe.trajectory)
        self._quantities, self._threads = check_arguments(quantities, threads, dtype)
        self._atoms, self._dtype = atoms.atoms, dtype
        self._given = solver_or_system or ChargeSystem.from_mdanalysis(atoms)
        self._box_vectors = box_of(self._given)
        self._recipe = b""

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_given": None}  # workers have the recipe

    def _setup_frames(self, *arguments, **keywords):
        super()._setup_frames(*arguments, **keywords)
        if self.n_frames:
            first = self._frame(self._sliced_trajectory[0])
            solver = make_solver(self._given, first)
            evaluate = partial(evaluate_quantities, self._quantities, self._dtype)
            self._recipe = make_recipe(solver, first, evaluate)

    def _frame(self, step) -> Frame:
        return within_box(frame_of_timestep(step, self._atoms), self._box_vectors)

    def _prepare(self):
        for name in self._quantities:
            self.results[name] = []

    def _single_frame(self):
        frame = self._frame(self._ts)
        task = [(self._ts.frame, frame.positions, frame.box_vectors)]
        part = evaluate_frames(self._recipe, self._threads, task)
        if part.fault:
            raise part.fault
        for name, value in zip(self._quantities, part.rows[self._ts.frame], strict=True):
            self.results[name].append(value)

    def _get_aggregator(self):
        return ResultsGroup(dict.fromkeys(self._quantities, ResultsGroup.flatten_sequence))

    def _conclude(self):
        discard_frame_solver()
        for name in self._quantities:
            self.results[name] = np.array(self.results[name])
