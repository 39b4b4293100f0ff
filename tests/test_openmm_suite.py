"""The command that runs OpenMM's own tests, on tests made here: it converts Systems, and tells what
fails with an FMM alone."""

import pytest

from tests import openmm_suite

TESTS = """
import openmm
from openmm import app

def system(method=openmm.NonbondedForce.PME):
    made, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(method)
    for charge in (1.0, -1.0):
        made.addParticle(1.0)
        force.addParticle(charge, 0.3, 0.1)
    made.addForce(force)
    return made

def context(made):
    return openmm.Context(made, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatform(0))

def test_kept():
    context(system())

def test_not_convertible():
    context(system(openmm.NonbondedForce.CutoffPeriodic))

def test_no_system():
    assert app.ForceField

def test_wrong_with_both():
    assert False
"""
READING = """
def test_reading():
    made = system()
    context(made)
    assert made.getForce(0).getParticleParameters(0)[0]._value == 1
"""


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """The command on a folder with this test file, and pytest's options; pytest runs once for the
    same ones."""
    found, outcomes = {}, openmm_suite.outcomes

    def kept(folder, options, convert):
        key = (folder / "TestIt.py").read_text(), *options, convert
        if key not in found:
            found[key] = outcomes(folder, options, convert)
        return found[key]

    monkeypatch.setattr(openmm_suite, "outcomes", kept)

    def run(text, *options):
        (tmp_path / "pytest.ini").write_text("[pytest]\npython_files=Test*.py\n")
        (tmp_path / "TestIt.py").write_text(text)
        status = openmm_suite.main([str(tmp_path), "-p", "no:cacheprovider", *options])
        return status, capfd.readouterr().out.splitlines()

    assert openmm_suite.PLUGIN == openmm_suite.__name__

    return run


@pytest.mark.slow
def test_what_reads_charges_fails_with_an_fmm_alone(run, monkeypatch):
    status, printed = run(TESTS + READING)
    assert status == 1
    assert "TestIt.test_reading: FAILS WITH AN FMM" in printed
    assert printed[-1].endswith(
        ": 4 tests pass with PME, 2 of them have Systems converted. With an FMM 3 pass, 0 fail "
        "since they inspect what a conversion changes, 1 fail for another reason."
    )
    monkeypatch.setitem(openmm_suite.BY_DESIGN, "TestIt.test_reading", "charges are 0")
    status, printed = run(TESTS + READING)
    assert status == 0
    assert "TestIt.test_reading: charges are 0" in printed


@pytest.mark.slow
def test_a_name_that_does_not_fail_and_a_run_without_conversions_are_errors(run, monkeypatch):
    assert run(TESTS, "-k", "kept or convertible")[0] == 0
    assert run(TESTS, "-k", "no_system")[0] == 1
    monkeypatch.setitem(openmm_suite.BY_DESIGN, "TestIt.test_kept", "nothing")
    status, printed = run(TESTS, "-k", "kept or convertible")
    assert status == 1
    assert "TestIt.test_kept: passes, but BY_DESIGN names it" in printed
