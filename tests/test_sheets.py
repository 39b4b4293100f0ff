"""Slabs with a net charge that uniform sheets neutralise."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

OBLIQUE = np.array([[1.0, 0.0, 0.0], [0.3, 0.9, 0.0], [0.0, 0.0, 1.0]])
CELL = Boundary.from_name("slab").cell(OBLIQUE)
SHEETS = [[0.4], [-1.3, 2.1]]


@pytest.fixture
def layer():
    random = np.random.default_rng(7)
    x = random.uniform(0.0, 0.9, (20, 3))
    return x, random.uniform(-1.0, 1.0, 20) + 0.2


def solver_of(q, heights, **options):
    return fmm.CoulombSolver(
        q, OBLIQUE, tolerance=1e-9, boundary="slab", neutralization=heights, **options
    )


def with_ions_as_walls(x, q, heights, ions=5):
    """Energy and forces beside walls of ``ions**2`` point charges a cell: uniform but for
    ``exp(-2 pi ions d)`` at the distance d, nm."""
    steps = np.stack(np.meshgrid(*2 * [np.arange(ions) / ions]), -1).reshape(-1, 2) @ OBLIQUE[:2]
    walls = np.concatenate([steps + height * np.eye(3)[2] for height in heights])
    charges = np.full(len(walls), -q.sum() / len(walls))
    both = np.concatenate([x, walls]), np.concatenate([q, charges])
    return partial_ewald_sum(*both, CELL)


def test_walls_of_ions(layer):
    """Two walls outside: the limit of many ions. What a wall of ions adds to itself depends
    neither on the particles nor on the other wall."""
    x, q = layer
    heights, solver = SHEETS[1], solver_of(q, SHEETS[1])
    found, exact = solver.compute(x), with_ions_as_walls(x, q, heights)
    error = np.linalg.norm(found.forces - exact.forces[:20])
    assert error < 1e-7 * np.linalg.norm(found.forces)
    moved = x * [1.0, 1.0, 0.5]
    change = with_ions_as_walls(moved, q, heights).energy - exact.energy
    assert solver.compute(moved).energy - found.energy == pytest.approx(change, rel=1e-6)
    nearer = [-1.0, 2.0]
    change = with_ions_as_walls(x, q, nearer).energy - exact.energy
    assert solver_of(q, nearer).compute(x).energy - found.energy == pytest.approx(change, rel=1e-6)


@pytest.mark.parametrize("heights", SHEETS)
def test_derivatives(layer, heights):
    """Potentials are derivatives of the energy with respect to charges, forces to positions."""
    x, q = layer
    found, h = solver_of(q, heights).compute(x, virial=True), 1e-4
    particle = 7
    step = h * (np.arange(20) == particle)
    energies = [solver_of(q + s, heights).compute(x).energy for s in (step, -step)]
    slope = (energies[0] - energies[1]) / (2 * h)
    assert found.potentials[particle] == pytest.approx(slope, rel=1e-6)
    up = np.outer(step, [0.0, 0.0, 1.0])
    energies = [solver_of(q, heights).compute(x + s).energy for s in (up, -up)]
    slope = (energies[0] - energies[1]) / (2 * h)
    assert found.forces[particle, 2] == pytest.approx(-slope, rel=1e-4)
    assert np.trace(found.virial) == pytest.approx(found.energy, rel=1e-6)
    stretched = []
    for sign in (1, -1):
        scale = np.array([1.0, 1.0, 1.0 + sign * h])
        beside = solver_of(q, scale[2] * np.array(heights))
        stretched.append(beside.compute(x * scale).energy)
    slope = (stretched[0] - stretched[1]) / (2 * h)
    assert found.virial[2, 2] == pytest.approx(-slope, rel=1e-5)


def test_sets_groups_operator_and_points(layer):
    x, q = layer
    solver = solver_of(q, SHEETS[1])
    group = np.arange(20) % 2
    sets = np.where(group == np.arange(2)[:, None], q, 0.0)
    points = np.array([[0.2, 0.3, 1.8], [0.1, 0.5, 9.0]])
    found, whole = solver.compute(x, charges=sets), solver.compute(x, points=points)
    np.testing.assert_allclose(found.potentials.sum(0), whole.potentials, atol=1e-4)
    np.testing.assert_allclose(found.matrix, sets @ found.potentials.T, atol=1e-4)
    np.testing.assert_allclose(solver.interaction_energies(x, group), found.matrix / 2, atol=1e-4)
    np.testing.assert_allclose(solver.coulomb_operator(x) @ sets.T, found.potentials.T, atol=1e-4)
    # beyond both walls there is no field
    np.testing.assert_allclose(whole.point_fields[1], 0.0, atol=1e-4)


def test_a_condenser():
    """A charged plane half-way between walls and nearer to one, by hand."""
    area, charge = 0.9, 2.0
    for z in (0.0, 0.5):
        energy = solver_of([charge], [-1.0, 1.0]).compute([[0.1, 0.2, z]]).energy
        alone = partial_ewald_sum([[0.1, 0.2, z]], [charge], CELL).energy
        # distances: charge to walls -1/2 each 2, walls among themselves 1/4 of 4
        factor = 2 * np.pi * COULOMB_CONSTANT / area * charge**2
        assert energy - alone == pytest.approx(factor * (1.0 - 0.5), rel=1e-7)


def test_what_is_refused(layer):
    _, q = layer
    with pytest.raises(fmm.UnsupportedError, match=r"sheets \(`neutralization`\)"):
        fmm.CoulombSolver(q, OBLIQUE, boundary="slab")
    for boundary, cell in (
        ("periodic", OBLIQUE),
        ("wire", OBLIQUE),
        ("bc", OBLIQUE),
        ("open", None),
    ):
        with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
            fmm.CoulombSolver(q, cell, boundary=boundary, neutralization=[1.0])
    for wrong in ([], 1.0, [[1.0]], [np.nan]):
        with pytest.raises(ValueError, match="must be the heights of one or more sheets"):
            solver_of(q, wrong)
    with pytest.raises(ValueError, match="needs `boundary='periodic'`, got 'slab'"):
        solver_of(q, [1.0], slab_correction=True)
