"""Slabs and wires with a net charge in OpenMM, neutralised by sheets, lines and cylinders, which
stay where they are."""

import copy
from argparse import ArgumentParser

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.cli.options import add_fmm_arguments, fmm_options
from tests.integration.trajectories import Backwards

BOX = np.array([[2.0, 0.0, 0.0], [0.4, 1.8, 0.0], [0.3, -0.5, 8.0]])
WALLS = [-1.0, 3.0]
COUNT = 20


def layer():
    """Positions, shape (n, 3), nm, and charges, shape (n,), e, of 2 e in total."""
    positions = np.random.default_rng(5).uniform(0.0, [1.9, 1.7, 1.0], (COUNT, 3))
    return positions, np.resize([1.2, -1.0], COUNT)


def higher(positions, distance):
    return positions + distance * np.eye(3)[2]


def system_of(charges):
    system, force = openmm.System(), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*BOX * unit.nanometer)
    force.setNonbondedMethod(force.PME)
    force.setCutoffDistance(0.8)
    force.setUseDispersionCorrection(False)
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    system.addForce(force)
    return system


def converted(charges, heights=WALLS, tolerance=1e-7):
    system = system_of(charges)
    fmm.use_fmm(system, boundary="slab", neutralization=heights, tolerance=tolerance, backend="cpu")
    return system


def in_context(system, positions, platform="Reference"):
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(positions)
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def wrapped(positions, box=BOX):
    fractions = positions @ np.linalg.inv(box)
    return (fractions - np.floor(fractions)) @ box


def beside(positions, charges, heights=WALLS):
    return fmm.CoulombSolver(
        charges, BOX, tolerance=1e-9, boundary="slab", neutralization=heights
    ).compute(positions)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_the_sheets_stay_where_they_are(platform):
    """Wherever OpenMM has wrapped the layer, and wherever it is between the walls."""
    x, charges = layer()
    system = converted(charges)
    for shift in (0.0, -0.5, 1.5):
        moved = higher(x, shift)
        expected = beside(moved, charges)
        for positions in (moved, wrapped(moved), moved + 3 * BOX[2]):
            energy, forces = in_context(system, positions, platform)
            assert energy == pytest.approx(expected.energy, rel=1e-6)
            error = np.linalg.norm(forces - expected.forces)
            assert error < 1e-7 * np.linalg.norm(expected.forces)


@pytest.mark.slow
def test_charges_that_parameters_change():
    """The charge of the sheets follows that of the slab."""
    x, charges = layer()
    force = fmm.FMMForce(1e-8, boundary="slab", neutralization=[0.3], backend="cpu")
    force.addGlobalParameter("more", 0.0)
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*BOX)
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(charge)
    force.addParticleParameterOffset("more", 3, 1.0)
    system.addForce(force)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(x)
    changed = charges + np.eye(COUNT)[3]
    states = [{"more": 0.0}, {"more": 1.0}]
    expected = [beside(x, each, [0.3]).energy for each in (charges, changed)]
    assert fmm.state_energies(context, states) == pytest.approx(expected, rel=1e-6)
    slope = force.getEnergyParameterDerivativesInContext(context)["more"]
    assert slope == pytest.approx(beside(x, charges, [0.3]).potentials[3], rel=1e-5)
    context.setParameter("more", 1.0)
    energy = context.getState(energy=True).getPotentialEnergy()._value
    assert energy == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.slow
def test_validation():
    """Against the converged sum and against PME, both with the sheets."""
    x, charges = layer()
    exact = beside(x, charges).energy
    for reference in "ewald", "pme":
        report = fmm.validate(
            system_of(charges), wrapped(x), reference, boundary="slab", neutralization=WALLS
        )
        assert report.passed
        assert report.reference_energy == pytest.approx(exact, rel=1e-5)
        assert report.pme.relative_rms_force_error < 1e-3
    report = fmm.validate(converted(charges), x, tolerance=1e-5)  # keeps the sheets
    assert report.passed and report.reference_energy == pytest.approx(exact, rel=1e-8)


@pytest.mark.slow
def test_trajectories():
    """Frames are next to the sheets, whichever images a program has written."""
    x, charges = layer()
    whole = [higher(x, shift) for shift in (-0.6, 0.1, 1.9)]
    frames = [(wrapped(each), BOX) for each in whole]
    exact = [beside(each, charges).energy for each in whole]
    solver = fmm.CoulombSolver(charges, BOX, None, 1e-7, "slab", neutralization=WALLS)
    for given in converted(charges), solver:
        found = fmm.analyse(frames, given, executor=Backwards(), progress=False)["energy"]
        assert found == pytest.approx(exact, rel=1e-6)
    mapped = fmm.potential_map(frames[:1], solver, 0.5, progress=False, margin=0.2)
    expected = fmm.potential_map(whole[:1], solver, 0.5, progress=False, margin=0.2)
    assert mapped.origin == pytest.approx(expected.origin)
    np.testing.assert_allclose(mapped.values, expected.values, atol=1e-3)


def test_copies_and_conversions():
    x, charges = layer()
    system = converted(charges)
    text = openmm.XmlSerializer.serialize(system)
    for copied in (copy.deepcopy(system), openmm.XmlSerializer.deserialize(text)):
        (force,) = fmm.find_fmm(copied)
        assert force._definition.options.neutralization == WALLS
    assert "neutralization [-1.0, 3.0]" in repr(force)
    with pytest.warns(UserWarning, match=r"do not have: give `neutralization=\[-1.0, 3.0\]`"):
        found = fmm.ChargeSystem.from_openmm(system, wrapped(higher(x, -0.5)))
    np.testing.assert_allclose(found.positions[:, 2], higher(x, -0.5)[:, 2], atol=1e-9)
    fmm.restore_pme(system)
    assert openmm.XmlSerializer.serialize(system) == openmm.XmlSerializer.serialize(
        system_of(charges)
    )


def test_what_is_refused():
    _, charges = layer()
    system = system_of(charges)
    before = openmm.XmlSerializer.serialize(system)
    with pytest.raises(fmm.UnsupportedError, match=r"or give sheets \(`neutralization`\)"):
        fmm.use_fmm(system, boundary="slab")
    for boundary in (None, "bc"):
        with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
            fmm.use_fmm(system, boundary=boundary, neutralization=WALLS)
    with pytest.raises(ValueError, match="`neutralization` of a wire must be points on lines"):
        fmm.use_fmm(system, boundary="wire", neutralization=WALLS)
    with pytest.raises(ValueError, match="no dipole moment is to be corrected"):
        fmm.use_fmm(system, boundary="slab", neutralization=WALLS, slab_correction=True)
    with pytest.raises(ValueError, match="must be the heights of one or more sheets"):
        fmm.FMMForce(boundary="slab", neutralization=[np.nan])
    with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
        fmm.FMMForce(boundary="slab", neutralization=WALLS).setUsesPeriodicBoundaryConditions(False)
    assert openmm.XmlSerializer.serialize(system) == before


def test_a_slab_half_a_box_away_from_its_sheets():
    """It may be on either side, of which each gives other energies."""
    x, charges = layer()
    system, far = converted(charges), higher(x, 4.5)
    with pytest.raises(openmm.OpenMMException, match="may lie on either side of it"):
        in_context(system, far)
    with pytest.raises(ValueError, match="may lie on either side of it"):
        fmm.analyse([(far, BOX)], system, progress=False)


@pytest.mark.slow
def test_a_wire():
    """In a cylinder, wherever OpenMM has wrapped its particles."""
    box = np.array([[6.0, 0.0, 0.0], [0.4, 7.0, 0.0], [0.3, -0.5, 2.0]])
    x, charges = layer()
    x, around = x * [0.5, 0.5, 1.5] - 0.4, [[0.1, 0.2, 0.0, 2.5]]
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*box)
    force = fmm.FMMForce(1e-7, boundary="wire", neutralization=around, backend="cpu")
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(charge)
    system.addForce(force)
    expected = fmm.CoulombSolver(charges, box, None, 1e-9, "wire", neutralization=around).compute(x)
    for positions in x, wrapped(x, box), x + 2 * box[0] - box[1]:
        energy, forces = in_context(system, positions)
        assert energy == pytest.approx(expected.energy, rel=1e-6)
        error = np.linalg.norm(forces - expected.forces)
        assert error < 1e-7 * np.linalg.norm(expected.forces)
    report = fmm.validate(system, wrapped(x, box), tolerance=1e-5)
    assert report.passed
    assert report.reference_energy == pytest.approx(expected.energy, rel=1e-8)
    found = fmm.analyse([(wrapped(x, box), box)], system, progress=False)["energy"]
    assert found == pytest.approx([expected.energy], rel=1e-6)
    with pytest.raises(openmm.OpenMMException, match="half of box vector a away from the middle"):
        in_context(system, x + 0.5 * box[0])


def test_the_command_line():
    parser = ArgumentParser()
    add_fmm_arguments(parser)
    given = ["--boundary", "slab", "--neutralization", "-1", "--neutralization", "3"]
    options = fmm_options(parser.parse_args(given))
    assert options == {"boundary": "slab", "neutralization": WALLS}
    assert fmm.FMMForce(**options)._definition.options.neutralization == WALLS
    given = ["--boundary", "wire", "--neutralization=-1,0.5,0", "--neutralization", "3,0.5,0"]
    options = fmm_options(parser.parse_args(given))
    assert options == {"boundary": "wire", "neutralization": [[-1.0, 0.5, 0.0], [3.0, 0.5, 0.0]]}
    neutralizer = fmm.FMMForce(**options)._definition.options.neutralizer(
        Boundary.from_name("wire")
    )
    assert neutralizer.option == [[-1.0, 0.5, 0.0, 0.0], [3.0, 0.5, 0.0, 0.0]]


def test_the_command_line_names_what_it_cannot_read(capsys):
    parser = ArgumentParser()
    add_fmm_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--neutralization", "1,two"])
    assert "numbers with commas between them, got '1,two'" in capsys.readouterr().err
