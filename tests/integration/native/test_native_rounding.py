"""The native bridge where charges are close to each other in wide boxes, and where forces are far
smaller than in a liquid: parameters change at the first evaluation or at an energy later, or a
warning says what they cost."""

import ctypes
import warnings

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import Delivery, Sums
from fmm_openmm.boundary import Boundary
from fmm_openmm.integration.native import callbacks
from fmm_openmm.oracle import direct_sum, ewald_sum, partial_ewald_sum
from fmm_openmm.planning.forces import ForceLimits
from fmm_openmm.units import COULOMB_CONSTANT
from tests.expected_errors import crystal
from tests.integration.boxes import Box, relative_difference
from tests.integration.native_contexts import (
    A_PROGRAM,
    BOXES,
    CHARGES,
    context_of,
    coulomb,
    forces_alone,
    no_room,
    on_devices,
    on_gpu,
    session_of,
)
from tests.support.charges import apart_and_close, cluster, layers

SO_CLOSE = "is out of reach in single precision for charges so close to each other"


def force_on(charges, boundary, **options) -> fmm.FMMForce:
    force = fmm.FMMForce(boundary=boundary if boundary == "slab" else "periodic", **options)
    for charge in charges:
        force.addParticle(charge)
    force.setUsesPeriodicBoundaryConditions(boundary != "open")
    return force


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["periodic", "open"])
def test_charges_close_to_each_other(boundary):
    """The first positions have them computed in double precision, as does the solver, or warn."""
    x, q, cell = cluster(1e-3, others=60)

    def session(**options):
        return session_of(force_on(q, boundary, **options), len(q))

    auto, single = session(), session(precision="single")
    for each in (auto, single):
        each.program(cell, {}, x)
        assert each.parameters_for(cell).precision == "single"
    assert Delivery.PROGRAM in auto.charges(cell, {}, x)
    assert auto.parameters_for(cell).precision == "double"
    found = auto.charges(cell, {}, x)
    assert set(found) == CHARGES
    assert found[Delivery.CHARGES] == q.tobytes()
    with pytest.warns(UserWarning, match=SO_CLOSE):
        single.charges(cell, {}, x)
    assert single.parameters_for(cell).precision == "single"


def exact(x, q, cell, boundary):
    if boundary == "slab":
        return partial_ewald_sum(x, q, Boundary.from_name(boundary).cell(cell))
    return ewald_sum(x, q, cell) if boundary == "periodic" else direct_sum(x, q)


def sums_of(session, x, q, cell, boundary) -> Sums:
    """The sums of an exact evaluation in the boxes of a session."""
    scale = session.planner._used[0].boxes.width ** 2 / COULOMB_CONSTANT
    strengths = scale * np.linalg.norm(exact(x, q, cell, boundary).fields, axis=1)
    return Sums(0.0, q**2 @ strengths**2, q**2 @ strengths**3)


def limits_in(found) -> ForceLimits:
    return ForceLimits(*np.frombuffer(found[Delivery.FORCES]).tolist())


def is_beyond(sums, limits) -> bool:
    """The comparison of the plugin."""
    return not limits.hold(sums.squares, sums.cubes, sums.potentials)


@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("precision", ["auto", "single"])
def test_sums_of_charges_that_are_close(boundary, precision):
    """Beyond the limits that the session gives, which have it deliver a program in double
    precision, or warn once."""
    apart, close, q, cell = apart_and_close()
    force = force_on(q, boundary, tolerance=1e-4, precision=precision)
    session = session_of(force, len(q))
    first = session.program(cell, {}, apart)
    limits = limits_in(session.charges(cell, {}, apart))
    assert boundary == "open" or limits == limits_in(first)
    assert not is_beyond(sums_of(session, apart, q, cell, boundary), limits)
    sums = sums_of(session, close, q, cell, boundary)
    assert is_beyond(sums, limits)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [session.refine(cell, {}, close, sums) for _ in range(2)]
    said = [str(each.message) for each in caught]
    assert len(said) == (precision == "single")
    assert all(SO_CLOSE in text for text in said)
    assert set(answers[0]) == (A_PROGRAM if precision == "auto" else BOXES)
    assert set(answers[1]) == BOXES
    for found in (*answers, session.charges(cell, {}, close)):
        assert (limits_in(found).cubes, limits_in(found).constant) == (0.0, 0.0)
    expected = "double" if precision == "auto" else "single"
    assert session.parameters_for(cell).precision == expected


@pytest.mark.slow
def test_the_plugin_asks_with_its_sums(monkeypatch):
    """And asks again if there was no room for the program."""
    apart, close, q, cell = apart_and_close()
    session, delivered = session_of(force_on(q, "open", tolerance=1e-4), len(q)), {}
    session.program(cell, {}, apart)
    session.charges(cell, {}, apart)
    sums = sums_of(session, close, q, cell, "open")
    monkeypatch.setattr(callbacks, "_sessions", {9: session})
    monkeypatch.setattr(callbacks, "_deliver", lambda _, kind, data: delivered.update({kind: data}))

    def ask():
        delivered.clear()
        pointers = (
            values.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for values in (cell, close)
        )
        callbacks._request(9, Delivery.FORCES, *pointers, None, None, 0, ctypes.pointer(sums), None)
        return set(delivered)

    with monkeypatch.context() as patch:
        patch.setattr("fmm_openmm.integration.native.session.build", no_room)
        for _ in range(2):
            assert ask() == {Delivery.FAILURE, Delivery.DONE}
            assert delivered[Delivery.FAILURE] == b"FMMForce: MemoryError: no room"
    assert ask() == A_PROGRAM | {Delivery.DONE}
    assert b"#define REAL double" in delivered[Delivery.PROGRAM]


def test_limits_follow_the_charges():
    """Twice the charges have twice the field, and the same relative error."""
    apart, _, q, cell = apart_and_close()
    force = force_on(q, "periodic")
    session = session_of(force, len(q))
    session.program(cell, {}, apart)
    before = limits_in(session.charges(cell, {}, apart))
    for particle, charge in enumerate(q):
        force.setParticleParameters(particle, 2 * charge)
    after = limits_in(session.charges(cell, {}, None))
    assert after.cubes == pytest.approx(before.cubes / 2)
    assert after.constant == pytest.approx(16 * before.constant)
    assert after.smallest == pytest.approx(16 * before.smallest)


def cold_and_warm():
    """Rock salt twice, at first with small forces, and its charges and cell."""
    cold, warm = crystal("nacl", 0.006), crystal("nacl", 0.4)
    return cold.positions, warm.positions, cold.charges, cold.cell


@pytest.mark.parametrize("tolerance", [5e-4, 1e-7])
def test_sums_of_a_cold_crystal(tolerance):
    """Beyond the limits for a liquid, until the session delivers parameters for such forces, which
    end where forces are those of a liquid again."""
    cold, warm, q, cell = cold_and_warm()
    session = session_of(force_on(q, "periodic", tolerance=tolerance), len(q))
    session.program(cell, {}, cold)
    limits, orders = limits_in(session.charges(cell, {}, cold)), []
    assert not is_beyond(sums_of(session, warm, q, cell, "periodic"), limits)
    for x in (cold, warm):
        sums = sums_of(session, x, q, cell, "periodic")
        assert is_beyond(sums, limits)
        orders.append(session.parameters_for(cell).order)
        found = session.refine(cell, {}, x, sums)
        assert set(found) == A_PROGRAM
        limits = limits_in(found)
        assert not is_beyond(sums_of(session, x, q, cell, "periodic"), limits)
    assert orders[0] < orders[1] > session.parameters_for(cell).order


def test_a_cold_crystal_with_a_fixed_order():
    """A warning, and the same program."""
    cold, _, q, cell = cold_and_warm()
    options = {"order": 8, "grid": (4, 4, 4), "near_radius": 2.5, "smoothing": 0.0}
    session = session_of(force_on(q, "periodic", **options), len(q))
    session.program(cell, {}, cold)
    with pytest.warns(UserWarning, match="is out of reach for forces as small as these") as caught:
        found = session.refine(cell, {}, cold, sums_of(session, cold, q, cell, "periodic"))
    assert len(caught) == 1
    assert not is_beyond(sums_of(session, cold, q, cell, "periodic"), limits_in(found))


@on_gpu
@on_devices
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_a_crystal_that_is_cold_first(precision, devices):
    """The first evaluation is right, although it computes forces alone, and so are later ones with
    the energy."""
    cold, warm, q, cell = cold_and_warm()
    box, force = in_a_system(cold, q, cell, "periodic", tolerance=5e-4)
    context, orders = context_of(box, precision, DeviceIndex=devices), []
    for x in (cold, warm, cold):
        context.setPositions(x)
        forces = coulomb(context, force)[1] if orders else forces_alone(context, force)
        assert relative_difference(forces, exact(x, q, cell, "periodic").forces) <= 5e-4
        orders.append(force.getFMMParametersInContext(context)["order"])
    assert orders[0] == orders[2] > orders[1]
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
@on_devices
@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_charges_that_come_close_later(boundary, precision, devices):
    """The first evaluation with energy notices, and is right already; evaluations of forces alone
    do not look. A Context of single precision rounds positions before the FMM reads them."""
    apart, close, q, cell = apart_and_close()
    box, force = in_a_system(apart, q, cell, boundary)
    context = context_of(box, precision, DeviceIndex=devices)
    for x, after in ((apart, "single"), (close, "double"), (apart, "double")):
        context.setPositions(x)
        forces_alone(context, force)
        if x is close:
            assert force.getFMMParametersInContext(context)["precision"] == "single"
        energy, forces = coulomb(context, force)
        assert force.getFMMParametersInContext(context)["precision"] == after
        if precision == "single":
            x = x.astype(np.float32).astype(float)
        expected = exact(x, q, cell, boundary)
        assert energy == pytest.approx(expected.energy, rel=1e-4)
        assert relative_difference(forces, expected.forces) <= 1e-4
        again, _ = coulomb(context, force)
        assert again == pytest.approx(energy, rel=1e-5)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
@on_devices
def test_layers_of_opposite_charge_with_smoothing(devices):
    """The first evaluation with energy notices that their potentials have become large."""
    mixed, apart, q, cell = layers()
    box, force = in_a_system(mixed, q, cell, "slab", smoothing=0.00625)
    context = context_of(box, "mixed", DeviceIndex=devices)
    for x, precision in ((mixed, "single"), (apart, "double")):
        context.setPositions(x)
        energy, forces = coulomb(context, force)
        assert force.getFMMParametersInContext(context)["precision"] == precision
        expected = exact(x, q, cell, "slab")
        assert energy == pytest.approx(expected.energy, rel=1e-4)
        assert relative_difference(forces, expected.forces) <= 1e-4


@on_gpu
def test_charges_that_come_close_after_forces_that_no_parameters_suit():
    """The first evaluation with energy notices, although the one before has asked in vain."""
    x, _, q, cell = cold_and_warm()
    options = {"tolerance": 5e-4, "order": 8, "grid": (4, 4, 4), "near_radius": 2.5}
    box, force = in_a_system(x, q, cell, "periodic", **options)
    context = context_of(box)
    with pytest.warns(UserWarning, match="is out of reach for forces as small as these"):
        forces_alone(context, force)
    assert force.getFMMParametersInContext(context)["precision"] == "single"
    x[1] = x[0] + [6e-5, 0.0, 8e-5]
    context.setPositions(x)
    energy, forces = coulomb(context, force)
    assert force.getFMMParametersInContext(context)["precision"] == "double"
    expected = exact(x, q, cell, "periodic")
    assert energy == pytest.approx(expected.energy, rel=5e-4)
    others = forces[2:], expected.forces[2:]  # of these two beyond what OpenMM stores
    assert relative_difference(*others) <= 5e-4


@on_gpu
def test_no_room_for_charges_that_come_close_later(monkeypatch):
    """An error, and nothing that is not as precise as it should be; with room all goes on."""
    apart, close, q, cell = apart_and_close()
    box, force = in_a_system(apart, q, cell, "periodic")
    context = context_of(box)
    coulomb(context, force)
    context.setPositions(close)
    with monkeypatch.context() as patch:
        patch.setattr("fmm_openmm.integration.native.session.build", no_room)
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match="MemoryError: no room"):
                coulomb(context, force)
    expected = exact(close, q, cell, "periodic")
    assert relative_difference(coulomb(context, force)[1], expected.forces) <= 1e-4
    assert force.getFMMParametersInContext(context)["precision"] == "double"


@on_gpu
@pytest.mark.parametrize("boundary", ["periodic", "open"])
def test_charges_that_come_close_later_in_explicit_single_precision(boundary):
    """One warning with the error to expect, which is that of the forces."""
    apart, close, q, cell = apart_and_close()
    box, force = in_a_system(apart, q, cell, boundary, precision="single")
    context = context_of(box)
    coulomb(context, force)
    context.setPositions(close)
    with pytest.warns(UserWarning, match=SO_CLOSE) as caught:
        found = [coulomb(context, force)[1] for _ in range(3)]
    assert len(caught) == 1
    said = float(str(caught[0].message).partition("an error of about ")[2].partition(";")[0])
    expected = exact(close, q, cell, boundary).forces
    assert said > 1e-4
    assert all(relative_difference(forces, expected) < 3 * said for forces in found)
    assert force.getFMMParametersInContext(context)["precision"] == "single"


def in_a_system(x, q, cell, boundary, **options) -> tuple[Box, fmm.FMMForce]:
    force = force_on(q, boundary, bridge="native", **{"tolerance": 1e-4} | options)
    force.setForceGroup(7)
    system = openmm.System()
    for _ in q:
        system.addParticle(1.0)
    if boundary != "open":
        system.setDefaultPeriodicBoxVectors(*cell)
    system.addForce(force)
    return Box(system, x), force
