r"""The trace term with levels: it belongs to the root grid's lattice sum, so to positions relative
to its boxes' centres.

With a the centre of a leaf relative to that of its box of the root grid, and Q, D, S the sums of
``l2p``, which are relative to the leaves, the sums relative to the root grid are
``D' = D + sum q a`` and ``S' = S + sum (2 a.d + |a|^2 q)`` over all leaves of charge q and dipole
moment d, and at x in a leaf

    Q |x + a|^2 - 2 (x + a).D' + S' = (Q |x|^2 - 2 x.D + S)
                                      +  (Q |a|^2 - 2 a.D' + S' - S)  +  2 x.(Q a - (D' - D))

The first bracket is what l2p adds with one level. The others are harmonic and join the local
expansions.
"""

import numpy as np

from fmm_openmm.octree import Octree
from fmm_openmm.stages import Moments

AXIS_TERMS = (3, 1, 2)
AXIS_VALUES = np.array([0.5, 0.5, 1.0])
"""The terms x / 2, y / 2 and z of degree 1."""


def trace_shift(octree: Octree, boxes: np.ndarray, moments: Moments) -> np.ndarray:
    """What the local expansions of the leaves lack, shape (leaves, 4): their terms of degree 0 and
    1.

    Args:
        boxes: moments of the leaves up to degree 1 at least, shape (leaves, terms).
        moments: the sums over all parts.
    """
    a, charge, dipole = (
        octree.from_root,
        boxes[:, 0].astype(float),
        boxes[:, AXIS_TERMS] / AXIS_VALUES,
    )
    moved = charge @ a
    square = 2 * (a * dipole).sum() + charge @ (a * a).sum(1)
    out = np.empty((len(a), 4))
    out[:, 0] = moments.charge * (a * a).sum(1) - 2 * a @ (moments.dipole + moved) + square
    out[:, AXIS_TERMS] = 2 * (moments.charge * a - moved) / AXIS_VALUES
    return 2 * np.pi / 3 * octree.leaf.background * out
