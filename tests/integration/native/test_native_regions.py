"""The native bridge where boxes follow the particles: in free space and in nearly empty cells."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import Delivery
from fmm_openmm.integration.native import callbacks
from fmm_openmm.oracle import direct_sum, ewald_sum
from tests.integration.boxes import charges_and_pairs, opened, relative_difference
from tests.integration.native_contexts import (
    A_PROGRAM,
    BOXES,
    CHARGES,
    ROUNDING,
    context_of,
    converted,
    coulomb,
    droplet_in_a_cell,
    forces_alone,
    no_room,
    on_devices,
    on_gpu,
    session_of,
)
from tests.support.nearly_empty import wrapped


def covers_particles(program: bytes) -> bool:
    """Whether the boxes are over the particles only."""
    return b"#define PADDED0 1" in program


@pytest.mark.slow
def test_boxes_follow_the_particles_in_empty_space(chains):
    """A parameter block while there are enough of them, another program when there are not,
    or far too many."""
    chains.nonbonded.setNonbondedMethod(openmm.NonbondedForce.NoCutoff)
    force, x = fmm.FMMForce.from_nonbonded(chains.nonbonded, smoothing=0.05), chains.positions
    session, cell = session_of(force, len(x)), np.zeros((3, 3))
    assert session.program(cell, {}) == {}
    expected = session.parameters_for(cell, x)
    first = session.program(cell, {}, x)
    assert session.parameters_for(cell) == expected
    assert set(first) == A_PROGRAM
    assert covers_particles(first[Delivery.PROGRAM])
    assert set(session.charges(cell, {}, x)) == CHARGES
    moved = session.program(cell, {}, x + np.array([3.0, -500.0, 0.0]))
    assert set(moved) == BOXES
    before, after = (np.frombuffer(found[Delivery.PARAMETERS]) for found in (first, moved))
    np.testing.assert_array_equal(after[:-3], before[:-3])
    np.testing.assert_allclose(after[-3:] - before[-3:], [3.0, -500.0, 0.0])
    far = x.copy()
    far[-1] += 8.0
    assert set(session.program(cell, {}, far)) == A_PROGRAM
    assert set(session.program(cell, {}, x)) == BOXES
    assert set(session.charges(cell, {}, x)) == A_PROGRAM
    assert session.parameters_for(cell) == expected
    far[5, 0] = np.nan
    for ask in (session.program, session.charges):
        with pytest.raises(ValueError, match="for particle 5"):
            ask(cell, {}, far)
    x[3] = x[9]
    assert (
        session.explain(cell, x) == "`positions`: particles 3 and 9 coincide and are not excluded"
    )


@pytest.mark.slow
def test_boxes_follow_the_particles_in_a_nearly_empty_cell():
    """A uniform scaling of the cell needs a parameter block, another shape a program with its
    operator; what falls apart gets boxes over the whole cell, for good."""
    box = droplet_in_a_cell()
    force, x, cell = fmm.FMMForce.from_nonbonded(box.nonbonded), box.positions, box.cell
    session = session_of(force, len(x))
    assert not covers_particles(session.program(cell, {})[Delivery.PROGRAM])
    found = session.charges(cell, {}, x)
    assert covers_particles(found[Delivery.PROGRAM])
    assert set(session.charges(cell, {}, x)) == CHARGES
    assert set(session.program(cell, {}, wrapped(x + np.array([5.0, 2.0, -7.0]), cell))) == BOXES
    assert set(session.program(1.01 * cell, {}, x)) == BOXES
    assert covers_particles(session.program(cell * [[1.0], [1.0], [1.02]], {}, x)[Delivery.PROGRAM])
    apart = x.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(0, 12, (len(x) // 3, 1, 3))
    found = session.program(cell, {}, apart.reshape(-1, 3))
    assert not covers_particles(found[Delivery.PROGRAM])
    assert set(session.program(cell, {}, x)) == BOXES
    assert set(session.charges(cell, {}, None)) == CHARGES


@pytest.mark.slow
def test_a_program_that_failed_is_asked_for_again(monkeypatch):
    """Whatever is asked next: the plugin has none for the boxes that were chosen."""
    box = droplet_in_a_cell()
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded), len(box.positions))
    session.program(box.cell, {})
    for cell, ask in (
        (box.cell, session.charges),
        (box.cell * [[1.0], [1.0], [1.02]], session.program),
    ):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr("fmm_openmm.integration.native.session.build", no_room)
            ask(cell, {}, box.positions)
        assert covers_particles(session.charges(cell, {}, box.positions)[Delivery.PROGRAM])


@pytest.mark.parametrize("option", [{"grid": (16, 16, 16)}, {"levels": 1}])
def test_boxes_over_the_whole_cell_where_they_are_asked_for(option):
    box = droplet_in_a_cell()
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded, **option), len(box.positions))
    session.program(box.cell, {})
    assert not covers_particles(session.charges(box.cell, {}, box.positions)[Delivery.PROGRAM])
    assert not session.planner.problem.uses_region


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_a_droplet_in_empty_space(precision):
    """The boxes are where it is: also where only forces are asked for, after jumps, and when a
    molecule flies away."""
    box = droplet_in_a_cell(None)
    charges, pairs = charges_and_pairs(box.nonbonded)
    force = converted(box, bridge="native")
    context = context_of(box, precision)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    assert not box.system.usesPeriodicBoundaryConditions()
    for jump, escape in ((0.0, 0.0), (0.7, 0.0), (40.0, 0.0), (0.0, 0.2), (0.0, 5.0), (0.0, 0.0)):
        x = box.positions + np.array([jump, -jump, 0.0])
        x[:3, 1] += escape
        expected = direct_sum(x, charges, pairs)
        context.setPositions(x)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(expected.energy, rel=5e-4)
        assert relative_difference(forces, expected.forces) <= 5e-4
    potentials = force.getPotentialsInContext(context)
    assert 0.5 * charges @ potentials == pytest.approx(energy, rel=1e-5)


@on_gpu
@on_devices
@pytest.mark.parametrize("edge", [None, 12.0])
def test_a_droplet_in_motion(edge, devices):
    """OpenMM's order of atoms changes, a wind takes the droplet away, through the boundary, and
    the cell follows a barostat."""
    box = droplet_in_a_cell(edge)
    charges, pairs = charges_and_pairs(box.nonbonded)
    if edge:
        box.system.addForce(openmm.MonteCarloBarostat(1.0, 300.0, 10))
    force = converted(box, bridge="native")
    context = context_of(
        box, integrator=openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002), DeviceIndex=devices
    )
    context.setVelocitiesToTemperature(300.0, 1)
    velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
    for wind in ([0.0, 0.0, 0.0], [8.0, -6.0, 7.0]):
        context.setVelocities(velocities + wind)
        context.getIntegrator().step(400)
        state = context.getState(positions=True)
        x, cell = (
            state.getPositions(asNumpy=True)._value,
            state.getPeriodicBoxVectors(asNumpy=True)._value,
        )
        expected = ewald_sum(x, charges, cell, pairs) if edge else direct_sum(x, charges, pairs)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
def test_a_droplet_in_cells_of_other_shapes():
    box = droplet_in_a_cell()
    charges, pairs = charges_and_pairs(box.nonbonded)
    force = converted(box, bridge="native")
    context = context_of(box)
    apart = box.positions.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(
        0, 12, (len(charges) // 3, 1, 3)
    )
    cases = [(box.positions, scale) for scale in (1.0, 1.02, np.array([1.0, 1.03, 1.0]), 1.0)]
    for positions, scale in (*cases, (apart.reshape(-1, 3), 1.0)):
        cell = box.cell * scale
        context.setPeriodicBoxVectors(*cell)
        context.setPositions(positions)
        expected = ewald_sum(positions, charges, cell, pairs)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    session, _ = callbacks.status(force._bridge, context)
    assert not session.planner.problem.uses_region


@on_gpu
@on_devices
def test_what_a_force_in_empty_space_is_asked(chains, devices):
    """Other charges, two forces, one inside a CustomCVForce, and bad coordinates, after which
    nothing is lost."""
    charges, pairs = charges_and_pairs(opened(chains).nonbonded)
    expected = direct_sum(chains.positions, charges, pairs)
    force = converted(chains, bridge="native", tolerance=1e-6)
    other = fmm.FMMForce.from_nonbonded(chains.nonbonded, bridge="native", tolerance=1e-6)
    for particle in range(len(charges)):
        other.setParticleParameters(particle, charges[particle])
    other.setForceGroup(8)
    variable = openmm.CustomCVForce("3*electrostatic")
    variable.addCollectiveVariable("electrostatic", copy.deepcopy(other))
    variable.setForceGroup(9)
    chains.system.addForce(other)
    chains.system.addForce(variable)
    context = context_of(chains, "double", DeviceIndex=devices)
    for group, factor in ((7, 1), (8, 1), (9, 3)):
        state = context.getState(energy=True, forces=True, groups={group})
        assert state.getPotentialEnergy()._value == pytest.approx(
            factor * expected.energy, rel=1e-6
        )
        assert (
            relative_difference(state.getForces(asNumpy=True)._value, factor * expected.forces)
            <= 1e-6
        )
    before = coulomb(context, force)[0]
    for particle in range(len(charges)):
        force.setParticleParameters(particle, 2 * charges[particle])
    force.updateParametersInContext(context)
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-12)
    assert coulomb(context, other)[0] == pytest.approx(before, rel=1e-12)
    for bad in (np.nan, np.inf, 1e30):
        positions = chains.positions.copy()
        positions[17, 1] = bad
        context.setPositions(positions)
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match=r"for particle 17|NaN"):
                forces_alone(context, force)
    positions = chains.positions.copy()
    positions[17] = positions[40]
    context.setPositions(positions)
    with pytest.raises(openmm.OpenMMException, match="particles 17 and 40 coincide"):
        coulomb(context, force)
    context.setPositions(chains.positions)
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-12)


@on_gpu
@pytest.mark.parametrize("bridge", ["auto", "native"])
def test_a_failure_at_the_first_evaluation(chains, bridge, monkeypatch):
    """Programs in free space wait for positions. If none can be made the host bridge takes over,
    unless it is excluded."""
    expected = direct_sum(chains.positions, *charges_and_pairs(opened(chains).nonbonded))
    force = converted(chains, bridge=bridge)
    context = context_of(chains)
    with monkeypatch.context() as patch:
        patch.setattr("fmm_openmm.integration.native.session.build", no_room)
        if bridge == "native":
            for _ in range(2):
                with pytest.raises(
                    openmm.OpenMMException, match="not possible: MemoryError: no room"
                ):
                    coulomb(context, force)
        else:
            assert (
                relative_difference(force.getPotentialsInContext(context), expected.potentials)
                <= 1e-3
            )
            assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    energy, forces = coulomb(context, force)
    assert energy == pytest.approx(expected.energy, rel=5e-4)
    assert relative_difference(forces, expected.forces) <= 5e-4
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == ("native" if bridge == "native" else "host")
    assert bridge == "native" or "no room" in found["bridge_reason"]


@on_gpu
def test_a_force_in_empty_space_beside_a_periodic_one(chains):
    """OpenMM would move molecules into the box: the host bridge knows where the user has them."""
    force = converted(opened(chains))
    bonds = openmm.HarmonicBondForce()
    bonds.setUsesPeriodicBoundaryConditions(True)
    chains.system.addForce(bonds)
    found = force.getFMMParametersInContext(context_of(chains))
    assert (found["bridge"], found["bridge_reason"]) == (
        "host",
        "it is not periodic, but another force of the System is",
    )
