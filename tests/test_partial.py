"""Slabs and wires: periodic along two box vectors or one."""

import numpy as np
import pytest

from fmm_openmm import ChargeSystem, CoulombSolver, UnsupportedError
from fmm_openmm.expansions.operators import periodic, wire
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.partial import PARTIAL, SYSTEMS, cell_of, exact

NEIGHBOURS = [(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)]


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("name", SYSTEMS)
def test_forces_meet_the_tolerance(name, tolerance):
    (boundary, x, q, pairs, box), expected = exact(name)
    result = CoulombSolver(q, box, pairs, tolerance, boundary).compute(x)
    assert relative(result.forces, expected.forces) < tolerance
    scale = max(
        np.linalg.norm(expected.potentials), COULOMB_CONSTANT * np.linalg.norm(q) / box.max()
    )  # a molecule without its own charges has hardly any potential
    assert np.linalg.norm(result.potentials - expected.potentials) < 3 * tolerance * scale
    # the energy may be the small sum of large terms of both signs
    terms = 0.5 * np.linalg.norm(q) * scale
    assert result.energy == pytest.approx(expected.energy, abs=3 * tolerance * terms)


GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("backend", ["reference", "cpu", GPU])
@pytest.mark.parametrize("name", ["oblique", "skewed wire"])
def test_backends_and_levels(name, backend, levels):
    (boundary, x, q, pairs, box), expected = exact(name)
    try:
        solver = CoulombSolver(q, box, pairs, 1e-4, boundary, backend=backend, levels=levels)
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    assert relative(solver.compute(x).forces, expected.forces) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["oblique", "b and c", "skewed wire"])
def test_positions_on_a_gpu(name):
    """Results stay there; virial, points and sets of charges as on a CPU."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    (boundary, x, q, pairs, box), expected = exact(name)
    try:
        solver = CoulombSolver(q, box, pairs, 1e-6, boundary, backend="cuda", positions=x)
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    host = CoulombSolver(q, box, pairs, 1e-6, boundary, backend="cpu", positions=x)
    sets, points = np.random.default_rng(1).normal(size=(2, len(q))), x[:3] + 0.05
    for _ in range(2):
        result = solver.compute(cupy.asarray(x))
        assert isinstance(result.forces, cupy.ndarray)
        assert relative(result.forces.get(), expected.forces) < 1e-6
    both = [s.compute(x, points=points, virial=True) for s in (solver, host)]
    assert relative(both[0].virial, both[1].virial) < 1e-5
    assert relative(both[0].point_potentials, both[1].point_potentials) < 1e-5
    found, of_host = (s.compute(x, charges=sets).potentials for s in (solver, host))
    assert relative(found, of_host) < 1e-5


def scattered(net=0.0):
    x, q = random_charges(60, SKEWED, net=net)
    x[1], x[2] = x[0] + [0.1, 0.0, 0.0], x[0] + [0.0, 0.08, 0.05]
    return x, q


@pytest.mark.parametrize("boundary", ["slab", "ac", "wire"])
def test_images_are_the_particles(boundary):
    """Particles moved by vectors of the images, and all moved along any direction."""
    x, q = scattered()
    cell = cell_of(boundary, SKEWED)
    vectors = np.where(np.isfinite(cell), cell, 0.0)
    solver = CoulombSolver(q, SKEWED, None, 1e-8, boundary, positions=x)
    first = solver.compute(x)
    images = np.random.default_rng(1).integers(-3, 4, (60, 3)) @ vectors
    for moved in (x + images, np.add(x, [3.0, -2.0, 5.0])):
        assert relative(solver.compute(moved).forces, first.forces) < 1e-8


@pytest.mark.slow
def test_a_particle_far_away_from_a_wire():
    """In seconds: thousands of periods away, images are a line of charge."""
    x, q = scattered()
    x[0, 1] = 1e4
    result = CoulombSolver(q, SKEWED, None, 5e-4, "wire", backend="cpu").compute(x)
    expected = partial_ewald_sum(x, q, cell_of("wire", SKEWED))
    assert relative(result.forces, expected.forces) < 5e-4
    assert result.energy == pytest.approx(expected.energy, rel=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", PARTIAL)
def test_exclusions_of_nearest_images(boundary):
    x, q = scattered()
    cell = cell_of(boundary, SKEWED)
    x[3] = x[7] + [0.0, 0.1, 0.05]
    x[39] = x[5] + [0.05, 0.0, 0.05]
    vectors = np.where(np.isfinite(cell), cell, 0.0)
    images = np.random.default_rng(2).integers(-2, 3, (60, 3)) @ vectors
    expected = partial_ewald_sum(x, q, cell, NEIGHBOURS)
    whole = CoulombSolver(q, SKEWED, NEIGHBOURS, 1e-7, boundary).compute(x)
    solver = CoulombSolver(q, SKEWED, NEIGHBOURS, 1e-7, boundary, exclusions_periodic=True)
    torn = solver.compute(x + images)
    for result in (whole, torn):
        assert relative(result.forces, expected.forces) < 1e-7


@pytest.mark.parametrize("boundary", PARTIAL)
def test_exclusions_of_distant_pairs(boundary):
    """The image that OpenMM's convention means is not always the nearest one."""
    x, q = scattered()
    pairs = np.arange(60).reshape(30, 2)
    result = CoulombSolver(q, SKEWED, pairs, 1e-5, boundary, exclusions_periodic=True).compute(x)
    expected = partial_ewald_sum(x, q, cell_of(boundary, SKEWED), pairs, True)
    assert relative(result.forces, expected.forces) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["slab", "ac", "wire"])
def test_points_sets_and_groups(boundary):
    """Sets of charges may have a net charge, whose potentials are the finite part of the sum."""
    x, q = scattered()
    rng = np.random.default_rng(3)
    cell, points, sets = (
        cell_of(boundary, SKEWED),
        rng.uniform(-1, 2, (4, 3)),
        rng.normal(size=(2, 60)),
    )
    solver = CoulombSolver(q, SKEWED, NEIGHBOURS, 1e-7, boundary)
    at_points = solver.compute(x, points=points)
    both = partial_ewald_sum(
        np.concatenate([x, points]), np.append(q, np.zeros(4)), cell, NEIGHBOURS
    )
    assert relative(at_points.point_potentials, both.potentials[60:]) < 1e-6
    assert relative(at_points.point_fields, both.fields[60:]) < 1e-6
    assert relative(at_points.forces, both.forces[:60]) < 1e-6
    of_sets = solver.compute(x, charges=sets)
    operator = solver.coulomb_operator(x)
    for k, charges in enumerate(sets):
        expected = partial_ewald_sum(x, charges, cell, NEIGHBOURS)
        assert abs(charges.sum()) > 0.5
        assert relative(of_sets.potentials[k], expected.potentials) < 1e-6
        assert relative(of_sets.fields[k], expected.fields) < 1e-6
        assert of_sets.energy[k] == pytest.approx(expected.energy, rel=1e-6)
        assert relative(operator @ charges, expected.potentials) < 1e-6
    matrix = solver.interaction_energies(x, np.arange(60) % 3)
    assert matrix.sum() == pytest.approx(both.energy, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("boundary", "backend"),
    [("slab", "reference"), ("slab", "cpu"), ("ac", "cpu"), ("wire", "cpu"), ("b", "reference")],
)
def test_virial(boundary, backend):
    """Differences of the exact energy; uniform scaling of a neutral system gives the trace."""
    x, q = scattered()
    cell = cell_of(boundary, SKEWED)

    def energy(deformation):
        deformed = np.where(np.isfinite(cell), cell, 0.0) @ deformation
        vectors = np.where(np.isfinite(cell).all(1)[:, None], deformed, cell)
        return partial_ewald_sum(x @ deformation, q, vectors, NEIGHBOURS).energy

    expected = np.zeros((3, 3))
    for axes in np.ndindex(3, 3):
        step = np.zeros((3, 3))
        step[axes] = 1e-4
        expected[axes] = (energy(np.eye(3) - step) - energy(np.eye(3) + step)) / 2e-4
    solver = CoulombSolver(q, SKEWED, NEIGHBOURS, 1e-8, boundary, backend=backend)
    result = solver.compute(x, virial=True)
    assert np.abs(result.virial - expected).max() < 2e-6 * abs(result.energy)
    assert np.trace(result.virial) == pytest.approx(result.energy, rel=1e-12)
    assert result.volume is None
    with pytest.raises(ValueError, match="`stress` needs a volume"):
        result.stress  # noqa: B018


@pytest.mark.parametrize("boundary", ["bc", "wire"])
def test_forces_are_the_gradient_of_the_energy(boundary):
    """With particles divided among boxes, at low order."""
    x, q = scattered()
    solver = CoulombSolver(
        q, SKEWED, NEIGHBOURS, 1e-2, boundary, order=3, smoothing=0.05, precision="double",
        positions=x,
    )  # fmt: skip
    forces, h = solver.compute(x).forces, 1e-5
    for particle, axis in ((0, 0), (1, 1), (39, 2)):
        step = np.zeros_like(x)
        step[particle, axis] = h
        slope = (solver.compute(x + step).energy - solver.compute(x - step).energy) / (2 * h)
        assert forces[particle, axis] == pytest.approx(-slope, rel=1e-6, abs=1e-4)


@pytest.mark.slow
def test_plates_of_opposite_charge():
    """The field between them is that of a capacitor, and there is none outside."""
    n, spacing, gap = 12, 0.05, 1.0
    numbers = np.stack(np.meshgrid(*2 * [np.arange(n)]), -1).reshape(-1, 2)
    plate = np.zeros((n * n, 3))
    plate[:, :2] = spacing * numbers
    x, q = np.concatenate([plate, np.add(plate, [0.0, 0.0, gap])]), np.repeat([1.0, -1.0], n * n)
    box = np.diag([n * spacing, n * spacing, 1.0])
    points = np.array([[0.0, 0.0, z] for z in (-0.6, 0.3, 0.5, 0.7, 1.6)])
    found = CoulombSolver(q, box, None, 1e-7, "slab").compute(x, points=points)
    field = COULOMB_CONSTANT * 4 * np.pi / spacing**2
    expected = field * np.array([0.0, 1.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(found.point_fields[:, 2], expected, atol=1e-6 * field)
    step = found.point_potentials[0] - found.point_potentials[-1]
    assert step == pytest.approx(field * gap, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["slab", "wire"])
def test_a_uniform_scaling_costs_nothing(boundary, monkeypatch):
    calls = []
    for module, name in ((periodic, "_reciprocal"), (wire, "_near_images")):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, made=made: calls.append(1) or made(*args))
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, None, 1e-4, boundary, backend="cpu")
    energy = solver.compute(x).energy
    for scale in (1.01, 0.7, 1.0, 3.0):
        assert solver.compute(scale * x, scale * SKEWED).energy == pytest.approx(energy / scale)
    assert len(calls) == 1


@pytest.mark.slow
def test_another_shape_keeps_the_parameters():
    """As long as they meet the tolerance; nothing is searched for. A small strain keeps the boxes,
    too."""
    (boundary, x, q, pairs, box), _ = exact("oblique")
    solver = CoulombSolver(q, box, pairs, 1e-5, boundary, positions=x)
    solver.compute(x)
    chosen, boxes = solver.parameters, solver.evaluation.planner.latest.lattice
    for stretch in (1.01, 0.97, 1.2):
        change = np.diag([stretch, 1 / stretch, 1.0])
        moved, cell = x @ change, box @ change
        expected = partial_ewald_sum(moved, q, cell_of(boundary, cell), pairs)
        assert relative(solver.compute(moved, cell).forces, expected.forces) < 1e-5
        for name in ("order", "near_radius", "smoothing"):
            assert getattr(solver.parameters, name) == getattr(chosen, name)
        strained = solver.evaluation.planner.latest.lattice.strained_from is boxes
        assert strained == (0.98 < stretch < 1.02)


@pytest.mark.gpu
def test_a_gpu_adopts_other_shapes_of_a_slab():
    """Two evaluators serve all shapes: the one that was used longest ago adopts the next."""
    rng, shape, box = np.random.default_rng(3), (12, 12, 24), np.diag([3.0, 3.0, 6.0])
    x = 0.25 * (np.indices(shape).reshape(3, -1).T + rng.uniform(0.3, 0.7, (np.prod(shape), 3)))
    q = rng.permutation(np.resize([0.5, -0.5], len(x)))
    try:
        solver = CoulombSolver(q, box, None, 5e-4, "slab", backend="cuda", positions=x)
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    made = {}
    for stretch in (1.0, 1.004, 1.008, 1.012):
        change = np.diag([stretch, 1 / stretch, 1.0])
        moved, cell = x @ change, box @ change
        found = solver.compute(moved, cell)
        made |= {id(each): each for each in solver.evaluation.evaluators.values()}
        accurate = CoulombSolver(q, cell, None, 1e-6, "slab", backend="cpu").compute(moved)
        assert relative(found.forces, accurate.forces) < 5e-4
    assert len(made) == 2


@pytest.mark.parametrize("boundary", ["slab", "c"])
def test_net_charges_are_refused(boundary):
    q = scattered(net=1.0)[1]
    with pytest.raises(
        UnsupportedError, match=r"`charges` must be neutral in total with `boundary='(slab|wire)'`"
    ):
        CoulombSolver(q, SKEWED, boundary=boundary)
    neutral = scattered()[1]
    solver = CoulombSolver(neutral, SKEWED, boundary=boundary)
    with pytest.raises(UnsupportedError, match="got a net charge of 1 e: add counterions"):
        solver.set_charges(q)
    np.testing.assert_array_equal(solver.charges, neutral)
    solver.set_charges(neutral + 1e-6)


def test_what_is_not_supported():
    q = scattered()[1]
    with pytest.raises(ValueError, match="`grid` must be None with `boundary='slab'`"):
        CoulombSolver(q, SKEWED, boundary="ab", grid=(3, 3, 3))
    with pytest.raises(ValueError, match="`box_vectors` must be given with `boundary='wire'`"):
        CoulombSolver(q, None, boundary="wire")


@pytest.mark.slow
def test_a_charge_system_makes_a_solver_of_a_slab():
    x, q = scattered()
    system = ChargeSystem(q, positions=x, box_vectors=SKEWED, exclusions=NEIGHBOURS)
    solver = system.solver(boundary="slab", tolerance=1e-6)
    expected = partial_ewald_sum(x, q, cell_of("slab", SKEWED), NEIGHBOURS)
    assert relative(solver.compute(x).forces, expected.forces) < 1e-6


@pytest.mark.slow
def test_coinciding_charges_are_named():
    x, q = scattered()
    x[20] = x[11] + SKEWED[0] - SKEWED[2]
    for boundary in ("periodic", "ac"):
        solver = CoulombSolver(q, SKEWED, None, 1e-4, boundary)
        with pytest.raises(ValueError, match="particles 11 and 20 coincide"):
            solver.compute(x)
    assert np.isfinite(CoulombSolver(q, SKEWED, None, 1e-4, "slab").compute(x).energy)


@pytest.mark.parametrize(("boundary", "axis"), [("slab", 2), ("wire", 0)])
def test_particles_that_have_escaped_are_refused(boundary, axis):
    """Where no boxes would serve, after a search whose time is bounded."""
    q, x = np.resize([1.0, -1.0], 40), np.random.default_rng(3).random((40, 3))
    x[7, axis] = 1e8
    solver = CoulombSolver(q, np.eye(3), boundary=boundary)
    message = r"^`positions` and `points` span 1e\+08 nm .* a cell of 1 nm: remove"
    with pytest.raises(ValueError, match=message):
        solver.compute(x)
    x[7, axis] = 0.5
    assert np.isfinite(solver.compute(x).energy)
