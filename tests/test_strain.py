"""Cells that are strained a little keep grid, parameters and near stencil, and the tolerance;
others have them chosen anew."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.backends.cuda.pipeline.setup_tables import SLACK, mirrored
from fmm_openmm.box import MAX_STRAIN, choose_counts, counts_matrix, near_stencil, strain
from fmm_openmm.octree import Octree, is_nested
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.planning import problem as chosen_for
from fmm_openmm.planning.cost import CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import Request
from tests.support.cells import DODECAHEDRON
from tests.support.charges import random_charges, relative
from tests.support.ewald import exact
from tests.support.strains import CORNERS, SKEWED, deformation, is_served, lattice_of

DIRECTIONS = {
    "along z": np.diag([0.0, 0.0, 1.0]),
    "xy against z": np.diag([1.0, 1.0, -1.0]),
    "shear": np.array([[0.0, 0, 0], [1, 0, 0], [-1, 1, 0]]),
    "both": np.array([[1.0, 0, 0], [-1, -1, 0], [1, 1, 0]]),
}


@pytest.mark.parametrize(
    "cell", [np.eye(3), SKEWED, DODECAHEDRON], ids=["cube", "skewed", "dodecahedron"]
)
def test_strain(cell):
    e = np.array([[0.01, 0, 0], [-0.02, 0.015, 0], [0.003, 0.02, -0.024]])
    e[2, 2] = 1 / (1.01 * 1.015) - 1  # of no volume
    np.testing.assert_allclose(strain(cell, 3.7 * cell @ (np.eye(3) + e)), e, atol=1e-15)
    np.testing.assert_allclose(strain(cell, 0.1 * cell), 0.0, atol=1e-15)
    flipped = cell + np.outer([0, 0, 1], cell[0])  # the same periodic lattice by other vectors
    assert np.abs(strain(cell, flipped)).max() > 0.3


def test_lengths_change_by_less_than_tables_allow_for():
    for direction in CORNERS:
        stretch = np.linalg.svd(np.eye(3) + MAX_STRAIN * direction, compute_uv=False)
        assert max(stretch.max(), 1 / stretch.min()) < 1.048 < 1 + SLACK


@pytest.mark.parametrize("counts", [(4, 5, 6), [[5, 0, 0], [2, 4, 0], [-2, 1, 3]]], ids=str)
def test_near_boxes_stay_near(counts):
    """Also where the distances of the strained boxes would have it otherwise; twice strained is
    strained from the first."""
    counts = counts_matrix(counts)
    lattice = lattice_of(counts.astype(float), counts, 2.84)
    differ = 0
    for direction in CORNERS[::3]:
        cell = 1.3 * lattice.cell @ deformation(direction)
        other = lattice.strained(cell)
        np.testing.assert_array_equal(other.near, lattice.near)
        np.testing.assert_allclose(other.cell / other.cell[0, 0], cell / cell[0, 0], atol=1e-14)
        assert other.unstrained is lattice
        differ += len(near_stencil(other.boxes, 2.84)) != len(lattice.near)
        far = other.far @ other.boxes
        assert other.nearest_far == np.linalg.norm(far, axis=1).min() > lattice.nearest_far / 1.048
        assert other.strained(cell) is other
        assert other.strained(2 * lattice.cell) is lattice
        assert other.strained(lattice.cell @ deformation(-direction)).unstrained is lattice
        assert other.strained(lattice.cell @ deformation(direction, 1.01 * MAX_STRAIN)) is None
        assert is_served(lattice, other) == (lattice.are_cuboids <= other.are_cuboids)
    assert differ


def test_boxes_that_were_no_cuboids_are_not_mirrored():
    """Their near stencil is not symmetric, whatever the cell has become."""
    rectangular = np.diag([4.0, 5.0, 6.0])
    skewed = lattice_of(rectangular @ deformation(DIRECTIONS["shear"], 0.01), (4, 5, 6))
    straightened = skewed.strained(rectangular)
    assert not np.tril(straightened.boxes, -1).any()
    assert mirrored(lattice_of(rectangular, (4, 5, 6))) and not mirrored(straightened)
    assert is_served(skewed, straightened) and not is_served(
        lattice_of(rectangular, (4, 5, 6)), straightened
    )


def test_cuboids_in_a_triclinic_cell_are_not_adopted_once_they_are_none():
    """Operators of levels may need cuboids."""
    counts = choose_counts(DODECAHEDRON, 1 / 6)
    lattice = lattice_of(DODECAHEDRON, counts)
    sheared = lattice.strained(DODECAHEDRON @ deformation(DIRECTIONS["shear"], 0.001))
    assert lattice.are_cuboids and not sheared.are_cuboids
    assert is_served(sheared, lattice) and not is_served(lattice, sheared)


def test_levels_are_strained_alike():
    lattice = lattice_of(np.diag([4.0, 4.0, 4.4]), (8, 8, 8), 2.9)
    other = lattice.strained(lattice.cell @ deformation(DIRECTIONS["xy against z"]))
    assert is_nested(lattice) == is_nested(other)
    for each, before in zip(Octree(other, 2).lattices, Octree(lattice, 2).lattices, strict=True):
        np.testing.assert_array_equal(each.near, before.near)
        np.testing.assert_array_equal(each.boxes, other.boxes)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [5e-4, 1e-5])
@pytest.mark.parametrize(
    ("name", "options"), [("water", {}), ("melt", {"grid": (4, 4, 5), "near_radius": 2.78})]
)
def test_strained_cells_keep_the_tolerance(name, options, tolerance):
    """The second case has boxes that would no longer be near, and others that are not near yet."""
    d, _ = exact(name)
    solver = CoulombSolver(
        d.charges,
        d.box_vectors,
        d.exclusions,
        tolerance,
        backend="cpu",
        exclusions_periodic=True,
        **options,
    )
    differ = 0
    for direction in (sign * each for each in DIRECTIONS.values() for sign in (1, -1)):
        change = deformation(direction)
        cell, x = d.box_vectors @ change, d.positions @ change
        found = solver.compute(x, cell).forces
        lattice = solver.evaluation.planner.latest.lattice
        assert lattice.strained_from
        differ += len(near_stencil(lattice.boxes, lattice.near_radius)) != len(lattice.near)
        assert (
            relative(
                found, ewald_sum(x, d.charges, cell, d.exclusions, exclusions_periodic=True).forces
            )
            < tolerance
        )
    assert differ or not options


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_strained_cells_on_every_backend(backend):
    x, q = random_charges(60, SKEWED)
    solver = CoulombSolver(q, SKEWED, tolerance=1e-6, backend=backend)
    for direction in CORNERS[::16]:
        change = deformation(direction)
        expected = ewald_sum(x @ change, q, SKEWED @ change)
        result = solver.compute(x @ change, SKEWED @ change)
        assert relative(result.forces, expected.forces) < 1e-6
        assert result.energy == pytest.approx(expected.energy, rel=1e-6)


@pytest.fixture
def choices(monkeypatch):
    """Counts how often parameters are adapted to another cell."""
    calls, adapt = [], chosen_for.adapt_parameters
    monkeypatch.setattr(
        chosen_for, "adapt_parameters", lambda *args: calls.append(1) or adapt(*args)
    )
    return calls


@pytest.mark.slow
def test_a_cell_that_drifts_keeps_the_tolerance(choices):
    """By a tenth, with trial moves on the way: boxes are chosen anew a few times, in their own
    middle, and not to and fro."""
    d, _ = exact("melt")
    solver = CoulombSolver(d.charges, d.box_vectors, tolerance=1e-4, backend="cpu")
    random, errors = np.random.default_rng(2), []
    for drift in np.linspace(0.0, 0.1, 41):
        for trial in (drift, drift + random.uniform(-2e-3, 2e-3), drift):
            change = np.diag([1 + trial, 1 + trial, (1 + trial) ** -2])
            result = solver.compute(d.positions @ change, d.box_vectors @ change)
        if round(400 * drift) % 5 == 0:
            expected = ewald_sum(d.positions @ change, d.charges, d.box_vectors @ change)
            errors.append(relative(result.forces, expected.forces))
    assert len(errors) == 9
    assert max(errors) < 1e-4
    # strains of 0.2 along z, chosen for the middle of 0.04 or of more than 0.02 each
    assert 8 <= len(choices) <= 11


def test_boxes_are_chosen_for_the_cell_that_asked(choices):
    """New boxes serve on both sides of their cell, so that nothing alternates; the first ones serve
    their own neighbourhood again."""
    cell = 3.0 * np.eye(3)
    load = Load(3000, 1.0, 0.1)
    problem = Problem(Request(), load, np.zeros((0, 2), np.int64), False, cell, CUDA_COST)

    def stretched(by):
        return cell @ np.diag([1, 1, (1 + by) ** 1.5])  # a strain of that size

    boxes = problem.filling(stretched(0.0199))
    assert boxes.parameters is problem.parameters and boxes.lattice.strained_from and not choices
    anew = problem.filling(stretched(0.0201), boxes)
    assert len(choices) == 1 and anew.lattice.strained_from is None
    for by in (0.0199, 0.0201, 0.039, 0.002):
        anew = problem.filling(stretched(by), anew)
        assert anew.lattice.strained_from is not None or by == 0.0201
    assert len(choices) == 1
    first = problem.filling(stretched(-0.005), anew)
    assert first.lattice.unstrained is boxes.lattice.unstrained and len(choices) == 1
