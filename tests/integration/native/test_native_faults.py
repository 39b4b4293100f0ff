"""The native bridge when something fails, or is done very often: the error says what, and
nothing is lost or left behind."""

import copy
import ctypes
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openmm
import pytest

from fmm_openmm.backends.cuda import serial
from fmm_openmm.backends.cuda.abi import Delivery, Place
from fmm_openmm.backends.cuda.program import Buffer
from fmm_openmm.integration.native import callbacks
from fmm_openmm.integration.native.session import Session, build
from tests import endurance
from tests.integration.boxes import energy_of, relative_difference
from tests.integration.native_contexts import (
    ROUNDING,
    both_bridges,
    context_of,
    converted,
    coulomb,
    no_room,
    on_devices,
    on_gpu,
)


def interrupted(*_):
    raise KeyboardInterrupt


def test_an_interrupt_delivers_nothing_more(monkeypatch):
    delivered = []
    monkeypatch.setattr(
        callbacks, "_deliver", lambda inbox, kind, data: delivered.append((inbox, kind))
    )
    callbacks._answering(lambda *_: callbacks._deliver("inbox", Delivery.CLAIM, b""))(
        "kernel", "inbox"
    )
    assert delivered == [("inbox", Delivery.CLAIM), ("inbox", Delivery.DONE)]
    with pytest.raises(KeyboardInterrupt):
        callbacks._answering(interrupted)("kernel", "inbox")
    assert len(delivered) == 2


class OnOneDevice:
    """A session of a force that one device computes."""

    def __init__(self, bridge, kernel, context, place):
        self.bridge, self.kernel, self.context = bridge, kernel, context

    def further_devices(self):
        return {}


def test_a_claim_names_the_parameters_of_the_charges(ions, monkeypatch):
    """The FMMForce of a converted System leaves these parameters to the NonbondedForce."""
    ions.nonbonded.addGlobalParameter("scale", 1.0)
    ions.nonbonded.addParticleParameterOffset("scale", 0, 0.5, 0.0, 0.0)
    force, delivered = converted(ions), {}
    monkeypatch.setattr(callbacks, "_sessions", {})
    monkeypatch.setattr(callbacks, "_deliver", lambda _, kind, data: delivered.update({kind: data}))
    pickled = pickle.dumps(force._bridge)
    monkeypatch.setattr(callbacks, "Session", OnOneDevice)
    place = ctypes.pointer(Place(particles=4))
    callbacks._open(9, 5, ctypes.c_char_p(pickled), len(pickled), place, None)
    assert delivered == {Delivery.CLAIM: b"fmm_revision\0scale", Delivery.DONE: b""}


def test_what_a_failed_context_left_is_dropped(ions, monkeypatch):
    """The next Context may get the same memory, and finds no session of another force."""
    force = converted(ions)
    left = {
        key: SimpleNamespace(bridge=bridge, context=5, kernel=key)
        for key, bridge in ((1, force._bridge), (2, None))
    }
    monkeypatch.setattr(callbacks, "_sessions", left)
    monkeypatch.setattr(callbacks, "_deliver", lambda *_: None)
    monkeypatch.setattr(callbacks, "Session", OnOneDevice)
    pickled = pickle.dumps(force._bridge)
    place = ctypes.pointer(Place(particles=force.getNumParticles()))
    callbacks._open(9, 5, ctypes.c_char_p(pickled), len(pickled), place, None)
    assert set(left) == {2, 9}


@on_gpu
def test_an_interrupt_stops_the_evaluation_and_nothing_else(ions, monkeypatch):
    """Before the first evaluation, in a change of the box and in one of the charges; afterwards
    all is as if there was none."""
    force = converted(ions, bridge="native")
    wider = ions.cell * [[1.0], [1.0], [1.08]]  # too long for the boxes in use
    changes = (
        ("charges", lambda context: None),
        ("program", lambda context: context.setPeriodicBoxVectors(*wider)),
        (
            "charges",
            lambda context: (
                force.setParticleParameters(0, 0.5),
                force.updateParametersInContext(context),
            ),
        ),
    )
    context, fresh, ignored = context_of(ions), context_of(ions), []
    for method, change in changes:
        change(context)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "unraisablehook", lambda ignoring: ignored.append(ignoring.exc_type))
            patch.setattr(Session, method, interrupted)
            for _ in range(2):
                with pytest.raises(openmm.OpenMMException, match="FMMForce: interrupted"):
                    coulomb(context, force)
        fresh.setPeriodicBoxVectors(*context.getState().getPeriodicBoxVectors())
        assert coulomb(context, force)[0] == pytest.approx(
            coulomb(fresh, force)[0], rel=ROUNDING["mixed"]
        )
    assert ignored == 2 * len(changes) * [KeyboardInterrupt]


@on_gpu
def test_a_context_after_one_that_could_not_be_made(ions):
    force = converted(ions, bridge="native")
    first = context_of(ions)
    expected = force.getPotentialsInContext(first)
    for _ in range(5):
        with pytest.raises(openmm.OpenMMException, match="already bound"):
            context_of(ions, integrator=first.getIntegrator())
        np.testing.assert_allclose(
            force.getPotentialsInContext(context_of(ions)), expected, rtol=1e-5, atol=1e-3
        )


@on_gpu
def test_forces_of_a_step_that_openmm_gave_up(water):
    """OpenMM refuses a small box when the FMM has begun.

    What this adds to the forces then is not among the next ones.
    """

    def forces(groups):
        return context.getState(forces=True, groups=groups).getForces(asNumpy=True)._value

    converted(water, bridge="native", grid=(24, 24, 24), order=16, precision="double")
    context = context_of(water, "double")
    for groups in ({0, 7}, {7}, {0}):
        expected = forces(groups)
        context.setPeriodicBoxVectors(*(0.8 * water.cell))
        with pytest.raises(openmm.OpenMMException, match="less than twice the nonbonded cutoff"):
            forces({0, 7})
        context.setPeriodicBoxVectors(*water.cell)
        assert relative_difference(forces(groups), expected) < 1e-9


@on_gpu
def test_a_context_leaves_no_session(ions):
    converted(ions, bridge="native")
    sessions = set(callbacks._sessions)  # of Contexts that other tests hold
    energy_of(context := context_of(ions))
    assert set(callbacks._sessions) - sessions
    del context
    gc.collect()
    assert set(callbacks._sessions) <= sessions


@on_gpu
@on_devices
def test_a_bad_coordinate_is_named_and_nothing_is_lost(water, devices):
    force = converted(water, bridge="native")
    context = context_of(water, DeviceIndex=devices)
    before = coulomb(context, force)[0]
    for bad in (np.nan, np.inf, 1e30):
        positions = water.positions.copy()
        positions[17, 1] = bad
        context.setPositions(positions)
        with pytest.raises(openmm.OpenMMException, match=r"for particle 17|NaN"):
            coulomb(context, force)
    context.setPositions(water.positions)
    # molecules are in other images now
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-6)


@on_gpu
def test_a_huge_force_does_not_wrap(ions):
    force = converted(ions, bridge="native")
    ions.positions[1] = ions.positions[0] + [1e-7, 0, 0]  # opposite charges
    _, forces = coulomb(context_of(ions), force)
    assert forces[0, 0] > 1e9 and forces[1, 0] < -1e9


@on_gpu
@pytest.mark.parametrize(
    ("place", "name", "fault", "reason"),
    [
        (Session, "program", no_room, "no room"),
        (serial, "source_of", lambda *_: "#error no such luck", "no such luck"),
    ],
    ids=["memory", "compiler"],
)
def test_a_failure_falls_back_to_the_host_bridge(water, monkeypatch, place, name, fault, reason):
    expected = both_bridges(water, "mixed")[1][0]
    monkeypatch.setattr(place, name, fault)
    mine = copy.deepcopy(water)
    force = converted(mine)
    context = context_of(mine)
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == "host" and reason in found["bridge_reason"]
    assert coulomb(context, force)[0] == pytest.approx(expected, rel=1e-9)
    converted(water, bridge="native")
    with pytest.raises(openmm.OpenMMException, match=reason):
        context_of(water)


@on_gpu
@pytest.mark.alone
def test_too_little_memory(ions):
    cupy = pytest.importorskip("cupy")
    force = converted(ions, grid=(128, 128, 128), order=10, near_radius=1.87)
    taken = cupy.cuda.memory.alloc(cupy.cuda.runtime.memGetInfo()[0] - (2 << 30))
    found = callbacks.status(force._bridge, context := context_of(ions))
    assert found[0] is None and "allocating" in found[1]
    del taken, context
    cupy.get_default_memory_pool().free_all_blocks()
    assert np.isfinite(coulomb(context_of(ions), force)[0])


@on_gpu
def test_a_failure_while_a_simulation_runs(water, monkeypatch):
    """Another shape of the box may need a program that cannot be made: an error, and the Context
    goes on once it can."""
    force = converted(water, bridge="native")
    context = context_of(water, "double")
    before = coulomb(context, force)[0]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "program", no_room)
        context.setPeriodicBoxVectors(*(np.diag([1.3, 1.0, 1.0]) @ water.cell))
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match="FMMForce: MemoryError: no room"):
                coulomb(context, force)
    assert coulomb(context, force)[0] != before
    context.setPeriodicBoxVectors(*water.cell)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-9)


@on_gpu
def test_memory_that_runs_out_while_a_simulation_runs(water, monkeypatch):
    def hungry(*arguments, **options):
        program = build(*arguments, **options)
        program.buffers["hunger"] = Buffer((2**42,), np.dtype(np.uint8))
        return program

    force = converted(water, bridge="native")
    context = context_of(water, "double")
    before = coulomb(context, force)[0]
    with monkeypatch.context() as patch:
        patch.setattr("fmm_openmm.integration.native.session.build", hungry)
        context.setPeriodicBoxVectors(*(np.diag([2.0, 1.0, 1.0]) @ water.cell))
        for _ in range(2):
            with pytest.raises(
                openmm.OpenMMException, match=r"FMMForce: allocating \d+ MiB: .*memory"
            ):
                coulomb(context, force)
        context.setPeriodicBoxVectors(*water.cell)
        with pytest.raises(openmm.OpenMMException, match="memory"):
            coulomb(context, force)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-9)


@on_gpu
@pytest.mark.parametrize("damage", ["empty", "cut", "noise"])
def test_a_damaged_kernel_cache(water, damage, tmp_path, monkeypatch):
    """OpenMM keeps compiled kernels in a folder. Whatever becomes of ours, forces are right."""
    monkeypatch.delenv("OPENMM_CACHE_DIR", raising=False)
    context_of(water, TempDirectory=str(tmp_path))
    others = set(tmp_path.iterdir())
    force = converted(water)
    context = context_of(water, TempDirectory=str(tmp_path))
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    energy, forces = coulomb(context, force)
    del context
    files = set(tmp_path.iterdir()) - others
    assert len(files) > 4
    for path in files:
        content = path.read_bytes()
        path.write_bytes(
            {"empty": b"", "cut": content[: len(content) // 2], "noise": bytes(len(content))}[
                damage
            ]
        )
    context = context_of(water, TempDirectory=str(tmp_path))
    again, same = coulomb(context, force)
    assert again == pytest.approx(energy, rel=1e-6)
    assert relative_difference(same, forces) < 1e-5
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == "native" or "Error creating kernel" in found["bridge_reason"]


LOCKED = """
import openmm
from tests.integration.native_contexts import context_of, converted, droplet_in_a_cell

class Reporter(openmm.MinimizationReporter):
    calls = 0

    def report(self, *_):
        Reporter.calls += 1
        return False

for edge in (None, 12.0, 3.0):
    box = droplet_in_a_cell(edge)
    converted(box, bridge="native")
    context = context_of(box, DeviceIndex={devices!r})
    before = context.getState(energy=True).getPotentialEnergy()
    openmm.LocalEnergyMinimizer.minimize(context, 10.0, 20, Reporter())
    assert context.getState(energy=True).getPotentialEnergy() < before
assert Reporter.calls >= 3
"""


@on_gpu
@on_devices
def test_python_is_asked_while_it_is_locked(devices):
    """OpenMM keeps Python's lock while it minimises with a reporter; in a process of its own,
    which would wait forever."""
    root = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", LOCKED.format(devices=devices)], cwd=root, check=True, timeout=120
    )


@pytest.fixture(scope="module")
def sample():
    return endurance.sample()


@on_gpu
@pytest.mark.alone
@pytest.mark.parametrize("case", endurance.CASES)
def test_nothing_piles_up(case, sample):
    """``python -m tests.endurance`` with fewer repetitions."""
    pytest.importorskip("cupy")
    repetitions = {"steps": 2000, "lists": 20_000, "contexts": 10}.get(case, 100)
    outcome = endurance.run(endurance.CASES[case], sample, repetitions)
    assert not outcome.failures(endurance.CASES[case]), outcome
