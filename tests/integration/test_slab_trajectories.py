"""Trajectories of slabs and wires, whose frames are wrapped along all box vectors."""

from functools import partial

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.convert.frames import Frame
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.integration.trajectories import Backwards

BOXES = {
    "slab": np.array([[2.0, 0.0, 0.0], [0.4, 1.8, 0.0], [0.3, -0.5, 6.0]]),
    "ac": np.array([[2.0, 0.0, 0.0], [0.4, 7.0, 0.0], [0.3, 0.2, 3.0]]),
    "wire": np.array([[6.0, 0.0, 0.0], [0.4, 7.0, 0.0], [0.3, -0.5, 2.0]]),
}
COUNT = 30


def cell_of(boundary, box):
    return Boundary.from_name(boundary).cell(box)


def wrapped(positions, box):
    fractions = positions @ np.linalg.inv(box)
    return (fractions - np.floor(fractions)) @ box


def drifting(boundary, count=4):
    """Charges (n,), and positions of frames (count, n, 3) of molecules of two ions, whose layer
    drifts across the faces of the box."""
    random, box = np.random.default_rng(1), BOXES[boundary]
    sizes = np.where(Boundary.from_name(boundary).periodic, np.diag(box), 1.5)
    first = random.uniform(0, 1, (COUNT // 2, 3)) * sizes
    first = np.stack([first, first + np.array([0.05, 0.06, 0.08])], 1).reshape(COUNT, 3)
    drift = [-0.6, -0.4, -1.1]
    frames = [
        first + number * np.array(drift) + 0.02 * number * random.normal(size=first.shape)
        for number in range(count)
    ]
    return np.resize([1.0, -1.0], COUNT), np.array(frames)


def solver_of(boundary, charges):
    box = BOXES[boundary]
    return fmm.CoulombSolver(charges, box, boundary=boundary, tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOXES)
def test_wrapped_frames(boundary):
    """They have the results of whole layers, which those of the torn ones are not."""
    charges, whole = drifting(boundary)
    box, solver = BOXES[boundary], solver_of(boundary, charges)
    frames = [(wrapped(x, box), box) for x in whole]
    found = fmm.analyse(frames, solver, ["energy", "forces"], progress=False)
    for number, x in enumerate(whole):
        exact = partial_ewald_sum(x, charges, cell_of(boundary, box))
        error = np.linalg.norm(found["forces"][number] - exact.forces)
        assert error < 1e-6 * np.linalg.norm(exact.forces)
        assert found["energy"][number] == pytest.approx(exact.energy, rel=1e-5)
    torn = [solver.compute(x).energy for x, _ in frames]
    assert np.abs(torn - found["energy"]).max() > 1.0
    again = fmm.analyse(frames, solver, ["energy", "forces"], Backwards(), progress=False)
    assert all(np.array_equal(found[name], again[name]) for name in found)


UNREDUCED = {
    "slab": np.array([[2.0, 0.0, 0.0], [1.4, 1.8, 0.0], [1.7, 1.2, 6.0]]),
    "ac": np.array([[2.0, 0.0, 0.0], [1.4, 7.0, 0.0], [1.5, 4.2, 3.0]]),
    "bc": np.array([[6.0, 0.0, 0.0], [3.4, 1.8, 0.0], [4.2, -1.3, 3.0]]),
    "a": np.array([[2.0, 0.0, 0.0], [1.4, 7.0, 0.0], [1.3, 4.5, 6.0]]),
    "b": np.array([[6.0, 0.0, 0.0], [3.5, 2.0, 0.0], [3.3, 1.5, 7.0]]),
    "wire": np.array([[6.0, 0.0, 0.0], [0.4, 7.0, 0.0], [3.3, -4.5, 2.0]]),
}
"""Boxes whose reduction as cells with images along all vectors would change the images."""


@pytest.mark.slow
@pytest.mark.parametrize("boundary", UNREDUCED)
def test_frames_of_cells_that_are_not_reduced(boundary):
    """The images are those of the cell as it is, wherever a program has wrapped the particles at
    it; the solver was made for other vectors."""
    box, random = UNREDUCED[boundary], np.random.default_rng(4)
    charges, periodic = np.resize([1.0, -1.0], COUNT), Boundary.from_name(boundary).periodic
    layer = random.uniform(0, 1, (COUNT, 3)) * np.where(periodic, 1.0, 0.2) @ box
    whole = [layer, layer - 0.1 * (np.array([1.0, 1.5, 2.0]) * ~np.array(periodic)) @ box]
    axes = np.linalg.qr(random.normal(size=(3, 3)))[0]
    axes *= np.sign(np.linalg.det(axes))
    solver = fmm.CoulombSolver(charges, np.diag(np.diag(box)), boundary=boundary, tolerance=1e-6)
    frames = [Frame.from_cell(wrapped(x, box) @ axes, box @ axes, None, "cell") for x in whole]
    found = fmm.analyse(frames, solver, progress=False)
    exact = [partial_ewald_sum(x, charges, cell_of(boundary, box)).energy for x in whole]
    assert found["energy"] == pytest.approx(exact, rel=1e-6)
    mapped = fmm.potential_map(frames[:1], solver, 0.5, progress=False)
    expected = cell_of(boundary, box)[list(periodic)]
    moved = np.linalg.solve(expected @ expected.T, expected @ mapped.vectors[list(periodic)].T)
    assert np.abs(moved - np.rint(moved)).max() < 1e-9  # combinations of the vectors of the images
    assert abs(np.linalg.det(moved)) == pytest.approx(1)


@pytest.mark.slow
def test_frames_without_box_vectors_are_taken_as_they_are():
    charges, whole = drifting("slab")
    solver = solver_of("slab", charges)
    found = fmm.analyse(whole, solver, progress=False)["energy"]
    expected = [solver.compute(x).energy for x in whole]
    assert found == pytest.approx(expected, rel=1e-7)
    x = wrapped(whole[1], BOXES["slab"])
    torn = fmm.analyse([x], solver, progress=False)["energy"]
    assert torn == pytest.approx([solver.compute(x).energy])


@pytest.mark.slow
def test_frames_of_a_system_are_wrapped_at_its_box():
    charges, whole = drifting("slab")
    system, force = openmm.System(), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*BOXES["slab"] * unit.nanometer)
    force.setNonbondedMethod(force.PME)
    force.setUseDispersionCorrection(False)
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    system.addForce(force)
    fmm.use_fmm(system, boundary="slab", tolerance=1e-6)
    frames = [wrapped(x, BOXES["slab"]) for x in whole]
    found = fmm.analyse(frames, system, progress=False)["energy"]
    expected = solver_of("slab", charges)
    assert found == pytest.approx([expected.compute(x).energy for x in whole], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOXES)
@pytest.mark.parametrize("charge_width", [0.0, 0.2])
def test_maps(boundary, charge_width):
    """The grid covers the layer of the first frame and a margin. In every frame the layer is where
    most of its particles are in the first one, whichever images a program has written."""
    charges, whole = drifting(boundary)
    box, solver = BOXES[boundary], solver_of(boundary, charges)
    periodic = np.array(Boundary.from_name(boundary).periodic)
    quarter = np.quantile(whole[0] @ np.linalg.inv(box), 0.25, axis=0)  # lies beyond the face
    whole = whole - (whole.mean(1) - whole[0].mean(0))[:, None] - (quarter * ~periodic) @ box
    frames = [(wrapped(x, box), box) for x in whole]
    moved = np.rint((frames[0][0] - whole[0]) @ np.linalg.inv(box))[:, ~periodic]
    assert (0 < moved.mean(0)).all() and (moved.mean(0) < 0.5).all()
    options = {"charge_width": charge_width, "progress": False}
    found = fmm.potential_map(frames, solver, 0.45, margin=0.3, **options)
    again = fmm.potential_map(frames, solver, 0.45, executor=Backwards(), margin=0.3, **options)
    assert np.array_equal(found.values, again.values)
    assert (np.linalg.norm(found.steps, axis=1) <= 0.45).all()
    assert np.array_equal(found.vectors[periodic], box[periodic])
    for vector in found.vectors[~periodic]:
        assert np.abs(box[periodic] @ vector).max() < 1e-12
        length = np.linalg.norm(vector)
        along = whole[0] @ vector / length
        assert length == pytest.approx(np.ptp(along) + 0.6)
        assert found.origin @ vector / length == pytest.approx(along.min() - 0.3)
    placed = {"origin": found.origin, "vectors": found.vectors}
    expected = fmm.potential_map(whole, solver, 0.45, **options, **placed)
    assert found.values == pytest.approx(expected.values, abs=1e-4 * np.abs(expected.values).max())


@pytest.mark.slow
def test_profile_of_a_slab():
    """Beyond the layer it is flat, and its ends differ by the dipole moment over the area."""
    charges, whole = drifting("slab")
    solver, box = solver_of("slab", charges), BOXES["slab"]
    found = fmm.potential_map([(wrapped(whole[0], box), box)], solver, 0.2, progress=False)
    _, means = found.profile("z")
    area = np.linalg.norm(np.cross(box[0], box[1]))
    step = 4 * np.pi * COULOMB_CONSTANT * (charges @ whole[0, :, 2]) / area
    assert means[-1] - means[0] == pytest.approx(step, rel=1e-2)
    assert means[1] == pytest.approx(means[0], abs=1e-2 * abs(step))


@pytest.mark.parametrize("wanted", [fmm.analyse, partial(fmm.potential_map, spacing=0.5)])
def test_an_ambiguous_frame_is_refused(wanted):
    """A layer as thick as the box, and one whose gap is no wider than others."""
    random = np.random.default_rng(3)
    charges, box = np.resize([1.0, -1.0], COUNT), BOXES["slab"]
    solver = solver_of("slab", charges)
    dense = random.uniform(0, 1, (COUNT, 3)) @ box
    halves = random.uniform(0, [1, 1, 0.2], (COUNT, 3))
    halves[::2, 2] += 0.5
    for x in (dense, halves @ box):
        with pytest.raises(ValueError, match="`boundary='slab'` needs vacuum along box vector c"):
            wanted([(x, box)], solver)


@pytest.mark.slow
def test_what_is_done_before_an_ambiguous_frame_is_kept():
    charges, whole = drifting("slab")
    box, random = BOXES["slab"], np.random.default_rng(3)
    frames = [(whole[0], box), (random.uniform(0, 1, (COUNT, 3)) @ box, box)]
    with pytest.raises(fmm.AnalysisError, match=r"frame 1 .* needs vacuum") as caught:
        fmm.analyse(frames, solver_of("slab", charges), progress=False)
    assert len(caught.value.arrays["energy"]) == 1
