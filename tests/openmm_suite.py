"""OpenMM's own Python tests, with PME and with every System converted by ``use_fmm``.

    python -m tests.openmm_suite FOLDER [OPTION OF PYTEST ...]

FOLDER is ``wrappers/python/tests`` of a checkout of OpenMM. Its tests run twice, in a copy of it:
as they are, and with the Systems converted that ``createSystem`` returns or a Context is made of.
It ends with 1 if a test that passes with PME fails with an FMM, unless :data:`BY_DESIGN` names it,
and if a test that is named there does not fail.
"""

import argparse
import collections
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import openmm
import pytest
from openmm import app

import fmm_openmm as fmm

PLUGIN = "tests.openmm_suite"
"""This module, which is ``__main__`` where it is the command."""

CONVERTED = "systems converted"
"""Property of a test in the report: how many Systems it had converted."""

CONVERT = "FMM_OPENMM_SUITE_CONVERT"
"""Environment variable that has pytest convert."""

CHARGES = "reads charges of the NonbondedForce, which are 0"
ENERGY = "compares the energy of the NonbondedForce alone, which lacks the Coulomb part"
METHOD = "reads the method of the NonbondedForce, which no longer is PME"
BY_DESIGN = {
    "TestAmberPrmtopFile.TestAmberPrmtopFile.testChamber": ENERGY,
    "TestAmberPrmtopFile.TestAmberPrmtopFile.test_NonbondedMethod": METHOD,
    "TestDesmondDMSFile.TestDesmondDMSFile.test_NonbondedMethod": METHOD,
    "TestForceField.TestForceField.testWholeMolecule": CHARGES,
    "TestForceField.TestForceField.test_CharmmPolar": ENERGY,
    "TestForceField.TestForceField.test_Glycam": ENERGY,
    "TestForceField.TestForceField.test_NonbondedMethod": METHOD,
    "TestForceField.TestForceField.test_ResidueAttributes": CHARGES,
    "TestForceField.TestForceField.test_ResidueTemplateUserChoice": CHARGES,
    "TestForceField.TestForceField.test_residueMatcher": CHARGES,
    "TestPatches.TestPatches.testAlaAlaAla": CHARGES,
}
"""Tests that inspect what a conversion changes, and what that is. Those that compare an energy of
the NonbondedForce compare the total as well."""

_converted = collections.Counter()


def _convert(system) -> None:
    """Convert a System, unless it is converted already or ``use_fmm`` names what is in the way."""
    if not isinstance(system, openmm.System) or fmm.find_fmm(system):
        return
    try:
        fmm.use_fmm(system)
    except fmm.UnsupportedError:
        return
    _converted[CONVERTED] += 1


def _creating(create):
    @functools.wraps(create)
    def converting(*args, **keywords):
        system = create(*args, **keywords)
        # what OpenMM makes for itself, as Modeller does to know charges, no user can convert
        if not sys._getframe(1).f_globals["__name__"].startswith("openmm."):
            _convert(system)
        return system

    return converting


def _making(make):
    @functools.wraps(make)
    def converting(self, *args, **keywords):
        if args:
            _convert(args[0])
        make(self, *args, **keywords)

    return converting


def pytest_configure(config):
    """Hook of pytest, which loads this module as a plugin."""
    if CONVERT in os.environ:
        for kind in vars(app).values():
            if isinstance(kind, type) and "createSystem" in vars(kind):
                kind.createSystem = _creating(kind.createSystem)
        openmm.Context.__init__ = _making(openmm.Context.__init__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Hook of pytest: count the conversions of a test."""
    before = _converted[CONVERTED]
    try:
        return (yield)
    finally:
        item.user_properties.append((CONVERTED, _converted[CONVERTED] - before))


def outcomes(folder: Path, options: list[str], convert: bool) -> dict[str, tuple[str, int]]:
    """Run the tests of a folder: by name ("passed", "failed" or "skipped", Systems converted).

    Raises:
        RuntimeError: pytest itself failed.
    """
    report = folder / f"report-{convert}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, f"--junitxml={report}"]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {CONVERT: "1"} if convert else {}
    done = subprocess.run([*command, *options], cwd=folder, env=environment)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        found[f"{case.get('classname')}.{case.get('name')}"] = (
            "skipped" if "skipped" in kinds else outcome,
            int(properties.get(CONVERTED, 0)),
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.openmm_suite", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="wrappers/python/tests of a checkout of OpenMM")
    chosen, options = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(shutil.copytree(chosen.folder, Path(temporary) / "tests"))
        pme, ours = (outcomes(copied, options, convert) for convert in (False, True))
    return print_report(pme, ours)


def print_report(pme: dict[str, tuple[str, int]], ours: dict[str, tuple[str, int]]) -> int:
    """Print what :func:`outcomes` returned with PME and with an FMM; the exit status."""
    both = [name for name, (outcome, _) in pme.items() if outcome == "passed" and name in ours]
    failed = [name for name in both if ours[name][0] != "passed"]
    wrong = [name for name in failed if name not in BY_DESIGN]
    stale = [name for name in both if name in BY_DESIGN and name not in failed]
    missing = [name for name in pme if name not in ours]
    for name in failed:
        print(f"{name}: {BY_DESIGN.get(name, 'FAILS WITH AN FMM')}")
    for name in stale:
        print(f"{name}: passes, but BY_DESIGN names it")
    for name in missing:
        print(f"{name}: ran with PME alone")
    converted = sum(1 for name in both if ours[name][1])
    passed, inspecting = len(both) - len(failed), len(failed) - len(wrong)
    print(
        f"OpenMM {openmm.version.version}: {len(both)} tests pass with PME, {converted} of them "
        f"have Systems converted. With an FMM {passed} pass, {inspecting} fail since they inspect "
        f"what a conversion changes, {len(wrong)} fail for another reason."
    )
    return int(bool(wrong or stale or missing or not converted))


if __name__ == "__main__":
    sys.exit(main())
