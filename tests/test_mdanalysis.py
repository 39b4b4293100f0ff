"""``CoulombAnalysis`` gives what ``analyse`` gives, with every backend of MDAnalysis."""

import multiprocessing
import subprocess
import sys

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from tests.convert.small_water import small_water
from tests.integration.trajectories import liquid, water

mdanalysis = pytest.importorskip("MDAnalysis")
mdtraj = pytest.importorskip("mdtraj")

from fmm_openmm.mdanalysis import CoulombAnalysis  # noqa: E402

QUANTITIES = ("energy", "forces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Universe's files: water.pdb, run.dcd with a box that changes, and water.npz."""
    path = tmp_path_factory.mktemp("mdanalysis")
    topology, _, positions = small_water()
    with open(path / "water.pdb", "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)
    frames, _ = liquid(7)
    trajectory = mdtraj.load(str(path / "water.pdb"))
    boxes = np.array([box for _, box in frames])
    trajectory = mdtraj.Trajectory(
        [x for x, _ in frames],
        trajectory.topology,
        unitcell_lengths=boxes.diagonal(axis1=1, axis2=2),
        unitcell_angles=np.full((7, 3), 90.0),
    )
    trajectory.save(str(path / "run.dcd"))
    water().save(path / "water.npz")
    return path


SCRIPT = """
import multiprocessing
import sys

import MDAnalysis
import numpy as np

import fmm_openmm as fmm
from fmm_openmm.mdanalysis import CoulombAnalysis

if __name__ == "__main__":
    if "spawn" in sys.argv:
        multiprocessing.set_start_method("spawn")
    universe = MDAnalysis.Universe("water.pdb", "run.dcd")
    solver = fmm.ChargeSystem.load("water.npz").solver(tolerance=1e-5)
    analysis = CoulombAnalysis(universe, solver, ("energy", "forces"), threads=1)
    if "spawn" in sys.argv:
        solver.compute(universe.atoms.positions / 10)
    analysis.run(backend=sys.argv[1], n_workers=2)
    np.savez("found.npz", frames=analysis.frames, **analysis.results)
"""


@pytest.fixture(scope="module")
def expected(folder):
    universe = mdanalysis.Universe(str(folder / "water.pdb"), str(folder / "run.dcd"))
    return fmm.analyse(universe, water().solver(tolerance=1e-5), QUANTITIES)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "dask", "multiprocessing", "multiprocessing spawn"])
def test_backends(backend, folder, expected):
    if backend == "dask":
        pytest.importorskip("dask")
    name = backend.split()[0]
    script = SCRIPT if name != "serial" else SCRIPT.replace(", n_workers=2", "")
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py", *backend.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "found.npz")
    assert found["frames"].tolist() == list(range(7))
    assert all(np.array_equal(found[name], expected[name]) for name in QUANTITIES)


@pytest.mark.slow
def test_processes_forked_after_an_evaluation(folder, expected):
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("no processes are forked here")
    universe = mdanalysis.Universe(str(folder / "water.pdb"), str(folder / "run.dcd"))
    analysis = CoulombAnalysis(universe, water().solver(tolerance=1e-5), QUANTITIES)
    analysis.run(backend="multiprocessing", n_workers=2)
    assert all(np.array_equal(analysis.results[name], expected[name]) for name in QUANTITIES)


def test_some_frames_and_atoms(folder):
    """The first frame of the run counts; boxes and precision of the others may depend on it."""
    universe = mdanalysis.Universe(str(folder / "water.pdb"), str(folder / "run.dcd"))
    some = universe.atoms[:300]
    q, box = water().charges[:300], universe.trajectory[0].triclinic_dimensions / 10
    solver = fmm.CoulombSolver(q, box, tolerance=1e-5, exclusions=water().exclusions[:300])
    analysis = CoulombAnalysis(some, solver, QUANTITIES).run(start=1, step=2)
    assert analysis.frames.tolist() == [1, 3, 5]
    frames = [
        (some.positions.astype(float) / 10, step.triclinic_dimensions.astype(float) / 10)
        for step in universe.trajectory[1::2]
    ]
    expected = fmm.analyse(frames, solver, QUANTITIES)
    for name in QUANTITIES:
        assert analysis.results[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-4)


def test_a_slab_without_dimensions_is_wrapped_at_the_box_of_its_system():
    """As by ``analyse``."""
    system, force, positions = openmm.System(), openmm.NonbondedForce(), []
    for charge, z in (1.0, 4.9), (-1.0, 5.1):  # nm, in a box of 5 nm
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
        positions.append([10.0, 10.0, 10 * z % 50])
    force.setNonbondedMethod(force.PME)
    system.addForce(force)
    system.setDefaultPeriodicBoxVectors([2, 0, 0], [0, 2, 0], [0, 0, 5])
    fmm.use_fmm(system, boundary="slab", backend="reference")
    universe = mdanalysis.Universe.empty(2, trajectory=True)
    universe.atoms.positions = positions
    assert universe.dimensions is None
    expected = fmm.analyse(universe, system)["energy"]
    assert expected[0] < -600  # -695 kJ/mol at 0.2 nm
    assert CoulombAnalysis(universe, system).run().results.energy == expected


def test_lengths_that_are_not_converted_are_refused(folder, tmp_path):
    """They would be taken to be in Angstrom. DCD files have no other unit."""
    mdtraj.load(str(folder / "run.dcd"), top=str(folder / "water.pdb")).save(
        str(tmp_path / "run.xtc")
    )
    given = str(folder / "water.pdb"), str(tmp_path / "run.xtc")
    universe = mdanalysis.Universe(*given, convert_units=False)
    reader, solver = universe.trajectory, fmm.ChargeSystem.load(folder / "water.npz").solver()
    for call in (
        lambda: fmm.analyse(universe, solver),
        lambda: fmm.analyse(reader, solver),
        lambda: fmm.analyse(reader[2:], solver),
        lambda: CoulombAnalysis(universe, solver),
        lambda: fmm.ChargeSystem.from_mdanalysis(universe, []),
    ):
        with pytest.raises(ValueError, match="must convert lengths from nm to Angstrom: leave out"):
            call()
    universe = mdanalysis.Universe(given[0], str(folder / "run.dcd"), convert_units=False)
    assert CoulombAnalysis(universe, solver).run(stop=1).results.energy.shape == (1,)
