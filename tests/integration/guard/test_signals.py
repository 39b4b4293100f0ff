"""Signals: what their handlers raise comes out of the method of OpenMM that was called, and the
Context goes on as if nothing had been."""

import os
import signal
import threading
import time

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import energy_of


class Stop(Exception):
    """Exception that a handler of the user raises."""


@pytest.fixture
def handled():
    """Signals whose handlers raise, and what; the handlers of before are back afterwards."""

    def leave(*_):
        raise SystemExit(3)

    def stop(*_):
        raise Stop

    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGUSR1, stop)
    yield {
        signal.SIGINT: KeyboardInterrupt,
        signal.SIGTERM: SystemExit,
        signal.SIGUSR1: Stop,
    }
    for number, handler in usual.items():
        signal.signal(number, handler)


def simulation(box, platform):
    """Langevin dynamics with noise that is the same every time."""
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.0005)
    integrator.setRandomNumberSeed(5)
    context = openmm.Context(box.system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(box.positions)
    return context


def test_a_signal_at_any_time_comes_out_of_step(ions, platform, handled):
    fmm.use_fmm(ions.system)
    context = simulation(ions, platform)
    context.getIntegrator().step(1)
    handlers = {number: signal.getsignal(number) for number in handled}
    for number, raised in handled.items():
        for delay in 0.0, 0.003, 0.01:
            thread = threading.Timer(delay, os.kill, (os.getpid(), number))
            with pytest.raises(raised):
                thread.start()
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    context.getIntegrator().step(10)
            thread.join()
    assert {number: signal.getsignal(number) for number in handled} == handlers
    context.getIntegrator().step(1)
    assert np.isfinite(energy_of(context))


def test_a_run_with_signals_is_the_run_without(ions, monkeypatch, handled):
    """Handlers wait until the step is complete; in a barostat's trial move as well."""
    fmm.use_fmm(ions.system)
    barostat = openmm.MonteCarloBarostat(1.0, 300.0, 1)
    barostat.setRandomNumberSeed(9)
    ions.system.addForce(barostat)
    compute, numbers = fmm.CoulombSolver.compute, list(handled)
    found, steps, sent = [], 0, set()

    def disturbed(solver, *args):
        """Once a step, since a second Ctrl-C would end it."""
        if steps not in sent:
            sent.add(steps)
            signal.raise_signal(numbers[steps % len(numbers)])
        return compute(solver, *args)

    for disturb in False, True:
        context = simulation(ions, "Reference")
        with monkeypatch.context() as patch:
            if disturb:
                patch.setattr(fmm.CoulombSolver, "compute", disturbed)
            for steps in range(12):
                try:
                    context.getIntegrator().step(1)
                except tuple(handled.values()) as raised:
                    assert type(raised) is handled[numbers[steps % len(numbers)]]
                else:
                    assert not disturb
        state = context.getState(positions=True, velocities=True)
        found.append((context.getStepCount(), state.getPositions(asNumpy=True)._value,
                      state.getVelocities(asNumpy=True)._value,
                      state.getPeriodicBoxVolume()._value))  # fmt: skip
    assert len(sent) == 12
    for plain, with_signals in zip(*found, strict=True):
        assert np.array_equal(plain, with_signals)


@pytest.mark.parametrize(
    ("patience", "method"),
    [
        (1, lambda context: openmm.LocalEnergyMinimizer.minimize(context, 1e-12)),
        (2, lambda context: context.getIntegrator().step(10**9)),
    ],
    ids=["minimize", "step"],
)
def test_ctrl_c_ends_what_is_one_long_call(ions, monkeypatch, patience, method):
    """A minimisation at once, steps at the second time."""
    fmm.use_fmm(ions.system)
    context, compute, calls = simulation(ions, "Reference"), fmm.CoulombSolver.compute, []

    def pressed(solver, *args):
        calls.append(args)
        if len(calls) in (3, 5)[:patience]:
            signal.raise_signal(signal.SIGINT)
        return compute(solver, *args)

    monkeypatch.setattr(fmm.CoulombSolver, "compute", pressed)
    with pytest.raises(KeyboardInterrupt):
        method(context)
    assert len(calls) == 1 + 2 * patience
    found = energy_of(context)
    context.reinitialize(preserveState=True)
    assert found == energy_of(context)


NOTEBOOK = """
import numpy as np, openmm, fmm_openmm
system = openmm.XmlSerializer.deserialize(open({folder!r} + "/system.xml").read())
cpu = openmm.Platform.getPlatformByName("CPU")
context = openmm.Context(system, openmm.VerletIntegrator(0.0005), cpu)
context.setPositions(np.load({folder!r} + "/positions.npy"))
"""

# The first steps are made before the interrupt can come, which may be at once.
ENDLESS = """
while True:
    context.getIntegrator().step(10)
    if context.getStepCount() == 10:
        print("go", flush=True)
"""


@pytest.mark.slow
def test_the_kernel_of_a_notebook_is_interrupted(ions, tmp_path):
    """As Jupyter's button does it, and the next cell finds the Context as usable as before."""
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    fmm.use_fmm(ions.system)
    (tmp_path / "system.xml").write_text(openmm.XmlSerializer.serialize(ions.system))
    np.save(tmp_path / "positions.npy", ions.positions)
    kernel, client = manager.start_new_kernel(startup_timeout=200)

    def run(cell):
        """The reply to a cell, which is interrupted when it prints ``go``."""

        def see(message):
            if "go" in message["content"].get("text", ""):
                kernel.interrupt_kernel()

        return client.execute_interactive(cell, output_hook=see, timeout=200)["content"]

    try:
        reply = run(NOTEBOOK.format(folder=str(tmp_path)))
        assert reply["status"] == "ok", reply
        reply = run(ENDLESS)
        assert reply["ename"] == "KeyboardInterrupt", reply
        cell = "energy = context.getState(energy=True).getPotentialEnergy()._value\n"
        reply = run(cell + "assert np.isfinite(energy) and context.getStepCount()")
        assert reply["status"] == "ok", reply
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_a_handler_that_does_not_raise_ends_nothing(ions, monkeypatch):
    """The handler is called once for each signal, after the step, in the order of arrival."""
    fmm.use_fmm(ions.system)
    context, compute, came = simulation(ions, "Reference"), fmm.CoulombSolver.compute, []
    numbers = (signal.SIGUSR2, signal.SIGINT, signal.SIGUSR2)
    usual = {number: signal.getsignal(number) for number in numbers}

    def several(solver, *args):
        for number in numbers:
            signal.raise_signal(number)
        assert not came
        return compute(solver, *args)

    try:
        for number in numbers:
            signal.signal(number, lambda number, frame: came.append(number))
        with monkeypatch.context() as patch:
            patch.setattr(fmm.CoulombSolver, "compute", several)
            context.getState(energy=True)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    assert came == [signal.SIGUSR2, signal.SIGINT]


def test_what_waits_keeps_its_handler_though_restoring_it_is_interrupted(ions, monkeypatch):
    """A handler that was left in place forwards the signal, once, and is gone."""
    from fmm_openmm.integration.guard.signals import _Waiting

    waiting = _Waiting(2)
    with waiting:
        assert signal.getsignal(signal.SIGINT) is waiting
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, waiting)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_have_no_part_in_it(ions):
    """A handler runs in the main thread alone, and so does everything here."""
    fmm.use_fmm(ions.system)
    context, energies = simulation(ions, "Reference"), []
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: energies.append(energy_of(context)))
    thread.start()
    thread.join()
    assert energies == [energy_of(context)]
    assert signal.getsignal(signal.SIGINT) is handler
