"""The dipole term of periodic cells: the correction of slabs and the surface of a dielectric."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

SHEARED = np.array([[1.0, 0.0, 0.0], [0.3, 0.9, 0.0], [-0.4, 0.2, 3.4]])
"""A cell whose third vector is oblique, with vacuum of 2.4 nm."""

TERMS = [{"slab_correction": True}, {"surface_dielectric": 1.0}, {"surface_dielectric": 4.0}]


@pytest.fixture
def layer():
    """Positions and charges of a neutral layer with a dipole moment, and an excluded pair."""
    random = np.random.default_rng(5)
    x = random.uniform(-0.4, 1.3, (24, 3))
    x[:, 2] = 5.0 + 0.9 * random.random(24)
    q = random.uniform(-1.0, 1.0, 24) + x[:, 2] - 5.5
    return x, q - q.mean(), [(0, 1)]


def without(x, q, cell, pairs=()):
    return fmm.CoulombSolver(q, cell, pairs, 1e-9).compute(x, virial=True)


@pytest.mark.parametrize("net", [0.0, 3.0])
def test_a_slab_with_vacuum(layer, net):
    """The correction leaves what decays with the vacuum; with a net charge and in an oblique
    cell, potentials included."""
    x, q, pairs = layer
    q = q + net / len(q)
    exact = partial_ewald_sum(x, q, Boundary.from_name("slab").cell(SHEARED), pairs)
    points = np.array([[0.1, 0.2, 4.0], [0.7, 0.1, 6.8]])
    far = partial_ewald_sum(
        np.concatenate([x, points]),
        np.append(q, [0.0, 0.0]),
        Boundary.from_name("slab").cell(SHEARED),
        pairs,
    )
    errors = []
    for height in (2.2, 3.4, 4.6):
        cell = SHEARED.copy()
        cell[2, 2] = height
        solver = fmm.CoulombSolver(q, cell, pairs, 1e-9, slab_correction=True)
        found = solver.compute(x, points=points)
        errors.append(np.linalg.norm(found.forces - exact.forces) / np.linalg.norm(exact.forces))
    assert errors[0] > 20 * errors[1] and errors[2] < 1e-8
    assert found.energy == pytest.approx(exact.energy, rel=1e-7)
    np.testing.assert_allclose(found.potentials, exact.potentials, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.point_potentials, far.potentials[-2:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.point_fields, far.fields[-2:], rtol=0, atol=1e-4)
    oracle = ewald_sum(x, q, cell, pairs, slab_correction=True)
    assert oracle.energy == pytest.approx(exact.energy, rel=1e-8)


@pytest.mark.slow
def test_the_surface_of_a_dielectric(layer):
    """The energy of the dipole moment in vacuum: that of a sphere of cells in free space."""
    x, q, pairs = layer
    volume, moment = np.prod(np.diag(SHEARED)), q @ x
    for dielectric in (1.0, 4.0):
        found = fmm.CoulombSolver(q, SHEARED, pairs, 1e-9, surface_dielectric=dielectric).compute(x)
        factor = 2 * np.pi * COULOMB_CONSTANT / ((2 * dielectric + 1) * volume)
        expected = without(x, q, SHEARED, pairs)
        assert found.energy - expected.energy == pytest.approx(factor * moment @ moment)
        forces = found.forces - expected.forces
        np.testing.assert_allclose(forces, -2 * factor * np.outer(q, moment), atol=1e-7)
    plain = fmm.CoulombSolver(q, SHEARED, pairs, 1e-9)
    conductor = fmm.CoulombSolver(q, SHEARED, pairs, 1e-9, surface_dielectric=float("inf"))
    assert conductor.compute(x).energy == plain.compute(x).energy


@pytest.mark.slow
@pytest.mark.parametrize("term", TERMS)
def test_the_virial(layer, term):
    """Against differences of the energy of strained cells; its trace is the energy."""
    x, q, _ = layer
    cell, h = np.diag([1.0, 1.1, 3.0]), 1e-4
    solver = fmm.CoulombSolver(q, cell, tolerance=1e-9, **term)
    virial = solver.compute(x, virial=True).virial
    exact = [
        -(
            ewald_sum(x * (1 + h * e), q, cell * (1 + h * e), **term).energy
            - ewald_sum(x * (1 - h * e), q, cell * (1 - h * e), **term).energy
        )
        / (2 * h)
        for e in np.eye(3)
    ]
    np.testing.assert_allclose(np.diag(virial), exact, rtol=1e-6)
    assert np.trace(virial) == pytest.approx(solver.compute(x).energy, rel=1e-7)
    shear = np.eye(3)
    differences = []
    for sign in (1.0, -1.0):
        shear[1, 0] = 2 * sign * h  # of b along a: reduced, and up to a rotation symmetric
        energy = ewald_sum(x @ shear, q, cell @ shear, **term).energy
        differences.append(energy)
    slope = (differences[0] - differences[1]) / (4 * h)
    assert virial[0, 1] == pytest.approx(-slope, rel=1e-5)


@pytest.mark.parametrize("term", TERMS)
def test_sets_groups_and_operator(layer, term):
    """Charged sets, too; all follow from the same pair potential."""
    x, q, pairs = layer
    solver = fmm.CoulombSolver(q, SHEARED, pairs, 1e-7, **term)
    group = np.arange(len(q)) % 3
    sets = np.where(group == np.arange(3)[:, None], q, 0.0)
    found, whole = solver.compute(x, charges=sets), solver.compute(x)
    np.testing.assert_allclose(found.potentials.sum(0), whole.potentials, atol=1e-3)
    np.testing.assert_allclose(found.fields.sum(0), whole.fields, atol=1e-2)
    np.testing.assert_allclose(found.matrix, sets @ found.potentials.T, atol=1e-3)
    np.testing.assert_allclose(found.forces, sets[:, :, None] * found.fields, atol=1e-9)
    np.testing.assert_allclose(solver.interaction_energies(x, group), found.matrix / 2, atol=1e-3)
    operator = solver.coulomb_operator(x)
    np.testing.assert_allclose(operator @ sets.T, found.potentials.T, atol=1e-6)
    np.testing.assert_allclose(operator @ sets[0], found.potentials[0], atol=1e-3)
    alone = solver.compute(x, charges=sets, fields=False)
    assert alone.fields is None
    np.testing.assert_allclose(alone.matrix, found.matrix, atol=1e-3)
    alone = solver.compute(x, charges=sets, potentials=False)
    assert alone.potentials is None and repr(alone) == "ChargeSetsResult(3 sets)"
    np.testing.assert_allclose(alone.matrix, found.matrix, atol=1e-3)
    alone = solver.compute(x, charges=sets, points=x[:2] + 0.05, potentials=False)
    assert alone.potentials is None and alone.point_potentials.shape == (3, 2)


def test_what_depends_on_the_image(layer):
    """An ion that has crossed the cell has moved; the origin does not matter, net charge or not."""
    x, q, _ = layer
    solver = fmm.CoulombSolver(q, SHEARED, tolerance=1e-8, surface_dielectric=1.0)
    here = solver.compute(x)
    assert solver.compute(x + np.array([100.0, 3.0, -40.0])).energy == pytest.approx(
        here.energy, rel=1e-7
    )
    crossed = x.copy()
    crossed[3] += SHEARED[0]
    before, after = q @ x, q @ crossed
    factor = 2 * np.pi * COULOMB_CONSTANT / (3 * np.prod(np.diag(SHEARED)))
    change = factor * (after @ after - before @ before)
    assert solver.compute(crossed).energy - here.energy == pytest.approx(change, rel=1e-6)
    charged = fmm.CoulombSolver(q + 1.0, SHEARED, tolerance=1e-8, slab_correction=True)
    energies = [charged.compute(x + shift).energy for shift in (0.0, 20.0)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-7)


def test_new_charges(layer):
    x, q, _ = layer
    solver = fmm.CoulombSolver(q, SHEARED, tolerance=1e-8, slab_correction=True)
    solver.set_charges(-2 * q + 0.1)
    new = fmm.CoulombSolver(-2 * q + 0.1, SHEARED, tolerance=1e-8, slab_correction=True)
    assert solver.compute(x).energy == pytest.approx(new.compute(x).energy, rel=1e-7)


def test_a_slab_across_the_cell(layer):
    x, q, _ = layer
    solver = fmm.CoulombSolver(q, SHEARED, tolerance=1e-8, slab_correction=True)
    x[0, 2] += SHEARED[2, 2]
    with pytest.warns(UserWarning, match="needs coordinates of one image of the slab"):
        solver.compute(x)


def test_what_is_refused(layer):
    _, q, _ = layer
    with pytest.raises(ValueError, match="exclude each other"):
        fmm.CoulombSolver(q, SHEARED, slab_correction=True, surface_dielectric=1)
    for boundary, cell in (("slab", SHEARED), ("open", None)):
        for term in TERMS[:2]:
            with pytest.raises(ValueError, match=rf"needs `boundary='periodic'`, got '{boundary}'"):
                fmm.CoulombSolver(q, cell, boundary=boundary, **term)
    with pytest.raises(ValueError, match="`surface_dielectric` must lie between 1 and inf"):
        fmm.CoulombSolver(q, SHEARED, surface_dielectric=0.5)
    with pytest.raises(TypeError, match="`slab_correction` must be True or False, got 1"):
        fmm.CoulombSolver(q, SHEARED, slab_correction=1)
    with pytest.raises(fmm.UnsupportedError, match="neutral in total with `surface_dielectric=1`"):
        fmm.CoulombSolver(q + 1, SHEARED, surface_dielectric=1)
    solver = fmm.CoulombSolver(q, SHEARED, surface_dielectric=1)
    with pytest.raises(fmm.UnsupportedError, match="got a net charge of 24 e"):
        solver.set_charges(q + 1)


def test_trajectories(layer):
    x, q, _ = layer
    solver = fmm.CoulombSolver(q, SHEARED, tolerance=1e-8, slab_correction=True)
    frames = [x, x + np.outer(q, [0.0, 0.0, 0.01])]
    found = fmm.analyse(frames, solver, progress=False)["energy"]
    np.testing.assert_allclose(found, [solver.compute(f).energy for f in frames], rtol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("term", TERMS[:2])
def test_positions_on_a_gpu(layer, term):
    """Results stay there, and are those of the CPU."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    x, q, pairs = layer
    try:
        solver = fmm.CoulombSolver(q, SHEARED, pairs, 1e-6, backend="cuda", **term)
    except fmm.UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    host = fmm.CoulombSolver(q, SHEARED, pairs, 1e-6, backend="cpu", **term)
    points, sets, group = x[:3] + 0.05, np.stack([q, q[::-1]]), np.arange(len(q)) % 3
    there = cupy.asarray(x)
    found = solver.compute(there, points=cupy.asarray(points), virial=True)
    expected = host.compute(x, points=points, virial=True)
    for name in ("energy", "forces", "potentials", "virial", "point_potentials", "point_fields"):
        value, known = getattr(found, name), np.asarray(getattr(expected, name))
        assert isinstance(value, cupy.ndarray)
        assert np.linalg.norm(value.get() - known) < 1e-4 * np.linalg.norm(known)
    for value, known in (
        (solver.compute(there, charges=sets).matrix, host.compute(x, charges=sets).matrix),
        (solver.interaction_energies(there, group), host.interaction_energies(x, group)),
        (solver.coulomb_operator(there) @ cupy.asarray(q), host.coulomb_operator(x) @ q),
    ):
        assert np.linalg.norm(value.get() - known) < 1e-4 * np.linalg.norm(known)
