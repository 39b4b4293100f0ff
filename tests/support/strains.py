"""Cells, and how they are strained."""

from itertools import product

import numpy as np

from fmm_openmm.backends.cuda.pipeline.setup_tables import serves
from fmm_openmm.box import MAX_STRAIN, BoxLattice, counts_matrix, strain
from fmm_openmm.specification import Specification

CORNERS = [
    np.array([[a, 0, 0], [b, c, 0], [d, e, f]])
    for a, b, c, d, e, f in product((-1.0, 1.0), repeat=6)
]
"""Directions of strains all of whose components are largest."""


SKEWED = np.array([[2.1, 0, 0], [0.4, 1.9, 0], [-0.5, 0.3, 2.3]])
"""In reduced form when it is strained as well."""


def deformation(direction, largest=0.999 * MAX_STRAIN):
    """Matrix that multiplies a cell so that its largest component of strain is as given."""
    size = largest
    for _ in range(6):
        size *= largest / np.abs(strain(np.eye(3), np.eye(3) + size * direction)).max()
    return np.eye(3) + size * direction


def lattice_of(cell, counts, radius=2.64):
    return BoxLattice.from_cell(cell, counts_matrix(counts), radius)


def is_served(made_for, wanted):
    """Whether a program for one lattice serves another, with the same expansions and charges."""
    none = np.zeros((0, 2), np.int64)
    return serves(
        *(Specification(one, 4, 0.0, np.ones(1), none, False) for one in (made_for, wanted))
    )
