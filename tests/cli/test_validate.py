"""``fmm-openmm validate``: references, tolerances and Systems that are converted."""

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.cli import validate
from fmm_openmm.oracle import ewald_sum
from tests.cli.inputs import WATER
from tests.convert.small_water import small_water


def test_validate(succeed, tmp_path):
    result = succeed("validate", *WATER, "--json", "--plot", str(tmp_path / "errors.png"))
    assert result["reference"] == "an Ewald sum"
    assert result["passed"] is True
    assert 1e-6 < result["fmm"]["relative_rms_force_error"] < 5e-4
    assert 1e-5 < result["pme"]["relative_rms_force_error"] < 5e-3
    assert result["parameters"]["order"] > 1
    assert (tmp_path / "errors.png").stat().st_size > 1000


@pytest.mark.slow
def test_validate_in_a_box_too_large_for_pme(succeed, fail):
    """An Ewald sum is the reference, and PME is left out by name."""
    argv = ("validate", "system.xml", "water.pdb", "--box", "200", "200", "200")
    result = succeed(*argv, "--json")
    assert (result["reference"], result["passed"], result["pme"]) == ("an Ewald sum", True, None)
    assert result["pme_left_out"].startswith("left out, as it would need a grid of ")
    assert "take 'ewald'" in fail(*argv, "--reference", "pme")


@pytest.mark.slow
def test_validate_chooses_a_reference_that_fits(succeed, monkeypatch):
    """Above the limit of the Ewald sum PME, unless its grid is too large."""
    monkeypatch.setattr(validate, "EWALD_LIMIT", 100)
    argv = ("validate", "system.xml", "water.pdb", "--json")
    assert succeed(*argv)["reference"].startswith("PME at 1e-07")
    assert succeed(*argv, "--box", "100", "100", "100")["reference"] == "an Ewald sum"


@pytest.mark.slow
def test_validate_takes_its_numbers_from_the_system_and_the_options(succeed):
    argv = (
        "validate",
        "system.xml",
        "water.pdb",
        "--tolerance",
        "1e-6",
        "--pme-tolerance",
        "1e-5",
        "--json",
    )
    by_ewald, by_pme = succeed(*argv), succeed(*argv, "--reference", "pme")
    assert by_pme["reference"].startswith("PME at 1e-07")
    assert by_pme["reference_energy"] == pytest.approx(by_ewald["reference_energy"], rel=1e-7)
    assert (
        by_ewald["fmm"]["relative_rms_force_error"]
        < 1e-6
        < by_ewald["pme"]["relative_rms_force_error"]
    )
    exact = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    energy = ewald_sum(exact.positions, exact.charges, exact.box_vectors, exact.exclusions).energy
    assert by_ewald["reference_energy"] == pytest.approx(energy, rel=1e-9)


@pytest.mark.slow
def test_validate_with_pme_parameters_of_the_system(succeed, folder):
    """PME's parameters in the System are used, unless a tolerance is given."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    next(
        force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)
    ).setPMEParameters(3.0, 8, 8, 8)
    (folder / "coarse.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = ("validate", "coarse.xml", "water.pdb", "--json")
    as_set, named = succeed(*argv)["pme"], succeed(*argv, "--pme-tolerance", "1e-4")["pme"]
    assert (as_set["method"], named["method"]) == ("PME as set", "PME 0.0001")
    assert named["relative_rms_force_error"] < 2e-4 < 2e-3 < as_set["relative_rms_force_error"]


@pytest.mark.slow
def test_a_system_with_an_fmm_force_alone(succeed, tmp_path):
    _, system, positions = small_water()
    exact = fmm.ChargeSystem.from_openmm(system, positions)
    index = [type(force) for force in system.getForces()].index(openmm.NonbondedForce)
    system.addForce(fmm.FMMForce.from_nonbonded(system.getForce(index)))
    system.removeForce(index)
    (tmp_path / "own.xml").write_text(openmm.XmlSerializer.serialize(system))
    files = (str(tmp_path / "own.xml"), "water.pdb")
    result = succeed("validate", *files, "--json")
    assert result["passed"] is True
    energy = ewald_sum(exact.positions, exact.charges, exact.box_vectors, exact.exclusions).energy
    assert result["reference_energy"] == pytest.approx(energy, rel=1e-9)
    output = str(tmp_path / "own.npz")
    assert succeed("convert", *files, "-o", output, "--json")["exclusions"] == len(exact.exclusions)
    assert np.array_equal(fmm.ChargeSystem.load(output).charges, exact.charges)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("validate",), ("run", "--steps", "2", "--interval", "2", "--timestep", "0.0001")]
)
def test_a_converted_system_keeps_its_options(command, succeed, tmp_path):
    """And its charges, which may have been changed since; unless options are given."""
    name, *rest = command
    _, system, _ = small_water()
    force = fmm.use_fmm(system, tolerance=1e-5)
    for atom in range(0, 3 * 20):
        force.setParticleParameters(atom, 0.0)
    (tmp_path / "tight.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = (name, str(tmp_path / "tight.xml"), "water.pdb", *rest, "--json")
    for options, tolerance in ((), 1e-5), (("--tolerance", "0.01"), 1e-2):
        result = succeed(*argv, *options)
        used = result["parameters"] if name == "validate" else result["fmm"]
        assert 0.01 * tolerance < used["expected_error"] <= tolerance
        if name == "validate":
            charges = fmm.ChargeSystem.from_openmm(system, small_water()[2])
            exact = ewald_sum(
                charges.positions, charges.charges, charges.box_vectors, charges.exclusions
            )
            assert result["tolerance"] == tolerance
            assert result["reference_energy"] == pytest.approx(exact.energy, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`tolerance=1e-05` is out of reach")
def test_validate_fails_beyond_the_tolerance(succeed):
    argv = ("validate", *WATER, "--tolerance", "1e-5", "--order", "3")
    assert succeed(*argv, "--json", code=1)["passed"] is False
    text = succeed(*argv, "--pme-tolerance", "1e-5", code=1)
    assert "FMM MISSES its tolerance of 1e-05; PME 1e-05 has the smaller RMS force error" in text
