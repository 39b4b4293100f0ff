"""Several sets of charges at the same positions on the GPU."""

import copy
from typing import Any

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.exchange import contiguous
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import explained
from fmm_openmm.backends.cuda.execute.cupy.graph import Call
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.pipeline.sets import MOST_SETS, RESULTS, SORTING, SUMMING, build_sets
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import BoxLattice
from fmm_openmm.specification import Specification
from fmm_openmm.stages import RepeatedEvaluation
from fmm_openmm.units import COULOMB_CONSTANT

SUMS_BLOCK, SLICE = 512, 4096
"""Threads of a block of ``kernels/sets/set_sums.cu``, and particles whose products it sums."""


class SetsRun:
    """A program for several sets of charges on the current device, between arrays of the caller.

    Args:
        specification: what the evaluator was made for, without levels.
        sets: number of sets.
        wanted: as in :func:`fmm_openmm.backends.cuda.pipeline.sets.build_sets`.

    Attributes:
        real: type of potentials, fields and forces.
    """

    def __init__(self, specification: Specification, sets: int, wanted: str):
        program = build_sets(specification, current_device(), sets, wanted)
        self.real, n = specification.dtype, len(specification.charges)
        results, self._limit = RESULTS[wanted], np.inf
        with explained(program):
            # results are written to other arrays each time
            nowhere = {name: cupy.empty(0, program.buffers[name].dtype) for name in results}
            self._run, self._module = Run(program, nowhere), load("set_sums", program.macros)
        buffers = self._run.buffers
        self._n, self._blocks = np.int32(n), -(-n * sets // SUMS_BLOCK)
        self._filled = buffers["positions"].data.ptr, buffers["sets"].data.ptr
        self._gather = self._run.writer("gather", *results)
        self._kernels: dict[str, Any] = {}
        self._sorted: object = None
        self._parameters: np.ndarray | None = None
        self._lattice: BoxLattice | None = None
        self._products: tuple[int, cupy.ndarray, cupy.ndarray] | None = None

    def evaluate(self, owner: "CudaChargeSets", charges: str, *arguments) -> None:
        """Queue an evaluation of the charges that a kernel writes at the positions of ``owner``,
        which are sorted unless they were the last ones.

        Args:
            charges: name of the kernel, and its last arguments.
        """
        is_sorted = self._sorted is owner.place
        if self._parameters is not owner.parameters:
            self._run.buffers["parameters"].set(owner.parameters)
            self._parameters = owner.parameters
        if self._lattice is not owner.lattice:
            self._run.queue(SETUP)
            self._lattice = owner.lattice
        given = *((0, 0) if is_sorted else owner.addresses), *self._filled, *arguments
        first = self._sum(charges, (self._blocks, 1, 1), *given)
        self._run.replay(*(() if is_sorted else SORTING), *SUMMING, first=first)
        self._sorted = owner.place

    def gather_matrix(self, matrix: int, limit: float) -> None:
        """Queue the matrix of the last evaluation into an array at this address, shape (sets,
        sets) float64, with NaN for potentials beyond ``limit``, e per box width."""
        if limit != self._limit:
            self._run.buffers["limit"].fill(limit)
            self._limit = limit
        self._gather(matrix)

    def gather(self, potentials: int, fields: int = 0, forces: int = 0) -> None:
        """Queue the results of the last evaluation into contiguous arrays at these addresses:
        potentials, shape (sets, n), and, if they are computed, fields and forces, (sets, n, 3)."""
        self._gather(potentials, fields, forces)

    def products(self, charges: cupy.ndarray, potentials: cupy.ndarray) -> cupy.ndarray:
        """The matrix, shape (K, K), of charges, shape (K, n) float64, and their potentials, at
        least K of them."""
        sets, slices = len(charges), -(-int(self._n) // SLICE)
        if self._products is None or self._products[0] != sets:
            partial = cupy.empty((sets, sets, slices))
            self._products = sets, partial, cupy.zeros((sets, sets), np.int32)
        arrays = charges, potentials, *self._products[1:], (matrix := cupy.empty((sets, sets)))
        self.sum("sum_products", (slices, sets, sets), *(array.data.ptr for array in arrays))
        return matrix

    def sum(self, kernel: str, blocks: tuple[int, int, int], *arguments: int) -> None:
        """Queue sums over the particles by a kernel of ``kernels/sets/set_sums.cu``."""
        self._run.launch(self._sum(kernel, blocks, *arguments))

    def _sum(self, kernel: str, blocks: tuple[int, int, int], *arguments) -> Call:
        if kernel not in self._kernels:
            self._kernels[kernel] = self._module.get_function(kernel)
        return Call(self._kernels[kernel], blocks, SUMS_BLOCK, (self._n, *arguments))


class CudaChargeSets(RepeatedEvaluation):
    """See :class:`fmm_openmm.stages.ChargeSets`; also for arrays on the device, all work on the
    current stream.

    Args:
        evaluator: the :class:`fmm_openmm.backends.cuda.evaluator.CudaEvaluator` of the particles,
            without levels.
        positions: shape (n, 3), nm, on the host or the device, where they must not change.
        width: mean box width, nm.
        origin: what open boxes take for the origin, shape (3,), nm.

    Attributes:
        positions: positions on the device, contiguous, float32 or float64.
        addresses: that of positions in float32 and that in float64, of which one is 0.
        place: identifies the positions.
    """

    def __init__(self, evaluator: Any, positions, width: float, origin=(0.0, 0.0, 0.0)):
        super().__init__(evaluator, positions, width)
        self.lattice = evaluator.lattice
        self.parameters = evaluator.parameters(width, origin)
        with evaluator.on_device():
            self._refer_to(contiguous(positions, np.float64, np.float32))

    def _refer_to(self, positions: cupy.ndarray) -> None:
        self.positions, self.place, address = positions, object(), positions.data.ptr
        self.addresses = (address, 0) if positions.dtype == np.float32 else (0, address)

    def compute(self, charges, fields: bool):
        """Potentials, matrix, forces and fields of sets of charges, shape (K, n), e, on the device,
        as in :class:`fmm_openmm.results.ChargeSetsResult`. Forces and fields are None unless
        ``fields``."""
        evaluator = self._evaluator
        with evaluator.on_device():
            charges = contiguous(charges, np.float64)
            sets, n = charges.shape
            batches = -(-sets // MOST_SETS)
            size = -(-sets // batches)
            run = evaluator.for_sets(size, "fields" if fields else "potentials")
            results: list[cupy.ndarray] = []
            for first in range(0, sets, size):
                count = np.int32(min(size, sets - first))
                run.evaluate(self, "set_charges", np.int32(first), count, charges.data.ptr)
                if not results:  # while the device computes
                    shapes = ((n,), (n, 3), (n, 3)) if fields else ((n,),)
                    results = [cupy.empty((batches * size, *each), run.real) for each in shapes]
                run.gather(*(each.data.ptr + first * each.strides[0] for each in results))
            matrix = run.products(charges, results[0])
            if batches * size > sets:
                results = [each[:sets] for each in results]
            potentials, vectors, forces = results if fields else (*results, None, None)
            return potentials, matrix, forces, vectors

    def compute_matrix(self, charges, limit: float = np.inf) -> cupy.ndarray:
        """The matrix of sets of charges alone, shape (K, K), on the device.

        Args:
            charges: as in :meth:`compute`.
            limit: potential of near charges, e per box width, beyond which entries are NaN.
        """
        sets = len(charges)
        if sets > MOST_SETS:
            potentials, matrix, *_ = self.compute(charges, False)
            if limit < np.inf and (abs(potentials) > limit * COULOMB_CONSTANT / self._width).any():
                matrix.fill(np.nan)
            return matrix
        with self._evaluator.on_device():
            charges = contiguous(charges, np.float64)
            run = self._evaluator.for_sets(sets, "matrix")
            run.evaluate(self, "set_charges", np.int32(0), np.int32(sets), charges.data.ptr)
            matrix = cupy.empty((sets, sets))
            run.gather_matrix(matrix.data.ptr, limit)
            return matrix

    def matrix(self, charges, limit):
        return self.compute_matrix(charges, limit).get() * (self._width / COULOMB_CONSTANT)

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
        groups = len(begin) - 1
        size = -(-count // -(-count // MOST_SETS))
        run = self._evaluator.for_sets(size, "potentials")
        potentials = cupy.empty((size, self.count), run.real)
        energies = cupy.empty((-(-count // size) * size, groups))
        arrays = [each.data.ptr for each in (charges, potentials, begin, members)]
        for first in range(0, count, size):
            run.evaluate(self, "set_groups", np.int32(first), charges.data.ptr, group.data.ptr)
            run.gather(potentials.data.ptr)
            if limit < np.inf:
                potentials[abs(potentials) > limit * COULOMB_CONSTANT / self._width] = np.nan
            to = energies.data.ptr + first * energies.strides[0]
            run.sum("sum_groups", (groups, size, 1), *arrays, to)
        return energies[:count]

    def among_groups(self, charges, group, limit):
        return self.energies_among(group, limit).get() * (2.0 * self._width / COULOMB_CONSTANT)

    def operator(self):
        """The Coulomb matrix, for arrays on the device; positions are copied."""
        # imports cuBLAS, which not every machine with CuPy has
        from cupyx.scipy.sparse.linalg import LinearOperator

        kept = copy.copy(self)
        with self._evaluator.on_device():
            kept._refer_to(self.positions.copy())  # the caller's may change

        def product(columns):
            sets = columns.reshape(self.count, -1).T
            return kept.compute(sets, False)[0].astype(np.float64).T.reshape(columns.shape)

        return LinearOperator(
            (self.count, self.count), matvec=product, rmatvec=product, matmat=product,
            dtype=np.float64,
        )  # fmt: skip
