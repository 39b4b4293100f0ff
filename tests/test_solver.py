"""``CoulombSolver``: charges, cells, their changes, exclusions, and results that repeat."""

import numba
import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.box import ORIGIN
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.support.cells import DODECAHEDRON
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.ewald import exact
from tests.support.solvers import BACKENDS, MIXED, scattered, solve, solver_for

# of low orders, which are asked for
pytestmark = pytest.mark.filterwarnings("ignore:`tolerance=0.0005` is out of reach")


def test_net_charge():
    """A unit charge in a 3 nm cube: -65.70019 kJ/mol in OpenMM from 8.3 on."""
    solver = CoulombSolver([1.0], 3 * np.eye(3), tolerance=1e-8)
    result = solver.compute([[0.3, -7.0, 1e3]])
    assert result.energy == pytest.approx(-65.70019, rel=5e-7)
    assert result.energy == pytest.approx(
        ewald_sum([[0.3, -7.0, 1e3]], [1.0], 3 * np.eye(3)).energy, rel=1e-8
    )
    assert result.potentials == pytest.approx(2 * result.energy)
    assert np.abs(result.forces).max() < 1e-6


def test_set_charges_with_another_net_charge():
    """The background follows, and with it the dependence on the volume."""
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, MIXED, tolerance=1e-8)
    for net in (0.0, 5.0, -3.0):
        charges = q + net / len(q)
        solver.set_charges(charges)
        for scale in (1.0, 1.3):
            expected = ewald_sum(scale * x, charges, scale * SKEWED, MIXED)
            result = solver.compute(scale * x, scale * SKEWED)
            assert result.energy == pytest.approx(expected.energy, rel=1e-8)
            assert relative(result.forces, expected.forces) < 1e-8


def test_set_charges_on_fewer_particles():
    """Parameters for many charges would miss the tolerance: fewer in a box average the
    truncation error less."""
    rng = np.random.default_rng(5)
    x, pairs = 3.4 * rng.random((4000, 3)), np.arange(4000).reshape(-1, 2)
    q = np.zeros(4000)
    q[:12] = np.tile([0.8, -0.8], 6)
    options = {
        "tolerance": 1e-4,
        "grid": (6, 6, 6),
        "near_radius": 2.64,
        "smoothing": 0.05,
        "backend": "cpu",
    }
    fresh, solver = (
        CoulombSolver(charges, 3.4 * np.eye(3), pairs, **options) for charges in (q, 0 * q)
    )
    assert solver.parameters.order < fresh.parameters.order
    solver.set_charges(q)
    assert solver.parameters == fresh.parameters
    solver.set_charges(0 * q)
    # charges that come and go do not change them every time
    assert solver.parameters == fresh.parameters
    assert not solver.compute(x).forces.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_no_charges(backend, precision):
    x, q = scattered()
    solver = CoulombSolver(0 * q, SKEWED, MIXED, backend=backend, precision=precision)
    result = solver.compute(x)
    assert result.energy == 0.0
    for array in (result.forces, result.potentials, result.fields):
        assert not array.any()
    solver.set_charges(q)
    assert relative(solver.compute(x).forces, ewald_sum(x, q, SKEWED, MIXED).forces) < 5e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_the_charges_zero(backend):
    """TIP5P's oxygen: no force at all, but a potential."""
    x, q = scattered()
    q[::2] = 0.0
    result = solve(x, q, SKEWED, tolerance=1e-6, backend=backend)
    assert not result.forces[::2].any()
    assert relative(result.potentials, ewald_sum(x, q, SKEWED).potentials) < 1e-6


SHAPES = {
    "skewed": SKEWED,
    "rod": np.diag([100.0, 2.0, 2.0]),
    "plate": np.diag([40.0, 40.0, 1.5]),
    "upright_plate": np.diag([1.5, 40.0, 40.0]),
    "small": 0.1 * np.eye(3),
    "large": 1e4 * np.eye(3),
    "tilts_of_a_half": np.array([[3.0, 0, 0], [1.5, 3.0, 0], [-1.5, 1.5, 3.0]]),
}


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
@pytest.mark.parametrize("n", [31, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_few_particles_in_cells_of_any_shape(shape, n, tolerance):
    cell = SHAPES[shape]
    x, q = random_charges(n, cell, net=1.0, gap=0.02 * np.cbrt(np.linalg.det(cell)))
    result, expected = solve(x, q, cell, tolerance=tolerance), ewald_sum(x, q, cell)
    assert relative(result.forces, expected.forces) < tolerance
    assert relative(result.potentials, expected.potentials) < tolerance
    assert result.energy == pytest.approx(expected.energy, rel=tolerance)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_and_two_particles_in_cells_of_any_shape(shape, n):
    """The tolerance is an average over many particles; two alone can be unlucky, so 1e-8 is
    asked for to get 1e-7."""
    cell = SHAPES[shape]
    size = np.cbrt(np.linalg.det(cell))
    x, q = random_charges(n, cell, net=1.0, gap=0.02 * size)
    result, expected = solve(x, q, cell, tolerance=1e-8), ewald_sum(x, q, cell)
    strength = COULOMB_CONSTANT / size**2
    np.testing.assert_allclose(
        result.forces,
        expected.forces,
        rtol=0,
        atol=1e-7 * max(strength, abs(expected.forces).max()),
    )
    np.testing.assert_allclose(result.potentials, expected.potentials, rtol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edge", [0.02, 1.0])
def test_everything_in_one_box(edge, backend):
    """100 charges in one corner of a cell that is otherwise empty,
    and in one box that is the cell."""
    x, q = random_charges(100, edge * np.eye(3), gap=0.05 * edge)
    cell = np.eye(3)
    result = solve(
        x,
        q,
        cell,
        tolerance=1e-6,
        order=12,
        near_radius=3.0,
        grid=(1, 1, 1) if edge == 1 else (4, 4, 4),
        backend=backend,
    )
    assert relative(result.forces, ewald_sum(x, q, cell).forces) < 1e-6


@pytest.mark.parametrize(
    "backend, precision", [("cpu", "single"), ("cpu", "double"), ("reference", "double")]
)
@pytest.mark.parametrize(
    "cell",
    [2 * np.eye(3), 2 * DODECAHEDRON, SHAPES["tilts_of_a_half"]],
    ids=["cube", "dodecahedron", "half"],
)
def test_coordinates_on_faces(cell, backend, precision):
    """On faces of the cell and, because the boxes have an origin of their own, of boxes too."""
    x, q = scattered(40, cell)
    solver = CoulombSolver(q, cell, tolerance=1e-5, precision=precision, backend=backend)
    boxes = np.linalg.solve(solver.parameters.counts.astype(float), cell)
    for offset in (np.zeros(3), -ORIGIN * boxes.sum(0)):
        for value in (-1e-17, 0.0, 0.5, 1 - 1e-16, 1.0):
            for fractions in ([value, 0.3, 0.7], [value, value, value]):
                moved = x.copy()
                moved[0] = fractions @ cell + offset
                expected = ewald_sum(moved, q, cell)
                assert relative(solver.compute(moved).forces, expected.forces) < 1e-5


@pytest.mark.slow
def test_rectangular_cell_becomes_triclinic():
    x, q = scattered(60, np.diag([2.1, 1.9, 2.3]))
    solver = CoulombSolver(q, np.diag([2.1, 1.9, 2.3]), MIXED, tolerance=1e-6)
    for tilt in (0.01, 0.3, 0.7, 1.0):
        cell = np.array([[2.1, 0, 0], [tilt, 1.9, 0], [-tilt, 0.9 * tilt, 2.3]])
        result, expected = solver.compute(x, cell), ewald_sum(x, q, cell, MIXED)
        assert relative(result.forces, expected.forces) < 1e-6
        assert result.energy == pytest.approx(expected.energy, rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restored_box_gives_the_old_energy(backend):
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, MIXED, backend=backend)
    before = solver.compute(x)
    for cell in (
        1.02 * SKEWED,
        SKEWED * [[1.0], [1.0], [1.04]],
        SKEWED + 0.01 * np.eye(3),
        2 * np.eye(3),
    ):
        assert solver.compute(x, cell).energy != before.energy
        after = solver.compute(x, SKEWED)
        assert after.energy == before.energy
        np.testing.assert_array_equal(after.forces, before.forces)


@pytest.mark.parametrize("scale", [0.8, 0.97, 1.5, 10.0])
def test_isotropic_scaling_keeps_the_parameters(scale):
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, tolerance=1e-6)
    chosen, kept = solver.parameters, solver.parameters_for(scale * SKEWED)
    assert (kept.grid, kept.order, kept.near_radius) == (
        chosen.grid,
        chosen.order,
        chosen.near_radius,
    )
    result = solver.compute(scale * x, scale * SKEWED)
    assert relative(result.forces, ewald_sum(scale * x, q, scale * SKEWED).forces) < 1e-6


def test_parameters_follow_a_cell_that_is_deformed():
    solver = CoulombSolver(scattered()[1], 2 * np.eye(3))
    assert solver.parameters_for(np.diag([2.0, 2.0, 2.02])).grid == solver.parameters.grid
    rod = np.diag([1.0, 1.0, 8.0])
    assert solver.parameters_for(rod).grid != solver.parameters.grid
    fixed = CoulombSolver(scattered()[1], 2 * np.eye(3), grid=(3, 3, 3))
    assert fixed.parameters_for(rod).grid == fixed.parameters.grid


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("image", [(0, 0, 0), (1, 0, 0), (2, -3, 1), (0, 0, 40)], ids=str)
@pytest.mark.parametrize("periodic", [False, True], ids=["as_given", "minimum_image"])
def test_excluded_image(periodic, image, backend):
    """The excluded image is that of the positions as given, or the nearest one."""
    x, q = scattered(30, net=1.0)
    x[1] = x[0] + [0.1, 0.2, 0.2] + np.array(image) @ SKEWED
    options = dict(exclusions_periodic=periodic)
    expected = ewald_sum(x, q, SKEWED, MIXED[:4], **options)
    result = solve(x, q, SKEWED, MIXED[:4], tolerance=1e-7, backend=backend, **options)
    assert relative(result.forces, expected.forces) < 1e-7
    assert result.energy == pytest.approx(expected.energy, rel=1e-7)


def test_excluding_every_pair():
    """The images and the background remain."""
    x, q = random_charges(12, SKEWED, net=1.0)
    pairs = [(i, j) for i in range(12) for j in range(i)]
    result, expected = solve(x, q, SKEWED, pairs, tolerance=1e-8), ewald_sum(x, q, SKEWED, pairs)
    assert relative(result.forces, expected.forces) < 1e-7
    assert result.energy == pytest.approx(expected.energy, rel=1e-7)


@pytest.mark.parametrize("precision, tolerance", [("single", 1e-5), ("double", 1e-8)])
@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2])
def test_drude_pairs(distance, precision, tolerance):
    """Opposite charges almost on top of each other: their own 1/r is never added, so never
    subtracted either."""
    x, q = random_charges(40, SKEWED)
    x, q = (
        np.concatenate([x, x + distance * np.array([0.6, 0.64, -0.48])]),
        np.concatenate([q + 1.5, np.full(40, -1.5)]),
    )
    pairs = [(i, i + 40) for i in range(40)]
    expected = ewald_sum(x, q, SKEWED, pairs)
    result = solve(x, q, SKEWED, pairs, tolerance=tolerance, precision=precision)
    assert relative(result.forces, expected.forces) < tolerance
    assert result.energy == pytest.approx(expected.energy, rel=tolerance)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_repeated_evaluation_is_bitwise_the_same(precision):
    d, _ = exact("water")
    results = [solver_for("water", precision=precision).compute(d.positions) for _ in range(2)]
    solver = solver_for("water", precision=precision)
    results += [solver.compute(d.positions) for _ in range(3)]
    for other in results[1:]:
        assert other.energy == results[0].energy
        np.testing.assert_array_equal(other.forces, results[0].forces)
        np.testing.assert_array_equal(other.potentials, results[0].potentials)


@pytest.mark.skipif(
    numba.config.NUMBA_NUM_THREADS < 2, reason="needs NUMBA_NUM_THREADS of at least 2"
)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_the_number_of_threads_does_not_matter(precision):
    d, _ = exact("water")
    solver, before, results = solver_for("water", precision=precision), numba.get_num_threads(), []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            results.append(solver.compute(d.positions))
    finally:
        numba.set_num_threads(before)
    assert results[0].energy == results[1].energy
    np.testing.assert_array_equal(results[0].forces, results[1].forces)


def test_positions_and_results_belong_to_the_caller():
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED)
    given, charges = x.copy(), q.copy()
    first = solver.compute(x)
    kept = first.forces.copy()
    solver.compute(x + 0.1)
    np.testing.assert_array_equal(x, given)
    np.testing.assert_array_equal(first.forces, kept)
    solver.charges[:] = 0.0
    q[:] = 0.0
    np.testing.assert_array_equal(solver.charges, charges)
