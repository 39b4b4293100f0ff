"""``analyse`` gives for every frame what the solver gives, and the Ewald sum."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum
from tests.convert.small_water import BOX, small_water

FRAMES = 3


@pytest.fixture(scope="module")
def water():
    topology, system, positions = small_water()
    scale = 1 + 0.01 * np.arange(FRAMES)[:, None, None]
    return topology, system, positions * scale, BOX * scale


def test_frames_are_those_of_the_solver(water):
    _, system, frames, boxes = water
    charges = fmm.ChargeSystem.from_openmm(system, frames[0])
    solver = charges.solver(tolerance=1e-5)
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


def test_a_system_gives_charges_box_and_options(water):
    _, system, frames, _ = water
    system = openmm.XmlSerializer.clone(system)
    fmm.use_fmm(system, tolerance=1e-5)
    charges = fmm.ChargeSystem.from_openmm(small_water()[1])
    found = fmm.analyse(frames, system)["energy"]  # all in the default box
    expected = [ewald_sum(x, charges.charges, BOX, charges.exclusions).energy for x in frames]
    assert found == pytest.approx(expected, rel=1e-4)


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
        (None, "energy", "`quantities` must be a sequence of names, got 'energy'"),
        (None, ("charge",), "`quantities` must be one of 'energy', 'forces'"),
    ],
)
def test_bad_arguments_are_named(given, quantities, message):
    solver = given or fmm.CoulombSolver([1.0, -1.0], np.eye(3))
    with pytest.raises((TypeError, ValueError)) as caught:
        fmm.analyse([np.zeros((2, 3))], solver, quantities)
    assert message in str(caught.value)
