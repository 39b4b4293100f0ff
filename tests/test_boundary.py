"""Boundaries, axis by axis."""

import numpy as np
import pytest

from fmm_openmm.boundary import EMPTY_SPACE, NAMES, Boundary
from fmm_openmm.box import PaddedLattice

CELL = np.array([[2.0, 0, 0], [0.5, 1.5, 0], [-0.7, 0.4, 3.0]])
ALONG_PLANE = (True, True, False)
BOUNDARIES = [(True, True, True), ALONG_PLANE, (False, False, False)]


def cell_of(periodic):
    cell = Boundary(periodic).cell(CELL)
    return EMPTY_SPACE if cell is None else cell


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_a_cell_say_the_same(name):
    boundary = Boundary.from_name(name)
    assert boundary.name == name
    assert Boundary.from_cell(cell_of(boundary.periodic)) == boundary
    assert Boundary.from_cell(boundary.cell(CELL)) == boundary


@pytest.mark.parametrize("periodic", BOUNDARIES)
def test_a_cell_has_the_vectors_of_periodic_axes(periodic):
    boundary, cell = Boundary(periodic), cell_of(periodic)
    assert Boundary.from_cell(cell) == boundary
    for axis in range(3):
        np.testing.assert_array_equal(
            cell[axis], CELL[axis] if periodic[axis] else EMPTY_SPACE[axis]
        )
    assert boundary.cell(None) is None


def test_an_unknown_name():
    with pytest.raises(
        ValueError, match="`boundary` must be one of 'periodic', 'open', got 'closed'"
    ):
        Boundary.from_name("closed")


@pytest.mark.parametrize("periodic", BOUNDARIES)
def test_images(periodic):
    """Particles moved by cell vectors along periodic axes are where they were."""
    rng = np.random.default_rng(1)
    boundary, cell, axes = Boundary(periodic), cell_of(periodic), list(periodic)
    positions = rng.uniform(-4, 4, (50, 3))
    images = rng.integers(-3, 4, (50, 3)) * axes
    moved = positions + images @ boundary.vectors(cell)
    first, second = boundary.wrap(positions, cell), boundary.wrap(moved, cell)
    assert ((0 <= second) & (second < 1))[:, axes].all()
    difference = second - first
    np.testing.assert_allclose(difference - boundary.images(difference), 0, atol=1e-12)
    np.testing.assert_allclose(second[:, ~np.array(axes)], moved[:, ~np.array(axes)], atol=1e-12)
    distance, _ = boundary.tree(first).query(second)
    np.testing.assert_allclose(distance, 0, atol=1e-12)


@pytest.mark.parametrize("periodic", BOUNDARIES)
def test_neighbours_across_the_boundary(periodic):
    """What lies close to opposite faces of the cell is close along periodic axes only."""
    boundary, cell = Boundary(periodic), cell_of(periodic)
    tree = boundary.tree(boundary.wrap(np.concatenate([1e-3 * CELL, 0.999 * CELL]), cell))
    near = tree.sparse_distance_matrix(tree, 0.0021).toarray() > 0
    assert [near[axis, axis + 3] for axis in range(3)] == list(periodic)


def test_the_background_neutralises_a_volume():
    assert Boundary().background(CELL) == 1 / 9.0
    assert Boundary(ALONG_PLANE).background(cell_of(ALONG_PLANE)) == 0.0
    assert Boundary.from_name("open").background(None) == 0.0


def test_boxes_repeat_along_periodic_axes_only():
    span = np.array([4, 5, 3])
    lattice = PaddedLattice(span, 1.87, cell=cell_of(ALONG_PLANE), padded=(False, False, True))
    rng = np.random.default_rng(2)
    index = np.stack([rng.integers(0, n, 60) for n in span], 1)
    images = rng.integers(-2, 3, (60, 3)) * [4, 5, 0]
    np.testing.assert_array_equal(lattice.slot(index + images), lattice.slot(index))
    displacements = np.stack(
        np.meshgrid(*map(np.arange, (4, 5)), np.arange(-2, 3), indexing="ij"), -1
    ).reshape(-1, 3)
    assert len(np.unique(lattice.slot(displacements))) == len(displacements)
    kept = lattice.occurring(np.array([[9, -7, 2], [0, 0, 3], [-1, 0, -2], [0, 0, -3]]))
    np.testing.assert_array_equal(kept, [[9, -7, 2], [-1, 0, -2]])
    heights = np.arange(3)
    counted = [
        ((lattice.near[:, 2] + z >= 0) & (lattice.near[:, 2] + z < 3)).sum() for z in heights
    ]
    assert lattice.neighbours == pytest.approx(np.mean(counted))
    assert lattice.gap == np.inf
    assert lattice.background == 0.0
    assert lattice.coarsened(0).padded == lattice.padded
