"""Potentials and fields at points that are not particles."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import direct_sum, ewald_sum
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.ewald import exact

pytestmark = pytest.mark.filterwarnings("ignore:`tolerance")

BACKENDS = ("cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu))


def require(backend):
    """Skip where a backend is not usable."""
    try:
        backend_class(backend)
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")


def test_against_the_oracle():
    d, _ = exact("water")
    points = np.random.default_rng(0).uniform(-1.0, 4.0, (300, 3))
    gap, edge = points[:, None] - d.positions, d.box_vectors[0, 0]
    distance = np.linalg.norm(gap - edge * np.round(gap / edge), axis=2)
    points = points[distance.min(1) > 0.1]
    both = np.concatenate([d.positions, points])
    charges = np.concatenate([d.charges, np.zeros(len(points))])
    expected = ewald_sum(both, charges, d.box_vectors, d.exclusions)
    n = len(d.charges)
    for tolerance in (5e-4, 1e-6):
        solver = CoulombSolver(d.charges, d.box_vectors, d.exclusions, tolerance, backend="cpu")
        result = solver.compute(d.positions, points=points)
        assert relative(result.point_fields, expected.fields[n:]) <= tolerance
        assert relative(result.point_potentials, expected.potentials[n:]) <= tolerance
        assert relative(result.forces, expected.forces[:n]) <= tolerance


@pytest.mark.parametrize("virial", [False, True])
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_as_particles_without_charge(backend, precision, virial):
    require(backend)
    x, q = random_charges(60, SKEWED, net=0.5)
    points = np.random.default_rng(1).uniform(-1.0, 4.0, (40, 3))
    options = {
        "backend": backend, "precision": precision, "order": 5, "near_radius": 1.8,
        "smoothing": 0.05, "grid": (4, 4, 5),
    }  # fmt: skip
    result = CoulombSolver(q, SKEWED, **options).compute(x, points=points, virial=virial)
    uncharged = np.concatenate([q, np.zeros(40)])
    expected = CoulombSolver(uncharged, SKEWED, **options).compute(np.concatenate([x, points]))
    small = 1e-13 if precision == "double" else 1e-6 if backend == "cpu" else 1e-5
    assert relative(result.point_potentials, expected.potentials[60:]) < small
    assert relative(result.point_fields, expected.fields[60:]) < small
    assert relative(result.forces, expected.forces[:60]) < small
    assert (result.virial is not None) == virial


def test_levels_and_boxes_that_hold_only_points():
    x, q = random_charges(3, SKEWED)
    points = np.random.default_rng(1).uniform(-1.0, 4.0, (40, 3))
    options = {
        "backend": "cpu", "precision": "double", "order": 5, "near_radius": 1.8, "smoothing": 0.0,
        "grid": (2, 2, 2), "levels": 1,
    }  # fmt: skip
    solver = CoulombSolver(q, SKEWED, **options)
    one, many = solver.compute(x, points=points), solver.compute(x, charges=[q], points=points)
    uncharged = np.concatenate([q, np.zeros(40)])
    expected = CoulombSolver(uncharged, SKEWED, **options).compute(np.concatenate([x, points]))
    assert relative(one.point_potentials, expected.potentials[3:]) < 1e-13
    assert relative(one.point_fields, expected.fields[3:]) < 1e-13
    assert relative(many.point_potentials[0], expected.potentials[3:]) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fmm", "direct"])
def test_open_boundary_and_points_far_outside(method):
    x, q = random_charges(60, SKEWED, net=0.5)
    points = np.concatenate([x[:5] + 0.05, [[40.0, -30.0, 12.0]]])
    solver = CoulombSolver(q, None, boundary="open", method=method, tolerance=1e-6)
    result = solver.compute(x, points=points)
    charges = np.concatenate([q, np.zeros(6)])
    expected = direct_sum(np.concatenate([x, points]), charges)
    assert result.potentials.shape == (60,) and result.point_fields.shape == (6, 3)
    assert relative(result.point_potentials, expected.potentials[60:]) < 1e-6
    assert relative(result.point_fields, expected.fields[60:]) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS[2:])
@pytest.mark.parametrize("virial", [False, True])
def test_arrays_stay_on_the_device(backend, virial, monkeypatch):
    """Fewer and more points than are evaluated at once, and a point on an uncharged particle."""
    require(backend)
    import cupy

    from fmm_openmm.backends.cuda import points as module

    monkeypatch.setattr(module, "MOST_POINTS", 70)
    x, q = random_charges(60, SKEWED)
    q[5] = 0.0
    options = {"tolerance": 1e-7, "precision": "double"}
    solver = CoulombSolver(q, SKEWED, backend=backend, **options)
    host = CoulombSolver(q, SKEWED, backend="cpu", **options)
    for scale, m in ((1.0, 40), (1.02, 200)):
        points = np.random.default_rng(1).uniform(-1.0, 4.0, (m, 3))
        points[0], points[1] = scale * x[7], scale * x[5]
        cell = scale * SKEWED
        place = cupy.asarray(scale * x)
        found = solver.compute(place, cell, points=cupy.asarray(points), virial=virial)
        expected = host.compute(scale * x, cell, points=points, virial=virial)
        for name in ("point_potentials", "point_fields", "forces"):
            array = getattr(found, name)
            assert isinstance(array, cupy.ndarray)
            array, wanted = array.get(), getattr(expected, name)
            assert np.array_equal(np.isnan(array), np.isnan(wanted))
            assert relative(np.nan_to_num(array), np.nan_to_num(wanted)) < 1e-6
        assert (found.virial is not None) == virial
        if virial:
            assert relative(found.virial.get(), expected.virial) < 1e-6
    with pytest.raises(ValueError, match="`points` must have shape"):
        solver.compute(place, cell, points=place[0])


@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_point_on_a_charge_has_no_potential(backend, boundary):
    require(backend)
    x, q = random_charges(60, SKEWED)
    box = SKEWED if boundary == "periodic" else None
    solver = CoulombSolver(q, box, boundary=boundary, backend=backend)
    result = solver.compute(x, points=[x[7], x[7] + 0.05])
    assert np.isnan(result.point_potentials[0]) and np.isnan(result.point_fields[0]).all()
    assert np.isfinite(result.point_potentials[1]) and np.isfinite(result.energy)


def test_places_that_coincide():
    boundary = Boundary.from_cell(SKEWED)
    places = np.array([[0.1, 0.2, 0.3], [1.0, 1.0, 1.0]])
    points = np.concatenate([places + SKEWED[2] - SKEWED[0], places + 1e-5])
    assert boundary.coincide(points, places, SKEWED).tolist() == [True, True, False, False]


@pytest.mark.slow
def test_nearly_empty_cell():
    x, q = random_charges(60, SKEWED)
    cell = 20.0 * np.eye(3)
    x = 0.3 * x + 8.0
    points = [[1.0, 2.0, 3.0], [8.2, 8.1, 8.3]]
    solver = CoulombSolver(q, cell, positions=x, tolerance=1e-6)
    result = solver.compute(x, points=points)
    expected = ewald_sum(np.concatenate([x, points]), np.append(q, [0.0, 0.0]), cell)
    assert relative(result.point_potentials, expected.potentials[60:]) < 1e-5


@pytest.mark.parametrize(
    "points", [np.zeros(3), np.zeros((0, 3)), np.zeros((2, 2)), [[0.0, 0.0, np.nan]]]
)
def test_wrong_points_are_refused(points):
    x, q = random_charges(60, SKEWED)
    with pytest.raises(ValueError, match="`points` must"):
        CoulombSolver(q, SKEWED).compute(x, points=points)
