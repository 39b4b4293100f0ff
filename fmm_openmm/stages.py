"""The stages of the FMM that every backend implements, and the data passed between them: arrays, or
on the GPU the names of buffers.

Lengths are in units of the mean box width and charges in e, so that potentials are in e per box
width. :meth:`fmm_openmm.CoulombResult.from_boxes` applies the Coulomb constant; on a GPU the stage
gather does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from fmm_openmm.driver import Array, evaluate, expand
from fmm_openmm.expansions.operators.derivatives import GENERATORS, traceless
from fmm_openmm.specification import Specification

STAGES = ("sort", "p2m", "lattice", "l2p", "p2p", "gather")
"""Names of the stages in order, as they are timed; exclusions are part of p2p."""

SETS_AT_ONCE = 32
"""Groups whose potentials are computed together, which bounds the memory."""

LEVEL_STAGES = ("m2m", "m2l", "l2l")
"""Names of the stages that only levels below the root grid need."""


@dataclass
class Parts(Generic[Array]):
    """Split charges, sorted by box: with smoothing the parts of the particles, else the particles.

    A particle within ``smoothing`` box widths of a face belongs to the boxes on both sides, with
    weights that sum to 1. It contributes a part of charge ``q * weight`` to each of up to eight
    boxes.

    Attributes, for m parts in b boxes:
        particle: index of the particle, shape (m,), integer.
        x: position relative to the centre of the part's box, shape (m, 3), box widths.
        charge: charge of the part, shape (m,), e.
        weight: share of the particle in this box, shape (m,).
        slope: gradient of ``weight`` with respect to the particle's position, shape (m, 3), per
            box width.
        box: index vector of the part's box, not wrapped into the cell, shape (m, 3), int64.
        start: parts of box i, in the memory order of :meth:`BoxLattice.linear`, are
            ``start[i]:start[i + 1]``; shape (b + 1,).
    """

    particle: Array
    x: Array
    charge: Array
    weight: Array
    slope: Array
    box: Array
    start: Array


@dataclass
class Accumulator:
    """Potentials, shape (m,), e per box width, and fields, shape (m, 3), e per square box width, at
    the parts."""

    potentials: np.ndarray
    fields: np.ndarray


@dataclass
class Moments:
    """Moments of the boxes.

    Attributes:
        boxes: multipole moments, shape (boxes, terms).
        charge, dipole, square: the sums of ``q``, ``q x`` and, axis by axis, ``q x^2`` over all
            parts, float64; dipole and square have shape (3,).
    """

    boxes: np.ndarray
    charge: float
    dipole: np.ndarray
    square: np.ndarray


@dataclass
class NearExclusions(Generic[Array]):
    """The parts that p2p leaves out for each part: itself, other parts of the same particle, and
    parts of excluded partners.

    Attributes:
        start: entries of part i are ``start[i]:start[i + 1]``, shape (m + 1,).
        part: index of the part that is left out, shape (k,).
        offset: row of ``lattice.near``, the offset of its box from the box of part i, shape (k,).
    """

    start: Array
    part: Array
    offset: Array


def no_exclusions(parts: Parts) -> NearExclusions:
    """The exclusions of parts from which p2p leaves out nothing."""
    return NearExclusions(np.zeros(len(parts.x) + 1, np.int64), *np.zeros((2, 0), np.int64))


class ChargeSets(ABC):
    """Particles at fixed positions, whose charges vary.

    Attributes:
        count: number of particles.
    """

    count: int

    @abstractmethod
    def evaluate(self, charges: np.ndarray, fields: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Potentials, shape (sets, n), e per box width, and, on request, fields, shape
        (sets, n, 3), e per square box width, for charges of shape (sets, n), float64, e."""

    def matrix(self, charges: np.ndarray, limit: float) -> np.ndarray:
        """Sums ``sum_i q_s,i phi_t,i``, shape (sets, sets), symmetric, e^2 per box width; charges
        as in :meth:`evaluate`, ``limit`` as in :meth:`among_groups`. NaN marks undefined entries,
        also where a particle of no charge has an undefined potential."""
        potentials, _ = self.evaluate(charges, False)
        potentials[~(np.abs(potentials) <= limit)] = np.nan
        matrix = charges @ potentials.T
        return 0.5 * (matrix + matrix.T)

    def among_groups(self, charges: np.ndarray, group: np.ndarray, limit: float) -> np.ndarray:
        """Sums ``sum_{i in A} q_i phi_B(x_i)`` of groups A and B, shape (G, G), symmetric, e^2 per
        box width.

        Args:
            charges: shape (n,), e.
            group: group of each particle, shape (n,) int64.
            limit: potential, e per box width, that only charges at the same place have. NaN marks
                groups with such charges.
        """
        rows, groups = [], 1 + group.max()
        for first in range(0, groups, SETS_AT_ONCE):
            numbers = np.arange(first, min(first + SETS_AT_ONCE, groups))
            sets = np.where(group == numbers[:, None], charges, 0.0)
            potentials, _ = self.evaluate(sets, False)
            potentials[~(np.abs(potentials) <= limit)] = np.nan
            potentials[:, charges == 0.0] = 0.0  # which may be where a charge is
            rows += [np.bincount(group, charges * row, groups) for row in potentials]
        matrix = np.array(rows)
        return 0.5 * (matrix + matrix.T)

    @abstractmethod
    def evaluate_at(self, charges: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials, shape (sets, m), and fields, shape (sets, m, 3), at points, shape (m, 3), nm,
        that are not particles; units and charges as in :meth:`evaluate`."""

    @abstractmethod
    def work(self, charges: np.ndarray) -> np.ndarray:
        """The traceless part of the virial of each set, shape (sets, 3, 3), e^2 per box width."""


class Evaluator(ABC):
    """Potentials and fields of a specification, as a backend computes them.

    Args:
        specification: what is computed.

    Attributes:
        specification: what the evaluator was made for.
        lattice: the boxes.
        charges: the charges in use, shape (n,), e.
    """

    def __init__(self, specification: Specification):
        self.specification = specification
        self.lattice, self.charges = specification.lattice, specification.charges

    @classmethod
    def device(cls) -> str | None:
        """Model of the device that a new evaluator would use; None for the host."""
        return None

    def set_charges(self, charges: np.ndarray) -> None:
        """Replace the charges of the particles, shape (n,) float64."""
        self.charges = charges

    def adopt(self, specification: Specification) -> bool:
        """Change to another shape of the same boxes, with the same charges and exclusions, if that
        is cheaper than a new evaluator.

        Returns:
            whether the shape was adopted; if not, nothing has changed.
        """
        return False

    @abstractmethod
    def evaluate(self, positions: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
        """Run all stages: see :func:`fmm_openmm.driver.evaluate`."""

    def charge_sets(self, positions: np.ndarray, width: float) -> ChargeSets:
        """The particles at these positions, see :meth:`evaluate`, ready for any charges."""
        return RepeatedEvaluation(self, positions, width)


class RepeatedEvaluation(ChargeSets):
    """Charge sets evaluated one after the other, each from the beginning."""

    def __init__(self, evaluator: Any, positions: np.ndarray, width: float):
        self._evaluator, self._positions, self._width = evaluator, positions, width
        self.count = len(positions)

    def _each(self, charges: np.ndarray, evaluate: Callable[[], tuple]) -> tuple[np.ndarray, ...]:
        """What ``evaluate`` returns for each set, stacked."""
        evaluator, found = self._evaluator, []
        before = evaluator.charges
        try:
            for each in charges:
                evaluator.set_charges(each)
                found.append(evaluate())
        finally:
            evaluator.set_charges(before)
        return tuple(map(np.array, zip(*found, strict=True)))

    def evaluate(self, charges, fields):
        potentials, vectors = self._each(
            charges, lambda: self._evaluator.evaluate(self._positions, self._width)
        )
        return potentials, vectors if fields else None

    def evaluate_at(self, charges, points):
        return self._each(
            charges, lambda: self._evaluator.evaluate_at(self._positions, points, self._width)
        )

    def work(self, charges):
        return self._each(
            charges, lambda: self._evaluator.evaluate_with_virial(self._positions, self._width)
        )[2]


class Stages(ABC):
    """The stages of a backend. ``driver.py`` calls them in order.

    Attributes:
        has_far_field: whether any box is not near to another, or has images; else there are no
            expansions.
    """

    has_far_field = True

    def nothing(self, parts: Parts) -> Accumulator:
        """Zeros at the parts, which take the place of a far field."""
        m = len(parts.x)
        return Accumulator(np.zeros(m), np.zeros((m, 3)))

    @abstractmethod
    def sort(self, positions: np.ndarray, width: float) -> Parts:
        """Split particles into parts and sort the parts by box.

        Args:
            positions: shape (n, 3), float64, nm.
            width: mean box width, nm.
        """

    @abstractmethod
    def p2m(self, parts: Parts) -> Moments:
        """``M_a = sum q R_a(x)`` over the parts of each box. Overwrites the moments."""

    def m2m(self, targets: Parts, moments: Moments) -> list[Moments]:
        """Moments of all levels, from the root grid to the leaves, whose moments are ``moments``.

        The moments of a level are in units of its box width; the sums over all parts are those of
        the leaves. Overwrites the moments of the other levels. The stages that follow may leave out
        the local expansions of boxes that hold no ``targets``."""
        return [moments]

    @abstractmethod
    def lattice_m2l(self, moments: Moments) -> np.ndarray:
        """Local expansions of the root grid's boxes, shape (boxes, terms): the convolution of the
        moments with the lattice operator.

        Overwrites the local expansions."""

    def l2l(self, local: np.ndarray, level: int) -> np.ndarray:
        """Local expansions of a level from those of the level above, each in units of its own box
        width. Overwrites the local expansions of the level."""
        raise NotImplementedError("l2l needs levels below the root grid")

    def m2l(self, moments: Moments, local: np.ndarray, level: int) -> np.ndarray:
        """``local`` of a level plus the contributions of its interactions
        (:attr:`fmm_openmm.octree.Octree.interactions`) and, at the leaves, of
        :func:`fmm_openmm.expansions.background.leaf_terms`."""
        raise NotImplementedError("m2l needs levels below the root grid")

    @abstractmethod
    def l2p(self, parts: Parts, moments: Moments, local: np.ndarray) -> Accumulator:
        """Far potentials and fields at the parts, the background term included. Overwrites the
        accumulator.

        The lattice sum is not harmonic: the neutralising background gives it the Laplacian
        4 pi / V, which no solid harmonic represents. It is added as the polynomial of
        :func:`fmm_openmm.expansions.background.polynomial`.
        """

    @abstractmethod
    def exclusions(
        self, parts: Parts, out: Accumulator, moment: np.ndarray | None = None
    ) -> NearExclusions:
        """Subtract from ``out`` the excluded pairs whose boxes are not near. Return the pairs whose
        boxes are near, for p2p to leave out.

        ``moment``, shape (3, 3), is changed in the same way if it is given: by ``n_a f_b``, with n
        the displacement of the source's box from the part's and f the force on the part."""

    @abstractmethod
    def p2p(
        self,
        parts: Parts,
        near: NearExclusions,
        out: Accumulator,
        moment: np.ndarray | None = None,
        sources: Parts | None = None,
    ) -> None:
        """Add to ``out``, and to ``moment`` as in :meth:`exclusions`, the direct interactions of
        each part with the parts in its near stencil, except those in ``near``. With ``sources`` the
        parts in the near stencil are those of ``sources``."""

    @abstractmethod
    def gather(self, parts: Parts, out: Accumulator) -> tuple[np.ndarray, np.ndarray]:
        """Potentials and fields of the particles, sums over their parts c.

        The potential is ``sum_c w_c Phi_c``, shape (n,), e per box width; the field
        ``sum_c (w_c E_c - grad(w_c) Phi_c)``, shape (n, 3), e per square box width; float64."""


class HostStages(Stages, Evaluator):
    """Stages that compute when they are called."""

    def evaluate(self, positions, width):
        return evaluate(self, positions, width)

    def evaluate_with_virial(
        self, positions: np.ndarray, width: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Potentials and fields, see :meth:`evaluate`, and the traceless part of the virial, shape
        (3, 3), square charges per box width.

        With the boxes and the weights of all parts fixed relative to the cell, the energy changes
        by the work of the forces on the parts within their boxes; in the far field also by half the
        quadratic form of the moments with the change of the lattice operator; and in the near field
        by the work of the forces between pairs along the displacement of their boxes. The trace is
        the energy, as in every homogeneous energy of degree -1.
        """
        parts = self.sort(positions, width)
        moments = self.p2m(parts)
        out = self.l2p(parts, moments, expand(self, parts, moments))
        between = np.zeros((3, 3))
        near = self.exclusions(parts, out, between)
        self.p2p(parts, near, out, between)
        charge, x = (array.astype(np.float64) for array in (parts.charge, parts.x))
        forces = charge[:, None] * out.fields
        forces[charge == 0.0] = 0.0  # which coinciding particles leave undefined
        work = (GENERATORS * (x.T @ forces - 0.5 * between)).sum((1, 2))
        work -= self.lattice_work(moments)
        return *self.gather(parts, out), traceless(work)

    @abstractmethod
    def lattice_work(self, moments: Moments) -> np.ndarray:
        """``sum(M * dL / dA) / 2`` over the boxes for each of the
        :data:`fmm_openmm.expansions.operators.derivatives.GENERATORS` A, shape (5,), with M the
        moments of the boxes and L their local expansions, by the lattice operator's change alone.
        There must be no levels below the root grid."""

    @abstractmethod
    def sort_points(self, points: np.ndarray, width: float) -> Parts:
        """:meth:`sort` for points without charge, shape (m, 3), nm."""

    def evaluate_at(
        self, positions: np.ndarray, points: np.ndarray, width: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) and fields (m, 3) at points (m, 3), nm, that are not particles, in the
        units of :meth:`evaluate`."""
        parts = self.sort(positions, width)
        moments = self.p2m(parts)
        targets = self.sort_points(points, width)
        out = self.l2p(targets, moments, expand(self, targets, moments))
        self.p2p(targets, no_exclusions(targets), out, sources=parts)
        return self.gather(targets, out)


class OpenSum(ABC):
    """Potentials and fields in free space without boxes: each particle interacts with all others
    except its excluded partners.

    Args:
        charges: shape (n,), e.
        pairs: excluded pairs, shape (k, 2).
        dtype: type of the arithmetic; differences of positions and sums over many particles have
            the accuracy of float64.
        order: order of the cells' moments; only for a treecode.
        theta: opening ratio, only for a treecode: the moments of a cell are used for a leaf if
            the corners of the cell are at most ``theta`` times as far from its centre as any
            particle of the leaf.

    Attributes:
        charges: the charges, on the device of the method.
    """

    @abstractmethod
    def set_charges(self, charges) -> None:
        """Replace the charges, shape (n,), e."""

    @abstractmethod
    def evaluate(self, positions):
        """Potentials, shape (n,), e/nm, and fields, shape (n, 3), e/nm^2, float64, for positions of
        shape (n, 3), nm; on the device of the method.
        """
