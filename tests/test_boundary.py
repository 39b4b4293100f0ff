"""Boundaries, axis by axis."""

import numpy as np
import pytest

from fmm_openmm.boundary import EMPTY_SPACE, NAMES, Boundary
from fmm_openmm.box import Frame, PaddedLattice
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import Change, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import Request

CELL = np.array([[2.0, 0, 0], [0.5, 1.5, 0], [-0.7, 0.4, 3.0]])
ALONG_PLANE, ALONG_LINE = (True, True, False), (True, False, False)
BOUNDARIES = [(True, True, True), ALONG_PLANE, (False, False, False)]


def cell_of(periodic):
    return Boundary(periodic).cell(CELL)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_a_cell_say_the_same(name):
    boundary = Boundary.from_name(name)
    assert boundary.periodic == NAMES[boundary.name] == NAMES[name]
    assert Boundary.from_cell(cell_of(boundary.periodic)) == boundary


@pytest.mark.parametrize("periodic", BOUNDARIES)
def test_a_cell_has_the_vectors_of_periodic_axes(periodic):
    boundary, cell = Boundary(periodic), cell_of(periodic)
    assert Boundary.from_cell(cell) == boundary
    for axis in range(3):
        np.testing.assert_array_equal(
            cell[axis], CELL[axis] if periodic[axis] else EMPTY_SPACE[axis]
        )
    assert boundary.cell(None) is EMPTY_SPACE


def test_an_unknown_name():
    names = "'periodic', 'slab', 'wire', 'ab', 'bc', 'ac', 'a', 'b', 'c', 'open'"
    with pytest.raises(ValueError, match=f"`boundary` must be one of {names}, got 'closed'"):
        Boundary.from_name("closed")


def test_axes_name_themselves():
    for name, periodic in NAMES.items():
        if set(name) <= set("abc"):
            assert name == "".join(np.array(list("abc"))[list(periodic)])
    assert Boundary.from_name("ab").name == "slab"
    assert Boundary.from_name("c").name == "wire"


@pytest.mark.parametrize("name", [name for name in NAMES if Boundary.from_name(name).is_partial])
def test_a_frame_turns_the_images_into_its_first_vectors(name):
    cell = Boundary.from_name(name).cell(CELL)
    frame, vectors = Frame.from_cell(cell), cell[np.isfinite(cell).all(1)]
    np.testing.assert_allclose(frame.axes @ frame.axes.T, np.eye(3), atol=1e-14)
    assert np.linalg.det(frame.axes) == pytest.approx(1.0)
    assert frame.is_users == (name in ("a", "slab", "ab"))
    found = frame.cell[: len(vectors)]
    assert np.isinf(frame.cell[len(vectors) :]).any(1).all()
    assert (np.triu(found, 1) == 0.0).all()
    assert (2 * np.abs(np.tril(found[:, :2], -1)) <= found[0, 0]).all()
    numbers = found @ np.linalg.pinv(vectors @ frame.axes)  # of one lattice
    np.testing.assert_allclose(numbers, np.rint(numbers), atol=1e-12)
    assert abs(np.linalg.det(numbers)) == pytest.approx(1.0)


def test_axes_of_a_rectangular_cell_are_only_renamed():
    cell = np.diag([2.0, 1.5, 3.0])
    for name in ("wire", "b", "ac", "bc"):
        frame = Frame.from_cell(Boundary.from_name(name).cell(cell))
        assert set(np.unique(np.abs(frame.axes))) == {0.0, 1.0}


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


SLAB_CELL = np.array([[2.2, 0.0, 0.0], [0.9, 1.7, 0.0], [0.3, 0.2, 9.0]])
"""A cell whose vector c is not used."""

SLAB_VECTORS = np.array([*SLAB_CELL[:2], [0.0, 0.0, 1.0]])
NONE = np.zeros((0, 2), np.int64)


def ions(n=240, seed=4):
    """Pairs of opposite charges, and the pairs."""
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0.0, 1.0, (n, 3)) @ SLAB_VECTORS
    positions[1::2] = positions[::2] + rng.normal(0.0, 0.15, (n // 2, 3))
    return positions, np.resize([1.0, -1.0], n), np.arange(n).reshape(-1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("periodic", "levels"), [(ALONG_PLANE, 0), (ALONG_PLANE, 1), (ALONG_LINE, 0)]
)
def test_boxes_follow_particles_along_free_axes_only(periodic, levels):
    positions, charges, _ = ions()
    cell, axes = Boundary(periodic).cell(SLAB_CELL), list(periodic)
    request = Request(1e-3, levels=levels)
    planner = Planner(Problem(request, Load.from_charges(charges, NONE), NONE, False, cell))
    first = planner.plan(positions, cell)
    lattice, boxes = first.boxes.lattice, first.boxes
    assert lattice.padded == Boundary(periodic).free
    repeated = lattice.counts @ lattice.boxes * boxes.width
    np.testing.assert_allclose(repeated[axes], SLAB_CELL[axes], rtol=1e-12)
    assert np.linalg.det(lattice.boxes) == pytest.approx(1.0)
    assert first.parameters.expected_error <= 1e-3
    np.testing.assert_array_equal(boxes.origin[axes], 0.0)
    top, height = boxes.corner[2] + lattice.span[2] * boxes.heights[2], positions[:, 2]
    assert boxes.corner[2] < height.min() < height.max() < top
    assert planner.plan(positions + 5.0 * SLAB_VECTORS[0], cell).change is Change.KEEP
    moved = planner.plan(positions + 3.0 * SLAB_VECTORS[2], cell)
    assert (moved.change, moved.choice) == (Change.MOVE, first.choice)
    np.testing.assert_array_equal(moved.boxes.origin[axes], 0.0)
    scaled = planner.plan(1.1 * positions, 1.1 * cell)
    assert (scaled.change, scaled.choice) == (Change.MOVE, first.choice)
    assert planner.plan(positions * [1.0, 1.0, 4.0], cell).change is Change.REPLACE
    if periodic == ALONG_PLANE:
        assert planner.plan(positions, cell * [[1.0], [1.1], [1.0]]).change is Change.REPLACE
