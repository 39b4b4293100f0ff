"""m2m: computes the moments of every level from those of the leaves, with one matrix product for
each of the eight children."""

import numpy as np

from fmm_openmm.expansions.translations import m2m_matrix, to_parent
from fmm_openmm.octree import PARITIES, Octree, children, from_parent


def parent_matrices(boxes: np.ndarray, order: int) -> np.ndarray:
    """Translation matrices between a parent and each of its eight children, shape (8, terms, terms)
    float64, for expansions in units of the widths of their own boxes.

    ``moments @ matrix`` translates a child's moments (boxes, terms) to its parent,
    ``local / 2 @ matrix.T`` a parent's local expansions to its child.
    """
    return np.array([m2m_matrix(shift, order).T * to_parent(order) for shift in from_parent(boxes)])


def m2m(leaves: np.ndarray, octree: Octree, matrices: np.ndarray) -> list[np.ndarray]:
    """Moments (boxes, terms) of every level, the root first; ``matrices`` from
    :func:`parent_matrices`."""
    by_level = [leaves]
    for lattice in octree.lattices[:0:-1]:
        boxes = np.zeros((lattice.size // 8, leaves.shape[1]))
        for parity, matrix in zip(PARITIES, matrices, strict=True):
            boxes += children(by_level[0], lattice.counts, parity).reshape(boxes.shape) @ matrix
        by_level.insert(0, boxes)
    return by_level


def filled_boxes(leaves: np.ndarray, octree: Octree) -> list[np.ndarray]:
    """Whether the boxes of every level hold particles, shape (boxes,) each, the root first;
    ``leaves`` gives this for the leaves."""
    by_level = [leaves]
    for lattice in octree.lattices[:0:-1]:
        by_level.insert(
            0,
            np.any(
                [children(by_level[0], lattice.counts, parity).ravel() for parity in PARITIES],
                axis=0,
            ),
        )
    return by_level
