"""A run that was ended, and restarted from its last checkpoint, leaves the files of one run."""

import numpy as np
import openmm
import pytest
from openmm import app, unit

from fmm_openmm.cli import main
from fmm_openmm.cli.restart import keep_frames
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
        keep_frames(str(path), 8)
    assert path.read_bytes() == b"a file of another kind" * 50


@pytest.mark.parametrize("name", ["run.dcd", "run.xtc"])
def test_no_frame_is_left(name, tmp_path, monkeypatch):
    """A checkpoint before the first frame, and no trajectory at all."""
    assert not keep_frames(str(tmp_path / name), 8)
    topology, system, positions = ion_pair()
    simulation = app.Simulation(topology, system, openmm.VerletIntegrator(0.001))
    simulation.context.setPositions(positions)
    kind = {"run.dcd": app.DCDReporter, "run.xtc": app.XTCReporter}[name]
    simulation.reporters.append(kind(str(tmp_path / name), INTERVAL))
    simulation.step(3 * INTERVAL)
    assert keep_frames(str(tmp_path / name), 2 * INTERVAL)
    assert not keep_frames(str(tmp_path / name), INTERVAL - 1)
