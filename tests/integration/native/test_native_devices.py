"""Several devices that share the work of a Context: results are those of one device."""

import copy
import logging
import os
import subprocess
import sys

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.program import Buffer
from fmm_openmm.bench.systems import Sample, tiled, with_every_atom_a_site
from fmm_openmm.integration.native import session
from fmm_openmm.integration.native.session import build
from tests import compiler
from tests.integration.boxes import Box, energy_of, relative_difference
from tests.integration.native_contexts import (
    DEVICES,
    ROUNDING,
    context_of,
    converted,
    coulomb,
    droplet_in_a_cell,
    on_gpu,
    with_three,
    with_two,
)

BOTH = [0, 1]


def eight(box):
    """Eight copies of a box."""
    large = tiled(Sample(box.system, box.positions, 0 * box.positions), (2, 2, 2))
    return Box(large.system, large.positions)


def state_of(context):
    """Energy and forces of the whole System."""
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def on_one_and_on_several(box, precision="mixed", read=state_of, several=BOTH, **options):
    """Energy and forces with one device and, twice, with several."""
    found = []
    for devices in (None, several):
        mine = copy.deepcopy(box)
        force = converted(mine, devices=devices, **options)
        context = context_of(mine, precision)
        found.append(read(context) if read is state_of else read(context, force))
        found.append(read(context) if read is state_of else read(context, force))  # as a graph
    return found[1], found[2], found[3]


def check(found, accuracy):
    (energy, forces), *others = found
    for other_energy, other_forces in others:
        assert relative_difference(other_forces, forces) < accuracy
        assert other_energy == pytest.approx(energy, rel=accuracy)


@on_gpu
@with_two
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("system", ["water", "chains"])
def test_results_are_those_of_one_device(request, system, precision):
    box = request.getfixturevalue(system)
    check(on_one_and_on_several(box, precision, coulomb), ROUNDING[precision])
    check(on_one_and_on_several(box, precision), ROUNDING[precision])


@on_gpu
@with_three
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_more_than_two_devices(water, precision):
    several = list(range(len(DEVICES)))
    check(on_one_and_on_several(eight(water), precision, several=several), ROUNDING[precision])


@on_gpu
@with_two
def test_without_peer_access(pytestconfig, folder):
    """The driver copies through the memory of the host."""
    denial = compiler.shared(
        folder,
        "no_peer_access",
        text='extern "C" int cuDeviceCanAccessPeer(int* access, int, int) { return *access = 0; }',
    )
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    test = f"{__file__}::{test_results_are_those_of_one_device.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--log-cli-level=INFO", test],
        cwd=pytestconfig.rootpath,
        env=environment | {"LD_PRELOAD": str(denial)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "data pass through the memory of the host" in done.stdout
    assert "peer access" not in done.stdout


@on_gpu
@with_two
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_lists_of_every_pair(water, precision):
    """With every atom a site and a long cutoff, lists hold every pair once in single precision."""
    every_atom = with_every_atom_a_site(Sample(water.system, water.positions, 0 * water.positions))
    box = eight(Box(every_atom.system, every_atom.positions))
    box.nonbonded.setCutoffDistance(1.2)
    check(on_one_and_on_several(box, precision), ROUNDING[precision])


@on_gpu
@with_two
@pytest.mark.parametrize("options", [{}, {"levels": 1}, {"smoothing": 0.05}])
def test_potentials(water, options):
    found = []
    for devices in (None, BOTH):
        mine = copy.deepcopy(water)
        force = converted(mine, devices=devices, **options)
        found.append(force.getPotentialsInContext(context_of(mine)))
    np.testing.assert_allclose(found[1], found[0], atol=2e-5 * np.abs(found[0]).max())


@on_gpu
@with_two
@pytest.mark.parametrize("barostat", [False, True])
def test_along_a_run(water, barostat):
    """Atoms are reordered, lists rebuilt, parts changed and the box scaled."""
    box = eight(water)
    if barostat:
        box.system.addForce(openmm.MonteCarloBarostat(1 * unit.bar, 300 * unit.kelvin, 10))
    one, two = copy.deepcopy(box), copy.deepcopy(box)
    converted(one)
    force = converted(two, devices=BOTH)
    integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.002)
    context = context_of(two, integrator=integrator)
    for _ in range(3):
        integrator.step(300)
        state = context.getState(positions=True, energy=True, forces=True)
        fresh = context_of(one)
        fresh.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
        fresh.setPositions(state.getPositions())
        energy, forces = state_of(fresh)
        assert relative_difference(state.getForces(asNumpy=True)._value, forces) < 4e-5
        assert state.getPotentialEnergy()._value == pytest.approx(energy, rel=2e-6)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
@with_two
def test_a_checkpoint_restarts_on_another_number_of_devices(water):
    two = copy.deepcopy(water)
    converted(water)
    converted(two, devices=BOTH)
    first, second = (
        context_of(box, integrator=openmm.VerletIntegrator(0.001)) for box in (two, water)
    )
    first.getIntegrator().step(20)
    second.loadCheckpoint(first.createCheckpoint())
    assert energy_of(second) == pytest.approx(energy_of(first), rel=1e-6)
    for context in (first, second):
        context.getIntegrator().step(20)
    positions = [
        context.getState(positions=True).getPositions(asNumpy=True)._value
        for context in (first, second)
    ]
    np.testing.assert_allclose(*positions, atol=1e-5)


@on_gpu
@with_two
def test_deterministic_forces(water):
    box, found = eight(water), []
    converted(box, devices=BOTH)
    for _ in range(2):
        integrator = openmm.VerletIntegrator(0.001)
        context = context_of(box, integrator=integrator, DeterministicForces="true")
        integrator.step(200)
        found.append(context.getState(forces=True).getForces(asNumpy=True)._value)
    np.testing.assert_array_equal(*found)


@on_gpu
@with_two
@pytest.mark.parametrize("edge", [12.0, None])
def test_a_droplet(edge):
    check(on_one_and_on_several(droplet_in_a_cell(edge)), ROUNDING["mixed"])


@on_gpu
@with_two
def test_force_groups(water):
    """The FMM and the other forces alone."""
    force = converted(water, devices=BOTH)
    context = context_of(water)
    whole, (own, forces) = state_of(context), coulomb(context, force)
    state = context.getState(energy=True, forces=True, groups={0})
    assert own + state.getPotentialEnergy()._value == pytest.approx(whole[0], rel=1e-6)
    rest = state.getForces(asNumpy=True)._value
    assert relative_difference(forces + rest, whole[1]) < 1e-5


@on_gpu
@with_two
def test_auto(water, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fmm_openmm")
    converted(water, devices="auto")
    context_of(water)
    assert "shares the work" not in caplog.text
    monkeypatch.setattr(session, "WORTH_TWO_DEVICES", 1)
    context = context_of(water)
    assert "shares the work" in caplog.text
    assert np.isfinite(energy_of(context))


@on_gpu
@pytest.mark.parametrize(
    ("devices", "reason"),
    [([0, 99], "there is no device 99"), (["GPU-0", 0], "there is no device GPU-0")],
)
def test_devices_that_are_not_there(water, devices, reason):
    converted(water, devices=devices)
    with pytest.raises(openmm.OpenMMException, match=f"`devices=.*` is not possible: {reason}"):
        context_of(water)


@on_gpu
@with_two
@pytest.mark.alone
def test_a_device_that_is_full(ions):
    cupy = pytest.importorskip("cupy")
    converted(ions, devices=BOTH, grid=(128, 128, 128), order=10, near_radius=1.87)
    reason = r"`devices=.*` is not possible: allocating \d+ MiB on device GPU-.*memory"
    with cupy.cuda.Device(1):
        taken = cupy.cuda.runtime.malloc(cupy.cuda.runtime.memGetInfo()[0] - (2 << 30))
        try:
            with pytest.raises(openmm.OpenMMException, match=reason):
                context_of(ions)
        finally:
            cupy.cuda.runtime.free(taken)


@on_gpu
@with_two
@pytest.mark.alone
def test_a_device_that_fills_while_a_simulation_runs(water, monkeypatch):
    """The device of the Context has room for another program, the other one has not."""
    cupy = pytest.importorskip("cupy")

    def hungry(*arguments, **options):
        program = build(*arguments, **options)
        program.buffers["hunger"] = Buffer((4 << 30,), np.dtype(np.uint8))
        return program

    force = converted(water, devices=BOTH)
    context = context_of(water)
    before = coulomb(context, force)[0]
    context.setPeriodicBoxVectors(*(np.diag([1.3, 1.0, 1.0]) @ water.cell))
    with cupy.cuda.Device(1), monkeypatch.context() as patch:
        patch.setattr("fmm_openmm.integration.native.session.build", hungry)
        taken = cupy.cuda.runtime.malloc(cupy.cuda.runtime.memGetInfo()[0] - (2 << 30))
        try:
            for _ in range(2):
                with pytest.raises(openmm.OpenMMException, match=r"MiB on device GPU-.*memory"):
                    coulomb(context, force)
        finally:
            cupy.cuda.runtime.free(taken)
    context.setPeriodicBoxVectors(*water.cell)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-6)


@on_gpu
@with_two
def test_the_contexts_device_is_among_them(water):
    converted(water, devices=[0])
    with pytest.raises(openmm.OpenMMException, match="the Context is on device 1, which is not"):
        context_of(water, DeviceIndex="1")
    with pytest.raises(openmm.OpenMMException, match="the Context itself is on several devices"):
        context_of(water, DeviceIndex="0,1")
    context_of(water, DeviceIndex="0")


def test_other_platforms_have_no_devices(water):
    try:
        fmm.use_fmm(water.system, devices=[0, 1])
    except fmm.UnsupportedError as error:
        assert "`devices=[0, 1]` is not available" in str(error)
        return
    with pytest.raises(openmm.OpenMMException, match="needs a Context on the CUDA platform"):
        energy_of(water.context("Reference"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"devices": "both"}, ValueError, "`devices` must be 'auto' or a list"),
        ({"devices": [0, 0]}, ValueError, "must name each device once"),
        ({"devices": []}, ValueError, "must name each device once"),
        ({"devices": [0.5]}, TypeError, "must hold indices or UUIDs"),
        ({"devices": [0, 1], "bridge": "host"}, ValueError, "needs the native bridge"),
        ({"devices": [0, 1], "backend": "cpu"}, ValueError, "needs the native bridge"),
    ],
)
def test_invalid_devices(water, given, error, message):
    with pytest.raises(error, match=message):
        fmm.use_fmm(water.system, **given)
