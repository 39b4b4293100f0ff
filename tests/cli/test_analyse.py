"""``fmm-openmm analyse``: energies of trajectories."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from tests.cli.inputs import WATER, pdb_with
from tests.convert.small_water import BOX, small_water


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ("system.xml", "run.dcd"),
        ("converted.xml", "water.pdb", "run.xtc"),
        ("run.dcd", *WATER),
        ("water.prmtop", "run.nc"),
        ("water.top", "run.xtc"),
        ("water.psf", "run.dcd", "--parameters", "water.prm", "water.rtf"),
        ("charges.npz", "run.dcd"),
    ],
    ids=" ".join,
)
def test_analyse(argv, succeed, trajectories, tmp_path):
    if {"water.prmtop", "water.top", "water.psf"} & set(argv):
        pytest.importorskip("parmed")
    frames, boxes = trajectories
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    charges.save("charges.npz")
    out, plot, table = (str(tmp_path / name) for name in ("out.npz", "out.png", "out.csv"))
    arguments = ("analyse", *argv, "--stride", "2", "--tolerance", "1e-5")
    succeed(*arguments, "-o", out, "--potentials", "--forces", "--plot", plot)
    found = np.load(out)
    assert (found["frames"].tolist(), len(found["times"])) == ([0, 2], 2)
    for k, number in enumerate((0, 2)):
        positions = frames[number] if "run.xtc" not in argv else frames[number].round(3)
        exact = ewald_sum(positions, charges.charges, boxes[number], charges.exclusions)
        assert found["energies"][k] == pytest.approx(exact.energy, rel=1e-4)
        for name in "forces", "potentials":
            expected = getattr(exact, name)
            error = np.linalg.norm(found[name][k] - expected) / np.linalg.norm(expected)
            assert error < 3e-5
    assert Path(plot).stat().st_size > 1000
    result = succeed(*arguments, "-o", table, "--json")
    with open(table) as file:
        rows = list(csv.DictReader(file))
    assert [float(row["coulomb_energy"]) for row in rows] == found["energies"].tolist()
    assert result["energies"] == found["energies"].tolist()


@pytest.mark.slow
def test_analyse_virial(succeed, trajectories, tmp_path):
    out = str(tmp_path / "out.npz")
    succeed("analyse", "system.xml", "run.dcd", "--tolerance", "1e-5", "--virial", "-o", out)
    found = np.load(out)
    assert found["virial"].shape == (3, 3, 3)
    assert np.trace(found["virial"], axis1=1, axis2=2) == pytest.approx(found["energies"])


@pytest.mark.slow
def test_analyse_with_workers(succeed, trajectories):
    argv = ("analyse", "system.xml", "run.dcd", "--json", "--tolerance", "1e-5")
    expected = succeed(*argv)["energies"]
    assert succeed(*argv, "--workers", "2")["energies"] == expected


@pytest.mark.slow
def test_stdout_is_json_whatever_a_library_prints(trajectories):
    """MDTraj prints on the stdout of C when it opens a DCD file."""
    command = [sys.executable, "-m", "fmm_openmm", "analyse", "system.xml", "run.dcd", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "dcdplugin" in ended.stderr
    assert json.loads(ended.stdout)["frames"]


@pytest.mark.slow
def test_analyse_that_fails_keeps_what_it_has(fail, succeed, trajectories):
    mdtraj = pytest.importorskip("mdtraj")
    trajectory = mdtraj.load("run.dcd", top="water.pdb")
    trajectory.xyz[2, 0, 0] = np.nan
    trajectory.save("bad.dcd")
    argv = ("--tolerance", "1e-5", "--backend", "cpu", "--potentials", "-o", "two.npz")
    text = fail("analyse", "system.xml", "bad.dcd", *argv)
    assert "frame 2 (ValueError: `positions`" in text and "2 frames are done, in two.npz" in text
    succeed("analyse", "system.xml", "run.dcd", *argv[:4], "-o", "all.npz")
    found, expected = np.load("two.npz"), np.load("all.npz")
    assert found["frames"].tolist() == [0, 1] and found["potentials"].shape == (2, 768)
    for name in "times", "energies":
        assert np.array_equal(found[name], expected[name][:2], equal_nan=True)


@pytest.mark.slow
def test_analyse_takes_the_box_of_the_trajectory_where_the_coordinates_have_none(
    succeed, folder, trajectories
):
    argv = ("run.dcd", *WATER[1:], "--json", "--tolerance", "1e-5")
    found = succeed("analyse", pdb_with("", folder, "nocell.pdb"), *argv)
    assert found["boundary"] == "periodic"
    assert found["energies"] == succeed("analyse", "water.pdb", *argv)["energies"]


@pytest.mark.slow
def test_analyse_takes_the_box_of_the_system_where_there_is_none(succeed, trajectories):
    pytest.importorskip("mdtraj")
    argv = ("analyse", "system.xml", "nocell.dcd", "--json", "--tolerance", "1e-5")
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    for options, box in ((), BOX), (("--box", "2.2", "2.3", "2.4"), np.diag([2.2, 2.3, 2.4])):
        found = succeed(*argv, *options)["energies"]
        exact = [
            ewald_sum(x, charges.charges, box, charges.exclusions).energy for x in trajectories[0]
        ]
        assert found == pytest.approx(exact, rel=1e-4)


def test_analyse_that_is_interrupted_keeps_what_it_has(succeed, trajectories, monkeypatch):
    """Ctrl-C during the first frame."""
    compute, calls = fmm.CoulombSolver.compute, []

    def interrupted(*arguments, **keywords):
        if not calls:
            signal.raise_signal(signal.SIGINT)
        calls.append(arguments)
        return compute(*arguments, **keywords)

    monkeypatch.setattr(fmm.CoulombSolver, "compute", interrupted)
    argv = ("analyse", "system.xml", "run.dcd", "-o", "first.npz", "--potentials")
    assert "Interrupted after frame 0" in succeed(*argv, code=130)
    found = np.load("first.npz")
    assert (found["frames"].tolist(), found["potentials"].shape) == ([0], (1, 768))


@pytest.mark.slow
def test_analyse_in_free_space(succeed, folder, trajectories):
    """Whatever cell the trajectory has."""
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    fmm.ChargeSystem(charges.charges, charges.positions, None, charges.exclusions).save("free.npz")
    argv = ("analyse", "free.npz", "run.dcd", "--tolerance", "1e-5", "--stride", "2", "--json")
    result = succeed(*argv)
    solver = fmm.CoulombSolver(
        charges.charges, None, charges.exclusions, boundary="open", method="direct", backend="cpu"
    )
    exact = [solver.compute(positions).energy for positions in trajectories[0][::2]]
    assert (result["boundary"], len(exact)) == ("free space", 2)
    assert result["energies"] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run.dcd"], "run.dcd needs a topology: .prmtop, .psf, .top, or the structure or System"),
        (
            ["system.xml", "water.pdb"],
            "no trajectory among system.xml and water.pdb: give a .dcd, .xtc or .nc file with it",
        ),
        (["system.xml", "cut.dcd"], "cannot read cut.dcd, for 768 atoms: "),
        (["system.xml", "run.dcd", "--forces"], "--forces needs --output FILE.npz\n"),
        (["system.xml", "run.dcd", "-o", "x.txt"], "--output must end in .csv or .npz, got x.txt"),
        (["system.xml", "run.dcd", "--stride", "0"], "--stride must be at least 1, got 0"),
        (
            ["system.xml", "run.dcd", "--workers", "0"],
            "--workers must lie between 1 and 1024, got 0",
        ),
        (["few.xml", "run.dcd"], "cannot read run.dcd, for 2 atoms: its frames have 768"),
    ],
)
def test_analyse_refuses(argv, message, fail, folder, trajectories):
    (folder / "cut.dcd").write_bytes((folder / "run.dcd").read_bytes()[:150])
    few, force = openmm.System(), openmm.NonbondedForce()
    for charge in 1.0, -1.0:
        few.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    few.addForce(force)
    (folder / "few.xml").write_text(openmm.XmlSerializer.serialize(few))
    assert message in fail("analyse", *argv)


def test_analyse_a_slab(succeed, layer):
    charges, whole, _ = layer
    cell = np.diag([2.0, 2.0, np.inf])
    argv = ("analyse", "layer.npz", "layer.dcd", "--boundary", "slab", "--tolerance", "1e-5")
    found = succeed(*argv, "--json")
    assert found["boundary"] == "slab"
    exact = [partial_ewald_sum(x, charges, cell).energy for x in whole]
    assert found["energies"] == pytest.approx(exact, rel=1e-4)
