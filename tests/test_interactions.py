"""Tables of the boxes that interact by m2l on the GPU, against the octree they describe.

Needs no GPU.
"""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.interactions import CHILDREN, Interactions
from fmm_openmm.box import BoxLattice
from fmm_openmm.octree import PARITIES, Octree

BOXES = {
    "cubes": np.eye(3),
    "cuboids": np.diag([0.95, 1.0, 1.05]),
    "skewed": np.array([[1.0, 0, 0], [0.2, 0.95, 0], [-0.15, 0.25, 1.05]]),
}
CASES = [(boxes, radius) for boxes in ("cubes", "skewed") for radius in (1.0, 1.87, 2.64)]


def of(boxes, radius):
    return Octree(BoxLattice(2 * np.eye(3, dtype=np.int64), BOXES[boxes], radius), 1)


def offsets(octree, child):
    """Of the sources of a child position, as a set."""
    return set(
        map(tuple, octree.interactions[(PARITIES == CHILDREN[child]).all(1).argmax()].tolist())
    )


@pytest.mark.parametrize(("boxes", "radius"), CASES)
def test_lists_hold_what_the_octree_says(boxes, radius):
    octree = of(boxes, radius)
    tables = Interactions(octree.leaf)
    for child, rows in enumerate(tables.list):
        found = 2 * rows[:, :3] + CHILDREN[rows[:, 3] % 8] - CHILDREN[child]
        assert len(found) == len(offsets(octree, child))
        assert set(map(tuple, found.tolist())) == offsets(octree, child)
        np.testing.assert_array_equal(tables.translations[rows[:, 3] // 8], -found)


@pytest.mark.parametrize(("boxes", "radius"), CASES)
def test_numbers_by_parent(boxes, radius):
    octree = of(boxes, radius)
    tables = Interactions(octree.leaf)
    for target in range(8):
        found = {
            tuple((2 * parent + CHILDREN[source] - CHILDREN[target]).tolist()): tables.number[
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
    octree = of(boxes, radius)
    vectors, group, sources = Interactions(octree.leaf).mirrored
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
    _, group, _ = Interactions(of("cuboids", 2.64).leaf).mirrored
    assert len(np.unique(group[0, :, 1] // 64)) < group.shape[1]
    assert len(np.unique(group[0, :, 1] // 8 % 8)) > 1
