"""Many sets of charges at the same positions."""

import threading
from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import LinearOperator

from fmm_openmm.checks import check_charge_sets
from fmm_openmm.results import ChargeSetsResult
from fmm_openmm.stages import ChargeSets

EVALUATION = threading.Lock()
"""Serialises evaluations: each uses all cores, and not every threading layer of Numba is
thread-safe."""

SETS_AT_ONCE = 32
"""Groups whose potentials are computed together, which bounds the memory."""


class CoulombMatrix:
    """The Coulomb matrix of particles at fixed positions.

    Args:
        particles: the particles, at their positions.
        width: mean box width, nm.
        max_potential: potential of particles at the same place, in units of the largest charge per
            box width.
        refuse: called with the number of a charged particle that has a potential beyond that.
    """

    def __init__(
        self,
        particles: ChargeSets,
        width: float,
        max_potential: float,
        refuse: Callable[[int], None],
    ):
        self._particles, self._refuse = particles, refuse
        self._units = width, max_potential

    def evaluate(self, charges: np.ndarray, fields: bool) -> ChargeSetsResult:
        """The result for sets of charges, shape (K, n), e."""
        with EVALUATION:
            found = self._particles.evaluate(charges, fields)
        result = ChargeSetsResult.from_boxes(charges, *found, *self._units)
        charged = (charges != 0.0).any(0)
        bad = np.flatnonzero(np.isnan(result.potentials).any(0) & charged)
        if len(bad):
            self._refuse(int(bad[0]))
        return result

    def among_groups(self, charges: np.ndarray, group: np.ndarray) -> np.ndarray:
        """See :meth:`fmm_openmm.CoulombSolver.interaction_energies`."""
        rows, groups = [], 1 + group.max()
        for first in range(0, groups, SETS_AT_ONCE):
            numbers = np.arange(first, min(first + SETS_AT_ONCE, groups))
            sets = np.where(group == numbers[:, None], charges, 0.0)
            potentials = np.nan_to_num(self.evaluate(sets, False).potentials)
            rows += [np.bincount(group, charges * row, groups) for row in potentials]
        matrix = np.array(rows)
        return 0.25 * (matrix + matrix.T)

    def operator(self) -> LinearOperator:
        """See :meth:`fmm_openmm.CoulombSolver.coulomb_operator`."""

        def product(columns):
            n = len(columns)
            sets = check_charge_sets(np.reshape(columns, (n, -1)).T, n)
            return self.evaluate(sets, False).potentials.T.reshape(np.shape(columns))

        n = self._particles.count
        return LinearOperator(
            (n, n), matvec=product, rmatvec=product, matmat=product, dtype=np.float64
        )
