"""Many sets of charges at the same positions."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.checks import check_charge_sets, check_numbers, check_sets_shape
from fmm_openmm.results import ChargeSetsResult
from fmm_openmm.stages import ChargeSets
from fmm_openmm.units import COULOMB_CONSTANT

EVALUATION = threading.Lock()
"""Serialises evaluations: each uses all cores, and not every threading layer of Numba is
thread-safe."""


class CoulombMatrix:
    """The Coulomb matrix of particles at fixed positions, on the host.

    Args:
        particles: the particles, at their positions.
        origin: that of the particles' coordinates, shape (3,), nm.
        width: mean box width, nm.
        max_potential: potential of particles at the same place, in units of the largest charge per
            box width.
        refuse: called with the number of a charged particle that has a potential beyond that.
    """

    def __init__(
        self,
        particles: ChargeSets,
        origin: ArrayLike,
        width: float,
        max_potential: float,
        refuse: Callable[[int], None],
    ):
        self._particles, self._refuse = particles, refuse
        self._origin, self._units = np.asarray(origin), (width, max_potential)

    def evaluate(
        self, charges, fields: bool, points: np.ndarray | None = None, virial: bool = False
    ) -> ChargeSetsResult:
        """The result for sets of charges, shape (K, n), e, on the host or a device; also at points,
        shape (m, 3), nm, and with the virial of each set."""
        charges, particles = (
            check_charge_sets(to_host(charges), self._particles.count),
            self._particles,
        )
        with EVALUATION:
            result = ChargeSetsResult.from_boxes(
                charges, *particles.evaluate(charges, fields), *self._units
            )
            if points is not None:
                at_points = particles.evaluate_at(charges, points - self._origin)
                result = result.with_points(at_points, charges, *self._units)
            if virial:
                result = result.with_virials(particles.work(charges), self._units[0])
        charged = (charges != 0.0).any(0)
        potentials: Any = result.potentials
        bad = np.flatnonzero(np.isnan(potentials).any(0) & charged)
        if len(bad):
            self._refuse(int(bad[0]))
        return result

    def energies(self, charges) -> ChargeSetsResult:
        """The matrix of sets of charges, as in :meth:`evaluate`, alone."""
        charges = check_charge_sets(to_host(charges), self._particles.count)
        width, max_potential = self._units
        with EVALUATION:
            matrix = self._particles.matrix(charges, max_potential * float(np.abs(charges).max()))
        if np.isnan(matrix).any():  # refuses charges that coincide, if they are not zero
            return replace(self.evaluate(charges, False), potentials=None)
        return ChargeSetsResult(None, COULOMB_CONSTANT / width * matrix)

    def among_groups(self, charges: np.ndarray, group: np.ndarray) -> np.ndarray:
        """See :meth:`fmm_openmm.CoulombSolver.interaction_energies`; the charges are those of the
        solver."""
        width, max_potential = self._units
        limit = max_potential * float(np.abs(charges).max())
        with EVALUATION:
            matrix = self._particles.among_groups(charges, group, limit)
        if np.isnan(matrix).any():
            self.evaluate(charges[None], False)  # refuses charges that coincide, and names them
        return 0.5 * COULOMB_CONSTANT / width * matrix

    def operator(self) -> "scipy.sparse.linalg.LinearOperator":
        """See :meth:`fmm_openmm.CoulombSolver.coulomb_operator`."""

        def product(columns):
            sets = check_numbers(columns, "elementary_charge", "charges").reshape(n, -1).T
            exponents = np.frexp(np.abs(sets).max(1))[1][:, None]
            scaled = np.ldexp(sets, -exponents)  # a vector of any length, as in iterative solvers
            potentials: Any = self.evaluate(scaled, False).potentials
            return np.ldexp(potentials, exponents).T.reshape(np.shape(columns))

        n = self._particles.count
        return scipy.sparse.linalg.LinearOperator(
            (n, n), matvec=product, rmatvec=product, matmat=product, dtype=np.float64
        )


class DeviceCoulombMatrix:
    """The Coulomb matrix of particles at fixed positions, on a GPU: the methods of
    :class:`CoulombMatrix` with results on the device, where NaN marks what is undefined.

    Args:
        particles: the particles, at their positions: a
            :class:`fmm_openmm.backends.cuda.charge_sets.CudaChargeSets`.
    """

    def __init__(self, particles: Any):
        self._particles = particles

    def evaluate(self, charges, fields: bool) -> ChargeSetsResult:
        """The result for sets of charges, shape (K, n), e, on the host or the device."""
        charges = self._checked(charges)
        with EVALUATION:
            return ChargeSetsResult(*self._particles.compute(charges, fields))

    def energies(self, charges) -> ChargeSetsResult:
        """See :class:`CoulombMatrix`."""
        charges = self._checked(charges)
        with EVALUATION:
            return ChargeSetsResult(None, self._particles.compute_matrix(charges))

    def _checked(self, charges) -> Any:
        if not is_on_device(charges):
            return check_charge_sets(charges, self._particles.count)
        check_sets_shape(charges.shape, self._particles.count)
        return charges

    def among_groups(self, charges: np.ndarray, group: np.ndarray):
        """See :class:`CoulombMatrix`."""
        with EVALUATION:
            return self._particles.energies_among(group)

    def operator(self):
        """The operator of CuPy that takes arrays on the device."""
        return self._particles.operator()
