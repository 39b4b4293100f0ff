"""The native bridge with what is added to the sum over the images: the dipole term of a periodic
cell, of coordinates that are not wrapped, and what neutralises a slab or wire."""

import copy
import ctypes

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import BoxesData, Delivery
from fmm_openmm.boundary import Boundary
from fmm_openmm.integration.guard import images
from fmm_openmm.integration.native import callbacks, plugin
from fmm_openmm.neutralization import Cylinders, Sheets
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from tests.integration.boxes import charges_and_pairs, relative_difference
from tests.integration.native_contexts import (
    A_PROGRAM,
    BOXES,
    CHARGES,
    assert_exact,
    context_of,
    converted,
    coulomb,
    forces_alone,
    on_devices,
    on_gpu,
    session_of,
)
from tests.integration.vacuum import first_of_molecules, in_vacuum

TERMS = [{"slab_correction": True}, {"surface_dielectric": 1.0}]
SLAB = Boundary.from_name("slab")
TOLERANCE = 1e-5


def walls_of(box):
    """Heights of two sheets, 1 nm below and 0.5 nm above the particles."""
    return [float(box.positions[:, 2].min()) - 1.0, float(box.positions[:, 2].max()) + 0.5]


def halfway(box):
    """Positions half a box away from these sheets."""
    away = np.mean(walls_of(box)) - box.positions[:, 2].mean() + 0.5 * box.cell[2, 2]
    return box.positions + np.array([0.0, 0.0, away])


@pytest.fixture
def slab(water):
    """A layer of water."""
    return in_vacuum(water, "slab")


@pytest.fixture
def charged(slab):
    """A layer of water of which one molecule lacks its first hydrogen's charge."""
    slab.nonbonded.setParticleParameters(1, 0.0, 1.0, 0.0)
    return slab


def beside_sheets(box, charges_and_excluded, positions, heights, cell=None):
    """The exact result."""
    charges, pairs = charges_and_excluded
    cell = box.cell if cell is None else cell
    found = partial_ewald_sum(positions, charges, SLAB.cell(cell), pairs)
    return Sheets(np.array(heights)).at(positions, cell).add(found, charges)


@pytest.mark.parametrize("term", TERMS)
def test_a_dipole_term_needs_to_know_images(ions, term):
    """A session computes it where a Context has been checked, and never leaves it to the host
    bridge, which would get wrapped positions."""
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded, **term))
    found = session.program(ions.cell, {}, ions.positions)
    assert set(found) == A_PROGRAM
    assert b"cell_offsets" in found[Delivery.PROGRAM]
    with pytest.raises(ValueError, match="not one inside another force"):
        session.charges(ions.cell, {}, ions.positions)
    session.knows_images = True
    assert set(session.charges(ions.cell, {}, ions.positions)) == CHARGES
    option = next(iter(term))
    assert session.native_only.startswith(f"{option}=")


def test_there_is_no_way_back_to_the_host_bridge(ions, monkeypatch):
    delivered = {}
    library = type(
        "", (), {"fmm_deliver": lambda _, kind, data, size: delivered.update({kind: data})}
    )
    monkeypatch.setattr(plugin, "load", lambda: library)
    for options, reason in (
        ({"slab_correction": True}, b"FMMForce: `slab_correction=True` is not possible: no room"),
        ({}, None),
    ):
        session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded, **options))
        monkeypatch.setitem(callbacks._sessions, 77, session)
        delivered.clear()
        callbacks._settle(77, b"FMMForce: no room", ctypes.c_void_p(0))
        assert delivered.get(Delivery.FAILURE) == reason
        assert session.reason == (None if reason else "no room")


def test_contexts_of_the_native_bridge_know_images(ions, monkeypatch):
    force = fmm.use_fmm(ions.system, slab_correction=True)
    session = session_of(force)
    monkeypatch.setattr(images, "PLATFORMS", ())
    monkeypatch.setattr(images, "status", lambda bridge, context: (session, ""))
    ions.context()
    assert session.knows_images
    assert not force._bridge.keeps_images
    monkeypatch.setattr(images, "status", lambda bridge, context: (None, "there is no plugin"))
    with pytest.raises(fmm.UnsupportedError, match=r"or the native bridge \(there is no plugin\)"):
        ions.context()


def test_a_span_beyond_the_box(ions):
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded, slab_correction=True))
    session.program(ions.cell, {}, ions.positions)
    session.knows_images = True
    with pytest.warns(UserWarning, match="more than the height of the cell"):
        session.charges(ions.cell, {}, ions.positions * [1.0, 1.0, 3.0])


@pytest.mark.slow
def test_a_slab_stays_at_its_sheets(charged):
    """Whichever images OpenMM holds; half a box away it may be on either side."""
    x, cell, heights = charged.positions, charged.cell, walls_of(charged)
    options = {"boundary": "slab", "neutralization": heights}
    session = session_of(fmm.FMMForce.from_nonbonded(charged.nonbonded, **options), len(x))
    found = session.program(cell, {}, x)
    assert set(found) == A_PROGRAM
    assert b"add_term" in found[Delivery.PROGRAM]
    place = BoxesData.from_buffer_copy(found[Delivery.PARAMETERS]).placement
    middle = place.middle[2] * cell[2, 2]
    assert middle == pytest.approx((x[:, 2].min() + x[:, 2].max()) / 2)
    for positions in (x + 2 * cell[2], x - np.floor(x[:, 2:] / cell[2, 2]) * cell[2]):
        assert set(session.charges(cell, {}, positions)) == CHARGES
        found = session.program(cell, {}, positions)
        assert set(found) == BOXES
        place = BoxesData.from_buffer_copy(found[Delivery.PARAMETERS]).placement
        assert place.middle[2] * cell[2, 2] == pytest.approx(middle)
    with pytest.raises(ValueError, match="may lie on either side of it"):
        session.program(cell, {}, halfway(charged))


def test_a_net_charge_is_refused(charged):
    """As by the solver."""
    force = fmm.FMMForce(boundary="slab")
    for charge in (1.0, -1.0, 1.0, 0.0):
        force.addParticle(charge)
    with pytest.raises(
        fmm.UnsupportedError, match="must be neutral in total with `boundary='slab'"
    ):
        session_of(force).program(charged.cell, {}, charged.positions[:4])


@on_gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("single", 5e-4), ("mixed", 1e-5), ("double", 1e-8)]
)
@pytest.mark.parametrize("term", TERMS)
def test_agrees_with_the_exact_sum(water, term, precision, tolerance):
    """Energies, forces and potentials, of molecules that are boxes apart."""
    starts = first_of_molecules(water)
    shifts = np.random.default_rng(4).integers(-2, 3, (len(starts), 3))[starts]
    for box_shifts in (0 * shifts, shifts):
        box = copy.deepcopy(water)
        box.positions = box.positions + box_shifts * [1.0, 1.0, 0.0] @ box.cell
        charges, pairs = charges_and_pairs(box.nonbonded)
        exact = ewald_sum(box.positions, charges, box.cell, pairs, **term)
        force = converted(box, bridge="native", tolerance=tolerance, **term)
        context = context_of(box, precision)
        assert force.getFMMParametersInContext(context)["bridge"] == "native"
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(exact.energy, rel=3 * tolerance)
        assert relative_difference(forces, exact.forces) <= tolerance
        assert relative_difference(forces_alone(context, force), exact.forces) <= tolerance
        potentials = force.getPotentialsInContext(context)
        assert relative_difference(potentials, exact.potentials) <= 3 * tolerance


@on_gpu
def test_a_net_charge_in_a_triclinic_cell(chains):
    """The term of Ballenegger, Arnold and Cerda."""
    charges, pairs = charges_and_pairs(chains.nonbonded)
    exact = ewald_sum(chains.positions, charges, chains.cell, pairs, slab_correction=True)
    force = converted(chains, bridge="native", tolerance=1e-8, slab_correction=True)
    energy, forces = coulomb(context_of(chains, "double"), force)
    assert energy == pytest.approx(exact.energy, rel=1e-7)
    assert relative_difference(forces, exact.forces) <= 1e-7


@on_gpu
@on_devices
@pytest.mark.filterwarnings("ignore:`positions`. charges span")
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("barostat", [False, True])
def test_ions_that_cross_the_box(ions, term, barostat, devices):
    """OpenMM changes its order of atoms and the images that it holds, and a barostat the box; the
    dipole moment is that of the path. A checkpoint keeps it."""
    charges, pairs = charges_and_pairs(ions.nonbonded)
    if barostat:
        ions.system.addForce(openmm.MonteCarloBarostat(1.0, 300.0, 20))
    force = converted(ions, bridge="native", tolerance=1e-6, **term)
    context = context_of(
        ions, "double", integrator=openmm.VerletIntegrator(0.001), DeviceIndex=devices
    )
    context.setVelocities(np.outer([1.0, -1.0, 0.0, 0.0], [25.0, 3.0, 20.0]))

    def checked(context):
        state = context.getState(positions=True)
        x = state.getPositions(asNumpy=True)._value
        cell = state.getPeriodicBoxVectors(asNumpy=True)._value
        exact = ewald_sum(x, charges, cell, pairs, **term)
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(exact.energy, rel=1e-5)
        assert relative_difference(forces, exact.forces) <= 1e-5
        return x, cell, energy

    for _ in range(4):
        x, cell, energy = checked(context)
        context.getIntegrator().step(300)
    x, cell, energy = checked(context)
    assert (np.floor(x[:2] / 3.0) != 0).any()
    assert barostat == (not np.array_equal(cell, ions.cell))
    wrapped = ewald_sum(
        x - np.floor(x / np.diag(cell)) * np.diag(cell), charges, cell, pairs, **term
    )
    assert abs(wrapped.energy - energy) > 1.0
    again = context_of(ions, "double", DeviceIndex=devices)
    again.loadCheckpoint(context.createCheckpoint())
    assert checked(again)[2] == pytest.approx(energy, rel=1e-6)
    again.setPositions(x % 3.0)
    checked(again)
    assert force.getFMMParametersInContext(again)["bridge"] == "native"


@on_gpu
def test_the_virial_of_a_dipole_term(water):
    """That of the Reference platform."""
    found = []
    for name in ("Reference", "CUDA"):
        box = copy.deepcopy(water)
        force = converted(box, tolerance=1e-6, surface_dielectric=1.0)
        found.append(force.getVirialInContext(box.context(name)))
    assert relative_difference(*found) <= 1e-4


@on_gpu
def test_a_dipole_term_inside_another_force(ions):
    """Refused: nothing tells how often its particles have crossed the box."""
    inner = fmm.FMMForce.from_nonbonded(ions.nonbonded, slab_correction=True)
    outer = openmm.CustomCVForce("coulomb")
    outer.addCollectiveVariable("coulomb", inner)
    ions.system.removeForce(0)
    ions.system.addForce(outer)
    with pytest.raises(openmm.OpenMMException, match="not one inside another force"):
        ions.context("CUDA").getState(energy=True)


@on_gpu
def test_the_host_bridge_is_refused(ions):
    fmm.use_fmm(ions.system, slab_correction=True, bridge="host")
    with pytest.raises(fmm.UnsupportedError, match=r"or the native bridge \(it was asked for\)"):
        ions.context("CUDA")


@on_gpu
def test_a_slab_that_gets_a_net_charge(slab):
    """Refused by name; the Context goes on once it is neutral again."""
    slab.nonbonded.addGlobalParameter("excess", 0.0)
    slab.nonbonded.addParticleParameterOffset("excess", 0, 1.0, 0.0, 0.0)
    force = converted(slab, boundary="slab", bridge="native", tolerance=TOLERANCE)
    context = context_of(slab)
    before = coulomb(context, force)[0]
    context.setParameter("excess", 1.0)
    with pytest.raises(openmm.OpenMMException, match="must be neutral in total"):
        coulomb(context, force)
    context.setParameter("excess", 0.0)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=TOLERANCE)


@on_gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("single", 5e-4), ("mixed", 1e-5), ("double", 1e-8)]
)
def test_sheets(charged, precision, tolerance):
    """Wherever OpenMM has wrapped the layer, by molecules or by atoms, and wherever it is between
    the sheets."""
    of_particles, heights = charges_and_pairs(charged.nonbonded), walls_of(charged)
    x, cell, starts = charged.positions, charged.cell, first_of_molecules(charged)
    force = converted(
        charged, boundary="slab", bridge="native", tolerance=tolerance, neutralization=heights
    )
    context = context_of(charged, precision)
    for shift in (0.0, -0.5, 0.2):
        at = x + np.array([0.0, 0.0, shift])
        exact = beside_sheets(charged, of_particles, at, heights)
        wrapped = np.floor(at[:, 2:] / cell[2, 2])
        for positions in (at, at - wrapped[starts] * cell[2], at - (wrapped + 2) * cell[2]):
            context.setPositions(positions)
            assert_exact(context, force, exact, tolerance, 3 * tolerance)
    found = force.getPotentialsInContext(context)
    assert relative_difference(found, exact.potentials) <= 3 * tolerance
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    context.setPositions(halfway(charged))
    with pytest.raises(openmm.OpenMMException, match="may lie on either side of it"):
        coulomb(context, force)


@on_gpu
@on_devices
def test_a_charged_slab_in_motion(charged, devices):
    """The sheets stay where they are; the area follows a barostat."""
    kind = openmm.MonteCarloMembraneBarostat
    charged.system.addForce(kind(1.0, 0.0, 300.0, kind.XYIsotropic, kind.ZFixed, 10))
    of_particles, heights = charges_and_pairs(charged.nonbonded), walls_of(charged)
    force = converted(
        charged, boundary="slab", bridge="native", tolerance=TOLERANCE, neutralization=heights
    )
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.001)
    context = context_of(charged, integrator=integrator, DeviceIndex=devices)
    context.setVelocitiesToTemperature(300.0, 1)
    for _ in range(3):
        context.getIntegrator().step(300)
        state = context.getState(positions=True)
        x = state.getPositions(asNumpy=True)._value
        cell = state.getPeriodicBoxVectors(asNumpy=True)._value
        exact = beside_sheets(charged, of_particles, x, heights, cell)
        assert relative_difference(forces_alone(context, force), exact.forces) <= TOLERANCE
        assert coulomb(context, force)[0] == pytest.approx(exact.energy, rel=3 * TOLERANCE)
    assert not np.array_equal(cell, charged.cell)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@pytest.fixture
def wire(water):
    """A wire of water in which one molecule lacks its first hydrogen's charge, in a cylinder."""
    box = in_vacuum(water, "wire")
    box.nonbonded.setParticleParameters(1, 0.0, 1.0, 0.0)
    return box, [[*box.positions.mean(0), 2.0]]


def test_a_wire_stays_in_its_cylinder(wire):
    """Whichever images OpenMM holds; half a box away it may be on either side. A program is made
    for one direction of the cylinder."""
    box, around = wire
    options = {"boundary": "wire", "neutralization": around}
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded, **options), len(box.positions))
    found = session.program(box.cell, {}, box.positions)
    assert set(found) == A_PROGRAM
    assert b"add_term" in found[Delivery.PROGRAM]
    assert set(session.charges(box.cell, {}, box.positions - 2 * box.cell[1])) == CHARGES
    assert set(session.program(box.cell, {}, box.positions + 0.01)) == BOXES
    with pytest.raises(ValueError, match="may lie on either side of it"):
        session.program(box.cell, {}, box.positions + 0.5 * box.cell[0])
    tilted = box.cell + np.outer([0.0, 0.0, 1.0], [0.01, 0.0, 0.0])
    assert set(session.program(tilted, {}, box.positions)) == A_PROGRAM


def test_a_particle_on_a_line_is_named(wire):
    box, _ = wire
    line = box.positions[17].tolist()
    options = {"boundary": "wire", "neutralization": [line]}
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded, **options), len(box.positions))
    session.program(box.cell, {}, box.positions)
    for ask in (
        lambda: session.charges(box.cell, {}, box.positions),
        lambda: session.explain(box.cell, box.positions),
    ):
        with pytest.raises(ValueError, match="particle 17 lies on a line of charge"):
            ask()


@on_gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("single", 5e-4), ("mixed", 1e-5), ("double", 1e-8)]
)
def test_a_cylinder(wire, precision, tolerance):
    """Beside another line, wherever OpenMM has wrapped the wire."""
    box, around = wire
    charges, pairs = charges_and_pairs(box.nonbonded)
    x, cell = box.positions, box.cell
    x0, y0, z0, radius = around[0]
    rows = [[x0, y0, z0, radius], [x0 + 2.5, y0 + 0.3, z0, 0.2]]
    boundary = Boundary.from_name("wire")
    exact = partial_ewald_sum(x, charges, boundary.cell(cell), pairs)
    term = Cylinders.from_rows(rows, boundary)
    exact = term.at(x, boundary.cell(cell)).add(exact, charges)
    force = converted(
        box, boundary="wire", bridge="native", tolerance=tolerance, neutralization=rows
    )
    context = context_of(box, precision)
    for positions in (
        x,
        x + 2 * cell[0] - cell[1],
        x - np.floor(x @ np.linalg.inv(cell)) * [1, 1, 0] @ cell,
    ):
        context.setPositions(positions)
        assert_exact(context, force, exact, tolerance, 3 * tolerance)
    found = force.getPotentialsInContext(context)
    assert relative_difference(found, exact.potentials) <= 3 * tolerance
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
