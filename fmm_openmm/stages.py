"""The contract of the FMM's stages: what every backend implements, and the data that flow between
them.

Lengths are in units of the mean box width and charges in e, so potentials come out in e per box
width; the Coulomb constant enters once, in :class:`fmm_openmm.solver.CoulombSolver`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.driver import evaluate

STAGES = ("sort", "p2m", "lattice", "l2p", "p2p", "gather")
"""The stages in order, as they are timed; exclusions are part of p2p."""

LEVEL_STAGES = ("m2m", "m2l", "l2l")
"""Those that only levels below the root grid need."""


@dataclass
class Parts:
    """The charges the stages work on, sorted by box: particles, or with smoothing the parts of
    particles.

    Within ``smoothing`` box widths of a face a particle belongs to both boxes, with weights that
    sum to 1; it then contributes one part, of charge ``q * weight``, to each of up to eight boxes.

    Attributes (m parts, b boxes): particle: index of the particle, shape (m,) integer. x: position
        relative to the centre of the part's box, shape (m, 3), box widths. charge: charge of the
        part, shape (m,), e. weight: share of the particle in this box, shape (m,). slope: gradient
        of ``weight`` with respect to the particle's position, shape (m, 3), per box width. box:
        index vector of the part's box, not wrapped into the cell, shape (m, 3) int64. start: parts
        of box i (memory order of :meth:`BoxLattice.linear`) are ``start[i]:start[i + 1]``, shape (b
        + 1,).
    """

    particle: np.ndarray
    x: np.ndarray
    charge: np.ndarray
    weight: np.ndarray
    slope: np.ndarray
    box: np.ndarray
    start: np.ndarray


@dataclass
class Accumulator:
    """Potentials (m,) in e per box width and fields (m, 3) in e per square box
    width at the parts."""

    potentials: np.ndarray
    fields: np.ndarray


@dataclass
class Moments:
    """Moments of every box, shape (boxes, terms), and the sums ``q``, ``q x``, ``q |x|^2`` over
    all parts in float64."""

    boxes: np.ndarray
    charge: float
    dipole: np.ndarray
    square: float


@dataclass
class NearExclusions:
    """For every part the parts that p2p leaves out: itself, parts of the same particle, parts of
    excluded partners.

    Attributes:
        start: entries of part i are ``start[i]:start[i + 1]``, shape (m + 1,).
        part: index of the part left out, shape (k,).
        offset: row of ``lattice.near`` by which its box lies from the box of part i, shape (k,).
    """

    start: np.ndarray
    part: np.ndarray
    offset: np.ndarray


class Stages(ABC):
    """One backend's stages for fixed charges, exclusions and box lattice.

    The order of calls is in ``driver.py``.
    """

    lattice: BoxLattice

    @classmethod
    def device(cls) -> str | None:
        """The model of the device that new stages would compute on; None for the host."""
        return None

    @abstractmethod
    def set_charges(self, charges: np.ndarray) -> None:
        """Replace the charges of the particles, shape (n,) float64."""

    def adopt(self, lattice: BoxLattice, order: int, smoothing: float, dtype) -> bool:
        """Go on with another shape of the same boxes, where that is cheaper than new stages with
        these arguments.

        Returns:
            whether it was done; if not, nothing has changed.
        """
        return False

    def evaluate(self, positions: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
        """All stages in order: :func:`fmm_openmm.driver.evaluate`."""
        return evaluate(self, positions, width)

    @abstractmethod
    def sort(self, positions: np.ndarray, width: float) -> Parts:
        """Split particles into parts and sort these by box.

        ``positions`` (n, 3) float64 nm, ``width`` of a box in nm.
        """

    @abstractmethod
    def p2m(self, parts: Parts) -> Moments:
        """``M_a = sum q R_a(x)`` over the parts of each box. Overwrites the moments."""

    def m2m(self, parts: Parts, moments: Moments) -> list[Moments]:
        """Moments of every level, of the root grid first, those of the leaves last: ``moments``
        themselves.

        Each level's are in widths of its own boxes; the sums over all parts are those of the
        leaves. Overwrites."""
        return [moments]

    @abstractmethod
    def lattice_m2l(self, moments: Moments) -> np.ndarray:
        """Local expansions of the root grid's boxes, shape (boxes, terms): the convolution of the
        moments with the lattice operator.

        Overwrites the local expansions."""

    def l2l(self, local: np.ndarray, level: int) -> np.ndarray:
        """Local expansions of a level's boxes from those of the level above, each in its own box
        widths. Overwrites."""
        raise NotImplementedError("a single level")

    def m2l(self, moments: Moments, local: np.ndarray, level: int) -> np.ndarray:
        """``local`` of a level with what its interactions
        (:attr:`fmm_openmm.octree.Octree.interactions`) add; at the leaves also with
        :func:`fmm_openmm.backends.trace.trace_shift`."""
        raise NotImplementedError("a single level")

    @abstractmethod
    def l2p(self, parts: Parts, moments: Moments, local: np.ndarray) -> Accumulator:
        """Far potentials and fields at the parts, the trace term included.

        Overwrites the accumulator.

        The lattice sum is not harmonic: its Laplacian is 4 pi / V, that of the background, which no
        solid harmonic carries. With Q, D, S = sum q, q x, q |x|^2 over all parts, x relative to the
        box centres,

            Phi += 2 pi / (3 V) (Q |x|^2 - 2 x.D + S)

        with 1 / V the lattice's ``background``, 0 in empty space.
        """

    @abstractmethod
    def exclusions(self, parts: Parts, out: Accumulator) -> NearExclusions:
        """Subtract from ``out`` the excluded pairs whose boxes are not near; return those that
        are, for p2p to leave out."""

    @abstractmethod
    def p2p(self, parts: Parts, near: NearExclusions, out: Accumulator) -> None:
        """Add to ``out`` the direct interactions of each part with the parts of its near
        stencil, less ``near``."""

    @abstractmethod
    def gather(self, parts: Parts, out: Accumulator) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (n,) and fields (n, 3) of the particles: ``sum_c w_c Phi_c`` and
        ``sum_c (w_c E_c - grad(w_c) Phi_c)``.

        Float64, e per box width and per its square."""


class OpenSum(ABC):
    """Empty space without boxes: potentials and fields of every particle from all others but its
    excluded partners.

    Args:
        charges: shape (n,), e.
        pairs: excluded pairs, shape (k, 2).
        dtype: of the arithmetic; differences of positions, and sums over many particles, keep
            float64's accuracy.

    A treecode has two more: order: of the cells' moments. theta: a cell's moments are used where
        its corners are at most ``theta`` times as far from its centre as any particle of the leaf
        they are used for.

    Attributes:
        charges: as given, on the device of the method.
    """

    @abstractmethod
    def set_charges(self, charges) -> None:
        """Replace the charges, shape (n,), e."""

    @abstractmethod
    def evaluate(self, positions):
        """Potentials (n,), e/nm, and fields (n, 3), e/nm^2, float64, of positions (n, 3), nm.

        On a GPU they stay there.
        """
