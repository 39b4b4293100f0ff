"""``fmm-openmm potential``: maps and profiles."""

from pathlib import Path

import numpy as np
import pytest

import fmm_openmm as fmm
from tests.convert.small_water import small_water


@pytest.mark.slow
def test_potential_of_a_slab(succeed, fail, layer, tmp_path):
    charges, whole, box = layer
    plot = str(tmp_path / "profile.png")
    argv = ("potential", "layer.npz", "--boundary", "slab", "--tolerance", "1e-5", "--grid", "0.3")
    options = ("--charge-width", "0.2", "--margin", "0.8", "--json")
    found = succeed(*argv, "layer.dcd", *options, "--plot", plot)
    solver = fmm.CoulombSolver(charges, box, boundary="slab", tolerance=1e-5)
    options = {"charge_width": 0.2, "margin": 0.8, "progress": False}
    expected = fmm.potential_map(whole, solver, 0.3, **options)
    places, means = expected.profile("z")
    assert (found["axis"], found["frames"]) == ("z", 2)
    assert found["places"] == pytest.approx(places, abs=1e-5)
    assert found["profile"] == pytest.approx(means, abs=1e-3 * np.ptp(means))
    assert Path(plot).stat().st_size > 1000
    alone = succeed(*argv, "--charge-width", "0.2", "--json")  # the structure, which is wrapped too
    expected = fmm.potential_map(whole[:1], solver, 0.3, charge_width=0.2, progress=False)
    assert alone["profile"] == pytest.approx(expected.profile("z")[1], abs=1e-3 * np.ptp(means))
    assert "--margin must lie between 0 and 1000 (nm), got -1.0" in fail(*argv, "--margin", "-1")
    across = ("--boundary", "ac", "--grid", "0.5", "--json")
    assert "needs vacuum along box vector b" in fail(*argv, *across)


@pytest.mark.slow
def test_potential(succeed, trajectories, tmp_path):
    griddata = pytest.importorskip("gridData")
    cube = pytest.importorskip("ase.io.cube")
    frames, boxes = trajectories
    names = ("map.dx", "map.cube", "map.npz", "profile.png")
    dx, gaussian, arrays, plot = (str(tmp_path / name) for name in names)
    argv = ("potential", "system.xml", "water.pdb", "--grid", "0.4", "--tolerance", "1e-5")
    options = ("--trajectory", "run.dcd", "--stride", "2")
    charges = fmm.ChargeSystem.from_openmm(*small_water()[1:])
    pairs = [*zip(frames.astype(np.float32), boxes, strict=True)][::2]
    solver = charges.solver(tolerance=1e-5, positions=pairs[0][0])
    expected = fmm.potential_map(pairs, solver, 0.4, progress=False)
    found = succeed(*argv, *options, "-o", arrays, "--plot", plot, "--axis", "x", "--json")
    assert (found["frames"], found["counts"]) == (2, [5, 5, 6])
    values = np.load(arrays)["values"]
    assert values == pytest.approx(expected.values, rel=1e-4, abs=0.1)
    assert found["profile"] == pytest.approx(values.mean((1, 2)))
    assert found["places"] == pytest.approx(np.arange(5) * expected.vectors[0, 0] / 5, rel=1e-4)
    assert Path(plot).stat().st_size > 1000
    succeed(*argv, "run.dcd", "--stride", "2", "-o", dx, "--units", "V", "--workers", "2")
    assert griddata.Grid(dx).grid * 96.4853 == pytest.approx(values, rel=1e-4)
    succeed(*argv, "-o", gaussian)
    with open(gaussian) as file:
        atoms = cube.read_cube(file)["atoms"]
    assert atoms.numbers.tolist() == [8, 1, 1] * 256
    assert atoms.positions / 10 == pytest.approx(charges.positions, abs=1e-5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-o", "x.txt"], "--output must end in .dx, .cube, .cub, .npz, got x.txt"),
        (["--grid", "0"], "--grid must lie between 0.001 and 1000 (nm), got 0.0"),
        (["--temperature", "-1"], "--temperature must be finite and above 0 (K), got -1.0"),
        (["--charge-width", "2"], "--charge-width must lie between 0 and 1 (nm), got 2.0"),
        (["-o", "x.cube", "--units", "V"], "--units V needs --output FILE.dx, got x.cube"),
        (["--units", "V"], "--units V needs --output FILE.dx"),
        (["--temperature", "310"], "--temperature is for --units kT/e"),
        (["--stride", "2"], "--stride is for a trajectory"),
        (["--margin", "1"], "--margin is for directions without images"),
        (["--grid", "0.001", "--box", "99", "99", "99"], "--grid 0.001 nm is too fine"),
        (["--trajectory", "run.dcd", "-o", "run.dcd"], "run.dcd is a file that is read"),
        (["--stride", "0"], "--stride must be at least 1, got 0"),
    ],
)
def test_potential_refuses(argv, message, fail, trajectories):
    assert message in fail("potential", "system.xml", "water.pdb", *argv)


def test_a_later_frame_that_is_invalid_is_named(fail, trajectories):
    mdtraj = pytest.importorskip("mdtraj")
    frames = mdtraj.load("run.dcd", top="water.pdb")
    frames.xyz[1, 0, 0] = np.nan
    frames.save("broken.dcd")
    argv = ("potential", "system.xml", "broken.dcd", "--grid", "0.5", "--backend", "cpu")
    assert "fmm-openmm: frame 1 (ValueError: `positions` must be finite" in fail(*argv)
