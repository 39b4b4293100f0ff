"""Notes about what is unusual in an input."""

import re

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from tests.cli.inputs import WATER, pdb_with
from tests.convert.small_water import FORCE_FIELD

FREE_SPACE = "no periodic box in open.pdb: free space; set a box with --box"
SHORT_RUN = (
    "--minimize",
    "20",
    "--steps",
    "1",
    "--interval",
    "1",
    "--timestep",
    "0.0001",
    "--tolerance",
    "1e-3",
)
COMMANDS = [("convert", "-o", "out.npz"), ("run", *SHORT_RUN), ("validate", "--tolerance", "1e-3")]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


def noted(succeed, command, *argv):
    """Boundary and notes of the JSON; what people read has the same."""
    name, *rest = command
    result, text = succeed(name, *argv, *rest, "--json"), succeed(name, *argv, *rest)
    for note in result["notes"]:
        assert text.splitlines().count(note) == 1
    assert re.search(rf"^boundary +{result['boundary']} *$", text, re.MULTILINE)
    return result["boundary"], result["notes"]


@each_command
def test_nothing_unusual(command, succeed):
    for files in WATER, ("converted.xml", "water.pdb"):
        assert noted(succeed, command, *files) == ("periodic", [])


@each_command
def test_free_space_is_named(command, succeed, folder):
    argv = (pdb_with("", folder, "open.pdb"), "--forcefield", FORCE_FIELD)
    assert noted(succeed, command, *argv) == ("free space", [FREE_SPACE])
    with_box = (*argv, "--box", "1.9", "2", "2.1")
    assert noted(succeed, command, *with_box) == ("periodic", [])


@each_command
def test_a_system_in_free_space_is_named(command, succeed, folder):
    """The box of the structure makes no difference."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce)).setNonbondedMethod(
        0
    )
    (folder / "nocutoff.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = ("nocutoff.xml", "water.pdb")
    assert noted(succeed, command, *argv) == (
        "free space",
        ["no periodic boundary in nocutoff.xml: free space"],
    )


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[2]], ids=["convert", "validate"])
@pytest.mark.parametrize("method", ["CutoffPeriodic", "CutoffNonPeriodic"])
def test_a_reaction_field_is_noted(method, command, succeed, folder):
    """It is not what is compared, or what charges alone have."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    force.setNonbondedMethod(getattr(force, method))
    (folder / "field.xml").write_text(openmm.XmlSerializer.serialize(system))
    _, notes = noted(succeed, command, "field.xml", "water.pdb")
    assert notes[-1] == (
        "field.xml has a reaction field beyond a cutoff: the interaction here is the full one, "
        "without it"
    )


@pytest.mark.parametrize(
    ("lengths", "density"),
    [
        (("19", "20", "21"), "768 atoms in 7980 nm^3: 0.0962 atoms per nm^3"),
        (("9", "9", "9"), None),
        (("1.9", "1.3", "1"), "768 atoms in 2.47 nm^3: 311 atoms per nm^3"),
    ],
)
def test_a_box_in_another_unit_is_noticed(lengths, density, succeed):
    notes = succeed("convert", *WATER, "--box", *lengths, "-o", "out.npz", "--json")["notes"]
    assert [note for note in notes if "is the box in nm?" in note] == (
        [f"{density}, where liquids and solids have 20 to 200: is the box in nm?"]
        if density
        else []
    )


def test_virtual_sites_are_no_atoms(succeed, folder):
    system, nonbonded, topology = openmm.System(), openmm.NonbondedForce(), app.Topology()
    residue = topology.addResidue("DIM", topology.addChain())
    for k, mass in enumerate((12.0, 12.0, 0.0)):
        system.addParticle(mass)
        topology.addAtom(f"C{k}", app.Element.getBySymbol("C"), residue)
        nonbonded.addParticle(0.0, 0.3, 0.1)
    system.setVirtualSite(2, openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5))
    nonbonded.setNonbondedMethod(nonbonded.PME)
    system.addForce(nonbonded)
    system.setDefaultPeriodicBoxVectors(*(20 * np.eye(3)))
    (folder / "dimer.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(folder / "dimer.pdb", "w") as file:
        app.PDBFile.writeFile(
            topology, np.array([[1.0, 1, 1], [1.2, 1, 1], [1.1, 1, 1]]) * unit.nanometer, file
        )
    density, charges = succeed("convert", "dimer.xml", "dimer.pdb", "-o", "out.npz", "--json")[
        "notes"
    ]
    assert density.startswith("2 atoms in 8000 nm^3: 0.00025 atoms per nm^3")
    assert charges == "all charges are zero: there is no Coulomb interaction"


@each_command
def test_charges_of_zero_are_noted(command, succeed, folder):
    """Converted or not; an offset at its default counts."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    for k in range(force.getNumParticles()):
        force.setParticleParameters(k, 0.0, *force.getParticleParameters(k)[1:])
    (folder / "neutral.xml").write_text(openmm.XmlSerializer.serialize(system))
    expected = ("periodic", ["all charges are zero: there is no Coulomb interaction"])
    assert noted(succeed, command, "neutral.xml", "water.pdb") == expected
    force.addGlobalParameter("lambda", 1.0)
    for k, scale in (0, 0.5), (1, -0.5):
        force.addParticleParameterOffset("lambda", k, scale, 0.0, 0.0)
    fmm.use_fmm(system)
    (folder / "offset.xml").write_text(openmm.XmlSerializer.serialize(system))
    assert noted(succeed, command, "offset.xml", "water.pdb") == ("periodic", [])


@pytest.mark.slow
@each_command
def test_a_shortened_cutoff_is_named(command, succeed):
    argv = (*WATER, "--box", "1.83", "2.1", "2.2")
    expected = (
        "cutoff shortened to 0.897 nm, from 0.9 nm: "
        "it must be less than half of the smallest box width, 1.83 nm"
    )
    assert noted(succeed, command, *argv) == ("periodic", [expected])
    assert noted(succeed, command, *argv, "--cutoff", "0.7") == ("periodic", [])


# checkpoints
