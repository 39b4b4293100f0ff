"""Ctrl-C at any stage of a command."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from openmm import app

import fmm_openmm as fmm
from fmm_openmm.cli import check, main, run
from tests.cli.inputs import WATER


def test_interrupt(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "run", interrupted)
    assert main(["check"]) == 130


@pytest.mark.slow
def test_a_run_that_is_interrupted_tells_what_it_has(succeed, monkeypatch, tmp_path):
    """Ctrl-C during the second interval of a hundred; after it the signal acts as before."""
    step, plot, log = app.Simulation.step, tmp_path / "run.png", tmp_path / "run.csv"

    def interrupted(simulation, steps):
        if simulation.currentStep == 30:
            signal.raise_signal(signal.SIGINT)
        step(simulation, steps)

    monkeypatch.setattr(app.Simulation, "step", interrupted)
    usual = signal.getsignal(signal.SIGINT)
    argv = (
        "run",
        *WATER,
        "--steps",
        "2000",
        "--interval",
        "20",
        "--timestep",
        "0.0005",
        "--minimize",
        "10",
    )
    result = succeed(*argv, "--plot", str(plot), "--log", str(log), "--json", code=130)
    assert result["interrupted"]
    assert result["steps"] == 40
    assert result["ms_per_step"] > 0
    assert plot.exists()
    assert log.read_text().splitlines()[-1].startswith("40,")
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.parametrize(
    ("argv", "where", "stage"),
    [
        (["--minimize", "100000"], 5, "while minimising"),
        (["--equilibrate", "2000"], 25, "after 30 of 2000 steps of equilibration"),
        (["--interval", "2000"], 25, "after 30 of 2000 steps"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_at_any_stage(succeed, monkeypatch, argv, where, stage, times):
    """Pressed in an evaluation, and again while its effect is being sampled: the results are
    those that there are."""
    compute, sample, pressed = fmm.CoulombSolver.compute, run.sample, []
    usual, evaluations = signal.getsignal(signal.SIGINT), []

    def press():
        pressed.append(True)
        signal.raise_signal(signal.SIGINT)

    def computed(solver, *args):
        evaluations.append(args)
        if len(evaluations) >= where and not pressed:
            press()
        return compute(solver, *args)

    def sampled(*args):
        if 0 < len(pressed) < times:
            press()
        return sample(*args)

    monkeypatch.setenv("OPENMM_DEFAULT_PLATFORM", "CPU")  # for the host bridge
    monkeypatch.setattr(fmm.CoulombSolver, "compute", computed)
    monkeypatch.setattr(run, "sample", sampled)
    argv = ("run", "system.xml", "water.pdb", "--timestep", "0.0005", "--steps", "2000", *argv)
    assert f"Interrupted {stage}" in succeed(*argv, code=130)
    assert len(pressed) == times
    evaluations.clear(), pressed.clear()
    result = succeed(*argv, "--json", code=130)
    assert result["interrupted"] and len(pressed) == times
    assert np.isfinite(result["final_total_energy"])
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_imported():
    """An interrupt prints no traceback, as fmm_openmm imports nothing before it is needed."""
    code = (
        "import signal, sys\n"
        "import fmm_openmm.__main__\n"
        "assert not {'numpy', 'openmm', 'fmm_openmm.solver'} & set(sys.modules)\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'fmm_openmm.cli.check': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(fmm_openmm.__main__.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
