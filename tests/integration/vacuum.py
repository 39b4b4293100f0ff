"""Slabs and wires: the particles of a box with vacuum along vectors without images."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fmm_openmm.boundary import Boundary
from tests.integration.boxes import Box, charges_and_pairs


def in_vacuum(box: Box, name: str) -> Box:
    """The particles in a box with 1.2 nm of vacuum along every vector without images."""
    free, vectors = np.array(Boundary.from_name(name).free), box.cell
    box.nonbonded.setUseDispersionCorrection(False)
    if name != "slab":
        vectors = np.diag(np.diag(vectors))  # with particles within these
        box.positions = _whole_within(box, vectors)
    lengths = np.where(free, np.ptp(box.positions @ np.linalg.inv(vectors), axis=0), 1.0)
    heights = 1.0 / np.linalg.norm(np.linalg.inv(vectors), axis=0)
    lengths += np.where(free, 1.2 / heights, 0.0)
    box.system.setDefaultPeriodicBoxVectors(*_reduced(vectors * lengths[:, None]))
    return box


def _whole_within(box, vectors):
    """Positions with the first particle of each molecule in the cell of the vectors."""
    starts = first_of_molecules(box)
    return box.positions - np.floor(box.positions[starts] @ np.linalg.inv(vectors)) @ vectors


def first_of_molecules(box: Box) -> np.ndarray:
    """For each particle the first one of its molecule, shape (n,)."""
    _, pairs = charges_and_pairs(box.nonbonded)
    count = len(box.positions)
    bonds = coo_array((np.ones(len(pairs)), pairs.T), (count, count))
    labels = connected_components(bonds, directed=False)[1]
    return np.unique(labels, return_index=True)[1][labels]


def _reduced(vectors):
    vectors = np.array(vectors)
    vectors[2] -= np.rint(vectors[2, 1] / vectors[1, 1]) * vectors[1]
    vectors[2] -= np.rint(vectors[2, 0] / vectors[0, 0]) * vectors[0]
    return vectors
