"""What an evaluator computes: the boxes, the expansions, and what is constant of the particles."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.box import BoxLattice


@dataclass(frozen=True, eq=False)
class Specification:
    """One discretisation of one system of charges.

    Attributes:
        lattice: lattice of the boxes that hold the particles, the leaves.
        order: order of the expansions.
        smoothing: half width of the transition regions, box widths.
        charges: shape (n,), e.
        exclusions: excluded pairs, shape (k, 2), each once.
        minimum_image: whether the nearest image of a pair is excluded, instead of the image given
            by the positions.
        dtype: working precision of the stages. The reference backend computes in float64 whatever
            it is.
        levels: levels of boxes below the root grid.
        m2l: operator that translates expansions between boxes of these levels, a name in
            :data:`fmm_openmm.implementations.M2L`.
    """

    lattice: BoxLattice
    order: int
    smoothing: float
    charges: np.ndarray
    exclusions: np.ndarray
    minimum_image: bool
    dtype: np.dtype | type = np.float64
    levels: int = 0
    m2l: str = "rotation"

    def has_expansions_of(self, other: "Specification") -> bool:
        """Whether the two differ at most in their lattices, charges and exclusions."""
        return self._expansions == other._expansions

    @property
    def _expansions(self) -> tuple:
        m2l = self.m2l if self.levels else None
        return self.order, self.smoothing, np.dtype(self.dtype), self.levels, m2l
