"""m2m: moments of the leaves to those of every level above; one matrix product for each of the eight children."""

import numpy as np

from fmm_openmm.expansions.translations import m2m_matrix, to_parent
from fmm_openmm.octree import PARITIES, Octree, children, from_parent


def m2m(leaves: np.ndarray, octree: Octree, order: int) -> list[np.ndarray]:
    """Moments (boxes, terms) of every level, the root first."""
    pyramid = [leaves]
    for lattice in octree.lattices[:0:-1]:
        boxes = np.zeros((lattice.size // 8, leaves.shape[1]))
        for parity, shift in zip(PARITIES, from_parent(lattice.boxes), strict=True):
            matrix = to_parent(order)[:, None] * m2m_matrix(shift, order)
            boxes += children(pyramid[0], lattice.counts, parity).reshape(boxes.shape) @ matrix.T
        pyramid.insert(0, boxes)
    return pyramid


def filled_boxes(leaves: np.ndarray, octree: Octree) -> list[np.ndarray]:
    """Whether boxes hold particles, shape (boxes,) of every level, the root first; ``leaves`` says it of the leaves."""
    pyramid = [leaves]
    for lattice in octree.lattices[:0:-1]:
        pyramid.insert(0, np.any([children(pyramid[0], lattice.counts, parity).ravel() for parity in PARITIES], axis=0))
    return pyramid
