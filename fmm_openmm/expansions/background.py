r"""The trace term: the part of the lattice sum that is not harmonic, as coefficients of a
quadratic polynomial, so that no stage depends on the boundary.

With Q, D_k, S_k the sums of q, q x_k and q x_k^2 over all parts, x relative to the box centres,

    Phi(x) = sum_k c_k (Q x_k^2 - 2 x_k D_k + S_k)

Images along all axes leave the potential of the background, c_k = 2 pi / (3 V) for each k.

With levels the term belongs to the root grid's lattice sum, so to positions relative to its boxes'
centres. With a the centre of a leaf relative to that of its box of the root grid, the sums relative
to the root grid are ``D' = D + sum q a`` and ``S' = S + sum (2 a d + a^2 q)``, axis by axis, over
all leaves of charge q and dipole moment d, and at x in a leaf

    Q (x + a)^2 - 2 (x + a) D' + S' = (Q x^2 - 2 x D + S)
                                      +  (Q a^2 - 2 a D' + S' - S)  +  2 x (Q a - (D' - D))

The first bracket is what l2p adds with one level. The others are harmonic and join the local
expansions.
"""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.octree import Octree

AXIS_TERMS = (3, 1, 2)
AXIS_VALUES = np.array([0.5, 0.5, 1.0])
"""The terms x / 2, y / 2 and z of degree 1."""


def coefficients(lattice: BoxLattice) -> np.ndarray:
    """c of the module's formula, shape (3,), box widths."""
    return np.full(3, 2 * np.pi / 3 * lattice.background)


def polynomial(
    lattice: BoxLattice, charge: float, dipole: np.ndarray, square: np.ndarray
) -> np.ndarray:
    """The trace term as coefficients of x^2, y^2, z^2, x, y, z and 1, shape (7,).

    Args:
        charge, dipole, square: the sums Q, D (3,) and S (3,).
    """
    c = coefficients(lattice)
    return np.concatenate([charge * c, -2 * c * dipole, [c @ square]])


def leaf_terms(octree: Octree, boxes: np.ndarray, charge: float, dipole: np.ndarray) -> np.ndarray:
    """The terms of degree 0 and 1 that the trace term adds to the local expansions of the leaves if
    there are levels, shape (leaves, 4).

    Args:
        boxes: moments of the leaves up to degree 1 at least, shape (leaves, terms).
        charge, dipole: the sums Q and D (3,).
    """
    a, c = octree.from_root, coefficients(octree.leaf)
    charges, dipoles = boxes[:, 0].astype(float), boxes[:, AXIS_TERMS] / AXIS_VALUES
    moved = charges @ a
    square = 2 * (a * dipoles).sum(0) + charges @ a**2
    out = np.empty((len(a), 4))
    out[:, 0] = (charge * a**2 - 2 * a * (dipole + moved) + square) @ c
    out[:, AXIS_TERMS] = 2 * c * (charge * a - moved) / AXIS_VALUES
    return out
