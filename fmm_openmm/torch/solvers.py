"""Solvers that are kept from one evaluation to the next, by what they were made for."""

import threading
from typing import NamedTuple

import numpy as np

from fmm_openmm.box import MAX_STRAIN, SAME_SHAPE, strain
from fmm_openmm.solver import CoulombSolver

MAX_SOLVERS = 16
"""Solvers that are kept; the one that was used least recently is discarded first."""


class Configuration(NamedTuple):
    """The options of an evaluation that a solver is made for.

    Attributes:
        particles: number of particles.
        tolerance, boundary, precision, exclusions_periodic: as in
            :class:`fmm_openmm.CoulombSolver`.
        backend: "cpu" or "cuda".
        device: number of the GPU; 0 for the backend "cpu".
    """

    particles: int
    tolerance: float
    boundary: str
    precision: str
    exclusions_periodic: bool
    backend: str
    device: int = 0


class KeptSolver:
    """A solver and the arguments that it was made for.

    Attributes:
        lock: held while the solver is in use.
        evaluations: number of evaluations so far.
    """

    def __init__(
        self,
        configuration: Configuration,
        charges: np.ndarray,
        cell: np.ndarray | None,
        exclusions: np.ndarray | None,
        positions: np.ndarray,
    ):
        self.configuration, self.cell = configuration, cell
        if exclusions is not None and exclusions.flags.writeable:
            exclusions = exclusions.copy()
        self.exclusions = exclusions
        self._other: np.ndarray | None = None  # the cell compared last, and its strain
        self._strain = 0.0
        self.lock = threading.Lock()
        self.evaluations = 0
        self.solver = CoulombSolver(
            charges,
            cell,
            self.exclusions,
            tolerance=configuration.tolerance,
            boundary=configuration.boundary,
            precision=configuration.precision,
            backend=configuration.backend,
            exclusions_periodic=configuration.exclusions_periodic,
            positions=positions,
        )

    def distance(
        self, configuration: Configuration, cell: np.ndarray | None, exclusions: np.ndarray | None
    ) -> float:
        """The largest strain, up to a uniform scaling, between the cell of the solver and another
        one; infinite if the solver does not serve the other arguments."""
        if configuration != self.configuration or not self._excludes(exclusions):
            return np.inf
        if cell is None or self.cell is None or cell is self.cell:
            return 0.0
        if cell is not self._other:
            self._other, self._strain = cell, float(np.abs(strain(self.cell, cell)).max())
        return self._strain

    def _excludes(self, pairs: np.ndarray | None) -> bool:
        """Whether these are the exclusions of the solver."""
        own = self.exclusions
        if own is pairs:  # read-only arrays are kept as they are
            return True
        if own is None or pairs is None or not np.array_equal(own, pairs):
            return False
        if not pairs.flags.writeable:
            self.exclusions = pairs
        return True


_kept: list[KeptSolver] = []  # the most recently used first
_lock = threading.Lock()


def _find(configuration, cell, exclusions) -> KeptSolver | None:
    """The kept solver whose cell is closest in shape, moved to the front of the list."""
    best, least = None, MAX_STRAIN
    for entry in _kept:
        distance = entry.distance(configuration, cell, exclusions)
        if distance <= least:
            best, least = entry, distance
        if least <= SAME_SHAPE:
            break
    if best is not None and best is not _kept[0]:
        _kept.remove(best)
        _kept.insert(0, best)
    return best


def find_solver(
    configuration: Configuration, cell: np.ndarray | None, exclusions: np.ndarray | None, example
) -> KeptSolver:
    """A solver for these arguments, whose charges may be others; its ``lock`` is held by whoever
    uses it.

    Args:
        cell: in reduced form, shape (3, 3), nm, which must never change; None with an open
            boundary.
        exclusions: shape (m, 2), or None; a read-only array must never change.
        example: called without arguments if a new solver must be made; returns charges (n,), e,
            and positions (n, 3), nm, on the host.

    Raises:
        ValueError, TypeError, UnsupportedError: as :class:`fmm_openmm.CoulombSolver`.
    """
    with _lock:
        entry = _find(configuration, cell, exclusions)
        if entry is None:
            charges, positions = example()
            entry = KeptSolver(configuration, charges, cell, exclusions, positions)
            _kept.insert(0, entry)
            del _kept[MAX_SOLVERS:]
    return entry


def clear_solvers() -> None:
    """Discard the solvers kept by :mod:`fmm_openmm.torch`, and with them their memory on host and
    device."""
    with _lock:
        _kept.clear()
