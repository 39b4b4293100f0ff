"""Tables of the O(p^4) operators, against the octree they describe."""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.interactions import CHILDREN, Interactions
from fmm_openmm.literature.operators.mirrored import mirrored_lists
from fmm_openmm.literature.operators.p4 import rows_by_parent
from tests.support.interactions import CASES, octree_of, offsets


@pytest.mark.parametrize(("boxes", "radius"), CASES)
def test_numbers_by_parent(boxes, radius):
    octree = octree_of(boxes, radius)
    tables = Interactions(octree.leaf)
    numbers = rows_by_parent(tables)
    for target in range(8):
        found = {
            tuple((2 * parent + CHILDREN[source] - CHILDREN[target]).tolist()): numbers[
                n, source, target
            ]
            for n, parent in enumerate(octree.leaf.near)
            for source in range(8)
        }
        far = {offset: number for offset, number in found.items() if number >= 0}
        assert set(far) == offsets(octree, target)
        assert all(
            offset == tuple((-tables.translations[number]).tolist())
            for offset, number in far.items()
        )


@pytest.mark.parametrize("radius", [1.0, 1.87, 2.64])
@pytest.mark.parametrize("boxes", ["cubes", "cuboids"])
def test_mirror_images_share_a_matrix(boxes, radius):
    """The n-th translation of a group is its vector, mirrored by h and by the n-th
    subset of its axes."""
    octree = octree_of(boxes, radius)
    vectors, group, sources = mirrored_lists(Interactions(octree.leaf))
    assert len(np.unique(vectors, axis=0)) == len(vectors)
    for child, (groups, rows) in enumerate(zip(group, sources, strict=True)):
        found = 2 * rows[:, :3] + CHILDREN[rows[:, 3]] - CHILDREN[child]
        assert len(found) == len(offsets(octree, child))
        assert set(map(tuple, found.tolist())) == offsets(octree, child)
        ends = np.append(groups[1:, 0], len(rows))
        for (first, which), end in zip(groups, ends, strict=True):
            mirrors = which // 8 % 8 ^ np.array([g for g in range(8) if g & which % 8 == g])
            signs = 1 - 2 * (mirrors[:, None] >> np.arange(3) & 1)
            np.testing.assert_array_equal(signs * vectors[which // 64], -found[first:end])
        assert (np.diff(ends - groups[:, 0]) <= 0).all()


def test_groups_of_cuboids_are_not_all_of_the_mirrors():
    """The case that cubes do not have: one vector in several groups of a child position, and
    several mirrors h."""
    _, group, _ = mirrored_lists(Interactions(octree_of("cuboids", 2.64).leaf))
    assert len(np.unique(group[0, :, 1] // 64)) < group.shape[1]
    assert len(np.unique(group[0, :, 1] // 8 % 8)) > 1
