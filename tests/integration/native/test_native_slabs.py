"""The native bridge in slabs, wherever OpenMM has wrapped the particles along the third vector."""

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import BoxesData, Delivery
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import Frame
from fmm_openmm.oracle import partial_ewald_sum
from tests.integration.boxes import charges_and_pairs, relative_difference
from tests.integration.native_contexts import (
    A_PROGRAM,
    BOXES,
    CHARGES,
    assert_exact,
    both_bridges,
    context_of,
    converted,
    coulomb,
    forces_alone,
    on_devices,
    on_gpu,
    session_of,
)
from tests.integration.vacuum import first_of_molecules, in_vacuum

SLAB = Boundary.from_name("slab")
TOLERANCE = 1e-5


@pytest.fixture
def slab(water):
    """Rigid water between 1.2 nm of vacuum; it may drift."""
    kinds = [type(force) for force in water.system.getForces()]
    water.system.removeForce(kinds.index(openmm.CMMotionRemover))
    return in_vacuum(water, "slab")


def exact_sum(of_particles, positions, cell):
    """For charges and excluded pairs, which the conversion takes from the NonbondedForce."""
    charges, pairs = of_particles
    return partial_ewald_sum(positions, charges, SLAB.cell(cell), pairs)


@pytest.mark.slow
def test_boxes_follow_a_slab(slab):
    """One program serves the slab wherever it is, in whatever images; the same molecules on both
    sides of the face of the box are one slab, near where it was."""
    force = fmm.FMMForce.from_nonbonded(slab.nonbonded, boundary="slab")
    session, cell, x = session_of(force, len(slab.positions)), slab.cell, slab.positions
    assert session.program(cell, {}) == {}
    first = session.program(cell, {}, x)
    assert set(first) == A_PROGRAM
    assert b"bring_together" in first[Delivery.PROGRAM]
    images = np.random.default_rng(2).integers(-3, 4, (len(x), 1))
    places = {}
    for drift in (0.0, 0.4 * cell[2, 2], 0.8 * cell[2, 2]):
        at = x + np.array([0.0, 0.0, drift])
        found = session.program(cell, {}, at + images * cell[2])
        assert set(found) == BOXES
        places[drift] = BoxesData.from_buffer_copy(found[Delivery.PARAMETERS])
        assert set(session.charges(cell, {}, at + images * cell[2])) == CHARGES
    start, height = places[0.0].placement.middle[2], cell[2, 2]
    for drift, data in places.items():
        place = data.placement
        assert height * place.middle[2] == pytest.approx(height * start + drift, abs=1e-9)
        assert height * place.farthest[2] == pytest.approx(height / 2 - 0.1)
        assert [*place.vectors] == [*np.zeros(6), *cell[2]]
        assert [*place.axes] == [*np.eye(3).ravel()]
    before, top = session.parameters_for(cell), int(x[:, 2].argmax()) // 3 * 3
    x[top : top + 3, 2] += 0.8
    assert set(session.program(cell, {}, x)) == A_PROGRAM
    after = session.parameters_for(cell)
    for name in ("order", "near_radius", "smoothing"):
        assert getattr(after, name) == getattr(before, name)
    assert after.counts[2, 2] > before.counts[2, 2] and after.expected_error <= 5e-4
    assert set(session.program(1.01 * cell, {}, 1.01 * x)) == BOXES
    stretched = session.program(cell * [[1.0], [1.02], [1.0]], {}, x * [1.0, 1.02, 1.0])
    assert set(stretched) == BOXES
    data = BoxesData.from_buffer_copy(stretched[Delivery.PARAMETERS])
    assert data.parameters.cell[4] / data.parameters.cell[0] == pytest.approx(1.02)
    assert set(session.program(cell * [[1.0], [1.2], [1.0]], {}, x)) == A_PROGRAM


@pytest.mark.slow
def test_a_slab_that_has_parted(slab):
    """Once the gap in its middle is the widest, its place is sent again."""
    session = session_of(fmm.FMMForce.from_nonbonded(slab.nonbonded, boundary="slab"), 555)
    cell, x = slab.cell.copy(), slab.positions
    oxygens = x[first_of_molecules(slab), 2]
    upper = oxygens > np.median(oxygens)
    between = x[upper, 2].min() - x[~upper, 2].max()

    def parted(gap):
        return x + np.outer(upper * (gap - between), [0.0, 0.0, 1.0])

    cell[2, 2] = np.ptp(parted(1.0)[:, 2]) + 1.2
    session.program(cell, {}, parted(1.0))
    assert set(session.charges(cell, {}, parted(1.0))) == CHARGES
    found = session.charges(cell, {}, parted(1.2))
    assert set(found) == A_PROGRAM
    place = BoxesData.from_buffer_copy(found[Delivery.PARAMETERS]).placement
    heights = parted(1.2)[:, 2]
    heights -= np.rint(heights / cell[2, 2] - place.middle[2]) * cell[2, 2]
    assert np.ptp(heights) == pytest.approx(cell[2, 2] - 1.2)
    assert set(session.charges(cell, {}, parted(1.2))) == CHARGES


OTHERS = ["wire", "a", "b", "ac", "bc"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_boxes_follow_wires(water, name):
    """And slabs along other vectors than a and b, in coordinates in which these come first."""
    box, boundary = in_vacuum(water, name), Boundary.from_name(name)
    force = fmm.FMMForce.from_nonbonded(box.nonbonded, boundary=name)
    session, cell, x = session_of(force, len(box.positions)), box.cell, box.positions
    images = np.random.default_rng(2).integers(-3, 4, (len(x), 3)) * boundary.free
    found = session.program(cell, {}, x + images @ cell)
    assert set(found) == A_PROGRAM
    assert b"bring_together" in found[Delivery.PROGRAM]
    assert (b"turned_forces" in found[Delivery.PROGRAM]) == (name != "a")
    place = BoxesData.from_buffer_copy(found[Delivery.PARAMETERS]).placement
    axes = Frame.from_cell(boundary.cell(cell)).axes
    assert [*place.axes] == [*axes.ravel()]
    away = x @ np.linalg.inv(cell) - np.array(place.middle)
    away -= np.rint(away)
    assert (
        np.abs(away)[:, boundary.free].max(0) < np.array(place.farthest)[[*boundary.free]]
    ).all()
    assert set(session.charges(cell, {}, x - 2 * images @ cell)) == CHARGES
    drift = 0.6 * np.array(boundary.free) @ cell
    assert set(session.program(cell, {}, x + drift + images @ cell)) == BOXES


def test_ambiguous_images(slab):
    session = session_of(fmm.FMMForce.from_nonbonded(slab.nonbonded, boundary="slab"), 555)
    slab.cell[2, 2] -= 1.0
    with pytest.raises(ValueError, match="needs vacuum along box vector c"):
        session.program(slab.cell * [[1.0], [1.0], [0.62]], {}, slab.positions)


@on_gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("single", 5e-4), ("mixed", 1e-5), ("double", 1e-8)]
)
def test_agrees_with_the_exact_sum(slab, precision, tolerance):
    """Centred at 0, about the face of the box, and wrapped by molecules or by atoms."""
    x, cell, starts = slab.positions, slab.cell, first_of_molecules(slab)
    expected = exact_sum(charges_and_pairs(slab.nonbonded), x, cell)
    force = converted(slab, boundary="slab", bridge="native", tolerance=tolerance)
    context = context_of(slab, precision)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    middle = (x[:, 2].min() + x[:, 2].max()) / 2
    for place in (0.0, middle, cell[2, 2], 5.3 * cell[2, 2]):
        at = x + np.array([0.0, 0.0, place - middle])
        heights = np.floor(at[:, 2:] / cell[2, 2])
        for positions in (at, at - heights[starts] * cell[2], at - heights * cell[2]):
            context.setPositions(positions)
            assert_exact(context, force, expected, tolerance)
    found = force.getPotentialsInContext(context)
    assert relative_difference(found, expected.potentials) <= 3 * tolerance


@on_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("mixed", 1e-5), ("double", 1e-8)])
@pytest.mark.parametrize("name", OTHERS)
def test_wires_agree_with_the_exact_sum(water, name, precision, tolerance):
    """And slabs along other vectors, wherever OpenMM has wrapped them, by molecules or by atoms."""
    box, boundary = in_vacuum(water, name), Boundary.from_name(name)
    charges, pairs = charges_and_pairs(box.nonbonded)
    x, cell, starts = box.positions, box.cell, first_of_molecules(box)
    expected = partial_ewald_sum(x, charges, boundary.cell(cell), pairs)
    force = converted(box, boundary=name, bridge="native", tolerance=tolerance)
    context = context_of(box, precision)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    for shift in (0.0, 0.3, 1.7):
        at = x + shift * np.array(boundary.free) @ cell
        images = np.floor(at @ np.linalg.inv(cell)) * boundary.free
        for positions in (at, at - images[starts] @ cell, at - images @ cell):
            context.setPositions(positions)
            assert_exact(context, force, expected, tolerance)
    found = force.getPotentialsInContext(context)
    assert relative_difference(found, expected.potentials) <= 3 * tolerance


@on_gpu
@on_devices
@pytest.mark.parametrize("barostat", [False, True])
def test_a_wire_in_motion(water, barostat, devices):
    """It drifts across the faces of the box; its period follows a barostat."""
    kinds = [type(force) for force in water.system.getForces()]
    water.system.removeForce(kinds.index(openmm.CMMotionRemover))
    box, boundary = in_vacuum(water, "wire"), Boundary.from_name("wire")
    if barostat:
        pressures = [1.0, 1.0, 1.0]
        box.system.addForce(
            openmm.MonteCarloAnisotropicBarostat(pressures, 300.0, False, False, True, 25)
        )
    charges, pairs = charges_and_pairs(box.nonbonded)
    force = converted(box, boundary="wire", bridge="native", tolerance=TOLERANCE)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 0.0, 0.001)
    context = context_of(box, integrator=integrator, DeviceIndex=devices)
    context.setVelocitiesToTemperature(300.0, 1)
    velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
    context.setVelocities(velocities + np.array([4.0, -3.0, 2.0]))
    for _ in range(3):
        context.getIntegrator().step(200)
        state = context.getState(positions=True)
        x = state.getPositions(asNumpy=True)._value
        cell = state.getPeriodicBoxVectors(asNumpy=True)._value
        exact = partial_ewald_sum(x, charges, boundary.cell(cell), pairs)
        assert relative_difference(forces_alone(context, force), exact.forces) <= TOLERANCE
        assert coulomb(context, force)[0] == pytest.approx(exact.energy, rel=TOLERANCE)
    assert barostat == (not np.array_equal(cell, box.cell))
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
def test_molecules_across_the_faces(slab):
    """Excluded pairs are nearest images along a and b, and lie together along c, where every atom
    has been wrapped."""
    slab.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    x, cell = slab.positions, slab.cell
    expected = exact_sum(charges_and_pairs(slab.nonbonded), x, cell)
    force = converted(slab, boundary="slab", bridge="native", tolerance=TOLERANCE)
    slab.positions = x - np.floor(x @ np.linalg.inv(cell)) @ cell
    apart = slab.positions - slab.positions[first_of_molecules(slab)]
    assert (np.abs(apart).max(0) > 1.0).all()
    energy, forces = coulomb(context_of(slab), force)
    assert energy == pytest.approx(expected.energy, rel=TOLERANCE)
    assert relative_difference(forces, expected.forces) <= TOLERANCE


@on_gpu
def test_agrees_with_the_host_bridge(slab):
    native, host = both_bridges(slab, "double", boundary="slab", tolerance=1e-7)
    assert native[0] == pytest.approx(host[0], rel=1e-7)
    assert relative_difference(native[1], host[1]) <= 2e-7


@on_gpu
@on_devices
@pytest.mark.parametrize("barostat", [False, True])
def test_a_slab_in_motion(slab, barostat, devices):
    """It drifts across the face of the box, OpenMM's order of atoms and the images that it holds
    change, and the area follows a barostat."""
    if barostat:
        kind = openmm.MonteCarloMembraneBarostat
        slab.system.addForce(kind(1.0, 0.0, 300.0, kind.XYIsotropic, kind.ZFixed, 10))
    of_particles = charges_and_pairs(slab.nonbonded)
    force = converted(slab, boundary="slab", bridge="native", tolerance=TOLERANCE)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 0.0, 0.001)
    context = context_of(slab, integrator=integrator, DeviceIndex=devices)
    context.setVelocitiesToTemperature(300.0, 1)
    velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
    context.setVelocities(velocities + np.array([0.0, 0.0, 4.0]))
    for _ in range(4):
        context.getIntegrator().step(300)
        state = context.getState(positions=True)
        x = state.getPositions(asNumpy=True)._value
        cell = state.getPeriodicBoxVectors(asNumpy=True)._value
        expected = exact_sum(of_particles, x, cell)
        assert relative_difference(forces_alone(context, force), expected.forces) <= TOLERANCE
        assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=TOLERANCE)
    assert x[:, 2].min() > cell[2, 2]
    assert barostat == (not np.array_equal(cell, slab.cell))
    wrapped = context.getState(positions=True, enforcePeriodicBox=True)
    slab.positions = wrapped.getPositions(asNumpy=True)._value
    slab.system.setDefaultPeriodicBoxVectors(*cell)
    assert np.abs(slab.positions - x).max() > 1.0
    found = coulomb(context_of(slab), force)[0]
    assert found == pytest.approx(expected.energy, rel=TOLERANCE)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
def test_a_molecule_that_crosses_the_vacuum(slab):
    """Refused where it is halfway, and right again when it has come down."""
    force = converted(slab, boundary="slab", bridge="native", tolerance=TOLERANCE)
    context, cell = context_of(slab), slab.cell
    before = coulomb(context, force)
    x = slab.positions.copy()
    top = int(x[:, 2].argmax()) // 3 * 3
    molecule, others = x[top : top + 3, 2], np.delete(x[:, 2], range(top, top + 3))
    vacuum = others.max(), others.min() + cell[2, 2]
    x[top : top + 3, 2] += np.mean(vacuum) - (molecule.min() + molecule.max()) / 2
    context.setPositions(x)
    with pytest.raises(openmm.OpenMMException, match="next one"):
        forces_alone(context, force)
    context.setPositions(slab.positions)
    after = coulomb(context, force)
    assert after[0] == pytest.approx(before[0], rel=TOLERANCE)
    assert relative_difference(after[1], before[1]) <= TOLERANCE


@on_gpu
def test_energy_is_conserved(slab):
    """As in bulk water of the same settings: ten times less than 0.01 kT a degree of freedom."""
    force = converted(slab, boundary="slab", bridge="native")
    slab.nonbonded.setUseSwitchingFunction(True)
    slab.nonbonded.setSwitchingDistance(0.6)
    context = context_of(slab, integrator=openmm.VerletIntegrator(0.0005))
    context.setVelocitiesToTemperature(300.0, 1)
    context.getIntegrator().step(500)
    energies = []
    for _ in range(20):
        context.getIntegrator().step(250)
        state = context.getState(energy=True)
        energies.append((state.getPotentialEnergy() + state.getKineticEnergy())._value)
    drift = np.polyfit(np.arange(20), energies, 1)[0] * 19
    degrees_of_freedom = 3 * len(slab.positions) - slab.system.getNumConstraints()
    assert abs(drift) <= 0.001 * 2.494 * degrees_of_freedom
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
