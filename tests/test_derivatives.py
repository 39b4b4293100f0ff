"""Forces, potentials and the virial are derivatives of the energy."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.box import ORIGIN, box_width
from fmm_openmm.oracle import ewald_sum
from tests.support.charges import SKEWED
from tests.support.ewald import exact
from tests.support.solvers import BACKENDS, MIXED, scattered, solver_for

# of low orders, which are asked for
pytestmark = pytest.mark.filterwarnings("ignore:`tolerance=0.0005` is out of reach")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("smoothing", [0.05, 0.2])
@pytest.mark.parametrize("cell", [SKEWED, np.diag([2.0, 2.2, 1.8])], ids=["skewed", "rectangular"])
def test_forces_are_the_gradient_of_the_energy(cell, smoothing, backend):
    """Exactly, however loose the tolerance: along a line through several boxes, within the
    transitions and outside."""
    x, q = scattered(40, cell, net=1.0)
    solver = CoulombSolver(
        q,
        cell,
        MIXED,
        order=2,
        near_radius=1.75,
        grid=(5, 5, 5),
        smoothing=smoothing,
        precision="double",
        backend=backend,
    )
    particle, direction, h = 0, np.array([0.6, -0.64, 0.48]), 1e-6
    for distance in np.linspace(0.0, 0.5, 9):
        ahead, here, behind = x.copy(), x.copy(), x.copy()
        here[particle] += distance * direction
        ahead[particle], behind[particle] = (
            here[particle] + h * direction,
            here[particle] - h * direction,
        )
        slope = (solver.compute(ahead).energy - solver.compute(behind).energy) / (2 * h)
        forces = solver.compute(here).forces
        assert forces[particle] @ direction == pytest.approx(
            -slope, rel=1e-6, abs=1e-7 * np.abs(forces).max()
        )


def crossings(solver, positions, count):
    """Positions with one particle moved onto a box face, just before it and just behind."""
    counts = solver.parameters.counts
    boxes = np.linalg.solve(counts.astype(float), exact("water")[0].box_vectors)
    for particle in np.random.default_rng(0).integers(0, len(positions), count):
        scaled = positions[particle] @ np.linalg.inv(boxes) + ORIGIN
        axis = particle % 3
        sides = []
        for side in (-1e-9, 1e-9):
            there, moved = scaled.copy(), positions.copy()
            there[axis] = np.rint(scaled[axis]) + side
            moved[particle] = (there - ORIGIN) @ boxes
            sides.append(moved)
        yield sides


@pytest.mark.parametrize("tolerance", [5e-4, 1e-5])
def test_energy_jump_at_a_box_face(tolerance):
    """Without smoothing it is the difference of two truncation errors: of the size of a force
    error, tolerance times the rms force, over a box width. With smoothing there is none.
    """
    d, expected = exact("water")
    sharp = solver_for("water", tolerance=tolerance, smoothing=0.0, precision="double")
    smooth = solver_for("water", tolerance=tolerance, smoothing=0.02, precision="double")
    width = box_width(d.box_vectors, sharp.parameters.counts)
    bound = tolerance * np.sqrt((expected.forces**2).sum(1).mean()) * width
    jumps = [
        abs(np.subtract(*(sharp.compute(x).energy for x in pair)))
        for pair in crossings(sharp, d.positions, 12)
    ]
    assert 1e-3 * bound < np.max(jumps) < bound
    for before, behind in crossings(smooth, d.positions, 4):
        results = [smooth.compute(x) for x in (before, behind)]
        work = ((results[0].forces + results[1].forces) / 2 * (behind - before)).sum()
        assert abs(results[1].energy - results[0].energy + work) < 1e-4 * np.median(jumps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_potential_is_the_derivative_by_the_charge(smoothing, backend):
    """The energy is quadratic in the charges, so the central difference is exact, and at any
    tolerance: the truncated energy is symmetric.
    """
    x, q = scattered(40, net=1.0)
    solver = CoulombSolver(
        q, SKEWED, MIXED, tolerance=1e-2, precision="double", smoothing=smoothing, backend=backend
    )
    result = solver.compute(x)
    for particle in (0, 7, 20):
        energies = []
        for step in (0.5, -0.5):
            solver.set_charges(q + step * np.eye(40)[particle])
            energies.append(solver.compute(x).energy)
        assert energies[0] - energies[1] == pytest.approx(result.potentials[particle], rel=1e-10)
    assert result.energy == pytest.approx(0.5 * q @ result.potentials, rel=1e-13)
    np.testing.assert_array_equal(result.forces, q[:, None] * result.fields)


@pytest.mark.parametrize("net", [0.0, 3.0])
def test_trace_of_the_virial_is_the_energy(net):
    """The energy scales as the inverse length, the background of a net charge included: -dE / d
    ln(length) = E."""
    x, q = scattered(net=net)
    solver = CoulombSolver(q, SKEWED, tolerance=1e-3, precision="double")
    h = 1e-4
    shrunk, grown = (solver.compute(scale * x, scale * SKEWED).energy for scale in (1 - h, 1 + h))
    assert (shrunk - grown) / (2 * h) == pytest.approx(solver.compute(x).energy, rel=2e-8)


@pytest.mark.parametrize("i, j", [(0, 0), (2, 2), (1, 0), (2, 1)])
def test_derivative_by_the_box_vectors(i, j):
    """The derivative that barostats see, shear included."""
    x, q = scattered(net=2.0)
    fractions, h = x @ np.linalg.inv(SKEWED), 1e-4
    solver = CoulombSolver(q, SKEWED, tolerance=1e-9)
    slopes = []
    for energy in (
        lambda x, cell: solver.compute(x, cell).energy,
        lambda x, cell: ewald_sum(x, q, cell).energy,
    ):
        step = np.zeros((3, 3))
        step[i, j] = h
        slopes.append(
            np.subtract(
                *(energy(fractions @ cell, cell) for cell in (SKEWED + step, SKEWED - step))
            )
            / (2 * h)
        )
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-5)


@pytest.mark.parametrize("name", ["water", "nacl", "peptide_charged"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
def test_net_force_vanishes(name, tolerance):
    forces = solver_for(name, tolerance=tolerance).compute(exact(name)[0].positions).forces
    assert np.linalg.norm(forces.sum(0)) < tolerance * np.linalg.norm(forces)
