"""l2l: translates the local expansions of a level to the level below."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.translations import Translations, to_child
from fmm_openmm.octree import PARITIES, children, from_parent


def l2l(local: np.ndarray, lattice: BoxLattice, order: int, operator: Translations) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.l2l`; ``lattice`` is that of the children."""
    out = np.empty((lattice.size, local.shape[1]))
    parents = (local * to_child(order)).T
    for parity, shift in zip(PARITIES, from_parent(lattice.boxes), strict=True):
        view = children(out, lattice.counts, parity)
        view[:] = operator.l2l(parents, shift).T.reshape(view.shape)
    return out
