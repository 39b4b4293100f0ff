"""Tables of the boxes that interact by m2l on the GPU, against the octree they describe.

Needs no GPU.
"""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.interactions import CHILDREN, Interactions
from tests.support.interactions import CASES, octree_of, offsets


@pytest.mark.parametrize(("boxes", "radius"), CASES)
def test_lists_hold_what_the_octree_says(boxes, radius):
    octree = octree_of(boxes, radius)
    tables = Interactions(octree.leaf)
    for child, rows in enumerate(tables.list):
        found = 2 * rows[:, :3] + CHILDREN[rows[:, 3] % 8] - CHILDREN[child]
        assert len(found) == len(offsets(octree, child))
        assert set(map(tuple, found.tolist())) == offsets(octree, child)
        np.testing.assert_array_equal(tables.translations[rows[:, 3] // 8], -found)
