"""l2l: local expansions of a level to those of the level below; one matrix product for each of the eight children."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.translations import m2m_matrix, to_child
from fmm_openmm.octree import PARITIES, children, from_parent


def l2l(local: np.ndarray, lattice: BoxLattice, order: int) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.l2l`; shape (boxes, terms), ``lattice`` that of the children."""
    out = np.empty((lattice.size, local.shape[1]))
    for parity, shift in zip(PARITIES, from_parent(lattice.boxes), strict=True):
        view = children(out, lattice.counts, parity)
        matrix = to_child(order)[:, None] * m2m_matrix(shift, order)
        view[:] = (local @ matrix).reshape(view.shape)
    return out
