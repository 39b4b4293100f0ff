"""Files and options that are refused."""

import gzip

import openmm
import pytest

from tests.cli.inputs import WATER, state_of_water
from tests.convert.small_water import FORCE_FIELD

GARBAGE = {
    ".pdb": ["--forcefield", FORCE_FIELD],
    ".pdb.gz": ["--forcefield", FORCE_FIELD],
    ".cif": ["--forcefield", FORCE_FIELD],
    ".xml": ["water.pdb"],
    ".prmtop": ["water.rst7"],
    ".rst7": ["water.prmtop"],
    ".top": ["water.gro"],
    ".gro": ["water.top"],
    ".psf": ["water.pdb", "--parameters", "water.prm", "water.rtf"],
    ".crd": ["water.psf", "--parameters", "water.prm"],
    ".npz": [],
}
"""Endings of files of arbitrary bytes, and what goes with them."""


@pytest.fixture(scope="module")
def bad_files(folder):
    """Files that are empty, garbage or of another kind, in the folder of the inputs."""
    for ending in GARBAGE:
        (folder / f"garbage{ending}").write_bytes(bytes(range(256)) * 8)
    (folder / "field.xml").write_text("<ForceField/>")
    (folder / "run.dcd").write_bytes(b"CORD")
    (folder / "saved.xml").write_text(openmm.XmlSerializer.serialize(state_of_water()))
    (folder / "empty_state.xml").write_text(
        openmm.XmlSerializer.serialize(state_of_water(positions=False, velocities=False))
    )
    (folder / "notes.txt").write_text("no molecules here")
    (folder / "bad.pdb").write_text("ATOM  this is not a PDB file\n")
    (folder / "bad.xml").write_text("<System>")
    for name in ("empty.pdb", "empty.xml"):
        (folder / name).write_text("")
    for name in ("remark.pdb", "remark.cif", "remark.gro"):
        (folder / name).write_text("REMARK no atoms\n")
    (folder / "remark.pdb.gz").write_bytes(gzip.compress(b"REMARK no atoms\n"))
    (folder / "end.pdb").write_text("END\n")
    (folder / "include.top").write_text('#include "forcefield.itp"\n')
    (folder / "bad.prmtop").write_text("%VERSION\n%FLAG NOTHING\n")
    (folder / "open.xml").write_text(openmm.XmlSerializer.serialize(openmm.System()))
    (folder / "state.xml").write_text(
        openmm.XmlSerializer.serialize(openmm.VerletIntegrator(0.001))
    )
    atom = "HETATM{0:5d}  O   HOH A{0:4d}       0.000   0.000{0:8.3f}  1.00  0.00           O\n"
    (folder / "pair.pdb").write_text(atom.format(1) + atom.format(2) + "END\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing.pdb"], "no such file: nothing.pdb"),
        (["water.pdb"], "water.pdb needs --forcefield"),
        (["water.psf", "water.pdb"], "water.psf needs --parameters"),
        (["water.prmtop"], "water.prmtop needs coordinates: .inpcrd, .rst7 or .ncrst with it"),
        (["water.rst7"], "water.rst7 needs a topology: AMBER's .prmtop or .parm7 with it"),
        (["water.gro"], "water.gro needs a topology: GROMACS' .top with it"),
        (["water.top"], "water.top needs coordinates: .gro with it"),
        (["water.psf"], "water.psf needs coordinates: .pdb, .cif or .crd with it"),
        (["water.crd"], "water.crd needs a topology: CHARMM's .psf or AMBER's .prmtop with it"),
        (["system.xml"], "system.xml needs positions: a structure (.pdb, .cif), or an openmm.St"),
        (["saved.xml"], "saved.xml needs the openmm.System (.xml) that it belongs to with it"),
        (["system.xml", "empty_state.xml"], "empty_state.xml holds no positions: save it with"),
        (["water.pdb", "field.xml"], "field.xml is a force field: give it with --forcefield"),
        (
            ["water.pdb", "run.dcd"],
            "run.dcd is a trajectory: it is for fmm-openmm analyse and potential",
        ),
        *(([f"garbage{ending}", *rest], f"garbage{ending}") for ending, rest in GARBAGE.items()),
        *(
            ([f"garbage{ending}"], f"cannot read garbage{ending}: ")
            for ending in (".xml", ".prmtop", ".rst7", ".gro", ".psf")
        ),
        (["field.xml"], "field.xml is a force field: give it with --forcefield"),
        (["state.xml"], "state.xml: it holds a VerletIntegrator, not a System"),
        (["water.prmtop", "water.gro"], "cannot make a system of water.prmtop and water.gro"),
        (["water.prmtop", "water.gro", "water.pdb"], "of water.prmtop, water.gro and water.pdb:"),
        (["water.pdb", "water.cif"], "water.pdb and water.cif are of the same kind"),
        (["notes.txt"], "notes.txt: unknown kind of file '.txt', expected one of .pdb"),
        (["bad.pdb", "--forcefield", FORCE_FIELD], "cannot read bad.pdb"),
        (["empty.pdb", "--forcefield", FORCE_FIELD], "empty.pdb is empty"),
        (["system.xml", "empty.pdb"], "empty.pdb is empty"),
        (["empty.xml", "water.pdb"], "empty.xml is empty"),
        (["remark.pdb", "--forcefield", FORCE_FIELD], "remark.pdb: no atoms, or cut short"),
        (["end.pdb", "--forcefield", FORCE_FIELD], "end.pdb: no atoms, or cut short"),
        (["remark.cif", "--forcefield", FORCE_FIELD], "remark.cif: no atoms, or cut short"),
        (["remark.pdb.gz", "system.xml"], "remark.pdb.gz: no atoms, or cut short"),
        (["water.top", "remark.gro"], "remark.gro: no atoms, or cut short"),
        (["bad.xml", "water.pdb"], "cannot read bad.xml"),
        (["state.xml", "water.pdb"], "state.xml: it holds a VerletIntegrator, not a System"),
        (
            ["system.xml", "pair.pdb"],
            "system.xml and pair.pdb do not fit: 2 positions for 768 particles",
        ),
        (["bad.prmtop", "water.rst7"], "cannot read bad.prmtop"),
        (
            ["include.top", "water.gro"],
            "cannot read include.top: Could not locate #include file: forcefield.itp: --include "
            "DIR names the folder that holds it",
        ),
        (["water.pdb", "--forcefield", "nothing.xml"], "cannot read nothing.xml"),
        (
            ["water.pdb", "--forcefield", "amber14/lipid17.xml"],
            "No template found for residue 0 (HOH)",
        ),
        (
            [*WATER, "--box", "2", "2"],
            "--box takes three positive lengths in nm, or these and three angles",
        ),
        ([*WATER, "--box", "2", "-2", "2"], "--box takes three positive lengths"),
        (
            [*WATER, "--box", "2", "2", "2", "90", "90", "200"],
            "--box 2 2 2 90 90 200 is no cell: `box_vectors`",
        ),
        ([*WATER, "--box", "2", "2", "2", "90", "90", "180"], "--box 2 2 2 90 90 180 is no cell"),
        (
            [*WATER, "--box", "2", "2", "3", "90", "60", "90", "--boundary", "wire"],
            "cannot be reduced, as OpenMM requires, with boundary 'wire'",
        ),
        (
            [*WATER, "--cutoff", "-1"],
            "fmm-openmm: --cutoff must be finite and above 0 (nm), got -1",
        ),
        (
            [*WATER, "--cutoff", "9"],
            "--cutoff is in nm and must be at most half of the smallest box width, 1.9 nm, got 9",
        ),
        (
            [*WATER, "--cutoff", "nan"],
            "fmm-openmm: --cutoff must be finite and above 0 (nm), got nan",
        ),
        (
            [*WATER, "--switch", "0.9"],
            "fmm-openmm: --switch must lie between 0 and the cutoff, 0.9 nm, got 0.9",
        ),
        (
            [*WATER, "--cutoff", "0.8", "--switch", "0"],
            "--switch must lie between 0 and the cutoff, 0.8 nm, got 0.0",
        ),
        (
            ["system.xml", "water.pdb", "--switch", "0.7"],
            "--switch does not apply to system.xml and water.pdb",
        ),
        ([*WATER, "--include", "folder"], "--include does not apply to water.pdb: leave it out"),
        ([*WATER, "--parameters", "x.prm"], "--parameters does not apply to water.pdb"),
        (
            ["system.xml", "water.pdb", "--constraints", "none"],
            "--constraints does not apply to system.xml and water.pdb",
        ),
        (
            ["open.xml", "water.pdb", "--box", "2", "2", "2"],
            "--box needs a periodic System, open.xml holds one that is not",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input(argv, message, fail, bad_files, tmp_path):
    if any(name.endswith((".psf", ".prmtop", ".gro", ".rst7", ".crd", ".top")) for name in argv):
        pytest.importorskip("parmed")
    assert message in fail("convert", *argv, "-o", str(tmp_path / "out.npz"))
    assert not (tmp_path / "out.npz").exists()
