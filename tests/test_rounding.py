"""Charges that are close to each other in wide boxes: single precision is left,
or a warning says what it costs."""

import warnings

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.backends import backend_class
from fmm_openmm.boundary import EMPTY_SPACE, Boundary
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.error import Rounding, force_sums, rounding_of_positions
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from tests.support.charges import cluster, layers

MISSED = 1.5
"""Error over tolerance that counts as a miss: below some 200 charges the estimate
is one of few errors."""


def backends():
    for name in ("cpu", "cuda"):
        try:
            backend_class(name)
        except UnsupportedError as reason:
            yield pytest.param(name, marks=pytest.mark.skip(reason=str(reason)))
        else:
            yield name


def error_of(solver, x, q, cell, pairs=None) -> float:
    exact = ewald_sum(x, q, cell, pairs).forces
    return float(np.linalg.norm(solver.compute(x).forces - exact) / np.linalg.norm(exact))


def pair(distance):
    x, q, cell = cluster(3.0, others=40)
    x[1] = x[0] + [0.0, 0.6 * distance, 0.8 * distance]
    return x, q, cell


CASES = {
    "cluster": lambda: cluster(1e-3),
    "cluster among others": lambda: cluster(1e-3, others=60),
    "pair": lambda: pair(1e-4),
    "closer pair": lambda: pair(1e-7),
}


BACKENDS = list(backends())


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_double_precision_is_chosen(name, backend):
    x, q, cell = CASES[name]()
    solver = fmm.CoulombSolver(q, cell, tolerance=1e-5, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert error_of(solver, x, q, cell) < 1e-5
    assert solver.parameters.precision == "double"


@pytest.mark.parametrize("backend", BACKENDS)
def test_when_charges_come_close(backend):
    """Later, and in every evaluation afterwards."""
    x, q, cell = cluster(3.0, others=60)
    solver = fmm.CoulombSolver(q, cell, backend=backend)
    solver.compute(x)
    assert solver.parameters.precision == "single"
    for close in (x + 1e-4 * (x - x[0]), x):
        moved = close.copy()
        moved[1] = moved[0] + [1e-5, 0.0, 0.0]
        assert error_of(solver, moved, q, cell) < 5e-4
        assert solver.parameters.precision == "double"
    solver.set_charges(q[::-1].copy())
    solver.compute(x)
    assert solver.parameters.precision == "double"


@pytest.mark.parametrize("backend", BACKENDS)
def test_explicit_single_precision_is_warned_of(backend):
    """Once, with the error to expect."""
    x, q, cell = cluster(1e-3)
    solver = fmm.CoulombSolver(q, cell, tolerance=1e-5, precision="single", backend=backend)
    with pytest.warns(
        UserWarning, match="is out of reach in single precision for charges so close to each other"
    ) as caught:
        error = error_of(solver, x, q, cell)
    expected = float(str(caught[0].message).partition("an error of about ")[2].partition(";")[0])
    assert expected / 3 < error < 3 * expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver.compute(x)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("name", ["cluster among others", "pair"])
def test_the_estimate_from_positions(name, periodic):
    """Wherever the images are. Of a pair the error is one of a distribution."""
    x, q, cell = CASES[name]()
    solver = fmm.CoulombSolver(q, cell, tolerance=1e-5, precision="single", backend="cpu")
    with pytest.warns(UserWarning, match="so close"):
        error = error_of(solver, x, q, cell)
    width = np.cbrt(np.linalg.det(cell)) / solver.parameters.grid[0][0]
    if periodic:
        x += np.random.default_rng(3).integers(-2, 3, (len(x), 1)) @ cell[:1]

    def estimate(pairs):
        within = cell if periodic else EMPTY_SPACE
        return rounding_of_positions(x, q, within, np.array(pairs), width, 5e-6)

    assert error / 3 < estimate([[3, 4]]) < 10 * error
    if name == "pair":
        assert estimate([[3, 4], [1, 0]]) < 0.01 * error


def crystal(displacement):
    """Positions, charges and cell of like charges near the sites of a simple cubic lattice."""
    sites = np.indices((4, 4, 4)).reshape(3, -1).T
    x = sites + displacement * np.random.default_rng(0).normal(size=sites.shape)
    return x, np.ones(len(x)), 4.0 * np.eye(3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tolerance", [1e-4, 1e-5])
def test_small_forces(tolerance, backend):
    """In a cold crystal, whose fields cancel: parameters for an ordinary liquid miss the tolerance
    by 2.0 times at 1e-5."""
    x, q, cell = crystal(0.0014)
    solver = fmm.CoulombSolver(q, cell, tolerance=tolerance, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert error_of(solver, x, q, cell) < tolerance
    assert solver.parameters.expected_error <= tolerance


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_net_charge_with_smoothing(backend):
    """The potential of near images is rounded, and the slope of the weights multiplies it."""
    x, q, cell = hostile("mixture", 212)
    options = {"order": 8, "near_radius": 4.18, "grid": [[2, 0, 0], [-1, 2, 0], [1, 0, 1]]}
    solver = fmm.CoulombSolver(q, cell, smoothing=0.03, backend=backend, **options)
    assert error_of(solver, x, q, cell) < 5e-4
    assert solver.parameters.precision == "double"
    single = fmm.CoulombSolver(
        q, cell, smoothing=0.03, precision="single", backend=backend, **options
    )
    with pytest.warns(UserWarning, match="in single precision for forces as small as these"):
        single.compute(x)


@pytest.fixture(scope="module")
def drude_water() -> fmm.ChargeSystem:
    """SWM4-NDP water, minimised, in which large charges nearly cancel and forces are small."""
    field = app.ForceField("swm4ndp.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(field, model="swm4ndp", boxSize=openmm.Vec3(1.9, 1.9, 1.9))
    system = field.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer
    )
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("CPU")
    )
    context.setPositions(modeller.positions)
    context.computeVirtualSites()
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=100)
    return fmm.ChargeSystem.from_openmm(system, context.getState(positions=True).getPositions())


@pytest.mark.parametrize("backend", BACKENDS)
def test_far_layers_of_opposite_charge_with_smoothing(backend):
    """Potentials that are large compared with the forces are rounded differently in every box."""
    _, x, q, box = layers()
    exact = partial_ewald_sum(x, q, Boundary.from_name("slab").cell(box)).forces
    tolerance = 5e-5 if backend == "cuda" else 1e-4  # at 1e-4 single precision suffices on a GPU
    options = dict(tolerance=tolerance, boundary="slab", smoothing=0.05, backend=backend)
    solver = fmm.CoulombSolver(q, box, positions=x, **options)
    error = np.linalg.norm(solver.compute(x).forces - exact) / np.linalg.norm(exact)
    assert error < tolerance
    assert solver.parameters.precision == "double"
    single = fmm.CoulombSolver(q, box, precision="single", positions=x, **options)
    with pytest.warns(UserWarning, match="out of reach in single precision"):
        error = np.linalg.norm(single.compute(x).forces - exact) / np.linalg.norm(exact)
    assert tolerance < error < 2 * single.parameters.expected_error


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("smoothing", [None, 0.025])
@pytest.mark.parametrize("tolerance", [1e-5, 5e-6])
def test_drude_water(tolerance, smoothing, backend, drude_water):
    """Forces show where the rounding of smoothed single precision is too large for them."""
    water = drude_water
    solver = water.solver(tolerance=tolerance, smoothing=smoothing, backend=backend)
    x, q, cell = water.positions, water.charges, water.box_vectors
    assert error_of(solver, x, q, cell, water.exclusions) < tolerance
    assert solver.parameters.precision == "double" or smoothing is None


def test_the_estimate_of_water():
    """Water stays in single precision."""
    rng = np.random.default_rng(2)
    fields = 4.0 * rng.normal(size=(3000, 3))
    charges = np.tile([-0.834, 0.417, 0.417], 1000)

    def error(fields):
        return Rounding.from_charges(charges, 12.0).error(*force_sums(charges, fields)[:2])

    assert 2e-7 < error(fields) < 2e-6
    charges[0] = 0.0
    fields[0] = np.nan
    assert error(fields) < 2e-6
    assert error(np.zeros_like(fields)) == 0.0
    fields[1] = np.inf
    assert force_sums(charges, fields) == (np.inf, np.inf, 0.0)


def hostile(kind: str, seed: int):
    """Positions, charges and cell; edges from 1.6 to 200 nm."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 100))
    edges = 10 ** rng.uniform(0.2, 2.3) * np.exp(rng.uniform(-0.7, 0.7, 3))
    cell = np.diag(edges)
    cell[1, 0], cell[2, :2] = (
        rng.uniform(-0.5, 0.5) * edges[0],
        rng.uniform(-0.5, 0.5, 2) * edges[:2],
    )
    q = rng.normal(size=n) if rng.random() < 0.5 else rng.choice([-1.0, 1.0], n)
    if rng.random() < 0.7:
        q -= q.mean()
    x = rng.random((n, 3)) @ cell
    if kind == "cluster":
        x = x[0] + 10 ** rng.uniform(-4, -0.5) * rng.normal(size=(n, 3))
    elif kind == "mixture":
        q *= 10 ** rng.uniform(-2, 2, n)
    return x, q, cell


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("cluster", 0), ("mixture", 212)])
def test_no_silent_miss(kind, seed):
    """What ``tests/test_hostile.py`` asks of random systems of every kind."""
    x, q, cell = hostile(kind, seed)
    exact = ewald_sum(x, q, cell).forces
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = fmm.CoulombSolver(q, cell, tolerance=5e-4, backend="cpu").compute(x).forces
        except UserWarning:
            return
    assert np.linalg.norm(found - exact) <= MISSED * 5e-4 * np.linalg.norm(exact)
