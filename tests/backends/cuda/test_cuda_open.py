"""``boundary="open"`` on the GPU: against the reference backend and the direct sum.

Needs an NVIDIA GPU.
"""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.box import PaddedLattice
from fmm_openmm.driver import evaluate
from fmm_openmm.oracle import direct_sum, ewald_sum
from fmm_openmm.specification import Specification
from tests.support.charges import relative
from tests.support.free_space import SYSTEMS, droplet, exact, ions
from tests.support.nearly_empty import SYSTEMS as CELLS
from tests.support.nearly_empty import exact as in_cell
from tests.support.nearly_empty import wrapped

try:
    CudaEvaluator = backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)

import cupy

pytestmark = pytest.mark.gpu

SPANS = {"cube": (6, 6, 6), "long": (13, 2, 3), "one box": (1, 1, 1), "large": (24, 20, 22)}


def filling(span, n=300):
    """Charges everywhere in the boxes of width 1 but their outer quarter, and excluded pairs."""
    rng = np.random.default_rng(5)
    pairs = np.unique(np.sort(rng.integers(0, n, (200, 2)), 1), axis=0)
    x = 0.25 + rng.random((n, 3)) * (np.array(span) - 0.5) - 0.1
    return x, rng.normal(size=n), pairs[pairs[:, 0] != pairs[:, 1]]


def solver_for(system, **options):
    return CoulombSolver(
        system[1], None, system[2], boundary="open", **{"backend": "cuda", **options}
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-12), (np.float32, 2e-5)])
@pytest.mark.parametrize("span", SPANS)
def test_agrees_with_the_reference_backend(span, dtype, accuracy, smoothing):
    lattice = PaddedLattice(np.array(SPANS[span]), 2.0)
    x, q, pairs = filling(SPANS[span])
    expected = evaluate(
        ReferenceStages(Specification(lattice, 5, smoothing, q, pairs, False)), x, 1.0
    )
    found = CudaEvaluator(Specification(lattice, 5, smoothing, q, pairs, False, dtype)).evaluate(
        x, 1.0
    )
    for a, b in zip(found, expected, strict=True):
        assert relative(a, b) <= accuracy


@pytest.mark.parametrize("tolerance", [5e-4, 1e-6])
@pytest.mark.parametrize("name", SYSTEMS)
def test_promise(name, tolerance):
    system, expected = exact(name)
    result = solver_for(system, tolerance=tolerance, order=6 if tolerance > 1e-5 else 12).compute(
        system[0]
    )
    assert relative(result.forces, expected.forces) <= tolerance
    assert result.energy == pytest.approx(expected.energy, rel=tolerance)


@pytest.mark.parametrize("tolerance", [5e-4, 1e-5])
def test_promise_of_a_large_droplet(tolerance):
    """Large enough that the automatic choice has a far field."""
    system = droplet(5000)
    solver = solver_for(system, tolerance=tolerance)
    assert relative(solver.compute(system[0]).forces, direct_sum(*system).forces) <= tolerance
    assert np.diag(solver.parameters.counts).min() > 4


def test_arrays_on_the_device_give_arrays_on_the_device():
    system, _ = exact("charged droplet")
    solver = solver_for(system, tolerance=1e-6)
    host, device = solver.compute(system[0]), solver.compute(cupy.asarray(system[0]))
    for name in ("forces", "potentials", "fields"):
        assert isinstance(getattr(device, name), cupy.ndarray)
        assert relative(getattr(device, name).get(), getattr(host, name)) <= 1e-12
    assert float(device.energy[0]) == pytest.approx(host.energy, rel=1e-12)


def test_repeats_bit_for_bit():
    (x, q, pairs), _ = exact("clusters")
    solver, on_device = solver_for((x, q, pairs)), cupy.asarray(x)
    first, *others = (solver.compute(on_device) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(other.forces.get(), first.forces.get())
        np.testing.assert_array_equal(other.energy.get(), first.energy.get())


def test_particles_may_leave():
    """Particles outside the boxes are noticed, wherever the positions are, and the boxes follow."""
    (x, q, pairs), expected = exact("droplet")
    solver = solver_for((x, q, pairs))
    for place in (np.asarray, cupy.asarray):
        for escape in (0.0, 0.1, 1.0, 30.0, 0.0):
            moved = x.copy()
            moved[:3] += [0.0, escape, 0.0]
            forces = cupy.asnumpy(solver.compute(place(moved)).forces)
            assert (
                relative(forces, direct_sum(moved, q, pairs).forces if escape else expected.forces)
                <= 5e-4
            )


def test_a_bad_particle_is_named_and_nothing_is_lost():
    (x, q, pairs), _ = exact("droplet")
    solver = solver_for((x, q, pairs))
    before = solver.compute(x).energy
    for bad in (np.nan, np.inf, 1e12):
        moved = x.copy()
        moved[17, 1] = bad
        for place in (np.asarray, cupy.asarray):
            with pytest.raises(ValueError, match="particle 17"):
                solver.compute(place(moved))
            with pytest.raises(ValueError, match="particle 17"):
                CoulombSolver(q, None, pairs, boundary="open", backend="cuda").compute(place(moved))
    assert solver.compute(x).energy == before


@pytest.mark.parametrize("smoothing", [0.0, 0.05])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30, 1e6, -0.2, 6.0])
def test_outside_the_boxes_is_not_a_number(value, smoothing):
    """Nothing is written where it should not be: the next evaluation is as before."""
    x, q, pairs = filling((6, 6, 6))
    stages = CudaEvaluator(
        Specification(
            PaddedLattice(np.array((6, 6, 6)), 2.0), 4, smoothing, q, pairs, False, np.float32
        )
    )
    before = stages.evaluate(x, 1.0)[1]
    for axis in range(3):
        moved = x.copy()
        moved[3, axis] = value
        potentials, fields = stages.evaluate(moved, 1.0)
        assert np.isnan(potentials[3])
        assert np.isnan(fields[3]).all()
    np.testing.assert_array_equal(stages.evaluate(x, 1.0)[1], before)


@pytest.mark.parametrize("distance", [1e-3, 0.3, 500.0])
def test_two_charges(distance):
    x = np.array([[7.0, 7.0, 7.0], [7.0, 7.0 + distance, 7.0]])
    result = CoulombSolver(
        [1.0, -1.0], None, boundary="open", precision="double", backend="cuda"
    ).compute(x)
    expected = direct_sum(x, np.array([1.0, -1.0]))
    assert result.energy == pytest.approx(expected.energy, rel=1e-10)
    assert relative(result.forces, expected.forces) <= 1e-9


def test_exclusions_at_any_distance():
    x, q, _ = ions()
    pairs = np.random.default_rng(7).permutation(len(q)).reshape(-1, 2)
    result = solver_for((x, q, pairs), tolerance=1e-6).compute(x)
    assert relative(result.forces, direct_sum(x, q, pairs).forces) <= 1e-6


# In a periodic cell that is nearly empty


@pytest.mark.parametrize("name", CELLS)
def test_promise_in_a_cell(name):
    (x, q, pairs, cell), expected = in_cell(name)
    for tolerance, radius in ((5e-4, 2.34), (1e-6, 3.24)):
        solver = CoulombSolver(
            q, cell, pairs, tolerance=tolerance, positions=x, backend="cuda", near_radius=radius
        )
        host, device = solver.compute(x), solver.compute(cupy.asarray(x))
        assert isinstance(solver.evaluation.used[0].lattice, PaddedLattice)
        assert relative(host.forces, expected.forces) <= tolerance
        assert host.energy == pytest.approx(expected.energy, rel=tolerance)
        assert relative(device.forces.get(), host.forces) <= 1e-5 * (tolerance / 5e-4) ** 2


def test_a_droplet_moves_through_a_cell():
    """A droplet crosses the boundary on the device, then falls apart, after which the boxes are
    over the whole cell."""
    (x, q, pairs, cell), expected = in_cell("droplet")
    solver = CoulombSolver(q, cell, pairs, positions=x, backend="cuda")
    for step in range(6):
        moved = wrapped(x + step * np.array([1.9, -0.7, 0.3]), cell)
        assert relative(solver.compute(cupy.asarray(moved)).forces.get(), expected.forces) <= 5e-4
    for scale in (1.01, np.array([1.0, 1.0, 1.03])):
        box = cell * scale
        result, exact = solver.compute(cupy.asarray(x), box), ewald_sum(x, q, box, pairs)
        assert relative(result.forces.get(), exact.forces) <= 5e-4
    assert isinstance(solver.evaluation.used[0].lattice, PaddedLattice)
    apart = x.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(0, 12, (len(x) // 3, 1, 3))
    result, exact = (
        solver.compute(cupy.asarray(apart.reshape(-1, 3))),
        ewald_sum(apart.reshape(-1, 3), q, cell, pairs),
    )
    assert relative(result.forces.get(), exact.forces) <= 5e-4
    assert not isinstance(solver.evaluation.used[0].lattice, PaddedLattice)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("boundary", ["ac", "b", "wire"])
def test_positions_that_are_turned_on_the_device(boundary, dtype):
    """Slabs and wires in other coordinates than the user's: results stay on the device."""
    rng = np.random.default_rng(3)
    x = rng.random((200, 3)) * 2.0
    q = rng.normal(size=200)
    q -= q.mean()
    vectors = [[2.0, 0.0, 0.0], [0.3, 2.1, 0.0], [0.2, -0.4, 1.9]]
    options = {"boundary": boundary, "tolerance": 1e-6, "precision": "double"}
    expected = CoulombSolver(q, vectors, backend="reference", **options).compute(
        x.astype(dtype), virial=True
    )
    solver = CoulombSolver(q, vectors, backend="cuda", **options)
    found = solver.compute(cupy.asfortranarray(cupy.asarray(x, dtype)), virial=True)
    for name in ("energy", "forces", "potentials", "fields", "virial"):
        value = getattr(found, name)
        assert isinstance(value, cupy.ndarray)
        assert relative(value.get(), getattr(expected, name)) < 3e-6, name
    with pytest.raises(ValueError, match="`positions` must have shape"):
        solver.compute(cupy.zeros((100, 3)))
