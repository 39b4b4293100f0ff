"""m2l: adds the contributions of the interaction lists of a level to its local expansions."""

import numpy as np

from fmm_openmm.box import BoxLattice, index_grid
from fmm_openmm.expansions.translations import Translations
from fmm_openmm.octree import Octree, parities


def m2l(
    moments: np.ndarray,
    local: np.ndarray,
    octree: Octree,
    lattice: BoxLattice,
    operator: Translations,
) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.m2l`; moments and local expansions (boxes, terms)."""
    index, parity, out = (
        index_grid(0, np.diag(lattice.counts)).reshape(-1, 3),
        parities(lattice),
        local.copy(),
    )
    offsets, rows = octree.offsets
    has_offset = np.array([np.isin(np.arange(len(offsets)), own) for own in rows])
    for has_it, offset in zip(has_offset.T, offsets, strict=True):
        targets = np.flatnonzero(has_it[parity])
        sources = lattice.linear(index[targets] + offset)
        out[targets] += operator.m2l(moments[sources].T, -(offset @ lattice.boxes)).T
    return out
