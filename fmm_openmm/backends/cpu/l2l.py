"""l2l: translates the local expansions of a level to the level below, with one matrix product for
each of the eight children."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.octree import PARITIES, children


def l2l(local: np.ndarray, lattice: BoxLattice, matrices: np.ndarray) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.l2l`. Expansions have shape (boxes, terms); ``lattice``
    is that of the children, ``matrices`` are those of
    :func:`fmm_openmm.backends.cpu.m2m.parent_matrices`."""
    out, half = np.empty((lattice.size, local.shape[1])), 0.5 * local
    for parity, matrix in zip(PARITIES, matrices, strict=True):
        view = children(out, lattice.counts, parity)
        view[:] = (half @ matrix.T).reshape(view.shape)
    return out
