"""A folder of input files, and commands that succeed or fail."""

import gzip
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.cli import main
from tests.convert.small_water import BOX, small_water


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder with the water box in every format."""
    path = tmp_path_factory.mktemp("inputs")
    topology, system, positions = small_water()
    quantity = positions * unit.nanometer
    for name, writer in (("water.pdb", app.PDBFile), ("water.cif", app.PDBxFile)):
        with open(path / name, "w") as file:
            writer.writeFile(topology, quantity, file)
    (path / "water.cif.gz").write_bytes(gzip.compress((path / "water.cif").read_bytes()))
    (path / "system.xml").write_text(openmm.XmlSerializer.serialize(system))
    fmm.use_fmm(system)
    (path / "converted.xml").write_text(openmm.XmlSerializer.serialize(system))
    fmm.restore_pme(system)
    try:
        import parmed
    except ImportError:
        return path
    structure = parmed.openmm.load_topology(topology, system, quantity)
    for name in ("water.prmtop", "water.rst7", "water.top", "water.gro", "water.psf", "water.crd"):
        structure.save(str(path / name))
    structure.save(str(path / "amber.top"), format="amber")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy writes it, where netCDF4 is not installed
        structure.save(str(path / "water.ncrst"), format="ncrst")
    parameters = parmed.charmm.CharmmParameterSet.from_structure(structure)
    parameters.write(par=str(path / "water.prm"), top=str(path / "water.rtf"))
    return path


@pytest.fixture(scope="module")
def folder(inputs, tmp_path_factory):
    """A copy of the inputs, to which the tests of a module add files."""
    return Path(shutil.copytree(inputs, tmp_path_factory.mktemp("copy") / "inputs"))


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def succeed(capsys):
    """Runs a command that must succeed; returns what it prints,
    parsed where ``--json`` is given."""

    def command(*argv, code=0):
        assert main(list(argv)) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        return json.loads(captured.out) if "--json" in argv else captured.out

    return command


@pytest.fixture
def fail(capsys):
    """Runs a command that must fail with code 2; returns the one line on stderr."""

    def command(*argv):
        assert main(list(argv)) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("fmm-openmm: ")
        return captured.err

    return command


@pytest.fixture(scope="module")
def trajectories(folder):
    """Three frames of the water, in a box that grows, as DCD, XTC and NetCDF, and without a cell;
    their positions and boxes."""
    mdtraj = pytest.importorskip("mdtraj")
    topology, _, positions = small_water()
    scale = 1 + 0.01 * np.arange(3)
    moved = np.random.default_rng(1).normal(0, 0.001, (3, len(positions), 3))
    frames = positions * scale[:, None, None] + moved
    found = mdtraj.Trajectory(
        frames,
        mdtraj.Topology.from_openmm(topology),
        time=np.arange(3.0),
        unitcell_lengths=scale[:, None] * np.diag(BOX),
        unitcell_angles=np.full((3, 3), 90.0),
    )
    for name in "run.dcd", "run.xtc", "run.nc":
        found.save(str(folder / name))
    found.unitcell_vectors = None
    found.save(str(folder / "nocell.dcd"))
    return frames, scale[:, None, None] * BOX


@pytest.fixture
def layer(folder):
    """Charges, the whole positions of a layer of ions in two frames, and its box; files of the
    charges, and of the frames, wrapped at the face of the box that the layer crosses."""
    mdtraj = pytest.importorskip("mdtraj")
    random = np.random.default_rng(4)
    charges, box = np.resize([1.0, -1.0], 30), np.diag([2.0, 2.0, 6.0])
    whole = random.uniform(0, [2, 2, 1.2], (2, 30, 3)) - [0, 0, 0.4]
    topology = mdtraj.Topology()
    residue = topology.add_residue("ION", topology.add_chain())
    for _ in charges:
        topology.add_atom("X", mdtraj.element.virtual, residue)
    frames = np.mod(whole, np.diag(box))
    lengths, angles = np.tile(np.diag(box), (2, 1)), np.full((2, 3), 90.0)
    found = mdtraj.Trajectory(frames, topology, unitcell_lengths=lengths, unitcell_angles=angles)
    found.save(str(folder / "layer.dcd"))
    fmm.ChargeSystem(charges, frames[0], box).save(str(folder / "layer.npz"))
    return charges, whole, box
