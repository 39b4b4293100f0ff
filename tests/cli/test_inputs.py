"""Every kind of input, and the boundary that it has."""

import warnings
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from tests.cli.inputs import WATER, pdb_with
from tests.convert.small_water import BOX, FORCE_FIELD, small_water


@pytest.mark.slow
def test_convert_draws(succeed, tmp_path):
    plot = tmp_path / "charges.svg"
    text = succeed("convert", *WATER, "-o", str(tmp_path / "water.npz"), "--plot", str(plot))
    rows = [line.split()[-3:] for line in text.partition("box vectors, nm")[2].splitlines()[:3]]
    box = fmm.ChargeSystem.load(tmp_path / "water.npz").box_vectors
    assert np.array(rows, float) == pytest.approx(box, abs=1e-4)
    assert "768 particles" in plot.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        WATER,
        ("water.cif", "--forcefield", FORCE_FIELD),
        ("water.cif.gz", "--forcefield", FORCE_FIELD),
        ("system.xml", "water.pdb"),
        ("water.pdb", "converted.xml"),
        ("water.prmtop", "water.rst7"),
        ("water.prmtop", "water.ncrst"),
        ("amber.top", "water.rst7"),
        ("water.top", "water.gro"),
        ("water.psf", "water.pdb", "--parameters", "water.prm", "water.rtf"),
        ("water.psf", "water.crd", "--parameters", "water.prm", "--box", "1.9", "2.0", "2.1"),
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_every_input_gives_the_same_system(argv, succeed, tmp_path):
    if {"water.prmtop", "water.rst7", "water.top", "water.psf"} & set(argv):
        pytest.importorskip("parmed")
    result = succeed("convert", *argv, "-o", str(tmp_path / "out.npz"), "--json")
    assert result["particles"] == 768
    found = fmm.ChargeSystem.load(tmp_path / "out.npz")
    expected = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    assert found.charges == pytest.approx(expected.charges, abs=1e-6)
    assert found.positions == pytest.approx(
        expected.positions, abs=1e-6 if "water.gro" not in argv else 6e-4
    )
    assert found.box_vectors == pytest.approx(BOX, abs=1e-6)
    assert np.array_equal(found.exclusions, expected.exclusions)


@pytest.mark.slow
def test_virtual_sites_of_the_force_field_are_added(succeed, tmp_path):
    """The file has three sites a molecule, OPC has four."""
    water = ("water.pdb", "--forcefield", "amber14/opc.xml")
    result = succeed("convert", *water, "-o", str(tmp_path / "out.npz"), "--json")
    assert result["particles"] == 1024
    found = fmm.ChargeSystem.load(tmp_path / "out.npz")
    oxygens, hydrogens, others, sites = found.charges.reshape(-1, 4).T
    assert np.all(oxygens == 0)
    assert sites == pytest.approx(-2 * hydrogens)
    assert np.array_equal(hydrogens, others)
    molecules = found.positions.reshape(-1, 4, 3)
    assert molecules[:, :3].reshape(-1, 3) == pytest.approx(small_water()[2], abs=1e-6)
    oxygen, middle = molecules[:, 0], molecules[:, 1:3].mean(axis=1)
    weight = 0.14772061  # of each hydrogen in opc.xml
    assert molecules[:, 3] == pytest.approx(oxygen + 2 * weight * (middle - oxygen), abs=1e-6)


@pytest.mark.slow
def test_state_beside_its_system(succeed, folder, tmp_path):
    """Positions, box and global parameters are those of the State, also with a structure."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    force.addGlobalParameter("lambda", 1.0)
    for k in range(3):
        charge, *rest = force.getParticleParameters(k)
        force.setParticleParameters(k, 0.0, *rest)
        force.addParticleParameterOffset("lambda", k, charge, 0.0, 0.0)
    (folder / "lambda.xml").write_text(openmm.XmlSerializer.serialize(system))
    platform = openmm.Platform.getPlatformByName("Reference")  # positions in double precision
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions := small_water()[2] + 0.1)
    context.setPeriodicBoxVectors(*(box := 1.01 * BOX))
    context.setParameter("lambda", 0.5)
    state = context.getState(positions=True, parameters=True)
    (folder / "half.xml").write_text(openmm.XmlSerializer.serialize(state))
    for structure in [], ["water.pdb"]:
        succeed("convert", "half.xml", *structure, "lambda.xml", "-o", str(tmp_path / "out.npz"))
        found = fmm.ChargeSystem.load(tmp_path / "out.npz")
        assert found.positions == pytest.approx(positions, abs=1e-9)
        assert found.box_vectors == pytest.approx(box)
        whole = fmm.ChargeSystem.from_openmm(small_water()[1]).charges
        assert found.charges[:3] == pytest.approx(0.5 * whole[:3])
        assert found.charges[3:] == pytest.approx(whole[3:])


def test_a_state_that_an_fmm_force_cannot_follow(fail, folder):
    system, force = openmm.System(), fmm.FMMForce()
    force.addGlobalParameter("charging", 1.0)
    for charge in 1.0, -1.0:
        system.addParticle(1.0)
        force.addParticle(charge)
    system.addForce(force)
    (folder / "own.xml").write_text(openmm.XmlSerializer.serialize(system))
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    context.setPositions([[0, 0, 0], [0.3, 0, 0]])
    context.setParameter("charging", 0.25)
    state = context.getState(positions=True, parameters=True)
    (folder / "quarter.xml").write_text(openmm.XmlSerializer.serialize(state))
    assert "quarter.xml has charging = 0.25, which an FMMForce of the System has at 1" in fail(
        "convert", "own.xml", "quarter.xml", "-o", "out.npz"
    )


@pytest.mark.slow
def test_charges_from_convert(succeed, fail, tmp_path):
    """Stored charges are validated like the files that they were made from, and are not
    simulated."""
    charges = str(tmp_path / "water.npz")
    succeed("convert", *WATER, "-o", charges)
    again = str(tmp_path / "again.npz")
    succeed("convert", charges, "-o", again)
    assert Path(again).read_bytes() == Path(charges).read_bytes()
    found, expected = (succeed("validate", *argv, "--json") for argv in ([charges], WATER))
    assert found["reference_energy"] == pytest.approx(expected["reference_energy"], rel=1e-6)
    assert found["passed"] and found["pme"]["method"] == expected["pme"]["method"]
    for argv in ["run", charges], ["bench", "md", "--system", charges]:
        assert "holds charges alone, without masses" in fail(*argv)
    fmm.ChargeSystem([1.0, -1.0]).save(tmp_path / "bare.npz")
    assert "bare.npz holds no positions" in fail("validate", str(tmp_path / "bare.npz"))


@pytest.mark.slow
def test_slabs(succeed, fail, tmp_path):
    """The boundary is kept in files, and in a System that was converted with it."""
    argv = [*WATER, "--box", "1.9", "2.0", "4.5", "--cutoff", "0.9", "--boundary", "slab"]
    found = succeed("validate", *argv, "--tolerance", "1e-3", "--json")
    assert found["boundary"] == "slab" and found["passed"]
    assert found["reference"] == "an Ewald sum" and "vacuum" in found["pme"]["method"]
    charges = str(tmp_path / "slab.npz")
    assert succeed("convert", *argv, "-o", charges, "--json")["boundary"] == "slab"
    again = succeed("validate", charges, "--reference", "pme", "--tolerance", "1e-3", "--json")
    assert again["boundary"] == "slab" and again["passed"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of corrections for particles that fill the box
        found = succeed("run", *argv, "--steps", "2", "--platform", "CPU", "--json")
    assert found["boundary"] == "slab"
    assert "needs vacuum along box vector c" in fail("validate", *WATER, "--boundary", "slab")


@pytest.mark.slow
def test_free_space_without_the_box_of_the_files(succeed, fail, tmp_path):
    argv = [*WATER, "--boundary", "open"]
    out = tmp_path / "out.npz"
    found = succeed("convert", *argv, "-o", str(out), "--json")
    assert (found["boundary"], found["notes"], found["box_vectors"]) == ("free space", [], None)
    assert succeed("validate", *argv, "--tolerance", "1e-3", "--json")["passed"]
    assert "--box has no meaning with --boundary open" in fail(
        "convert", *argv, "--box", "2", "2", "2", "-o", str(out)
    )


def test_box_with_angles(succeed, tmp_path):
    argv = (
        "convert",
        *WATER,
        "--box",
        "2",
        "2",
        "2",
        "60",
        "60",
        "90",
        "-o",
        str(tmp_path / "out.npz"),
        "--json",
    )
    expected = np.array([[2, 0, 0], [0, 2, 0], [1, 1, np.sqrt(2)]])
    assert np.abs(succeed(*argv)["box_vectors"]) == pytest.approx(expected)


@pytest.mark.slow
def test_boxes_of_other_files(succeed, folder, tmp_path):
    """The box is that of the System if the structure has none, and that of the prmtop if the
    coordinates have none; a .gro with a box of zeros has none."""
    out = tmp_path / "out.npz"
    succeed("convert", "system.xml", pdb_with("", folder, "open.pdb"), "-o", str(out))
    assert fmm.ChargeSystem.load(out).box_vectors == pytest.approx(BOX, abs=1e-6)
    trajectory = str(tmp_path / "run.pdb")
    argv = ("--steps", "1", "--interval", "1", "--timestep", "0.0005", "--trajectory", trajectory)
    succeed("run", "system.xml", "open.pdb", *argv)
    assert app.PDBFile(trajectory).topology.getPeriodicBoxVectors() is not None
    pytest.importorskip("parmed")
    (folder / "nobox.rst7").write_text(
        "".join((folder / "water.rst7").read_text().splitlines(keepends=True)[:-1])
    )
    succeed("convert", "water.prmtop", "nobox.rst7", "-o", str(out))
    assert fmm.ChargeSystem.load(out).box_vectors == pytest.approx(BOX, abs=1e-6)
    lines = (folder / "water.gro").read_text().splitlines()
    (folder / "zero.gro").write_text("\n".join([*lines[:-1], "0.0 0.0 0.0", ""]))
    assert (
        succeed("convert", "water.top", "zero.gro", "-o", str(out), "--json")["box_vectors"] is None
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", ["", "CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1\n"]
)
def test_a_system_without_box_is_in_empty_space(cell, succeed, fail, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMM_DEFAULT_PLATFORM", "CPU")
    argv = (pdb_with(cell, folder, "open.pdb"), "--forcefield", FORCE_FIELD)
    assert (
        succeed("convert", *argv, "-o", str(tmp_path / "out.npz"), "--json")["box_vectors"] is None
    )
    log = tmp_path / "run.csv"
    result = succeed(
        "run",
        *argv,
        "--steps",
        "5",
        "--interval",
        "5",
        "--minimize",
        "5",
        "--log",
        str(log),
        "--json",
    )
    assert (result["fmm"]["bridge"], result["mean_volume"]) == ("host", None)
    assert log.read_text().splitlines()[-1].endswith(",nan")
    assert "--ensemble npt needs a periodic box: give one with --box" in fail(
        "run", *argv, "--ensemble", "npt"
    )
    result = succeed("validate", *argv, "--json", "--plot", str(tmp_path / "errors.png"))
    assert (result["reference"], result["passed"], result["pme"]) == (
        "the sum over all pairs",
        True,
        None,
    )
    assert "--reference must be 'direct' or 'nocutoff'" in fail(
        "validate", *argv, "--reference", "pme"
    )
    assert "--cutoff has no meaning in free space" in fail(
        "convert", *argv, "--cutoff", "0.8", "-o", str(tmp_path / "out.npz")
    )
    assert "--switch has no meaning in free space" in fail(
        "convert", *argv, "--switch", "0.8", "-o", str(tmp_path / "out.npz")
    )
    assert "--pme-tolerance has no meaning in free space" in fail(
        "validate", *argv, "--pme-tolerance", "1e-5"
    )


def test_charges_of_a_slab_in_free_space(succeed, tmp_path):
    """--boundary leaves out the boundary in the file together with its box."""
    positions = np.random.default_rng(1).random((4, 3))
    slab = fmm.ChargeSystem([1, -1, 1, -1], positions, np.diag([1, 1, 3]), boundary="slab")
    slab.save(tmp_path / "slab.npz")
    argv = ("validate", str(tmp_path / "slab.npz"), "--boundary", "open", "--json")
    found = succeed(*argv)
    assert (found["boundary"], found["passed"]) == ("free space", True)


@pytest.mark.parametrize("boundary", ["periodic", "slab"])
def test_a_boundary_without_a_box_names_the_option(boundary, fail, tmp_path):
    path = str(tmp_path / "open.npz")
    fmm.ChargeSystem([1, -1], [[0, 0, 0], [0.3, 0, 0]]).save(path)
    message = f"--boundary {boundary} needs a periodic box: give one with --box"
    for argv in ("validate", path), ("convert", path, "-o", str(tmp_path / "other.npz")):
        assert message in fail(*argv, "--boundary", boundary)
