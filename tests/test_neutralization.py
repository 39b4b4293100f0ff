"""Slabs with a net charge that uniform sheets neutralise, and wires with lines or cylinders."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.neutralization import Neutralization
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


@pytest.mark.slow
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


def check_two_sets(solver, x, q, potentials):
    """Every other charge q in one of two sets: their potentials add up to those of all charges, and
    matrix, energies among groups and operator agree with them."""
    group = np.arange(len(q)) % 2
    sets = np.where(group == np.arange(2)[:, None], q, 0.0)
    found = solver.compute(x, charges=sets)
    np.testing.assert_allclose(found.potentials.sum(0), potentials, atol=1e-4)
    np.testing.assert_allclose(found.matrix, sets @ found.potentials.T, atol=1e-4)
    np.testing.assert_allclose(solver.interaction_energies(x, group), found.matrix / 2, atol=1e-4)
    np.testing.assert_allclose(solver.coulomb_operator(x) @ sets.T, found.potentials.T, atol=1e-4)


def test_sets_groups_operator_and_points(layer):
    x, q = layer
    solver = solver_of(q, SHEETS[1])
    points = np.array([[0.2, 0.3, 1.8], [0.1, 0.5, 9.0]])
    whole = solver.compute(x, points=points)
    check_two_sets(solver, x, q, whole.potentials)
    # beyond both walls there is no field
    np.testing.assert_allclose(whole.point_fields[1], 0.0, atol=1e-4)


def test_a_plane_between_walls():
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
    with pytest.raises(fmm.UnsupportedError, match=r"a line or cylinder \(`neutralization`\)"):
        fmm.CoulombSolver(q, OBLIQUE, boundary="b")
    for boundary, cell in (("periodic", OBLIQUE), ("bc", OBLIQUE), ("open", None)):
        with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
            fmm.CoulombSolver(q, cell, boundary=boundary, neutralization=[1.0])
    for wrong in ([], 1.0, [[1.0]], [np.nan]):
        with pytest.raises(ValueError, match="must be the heights of one or more sheets"):
            solver_of(q, wrong)
    with pytest.raises(ValueError, match="needs `boundary='periodic'`, got 'slab'"):
        solver_of(q, [1.0], slab_correction=True)


SKEWED = np.array([[3.0, 0.0, 0.0], [0.3, 2.9, 0.0], [0.4, -0.3, 1.0]])
BESIDE = {
    "a line": [[1.5, 1.5, 0.0]],
    "two lines": [[1.5, 1.5, 0.0], [-1.0, 0.0, 0.3]],
    "a coaxial cylinder": [[0.2, 0.2, 0.2, 1.5]],
    "nested cylinders": [[0.2, 0.2, 0.2, 1.5], [0.3, 0.1, 0.0, 1.1]],
    "a line and a rod": [[1.5, 1.5, 0.0, 0.0], [-1.0, 0.0, 0.3, 0.2]],
}


@pytest.fixture
def wire():
    random = np.random.default_rng(7)
    return random.uniform(0.0, 0.5, (12, 3)), random.uniform(-1.0, 1.0, 12) + 0.3


def beside_wire(q, rows, box=SKEWED, tolerance=1e-9, boundary="wire"):
    return fmm.CoulombSolver(q, box, tolerance=tolerance, boundary=boundary, neutralization=rows)


def with_lines_of_ions(x, q, rows, ions=10, lines=28):
    """Energy and forces beside lines of point charges, uniform but for ``exp(-2 pi ions d / c)`` at
    the distance d, cylinders made of lines, uniform but for ``(r / R)**lines``, r < R."""
    vector = SKEWED[2]
    across = np.linalg.svd(vector[None])[2][1:]
    angles = 2 * np.pi * np.arange(lines) / lines
    circle = np.column_stack([np.cos(angles), np.sin(angles)]) @ across
    steps = np.arange(ions)[:, None] / ions * vector
    parts = [
        (steps[:, None] + (point + radius * circle if radius else point[None])).reshape(-1, 3)
        for point, radius in ((np.array(row[:3]), sum(row[3:])) for row in rows)
    ]
    charges = [np.full(len(part), -q.sum() / len(rows) / len(part)) for part in parts]
    both = np.concatenate([x, *parts]), np.concatenate([q, *charges])
    return partial_ewald_sum(*both, Boundary.from_name("wire").cell(SKEWED))


@pytest.mark.parametrize("name", BESIDE)
def test_lines_and_cylinders_of_ions(wire, name):
    """The limit of many ions, of which each line and cylinder adds a constant to itself."""
    x, q = wire
    rows, moved = BESIDE[name], 0.7 * x
    solver, (exact, after) = (
        beside_wire(q, rows),
        (with_lines_of_ions(places, q, rows) for places in (x, moved)),
    )
    found = solver.compute(x)
    error = np.linalg.norm(found.forces - exact.forces[:12])
    assert error < 1e-7 * np.linalg.norm(found.forces)
    change = after.energy - exact.energy
    assert solver.compute(moved).energy - found.energy == pytest.approx(change, rel=1e-7)
    if len(rows) > 1:  # what they add to each other
        shifted = [np.add(rows[0], np.eye(len(rows[0]))[0] / 10), *rows[1:]]
        change = with_lines_of_ions(x, q, shifted).energy - exact.energy
        other = beside_wire(q, shifted).compute(x).energy
        slack = 1e-7 * abs(found.energy)
        assert other - found.energy == pytest.approx(change, abs=slack)


def test_a_capacitor():
    """A charged line in a coaxial cylinder: the work of widening it, by hand."""
    q, inner, outer = 2.0, 0.5, 1.5
    energies = [
        beside_wire([q], [[0.0, 0.0, 0.0, radius]]).compute([[0.0, 0.0, 0.0]]).energy
        for radius in (inner, outer)
    ]
    period = np.linalg.norm(SKEWED[2])
    work = COULOMB_CONSTANT * q**2 / period * np.log(outer / inner)
    assert energies[1] - energies[0] == pytest.approx(work, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two lines", "a line and a rod"])
def test_derivatives_of_a_wire(wire, name):
    """Potentials and virial are derivatives of the energy by charges and strains. Strains that make
    ellipses of circles are tried with lines only."""
    x, q = wire
    rows, h, cell_of = np.array(BESIDE[name]), 1e-5, Boundary.from_name("wire").cell
    found = beside_wire(q, rows).compute(x, virial=True)

    def energy(charges, strain):
        f = np.eye(3) + strain
        points = np.column_stack([rows[:, :3] @ f, rows[:, 3:] * (1 + strain[0, 0])])
        term = Neutralization.from_option(points, Boundary.from_name("wire"))
        alone = partial_ewald_sum(x @ f, charges, cell_of(SKEWED @ f))
        return term.at(x @ f, SKEWED @ f).add(alone, charges).energy

    step = h * np.eye(12)[5]
    slope = energy(q + step, np.zeros((3, 3))) - energy(q - step, np.zeros((3, 3)))
    assert found.potentials[5] == pytest.approx(slope / (2 * h), rel=1e-6)
    strains = [np.eye(3)]
    if name == "two lines":
        strains += [np.eye(3)[[a]].T * np.eye(3)[b] for a, b in ((0, 0), (1, 1), (0, 1), (1, 2))]
    for strain in strains:
        strain = (strain + strain.T) / 2
        slope = (energy(q, h * strain) - energy(q, -h * strain)) / (2 * h)
        assert (found.virial * strain).sum() == pytest.approx(-slope, abs=1e-4)


@pytest.mark.slow
def test_the_virial_of_cylinders_is_that_of_many_lines(wire):
    """Apart from what each line would add to itself, which is even across the axis."""
    x, q = wire
    vector, boundary = SKEWED[2] / np.linalg.norm(SKEWED[2]), Boundary.from_name("wire")
    angles = 2 * np.pi * np.arange(64) / 64
    across = np.linalg.svd(vector[None])[2][1:]
    circle = np.column_stack([np.cos(angles), np.sin(angles)]) @ across
    cylinders = [[1.2, 0.3, 0.0, 0.3], [-1.0, -1.0, 0.0, 0.4]]
    lines = np.concatenate([row[:3] + row[3] * circle for row in np.array(cylinders)])
    virials = []
    for rows in cylinders, lines:
        term = Neutralization.from_option(rows, boundary).at(x, SKEWED)
        virial = term._virial(q, term._moments_of(q[None]))
        virials.append(across @ virial @ across.T)
    uneven = [virial - np.trace(virial) / 2 * np.eye(2) for virial in virials]
    assert np.abs(uneven[0]).max() > 10.0
    np.testing.assert_allclose(*uneven, atol=1e-3)


@pytest.mark.slow
def test_sets_groups_operator_and_points_of_a_wire(wire):
    x, q = wire
    solver = beside_wire(q, BESIDE["a coaxial cylinder"], tolerance=1e-7)
    points = np.array([[0.2, 0.3, 0.1], [3.0, 0.5, 9.0]])
    whole = solver.compute(x, points=points)
    check_two_sets(solver, x, q, whole.potentials)
    probe = beside_wire(np.append(q, 0.0), BESIDE["a coaxial cylinder"], tolerance=1e-7)
    for number, point in enumerate(points):
        there = probe.compute(np.append(x, point[None], axis=0))
        assert whole.point_potentials[number] == pytest.approx(there.potentials[-1], abs=1e-3)
        np.testing.assert_allclose(whole.point_fields[number], there.fields[-1], atol=1e-3)


def test_what_is_refused_beside_a_wire(wire):
    x, q = wire
    for wrong in ([[1.0, 2.0]], [[0.0, 0.0, 0.0, -1.0]], [[np.nan, 0.0, 0.0]], [[[1.0, 2.0, 3.0]]]):
        with pytest.raises(ValueError, match="of a wire must be points on lines"):
            beside_wire(q, wrong)
    for crossing in (
        [[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]],
        [[0.0, 0.0, 0.0], SKEWED[2]],
    ):
        with pytest.raises(ValueError, match="0 and 1 cross each other"):
            beside_wire(q, crossing)
    with pytest.raises(ValueError, match="particle 3 lies on a line of charge"):
        beside_wire(q, [x[3] + 0.3 * SKEWED[2]], tolerance=1e-3).compute(x)
