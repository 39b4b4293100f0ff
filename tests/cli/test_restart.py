"""A run that was ended, and restarted from its last checkpoint, leaves the files of one run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.cli import main
from fmm_openmm.cli.restart import Continuation, keep_frames
from tests.cli.inputs import WATER
from tests.convert.small_water import small_water

INTERVAL = 4


def write_inputs(folder, topology, system, positions):
    (folder / "system.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(folder / "structure.pdb", "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)


def ion_pair():
    """Two ions in free space. XTC files hold so few coordinates uncompressed, and these DCD files
    have no box."""
    topology, system = app.Topology(), openmm.System()
    chain = topology.addChain()
    force = openmm.NonbondedForce()
    for charge in (1.0, -1.0):
        topology.addAtom("NA", app.element.sodium, topology.addResidue("NA", chain))
        system.addParticle(23.0)
        force.addParticle(charge, 0.3, 0.5)
    system.addForce(force)
    return topology, system, np.array([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0]])


@pytest.mark.slow
@pytest.mark.parametrize("trajectory", ["run.dcd", "run.xtc"])
@pytest.mark.parametrize("make", [small_water, ion_pair])
def test_what_follows_the_checkpoint_is_written_anew(trajectory, make, tmp_path, monkeypatch):
    """The run stopped between two samples, went on, and was cut short within a frame."""
    mdtraj = pytest.importorskip("mdtraj")
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path, *make())

    def run(name, steps, *options):
        (tmp_path / name).mkdir(exist_ok=True)
        outputs = {"--log": "run.csv", "--trajectory": trajectory, "--checkpoint": "run.chk"}
        words = [word for key, file in outputs.items() for word in (key, f"{name}/{file}")]
        argv = ["--platform", "Reference", "--ensemble", "nve", "--seed", "7", "--timestep"]
        argv += [
            "0.0005",
            "--precision",
            "double",
            "--interval",
            str(INTERVAL),
            "--steps",
            str(steps),
            *words,
            *options,
        ]
        assert main(["run", "system.xml", "structure.pdb", *argv]) == 0

    run("whole", 16)
    run("parts", 10)
    checkpoint, file = tmp_path / "parts" / "run.chk", tmp_path / "parts" / trajectory
    at_10 = checkpoint.read_bytes()
    run("parts", 16, "--restart", str(checkpoint))
    checkpoint.write_bytes(at_10)
    file.write_bytes(file.read_bytes()[:-7])
    run("parts", 16, "--restart", str(checkpoint))
    whole, parts = (
        np.genfromtxt(tmp_path / name / "run.csv", delimiter=",", names=True)
        for name in ("whole", "parts")
    )
    assert parts["step"].tolist() == [0, 4, 8, 12, 16]
    assert parts["total_energy"] == pytest.approx(whole["total_energy"], rel=1e-9)
    other = tmp_path / "whole" / trajectory
    assert file.stat().st_size == other.stat().st_size
    top = mdtraj.load_topology("structure.pdb")
    frames, expected = (mdtraj.load(str(path), top=top) for path in (file, other))
    assert frames.xyz == pytest.approx(expected.xyz, abs=2e-3)  # the resolution of XTC
    assert frames.time.tolist() == expected.time.tolist()


@pytest.mark.parametrize("name", ["run.dcd", "run.xtc"])
def test_a_file_that_is_no_trajectory(name, tmp_path):
    """A file of another kind is refused and stays as it is."""
    path = tmp_path / name
    path.write_bytes(b"a file of another kind" * 50)
    with pytest.raises(ValueError, match="this is not a"):
        keep_frames(str(path), Continuation(8, INTERVAL, 0.001, 2))
    assert path.read_bytes() == b"a file of another kind" * 50


@pytest.mark.parametrize("name", ["run.dcd", "run.xtc"])
def test_no_frame_is_left(name, tmp_path, monkeypatch):
    """A checkpoint before the first frame, and no trajectory at all."""
    path = str(tmp_path / name)
    run = Continuation(INTERVAL, INTERVAL, 0.001, 2)
    assert not keep_frames(path, run)
    topology, system, positions = ion_pair()
    simulation = app.Simulation(topology, system, openmm.VerletIntegrator(0.001))
    simulation.context.setPositions(positions)
    kind = {"run.dcd": app.DCDReporter, "run.xtc": app.XTCReporter}[name]
    simulation.reporters.append(kind(path, INTERVAL))
    simulation.step(3 * INTERVAL)
    before = Path(path).read_bytes()
    with pytest.raises(ValueError, match=f"cannot read {path}: it has 2 atoms, and the System 3"):
        keep_frames(path, replace(run, atoms=3))
    if name == "run.dcd":  # in which frames have no steps of their own
        for other in replace(run, interval=5), replace(run, timestep=0.002):
            with pytest.raises(ValueError, match=r"with --interval 4 --timestep 0\.001, or write"):
                keep_frames(path, other)
    assert Path(path).read_bytes() == before
    assert keep_frames(path, replace(run, last=2 * INTERVAL))
    assert not keep_frames(path, replace(run, last=INTERVAL - 1))


SIMULATION = (
    *("run", "system.xml", "water.pdb", "--platform", "Reference", "--timestep", "0.0005"),
    *("--interval", "4", "--seed", "7"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ensemble"), [("run.chk", "npt"), ("run.xml", "nve"), ("run.chk", "nve")]
)
def test_a_restarted_run_goes_on_where_it_was(name, ensemble, succeed, tmp_path):
    """The binary checkpoint with the random numbers of thermostat and barostat; log and trajectory
    are those of one run."""
    mdtraj = pytest.importorskip("mdtraj")

    def run(folder, steps, *options):
        folder.mkdir(exist_ok=True)
        named = {"--log": "run.csv", "--trajectory": "run.xtc", "--checkpoint": name}
        outputs = [word for key, value in named.items() for word in (key, str(folder / value))]
        argv = (*SIMULATION, "--ensemble", ensemble, "--steps", str(steps), *outputs, *options)
        return succeed(*argv, "--json")

    whole = run(tmp_path / "whole", 16)
    run(tmp_path / "parts", 8)
    parts = run(tmp_path / "parts", 16, "--restart", str(tmp_path / "parts" / name))
    assert parts["steps"] == 16
    assert parts["final_total_energy"] == pytest.approx(whole["final_total_energy"], rel=1e-9)
    logs = [
        np.genfromtxt(tmp_path / each / "run.csv", delimiter=",", skip_header=1)
        for each in ("whole", "parts")
    ]
    assert logs[0][:, 0].tolist() == [0, 4, 8, 12, 16]
    assert logs[1] == pytest.approx(logs[0], rel=1e-9)
    topology = mdtraj.Topology.from_openmm(small_water()[0])
    frames = [
        mdtraj.load(tmp_path / each / "run.xtc", top=topology).xyz for each in ("whole", "parts")
    ]
    assert len(frames[0]) == 4
    assert frames[1] == pytest.approx(frames[0], abs=2e-3)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_the_pressure_of_a_run(succeed, fail, tmp_path):
    """Rows as ``pressure_tensor`` gives them, also of a run that was continued."""
    log, checkpoint = tmp_path / "pressure.csv", str(tmp_path / "run.xml")
    argv = (*SIMULATION, "--pressure-log", str(log), "--interval", "4", "--seed", "3")
    result = succeed(*argv, "--steps", "4", "--checkpoint", checkpoint, "--json")
    succeed(*argv, "--steps", "8", "--restart", checkpoint)
    rows = np.genfromtxt(log, delimiter=",", names=True)
    assert rows["step"].tolist() == [0, 4, 8]
    assert result["mean_pressure_bar"] == pytest.approx(rows["pressure"][1])
    trace = rows["xx"] + rows["yy"] + rows["zz"]
    assert rows["pressure"] == pytest.approx(trace / 3)
    system = openmm.XmlSerializer.deserialize(Path("system.xml").read_text())
    fmm.use_fmm(system).setForceGroup(1)
    context = openmm.Context(
        system,
        openmm.VerletIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    context.setState(openmm.XmlSerializer.deserialize(Path(checkpoint).read_text()))
    expected = fmm.pressure_tensor(context)
    assert rows["xy"][1] == pytest.approx(0.5 * (expected[0, 1] + expected[1, 0]), rel=1e-6)
    assert rows["zz"][1] == pytest.approx(expected[2, 2], rel=1e-6)
    message = fail("run", *WATER, "--pressure-log", str(log), "--log", str(log))
    assert "--pressure-log and --log are one file" in message


@pytest.mark.slow
def test_a_run_that_ended_between_log_and_checkpoint(succeed, fail, tmp_path):
    """Rows after the checkpoint are written anew, whole ones and one that was cut short."""
    log, checkpoint = tmp_path / "run.csv", str(tmp_path / "run.chk")
    argv = (*SIMULATION, "--log", str(log), "--checkpoint", checkpoint)
    succeed(*argv, "--steps", "8")
    rows = log.read_text()
    log.write_text(rows + rows.splitlines()[-1].replace("8,", "12,", 1) + "\n16,0.0")
    succeed(*argv, "--steps", "16", "--restart", checkpoint)
    assert log.read_text().startswith(rows)
    steps = [line.split(",")[0] for line in log.read_text().splitlines()[1:]]
    assert steps == ["0", "4", "8", "12", "16"]
    log.write_text("a,b\n1,2\n")
    line = fail(*argv, "--steps", "24", "--restart", checkpoint)
    assert f"cannot read {log}: this is not a log of fmm-openmm run" in line


def test_a_restart_that_is_refused(fail, succeed, tmp_path):
    checkpoint = str(tmp_path / "run.chk")
    succeed(*SIMULATION, "--steps", "4", "--checkpoint", checkpoint)
    restart = (*SIMULATION, "--restart", checkpoint)
    assert f"--steps must be above 4, the step of {checkpoint}, got 4" in fail(
        *restart, "--steps", "4"
    )
    assert "--minimize is for the start of a run" in fail(*restart, "--minimize", "5")
    assert "--trajectory must end in .dcd or .xtc with --restart" in fail(
        *restart, "--trajectory", str(tmp_path / "run.pdb")
    )
    assert f"--log {checkpoint} is a file that is read" in fail(*restart, "--log", checkpoint)
    assert "no such file: nothing.chk" in fail(*SIMULATION, "--restart", "nothing.chk")
    assert "cannot read water.pdb: " in fail(*SIMULATION, "--restart", "water.pdb")
    assert "fmm-openmm: cannot read system.xml: it holds a System, not a State" in fail(
        *SIMULATION, "--restart", "system.xml"
    )
