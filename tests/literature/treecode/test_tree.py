"""The adaptive octree."""

import numpy as np
import pytest

from fmm_openmm.literature.treecode.tree import DEPTH, build_tree

RNG = np.random.default_rng(5)
SYSTEMS = {
    "uniform": RNG.uniform(-3, 9, (3000, 3)),
    "clusters": np.concatenate([RNG.normal(size=(900, 3)), 50 + 1e-4 * RNG.normal(size=(700, 3))]),
    "line": np.linspace(0, 1, 500)[:, None] * [0.0, 2.0, 0.0],
    "one": np.ones((1, 3)),
    "coincident": np.concatenate([np.ones((40, 3)), np.zeros((3, 3))]),
}


@pytest.mark.parametrize("leaf", [1, 8, 64])
@pytest.mark.parametrize("name", SYSTEMS)
def test_cells_are_ranges_of_what_lies_in_them(name, leaf):
    positions = SYSTEMS[name]
    tree = build_tree(positions, leaf)
    assert sorted(tree.order) == list(range(len(positions)))
    assert (tree.first[0], tree.last[0], tree.parent[0]) == (0, len(positions), -1)
    placed = positions[tree.order]
    for i, (first, last, width) in enumerate(zip(tree.first, tree.last, tree.width, strict=True)):
        assert first < last
        assert np.abs(placed[first:last] - tree.centre[i]).max() <= width / 2 * (1 + 1e-9)


@pytest.mark.parametrize("leaf", [1, 8, 64])
@pytest.mark.parametrize("name", SYSTEMS)
def test_children_divide_their_parent(name, leaf):
    tree = build_tree(SYSTEMS[name], leaf)
    depth = np.repeat(np.arange(len(tree.level) - 1), np.diff(tree.level))
    for i, count in enumerate(tree.children):
        if count == 0:
            assert tree.last[i] - tree.first[i] <= leaf or depth[i] == DEPTH
            continue
        own = slice(tree.child[i], tree.child[i] + count)
        assert (tree.parent[own] == i).all()
        assert (depth[own] == depth[i] + 1).all()
        np.testing.assert_array_equal(
            np.append(tree.first[own], tree.last[i]), np.insert(tree.last[own], 0, tree.first[i])
        )
        np.testing.assert_allclose(tree.width[own], tree.width[i] / 2)
    assert np.count_nonzero(tree.parent >= 0) == len(tree.parent) - 1
