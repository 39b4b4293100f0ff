"""m2l: moments of a level's boxes to local expansions of those they interact with."""

import numpy as np

from fmm_openmm.box import BoxLattice, index_grid
from fmm_openmm.expansions.translations import Translations
from fmm_openmm.octree import Octree, parities


def m2l(moments: np.ndarray, local: np.ndarray, octree: Octree, lattice: BoxLattice, operator: Translations) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.m2l`; moments and local expansions (boxes, terms)."""
    index, parity, out = index_grid(0, np.diag(lattice.counts)).reshape(-1, 3), parities(lattice), local.copy()
    digits = (1, 1 << 16, 1 << 32)
    lists = [offsets @ digits for offsets in octree.interactions]
    for offset in octree.offsets:
        having = np.array([offset @ digits in known for known in lists])
        targets = np.flatnonzero(having[parity])
        sources = lattice.linear(index[targets] + offset)
        out[targets] += operator.m2l(moments[sources].T, -(offset @ lattice.boxes)).T
    return out
