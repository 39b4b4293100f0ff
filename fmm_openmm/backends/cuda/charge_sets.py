"""Several sets of charges at the same positions on the GPU."""

from typing import Any

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import explained
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.pipeline.sets import MOST_SETS, SORTING, SUMMING, build_sets
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import BoxLattice
from fmm_openmm.specification import Specification
from fmm_openmm.stages import RepeatedEvaluation
from fmm_openmm.units import COULOMB_CONSTANT

SUMS_BLOCK = 512
"""Threads of a block of ``kernels/sets/set_sums.cu``."""


class SetsRun:
    """A program for several sets of charges on the current device.

    Args:
        specification: what the evaluator was made for, without levels.
        sets: number of sets.
        fields: whether fields are computed, or potentials alone.

    Attributes:
        buffers: buffers of the program by name.
    """

    def __init__(self, specification: Specification, sets: int, fields: bool):
        program = build_sets(specification, current_device(), sets, fields)
        with explained(program):
            self._run, self._sums = Run(program), load("set_sums", program.macros)
        self.buffers = self._run.buffers
        self._owner: CudaChargeSets | None = None
        self._parameters: np.ndarray | None = None
        self._lattice: BoxLattice | None = None

    def evaluate(self, owner: "CudaChargeSets") -> None:
        """Queue an evaluation of the charges in the buffer "sets" at the positions of ``owner``,
        which are sorted unless they were the last ones."""
        if self._owner is owner:
            return self._run.replay(*SUMMING)
        if self._parameters is not owner.parameters:
            self.buffers["parameters"].set(owner.parameters)
            self._parameters = owner.parameters
        if self._lattice is not owner.lattice:
            self._run.queue(SETUP)
            self._lattice = owner.lattice
        self.buffers["positions"][...] = owner.positions
        self._run.replay(*SORTING, *SUMMING)
        self._owner = owner
        return None

    def launch(self, name: str, grid: tuple[int, ...], *arguments) -> None:
        """Queue a kernel of ``kernels/sets/set_sums.cu``."""
        self._sums.get_function(name)(grid, (SUMS_BLOCK,), arguments)


class CudaChargeSets(RepeatedEvaluation):
    """See :class:`fmm_openmm.stages.ChargeSets`; also for arrays on the device, all work on the
    current stream.

    Args:
        evaluator: the :class:`fmm_openmm.backends.cuda.evaluator.CudaEvaluator` of the particles,
            without levels.
        positions: shape (n, 3), nm, on the host or the device; copied.
        width: mean box width, nm.
        origin: what open boxes take for the origin, shape (3,), nm.
    """

    def __init__(self, evaluator: Any, positions, width: float, origin=(0.0, 0.0, 0.0)):
        super().__init__(evaluator, positions, width)
        self.lattice = evaluator.lattice
        self.parameters = evaluator.parameters(width, origin)
        with evaluator.on_device():
            self.positions = cupy.array(positions, np.float64)

    def compute(self, charges, fields: bool):
        """Potentials, matrix, forces and fields of sets of charges, shape (K, n), e, on the device,
        as in :class:`fmm_openmm.results.ChargeSetsResult`. Forces and fields are None unless
        ``fields``."""
        with self._evaluator.on_device():
            charges = cupy.ascontiguousarray(cupy.asarray(charges, np.float64))
            sets, n = charges.shape
            size = -(-sets // -(-sets // MOST_SETS))
            real = self._evaluator.specification.dtype
            results = {"potentials": cupy.empty((sets, n), real)}
            for name in ("forces", "fields") if fields else ():
                results[name] = cupy.empty((sets, n, 3), real)
            run = self._evaluator.for_sets(size, fields)
            for first in range(0, sets, size):
                count = min(size, sets - first)
                run.launch(
                    "set_charges", (-(-n * size // SUMS_BLOCK),), np.int32(n), np.int32(first),
                    np.int32(count), charges, run.buffers["sets"],
                )  # fmt: skip
                run.evaluate(self)
                for name, result in results.items():
                    result[first : first + count] = run.buffers[name][:count]
            matrix = cupy.empty((sets, sets))
            potentials = results["potentials"]
            run.launch("sum_products", (sets, sets), np.int32(n), charges, potentials, matrix)
            return potentials, matrix, results.get("forces"), results.get("fields")

    def evaluate(self, charges, fields):
        potentials, _, _, vectors = self.compute(charges, fields)
        scale = self._width / COULOMB_CONSTANT
        return (
            potentials.get().astype(np.float64) * scale,
            None if vectors is None else vectors.get().astype(np.float64) * (scale * self._width),
        )

    def energies_among(self, group, limit: float = np.inf):
        """Energies among groups of the evaluator's charges, the matrix of
        :meth:`fmm_openmm.CoulombSolver.interaction_energies`, on the device.

        Args:
            group: the group of each particle, shape (n,), integers from 0 without gaps, on the
                host.
            limit: potential, e per box width, beyond which entries are NaN.
        """
        evaluator = self._evaluator
        with evaluator.on_device():
            charges = evaluator.run.buffers["charges"]
            return evaluator.for_groups(group).energies(self, charges, limit)

    def energies_of_groups(self, charges, group, begin, members, count: int, limit: float):
        """Energies of the first groups with all groups, shape (count, G), kJ/mol.

        Args:
            charges: shape (n,), e.
            group: the group of each particle, shape (n,).
            begin: those of group g are ``members[begin[g]:begin[g + 1]]``.
            limit: potential, e per box width, beyond which entries are NaN.
        """
        n, groups = np.int32(self.count), len(begin) - 1
        size = -(-count // -(-count // MOST_SETS))
        run = self._evaluator.for_sets(size, False)
        potentials, sets = run.buffers["potentials"], run.buffers["sets"]
        energies = cupy.empty((-(-count // size) * size, groups))
        for first in range(0, count, size):
            blocks = -(-self.count * size // SUMS_BLOCK)
            run.launch("set_groups", (blocks,), n, np.int32(first), charges, group, sets)
            run.evaluate(self)
            if limit < np.inf:
                potentials[abs(potentials) > limit * COULOMB_CONSTANT / self._width] = np.nan
            run.launch(
                "sum_groups", (groups, size), n, charges, potentials, begin, members,
                energies[first : first + size],
            )  # fmt: skip
        return energies[:count]

    def among_groups(self, charges, group, limit):
        return self.energies_among(group, limit).get() * (2.0 * self._width / COULOMB_CONSTANT)

    def operator(self):
        """The Coulomb matrix, for arrays on the device."""
        # imports cuBLAS, which not every machine with CuPy has
        from cupyx.scipy.sparse.linalg import LinearOperator

        def product(columns):
            sets = columns.reshape(self.count, -1).T
            return self.compute(sets, False)[0].astype(np.float64).T.reshape(columns.shape)

        return LinearOperator(
            (self.count, self.count), matvec=product, rmatvec=product, matmat=product,
            dtype=np.float64,
        )  # fmt: skip
