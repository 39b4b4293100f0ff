"""``fmm-openmm run``: ensembles, outputs, and what it refuses."""

import csv

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.backends import choose_backend, has_gpu
from fmm_openmm.cli import run, terminal
from fmm_openmm.convert.openmm_system import nonbonded_force
from tests.cli.inputs import WATER, state_of_water
from tests.convert.small_water import BOX, small_water
from tests.systems import PEPTIDE


@pytest.mark.slow
def test_velocities_of_a_state(succeed, folder):
    """A simulation begins with them, unless it minimises."""
    state = state_of_water()
    (folder / "moving.xml").write_text(openmm.XmlSerializer.serialize(state))
    _, system, positions = small_water()
    context = openmm.Context(system, openmm.LangevinMiddleIntegrator(300, 1, 0.0001))
    context.setState(state)
    kinetic = context.getState(energy=True).getKineticEnergy()._value
    argv = ("run", "system.xml", "moving.xml", "--timestep", "0.0001", "--steps", "1")
    argv += ("--interval", "1", "--log", "moving.csv", "--trajectory", "moving.pdb")
    for options, same in ((), True), (("--minimize", "1", "--seed", "5"), False):
        succeed(*argv, *options)
        with open("moving.csv") as file:
            found = float(next(csv.DictReader(file))["kinetic_energy"])
        assert (found == pytest.approx(kinetic, rel=1e-3)) is same
    assert app.PDBFile("moving.pdb").topology.getNumAtoms() == len(positions)


def test_the_volume_is_drawn_in_npt():
    samples = [run.Sample(k, 0.1 * k, 0.0, 0.0, 1.0, 300.0, 8.0 + k) for k in range(3)]
    for ensemble, panels in ("nvt", 2), ("npt", 3):
        drawing = terminal.figure("out.png")
        run.draw(drawing, samples, ensemble)
        assert len(drawing.axes) == panels
    assert drawing.axes[2].lines[0].get_ydata().tolist() == [8.0, 9.0, 10.0]
    assert drawing.axes[2].get_ylabel().startswith("volume")


@pytest.mark.slow
def test_levels_and_the_bridge(succeed, fail):
    argv = (
        "run",
        "system.xml",
        "water.pdb",
        "--steps",
        "2",
        "--interval",
        "2",
        "--timestep",
        "0.0001",
        "--tolerance",
        "1e-3",
    )
    used = succeed(*argv, "--levels", "1", "--bridge", "host", "--json")["fmm"]
    assert (used["levels"], used["bridge"]) == (1, "host")
    assert "--bridge must be one of 'auto', 'host', 'native', got 'rope'" in fail(
        *argv, "--bridge", "rope"
    )


@pytest.mark.slow
def test_run_nve(succeed, tmp_path):
    files = {
        "log": tmp_path / "run.csv",
        "trajectory": tmp_path / "run.dcd",
        "plot": tmp_path / "run.png",
    }
    outputs = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    start = ("--minimize", "10", "--equilibrate", "20", "--seed", "7")
    steps = ("--steps", "50", "--interval", "10", "--timestep", "0.001")
    result = succeed("run", *WATER, "--ensemble", "nve", *start, *steps, *outputs, "--json")
    assert result["particles"] == 768
    assert result["ns_per_day"] == pytest.approx(86.4 / result["ms_per_step"])
    assert result["fmm"]["backend"] == (choose_backend() if has_gpu() else "cpu")
    with open(files["log"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30, 40, 50]
    assert float(rows[-1]["time_ps"]) == pytest.approx(0.05)
    energies = np.array([float(row["total_energy"]) for row in rows])
    slope = np.polyfit([float(row["time_ps"]) for row in rows], energies, 1)[0]
    assert result["drift_kJ_mol_ps"] == pytest.approx(slope)
    assert np.ptp(energies) < 0.02 * np.ptp([float(row["potential_energy"]) for row in rows]) + 1.0
    assert files["plot"].stat().st_size > 1000
    frames = pytest.importorskip("mdtraj").load(str(files["trajectory"]), top="water.pdb")
    assert frames.n_frames == 5


@pytest.mark.slow
def test_run_npt_and_nvt(succeed):
    argv = (
        "--steps",
        "50",
        "--interval",
        "25",
        "--minimize",
        "10",
        "--platform",
        "CPU",
        "--tolerance",
        "1e-3",
    )
    result = succeed(
        "run",
        "system.xml",
        "water.pdb",
        "--ensemble",
        "npt",
        *argv,
        "--timestep",
        "0.0005",
        "--json",
    )
    assert result["platform"] == "CPU"
    assert result["mean_volume"] == pytest.approx(np.prod(BOX.diagonal()), rel=0.1)
    assert "drift_kJ_mol_ps" not in result
    text = succeed("run", *WATER, *argv)
    assert "ns a day" in text
    assert "drift" not in text


@pytest.mark.slow
def test_run_replaces_barostats_and_thermostats(succeed):
    """The ensemble is what the command line says."""
    with open("system.xml") as file:
        system = openmm.XmlSerializer.deserialize(file.read())
    system.addForce(openmm.MonteCarloBarostat(100.0, 300.0, 1))
    system.addForce(openmm.AndersenThermostat(300.0, 1.0))
    with open("baths.xml", "w") as file:
        file.write(openmm.XmlSerializer.serialize(system))
    argv = (
        "baths.xml",
        "water.pdb",
        "--steps",
        "4",
        "--interval",
        "1",
        "--timestep",
        "0.0005",
        "--tolerance",
        "1e-3",
    )
    assert (
        "Left out of the System, as --ensemble is nve: MonteCarloBarostat, AndersenThermostat"
        in succeed("run", *argv, "--ensemble", "nve", "--log", "run.csv")
    )
    with open("run.csv", newline="") as file:
        assert len({row["volume"] for row in csv.DictReader(file)}) == 1
    succeed("run", *argv, "--ensemble", "npt", "--pressure", "1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--seed", "99999999999"), "--seed must fit into 32 bits, got 99999999999"),
        (("--ensemble", "npt", "--pressure", "nan"), "--pressure must be finite, got nan"),
        (("--pressure", "1"), "--pressure is for --ensemble npt"),
        (("--temperature", "inf"), "--temperature must be finite, got inf"),
    ],
)
def test_run_refuses(argv, message, fail):
    assert message in fail("run", *WATER, *argv)


def test_run_npt_refuses_vacuum(fail):
    argv = ("run", *WATER, "--ensemble", "npt")
    assert "with --boundary slab: use nvt or nve" in fail(
        *argv, "--box", "1.8", "1.8", "6", "--boundary", "slab"
    )
    message = "--ensemble npt needs a periodic box: leave out --boundary open"
    assert message in fail(*argv, "--boundary", "open")


@pytest.mark.parametrize("solvent", ["implicit/gbn2.xml", "implicit/obc2.xml"])
def test_an_implicit_solvent_in_a_box_is_refused(solvent, fail, succeed):
    argv = ("run", str(PEPTIDE), "--forcefield", "amber14-all.xml", solvent, "--steps", "1")
    assert "implicit solvent is for free space: give --boundary open in place of" in fail(
        *argv, "--box", "6", "6", "6"
    )
    assert succeed(*argv, "--json")["boundary"] == "free space"


@pytest.mark.slow
def test_a_reaction_field_is_replaced_on_request(succeed, fail, folder):
    """And again, where options replace those of a System that was converted so."""
    system = openmm.XmlSerializer.deserialize((folder / "system.xml").read_text())
    nonbonded_force(system).setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    (folder / "cutoff.xml").write_text(openmm.XmlSerializer.serialize(system))
    fmm.use_fmm(system, allow_reaction_field=True)
    (folder / "replaced.xml").write_text(openmm.XmlSerializer.serialize(system))
    argv = ("water.pdb", "--steps", "2", "--interval", "2", "--timestep", "0.0001")
    refused = fail("run", "cutoff.xml", *argv)
    assert "or give --allow-reaction-field to replace the reaction field" in refused
    for given in (["cutoff.xml", "--allow-reaction-field"], ["replaced.xml"]):
        assert succeed("run", *given, *argv, "--order", "9", "--json")["fmm"]["order"] == 9


def test_run_refuses_drude_particles(fail, folder):
    """Its thermostat would heat them to the temperature of the atoms."""
    _, system, _ = small_water()
    system.addForce(openmm.DrudeForce())
    (folder / "drude.xml").write_text(openmm.XmlSerializer.serialize(system))
    assert "run openmm.DrudeLangevinIntegrator in a script" in fail("run", "drude.xml", "water.pdb")


def test_one_ion(succeed, tmp_path):
    """Nothing moves that has a temperature, and the exact force is zero."""
    system, nonbonded, topology = openmm.System(), openmm.NonbondedForce(), app.Topology()
    topology.addAtom(
        "NA", app.Element.getBySymbol("Na"), topology.addResidue("NA", topology.addChain())
    )
    system.addParticle(22.99)
    nonbonded.addParticle(1.0, 0.3, 0.1)
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    for force in (nonbonded, openmm.CMMotionRemover()):
        system.addForce(force)
    system.setDefaultPeriodicBoxVectors(*(3 * np.eye(3)))
    (tmp_path / "ion.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(tmp_path / "ion.pdb", "w") as file:
        app.PDBFile.writeFile(topology, np.array([[1.0, 1.1, 1.2]]) * unit.nanometer, file)
    argv = (str(tmp_path / "ion.xml"), str(tmp_path / "ion.pdb"))
    assert succeed("run", *argv, "--steps", "2", "--json")["mean_temperature"] is None
    assert succeed("validate", *argv, "--json")["passed"]


@pytest.mark.slow
def test_run_says_where_it_failed(fail):
    line = fail(
        "run",
        "system.xml",
        "water.pdb",
        "--ensemble",
        "nve",
        "--timestep",
        "0.01",
        "--steps",
        "500",
    )
    assert "the simulation failed near step" in line
    assert "--minimize" in line
