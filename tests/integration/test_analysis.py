"""``analyse`` gives for every frame what the solver gives, and the Ewald sum."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.openmp import get_num_threads
from fmm_openmm.oracle import ewald_sum
from tests.convert.small_water import BOX, small_water

FRAMES = 3


@pytest.fixture(scope="module")
def water():
    topology, system, positions = small_water()
    scale = 1 + 0.01 * np.arange(FRAMES)[:, None, None]
    return topology, system, positions * scale, BOX * scale


@pytest.mark.slow
def test_frames_are_those_of_the_solver(water, backend):
    _, system, frames, boxes = water
    charges = fmm.ChargeSystem.from_openmm(system, frames[0])
    solver = charges.solver(tolerance=1e-5, backend=backend)
    pairs = list(zip(frames, boxes, strict=True))
    quantities = ("energy", "forces", "potentials", "fields")
    found = fmm.analyse(pairs, solver, quantities, dtype=np.float32)
    assert list(found) == list(quantities)
    for k, (positions, box) in enumerate(pairs):
        exact = ewald_sum(positions, charges.charges, box, charges.exclusions)
        assert found["energy"][k] == pytest.approx(exact.energy, rel=1e-4)
        for name in quantities[1:]:
            error = np.linalg.norm(found[name][k] - getattr(exact, name))
            assert error < 3e-5 * np.linalg.norm(getattr(exact, name))
            assert found[name].dtype == np.float32
    with ThreadPoolExecutor(2) as executor:
        again = fmm.analyse(iter(pairs), solver, quantities, executor, dtype=np.float32)
    assert all(np.array_equal(found[name], again[name]) for name in quantities)


@pytest.mark.slow
def test_virial(water, backend):
    """The trace is the energy, which is homogeneous of degree -1."""
    _, system, frames, boxes = water
    pairs = list(zip(frames, boxes, strict=True))
    charges = fmm.ChargeSystem.from_openmm(system, frames[0])
    solver = charges.solver(tolerance=1e-5, backend=backend)
    found = fmm.analyse(pairs, solver, ("energy", "virial"))
    assert found["virial"].shape == (FRAMES, 3, 3)
    assert np.trace(found["virial"], axis1=1, axis2=2) == pytest.approx(found["energy"])
    for virial, pair in zip(found["virial"], pairs, strict=True):
        expected = solver.compute(*pair, virial=True).virial
        assert virial == pytest.approx(expected, rel=1e-5, abs=1e-5 * abs(expected).max())


@pytest.mark.slow
def test_a_system_gives_charges_box_and_options(water):
    _, system, frames, _ = water
    system = openmm.XmlSerializer.clone(system)
    fmm.use_fmm(system, tolerance=1e-5)
    charges = fmm.ChargeSystem.from_openmm(small_water()[1])
    found = fmm.analyse(frames, system)["energy"]  # all in the default box
    expected = [ewald_sum(x, charges.charges, BOX, charges.exclusions).energy for x in frames]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_trajectories_of_mdtraj(water):
    mdtraj = pytest.importorskip("mdtraj")
    topology, system, frames, boxes = water
    trajectory = mdtraj.Trajectory(
        frames,
        mdtraj.Topology.from_openmm(topology),
        unitcell_lengths=boxes.diagonal(axis1=1, axis2=2),
        unitcell_angles=np.full((FRAMES, 3), 90.0),
    )
    charges = fmm.ChargeSystem.from_openmm(system)
    pairs = list(zip(frames, boxes, strict=True))
    expected = fmm.analyse(pairs, charges)["energy"]
    assert fmm.analyse(trajectory, charges)["energy"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_boxes_are_left_out_in_free_space(water):
    _, system, frames, boxes = water
    charges = fmm.ChargeSystem.from_openmm(system)
    droplet = fmm.ChargeSystem(charges.charges, None, None, charges.exclusions)
    pairs = list(zip(frames, boxes, strict=True))
    assert np.array_equal(
        fmm.analyse(pairs, droplet)["energy"], fmm.analyse(frames, droplet)["energy"]
    )


def test_no_frames():
    solver = fmm.CoulombSolver([1.0, -1.0], np.eye(3))
    assert fmm.analyse([], solver)["energy"].shape == (0,)


@pytest.mark.parametrize(
    ("given", "quantities", "message"),
    [
        ("a system", ("energy",), "`solver_or_system` must be a CoulombSolver, a ChargeSystem"),
        (lambda: None, ("energy",), "`solver_or_system` must be a function that can be pickled"),
        (None, "energy", "`quantities` must be a sequence of names, got 'energy'"),
        (None, ("charge",), "`quantities` must be one of 'energy', 'forces'"),
    ],
)
def test_bad_arguments_are_named(given, quantities, message):
    solver = given or fmm.CoulombSolver([1.0, -1.0], np.eye(3))
    with pytest.raises((TypeError, ValueError)) as caught:
        fmm.analyse([np.zeros((2, 3))], solver, quantities)
    assert message in str(caught.value)
    solver = fmm.CoulombSolver([1.0, -1.0], np.eye(3))
    with pytest.raises(ValueError, match="`threads` must lie between 1"):
        fmm.analyse([np.zeros((2, 3))], solver, threads=0)
    with pytest.raises(ValueError, match="`dtype` must be float32 or float64, got 'int32'"):
        fmm.analyse([np.zeros((2, 3))], solver, ["forces"], dtype="int32")


@pytest.mark.slow
def test_the_solver_is_left_as_it_is(water):
    """And what it evaluated before does not matter."""
    _, system, frames, boxes = water
    charges = fmm.ChargeSystem.from_openmm(system, frames[0])
    pairs = list(zip(frames, boxes, strict=True))
    solver, used = (charges.solver(tolerance=1e-5) for _ in range(2))
    expected = fmm.analyse(pairs, solver, ["forces"])["forces"]
    for scale in 1.3, [1.2, 1, 1], 1.1:
        used.compute(frames[0] * scale, BOX * scale)
    assert np.array_equal(fmm.analyse(pairs, used, ["forces"])["forces"], expected)
    assert solver.evaluation.planner.choices == () and solver.evaluation.evaluators == {}


@pytest.mark.slow
def test_a_function_that_makes_the_solver(water):
    _, system, frames, boxes = water
    make = fmm.ChargeSystem.from_openmm(system, frames[0]).solver
    pairs = list(zip(frames, boxes, strict=True))
    found = fmm.analyse(pairs, partial(make, tolerance=1e-5))["energy"]
    assert np.array_equal(found, fmm.analyse(pairs, make(tolerance=1e-5))["energy"])


def test_a_frame_that_is_invalid(water):
    """The others are done; without others the error is the frame's own."""
    _, system, frames, _ = water
    solver = fmm.ChargeSystem.from_openmm(system, frames[0]).solver()
    expected = fmm.analyse(frames, solver)["energy"]
    given = [frames[0], frames[1], frames[2][:-1], frames[2]]
    with ThreadPoolExecutor(1) as executor:
        for parallel, done in (None, [0, 1]), (executor, [0, 1, 3]):
            with pytest.raises(fmm.AnalysisError) as caught:
                fmm.analyse(given, solver, executor=parallel)
            text = "frame 2 (ValueError: `positions` must have shape (n, 3) with n = 768"
            assert str(caught.value).startswith(text)
            assert f"{len(done)} of 4 frames are done" in str(caught.value)
            assert isinstance(caught.value.__cause__, ValueError)
            assert {*caught.value.frames} <= {*done}
            assert caught.value.frames[:2].tolist() == [0, 1]
            found = caught.value.arrays["energy"]
            assert np.array_equal(found, expected[np.minimum(caught.value.frames, 2)])
    with pytest.raises(ValueError, match="`positions` must have shape"):
        fmm.analyse(given[2:], solver)


def test_particles_at_the_same_place_are_named(water, backend):
    _, system, frames, _ = water
    solver = fmm.ChargeSystem.from_openmm(system, frames[0]).solver(backend=backend)
    wrong = frames[1].copy()
    wrong[3] = wrong[0]
    with pytest.raises(fmm.AnalysisError, match=r"frame 1 .*0 and 3"):
        fmm.analyse([frames[0], wrong], solver)


def test_a_file_that_ends_too_soon(water):
    _, system, frames, _ = water

    def reading():
        yield from frames[:2]
        raise OSError("end of file")

    solver = fmm.ChargeSystem.from_openmm(system, frames[0]).solver()
    with pytest.raises(fmm.AnalysisError) as caught:
        fmm.analyse(reading(), solver)
    assert str(caught.value).startswith("frame 2 (OSError: end of file): 2 frames are done")
    assert np.array_equal(caught.value.arrays["energy"], fmm.analyse(frames[:2], solver)["energy"])


@pytest.mark.slow
def test_threads(water):
    """Their number changes no bit, and is as before afterwards."""
    _, system, frames, boxes = water
    solver = fmm.ChargeSystem.from_openmm(system, frames[0]).solver(tolerance=1e-5)
    pairs, before = list(zip(frames, boxes, strict=True)), get_num_threads()
    found = [fmm.analyse(pairs, solver, ["forces"], threads=n)["forces"] for n in (None, 1)]
    assert np.array_equal(*found)
    assert get_num_threads() == before
