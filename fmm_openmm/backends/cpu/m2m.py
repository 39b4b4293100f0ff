"""m2m: moments of the leaves to those of every level above; one matrix product for each of the
eight children."""

import numpy as np

from fmm_openmm.expansions.translations import m2m_matrix, to_parent
from fmm_openmm.octree import PARITIES, Octree, children, from_parent


def parent_matrices(boxes: np.ndarray, order: int) -> np.ndarray:
    """From the moments (boxes, terms) of each of the eight children to its parent's:
    ``moments @ matrix``, shape (8, terms, terms) float64. From a parent's local expansions to each
    child's: ``local / 2 @ matrix.T``. In widths of their own boxes."""
    return np.array([m2m_matrix(shift, order).T * to_parent(order) for shift in from_parent(boxes)])


def m2m(leaves: np.ndarray, octree: Octree, matrices: np.ndarray) -> list[np.ndarray]:
    """Moments (boxes, terms) of every level, the root first; ``matrices`` from
    :func:`parent_matrices`."""
    pyramid = [leaves]
    for lattice in octree.lattices[:0:-1]:
        boxes = np.zeros((lattice.size // 8, leaves.shape[1]))
        for parity, matrix in zip(PARITIES, matrices, strict=True):
            boxes += children(pyramid[0], lattice.counts, parity).reshape(boxes.shape) @ matrix
        pyramid.insert(0, boxes)
    return pyramid


def filled_boxes(leaves: np.ndarray, octree: Octree) -> list[np.ndarray]:
    """Whether boxes hold particles, shape (boxes,) of every level, the root first; ``leaves``
    says it of the leaves."""
    pyramid = [leaves]
    for lattice in octree.lattices[:0:-1]:
        pyramid.insert(
            0,
            np.any(
                [children(pyramid[0], lattice.counts, parity).ravel() for parity in PARITIES],
                axis=0,
            ),
        )
    return pyramid
