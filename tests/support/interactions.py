"""Box lattices whose interaction lists are tested."""

import numpy as np

from fmm_openmm.backends.cuda.interactions import CHILDREN
from fmm_openmm.box import BoxLattice
from fmm_openmm.octree import PARITIES, Octree

BOXES = {
    "cubes": np.eye(3),
    "cuboids": np.diag([0.95, 1.0, 1.05]),
    "skewed": np.array([[1.0, 0, 0], [0.2, 0.95, 0], [-0.15, 0.25, 1.05]]),
}


CASES = [(boxes, radius) for boxes in ("cubes", "skewed") for radius in (1.0, 1.87, 2.64)]


def octree_of(boxes, radius):
    return Octree(BoxLattice(2 * np.eye(3, dtype=np.int64), BOXES[boxes], radius), 1)


def offsets(octree, child):
    """The sources of a child position, as a set."""
    return set(
        map(tuple, octree.interactions[(PARITIES == CHILDREN[child]).all(1).argmax()].tolist())
    )
