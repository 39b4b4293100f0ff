"""Periodic cells that are nearly empty: boxes that cover the particles only,
against the Ewald sum."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.fft
from scipy.linalg import expm

import fmm_openmm.evaluation
from fmm_openmm import CoulombSolver
from fmm_openmm.backends.cuda.pipeline.setup_tables import mirrored, stored_shape
from fmm_openmm.box import DISTANT, BoxLattice, PaddedLattice
from fmm_openmm.expansions.harmonics import degrees
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.expansions.operators.derivatives import GENERATORS, operator_derivatives
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.planning.cost import CPU_COST
from fmm_openmm.planning.molecules import gather
from tests.support.charges import relative
from tests.support.free_space import droplet
from tests.support.nearly_empty import CUBE, SKEWED, SYSTEMS, exact, in_cell, wrapped

TOLERANCES = (1e-2, 5e-4, 1e-5, 1e-8)


@pytest.fixture(autouse=True)
def far_field(monkeypatch):
    """Pairs cost a lot, so that small systems have a far field too."""
    monkeypatch.setattr(
        fmm_openmm.evaluation, "CPU_COST", replace(fmm_openmm.evaluation.CPU_COST, pair=1e-7)
    )


def test_particles_in_one_place():
    """Such particles would need boxes without end."""
    together, charges = np.full((900, 3), 0.3), np.linspace(0.1, 1.0, 900)
    solver = CoulombSolver(charges, CUBE, positions=together, backend="cpu")
    assert np.prod(np.diag(solver.parameters.grid)) <= 64 * len(charges)
    with pytest.raises(ValueError, match="coincide and are not excluded"):
        solver.compute(together)


def solver_for(system, **options):
    x, q, pairs, cell = system
    return CoulombSolver(q, cell, pairs, positions=x, **{"backend": "cpu", **options})


def is_sparse(solver):
    return isinstance(solver.evaluation.used[0].lattice, PaddedLattice)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_promise(name, tolerance):
    system, expected = exact(name)
    solver = solver_for(system, tolerance=tolerance)
    result = solver.compute(system[0])
    assert is_sparse(solver)
    error = relative(result.forces, expected.forces)
    assert error <= tolerance
    assert abs(result.energy - expected.energy) <= tolerance * abs(expected.energy)
    if name == "droplet":  # there is a far field: the promise is not kept by a direct sum
        assert error >= tolerance / 40
        assert np.diag(solver.parameters.counts).min() > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net charge", "skewed, net charge"])
def test_potentials_and_fields(name):
    """The background counts, and no constant is lost."""
    system, expected = exact(name)
    result = solver_for(system, tolerance=1e-9).compute(system[0])
    assert relative(result.potentials, expected.potentials) <= 1e-9
    assert relative(result.fields, expected.fields) <= 1e-8


@pytest.mark.slow
def test_few_particles_see_their_images():
    """All boxes are near then, and images still the business of expansions."""
    rng = np.random.default_rng(3)
    cell = np.diag([4.0, 5.0, 6.0])
    system = (
        rng.uniform(0, 0.8, (40, 3)),
        rng.normal(1.0, 1.0, 40),
        np.zeros((0, 2), np.int64),
        cell,
    )
    expected = ewald_sum(*system[:2], cell)
    for tolerance in (1e-3, 1e-9):
        solver = solver_for(system, tolerance=tolerance)
        result = solver.compute(system[0])
        assert is_sparse(solver)
        assert relative(result.forces, expected.forces) <= tolerance
        assert result.energy == pytest.approx(expected.energy, rel=tolerance)


@pytest.mark.parametrize("name", ["over a corner", "skewed, net charge"])
def test_reference(name):
    system, expected = exact(name)
    options = {"precision": "double", "order": 5, "near_radius": 2.34, "smoothing": 0.05}
    fast, obvious = (
        solver_for(system, backend=b, **options).compute(system[0]) for b in ("cpu", "reference")
    )
    assert relative(obvious.forces, expected.forces) <= 1e-2
    assert relative(fast.forces, obvious.forces) <= 1e-11
    assert relative(fast.potentials, obvious.potentials) <= 1e-11


def counted(solver, monkeypatch):
    """Specifications of all stages that are made."""
    made, make = [], solver.evaluation.evaluator_class
    monkeypatch.setattr(
        solver.evaluation, "evaluator_class", lambda wanted: made.append(wanted) or make(wanted)
    )
    return made


# The operator


@pytest.mark.parametrize(
    "counts",
    [
        np.diag([12, 14, 15]),
        np.array([[12, 0, 0], [5, 14, 0], [-4, 6, 15]]),
        np.array([[30, 0, 0], [15, 11, 0], [0, 0, 16]]),
    ],
)
def test_operator(counts):
    """Transformed back, it is that of boxes over the whole cell, at every displacement of two
    boxes of the span.

    The last plane of reciprocal vectors within reach along the first box vector of the last cell
    has none that is short enough.
    """
    order, span = 3, np.array([4, 5, 6])
    whole = BoxLattice(counts, np.eye(3), 1.87)
    part = PaddedLattice(span, 1.87, cell=whole.cell)
    offsets = np.array(list(product(*[range(1 - n, n) for n in span])))
    l = degrees(2 * order)[:, None, None, None]

    def table(lattice, accuracy):
        transform = (
            np.array([1, 1, -1, -1])[l % 4]
            * np.where(l % 2, 1j, 1)
            * lattice_operator(lattice, order, accuracy)
        )
        grid = scipy.fft.irfftn(transform, lattice.fft_shape, axes=(1, 2, 3)).reshape(len(l), -1)
        return grid[:, lattice.slot(offsets)]

    expected = table(whole, 1e-17)
    scale = np.abs(expected).max(1)
    for accuracy in (1e-17, 1e-10):
        difference = np.abs(table(part, accuracy) - expected).max(1)
        assert (difference <= max(3e-15, 0.2 * accuracy) * scale.max() / scale.min() * scale).all()
    if mirrored(part):
        octant, whole_of_it = (
            lattice_operator(part, order, octant=True),
            lattice_operator(part, order),
        )
        n1, n2, _ = stored_shape(part)
        np.testing.assert_allclose(
            octant, whole_of_it[:, :n1, :n2], rtol=0, atol=1e-13 * np.abs(whole_of_it).max()
        )
    assert mirrored(part) == mirrored(whole)


@pytest.mark.parametrize(
    "counts", [np.diag([12, 14, 15]), np.array([[12, 0, 0], [5, 14, 0], [-4, 6, 15]])]
)
def test_derivatives_of_the_operator(counts):
    """Transformed back, they are those of boxes over the whole cell."""
    order, span = 2, np.array([3, 4, 5])
    whole = BoxLattice(counts, np.eye(3), 1.87)
    offsets = np.array(list(product(*[range(1 - n, n) for n in span])))
    l = degrees(2 * order)[:, None, None, None]

    def table(lattice):
        transform = (
            np.array([1, 1, -1, -1])[l % 4]
            * np.where(l % 2, 1j, 1)
            * operator_derivatives(lattice, order)
        )
        grid = scipy.fft.irfftn(transform, lattice.fft_shape, axes=(2, 3, 4))
        return grid.reshape(len(GENERATORS), len(l), -1)[:, :, lattice.slot(offsets)]

    expected, found = table(whole), table(PaddedLattice(span, 1.87, cell=whole.cell))
    scale = np.abs(expected).max((0, 2))[:, None]
    assert (np.abs(found - expected) < 2e-11 * scale).all()


def test_gap():
    lattice = PaddedLattice(np.array([3, 4, 5]), 1.87, cell=np.diag([20.0, 11.0, 30.0]))
    assert lattice.gap == 11 - 3
    assert np.linalg.norm(lattice.images, axis=1).min() == lattice.gap
    assert lattice.background == pytest.approx(1 / 6600)
    empty = PaddedLattice(np.array([3, 4, 5]), 1.87)
    assert empty.gap == np.inf
    assert len(empty.images) == empty.background == 0


# Motion


@pytest.mark.parametrize("cell", [CUBE, SKEWED])
def test_gather(cell):
    """Wherever the particles are given, they come together, molecules as they are."""
    x, _, _ = droplet(100)
    leaders = np.repeat(np.arange(0, len(x), 3), 3)
    rng = np.random.default_rng(1)
    for at in rng.uniform(-30, 30, (10, 3)):
        given = wrapped(x + at, cell) + np.repeat(rng.integers(-2, 3, (100, 3)), 3, axis=0) @ cell
        found = gather(given, leaders, cell)
        np.testing.assert_allclose(found - found[0], x - x[0], atol=1e-12)
        again = gather(given, leaders, cell, x.mean(0) + at)
        np.testing.assert_allclose(again, x + at, atol=1e-12)


@pytest.mark.slow
def test_a_droplet_moves_through_the_boundary(monkeypatch):
    """The boxes go with it; only one that falls apart gets boxes over the whole cell."""
    x, q, pairs, cell = in_cell(CUBE, [5.0, 5.0, 5.0])
    expected = ewald_sum(x, q, cell, pairs)
    solver = solver_for((x, q, pairs, cell))
    made = counted(solver, monkeypatch)
    for step in range(8):
        moved = wrapped(x + step * np.array([1.9, -0.7, 0.3]), cell)
        assert relative(solver.compute(moved).forces, expected.forces) <= 5e-4
    assert len(made) == 1
    moved = x.copy()
    moved[:3] += [0.6, 0.2, 0.0]  # evaporates
    assert relative(solver.compute(moved).forces, ewald_sum(moved, q, cell, pairs).forces) <= 5e-4
    assert is_sparse(solver)
    apart = x.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(0, 12, (len(x) // 3, 1, 3))
    apart = apart.reshape(-1, 3)
    assert relative(solver.compute(apart).forces, ewald_sum(apart, q, cell, pairs).forces) <= 5e-4
    assert not is_sparse(solver)
    assert relative(solver.compute(x).forces, expected.forces) <= 5e-4


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [1, 60])
def test_molecules_leave_in_a_huge_cell(leaving):
    """The boxes over the whole cell are no more than memory holds, whether one molecule is far
    away or all are."""
    x, q, pairs, cell = in_cell(300.0 * np.eye(3), molecules=60)
    solver = solver_for((x, q, pairs, cell))
    solver.compute(x)
    assert is_sparse(solver)
    x = x.reshape(-1, 3, 3)
    x[:leaving] += np.random.default_rng(4).uniform(80, 220, (leaving, 1, 3))
    x = x.reshape(-1, 3)
    assert relative(solver.compute(x).forces, ewald_sum(x, q, cell, pairs).forces) <= 5e-4
    assert not is_sparse(solver)
    assert solver.parameters.counts.max() < 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["over a corner", "skewed, net charge"])
def test_the_cell_changes(name, monkeypatch):
    """A uniform scaling keeps the stages, another shape does not."""
    (x, q, pairs, cell), _ = exact(name)
    solver = solver_for((x, q, pairs, cell))
    made = counted(solver, monkeypatch)

    def check(scale):
        box = cell * scale
        molecules = x.reshape(-1, 3, 3)
        moved = (
            molecules + molecules[:, :1] @ (np.diag(np.atleast_1d(scale) * np.ones(3)) - np.eye(3))
        ).reshape(-1, 3)
        result, expected = solver.compute(moved, box), ewald_sum(moved, q, box, pairs)
        assert relative(result.forces, expected.forces) <= 5e-4
        assert result.energy == pytest.approx(expected.energy, rel=5e-4)
        assert is_sparse(solver)

    for scale in (1.0, 1.01, 0.99, 1.0):
        check(scale)
    assert len(made) == 1
    check(np.array([1.0, 1.0, 1.03]))
    assert len(made) == 2
    check(1.0)
    assert len(made) == 2


@pytest.mark.slow
def test_forces_are_the_gradient_of_the_energy():
    (x, q, pairs, cell), _ = exact("net charge")
    solver = solver_for((x, q, pairs, cell), precision="double", tolerance=1e-2)
    forces = solver.compute(x).forces
    direction = np.random.default_rng(2).normal(size=x.shape)
    step = 1e-5
    slope = (
        solver.compute(x + step * direction).energy - solver.compute(x - step * direction).energy
    ) / (2 * step)
    assert is_sparse(solver)
    assert slope == pytest.approx(-(forces * direction).sum(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [CUBE, SKEWED])
def test_virial(cell):
    """Differences of the energy of boxes that cover the particles only; a shear is lower
    triangular, so that cells stay in reduced form."""
    x, q, pairs, cell = in_cell(cell, [5.0, 5.0, 5.0], net=-5.0, molecules=40)
    options = {"tolerance": 1e-9, "precision": "double"}
    solver = solver_for((x, q, pairs, cell), **options)
    result, step = solver.compute(x, virial=True), 1e-3
    assert is_sparse(solver) and not solver.evaluation.variants

    def energy(strain):
        gradient = expm(strain)
        strained = solver_for((x @ gradient, q, pairs, cell @ gradient), **options)
        found = strained.compute(x @ gradient).energy
        assert is_sparse(strained)
        return found

    for i, j in ((0, 0), (2, 2), (1, 0), (2, 1)):
        strain = np.zeros((3, 3))
        strain[i, j] = step
        slope = (energy(strain) - energy(-strain)) / (2 * step)
        assert abs(result.virial[i, j] + slope) < 1e-6 * abs(result.energy)
    assert np.trace(result.virial) == pytest.approx(result.energy, rel=1e-12)


# Exclusions, and what goes elsewhere


@pytest.mark.slow
def test_exclusions_of_the_nearest_image():
    """Every atom is wrapped by itself then."""
    (x, q, pairs, cell), expected = exact("over a corner")
    split = wrapped(x, cell, 1)
    assert np.abs(split - x).max() > 1.0
    solver = solver_for((split, q, pairs, cell), tolerance=1e-6, exclusions_periodic=True)
    assert relative(solver.compute(split).forces, expected.forces) <= 1e-6
    assert is_sparse(solver)


@pytest.mark.slow
def test_exclusions_at_any_distance():
    (x, q, _, cell), _ = exact("ions")
    pairs = np.random.default_rng(7).permutation(len(q)).reshape(-1, 2)
    for periodic in (False, True):
        expected = ewald_sum(x, q, cell, pairs, periodic)
        solver = solver_for((x, q, pairs, cell), tolerance=1e-6, exclusions_periodic=periodic)
        assert relative(solver.compute(x).forces, expected.forces) <= 1e-6
        assert is_sparse(solver) == periodic  # pairs as they are given are split by the boundary


@pytest.mark.slow
def test_boxes_over_the_whole_cell_where_they_are_asked_for():
    (x, q, pairs, cell), expected = exact("droplet")
    for options in ({"grid": (16, 16, 16)}, {"levels": 1}):
        solver = solver_for((x, q, pairs, cell), **options)
        assert relative(solver.compute(x).forces, expected.forces) <= 5e-4
        assert not is_sparse(solver)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 7, 1747051099])
def test_boxes_keep_away_from_images(seed, monkeypatch):
    """Where pairs cost little, so that boxes are few and wide, those that are used are those
    that were looked at."""
    monkeypatch.setattr(fmm_openmm.evaluation, "CPU_COST", CPU_COST)
    rng = np.random.default_rng(seed)
    n = int(rng.choice([60, 150, 300]))
    x = rng.random((n, 3)) * np.exp(rng.uniform(-0.7, 0.7, 3)) * (n / 30) ** (1 / 3) * 0.6
    cell = np.diag(np.exp(rng.uniform(0, 0.4, 3)) * np.ptp(x, axis=0).max() * rng.uniform(1.9, 3.5))
    x += rng.random(3) @ cell
    charges = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    solver = CoulombSolver(charges, cell, tolerance=1e-7, positions=x, backend="cpu")
    found = solver.compute(x)
    assert is_sparse(solver)
    lattice = solver.evaluation.used[0].lattice
    distant = DISTANT if len(lattice.occurring(lattice.far)) else 0.0
    assert lattice.gap >= solver.parameters.near_radius + distant
    assert relative(found.forces, ewald_sum(x, charges, cell).forces) <= 1e-7


def test_a_slab_keeps_boxes_over_the_whole_cell():
    x = np.random.default_rng(5).permutation(
        np.array(list(product(range(10), range(10), range(4)))) * 0.31
    )
    q, cell = np.repeat([1.0, -1.0], 200), np.diag([3.1, 3.1, 12.0])
    x = x + np.random.default_rng(6).uniform(-0.05, 0.05, x.shape)
    solver = solver_for((x, q, np.zeros((0, 2), np.int64), cell))
    assert relative(solver.compute(x).forces, ewald_sum(x, q, cell).forces) <= 5e-4
    assert not is_sparse(solver)


@pytest.mark.slow
def test_charges_may_change():
    (x, q, pairs, cell), expected = exact("net charge")
    solver = solver_for((x, 0 * q, pairs, cell))
    assert not solver.compute(x).forces.any()
    solver.set_charges(q)
    assert relative(solver.compute(x).forces, expected.forces) <= 5e-4
    assert is_sparse(solver)


@pytest.mark.slow
def test_a_bad_particle_is_named():
    (x, q, pairs, cell), expected = exact("droplet")
    solver = solver_for((x, q, pairs, cell))
    moved = x.copy()
    moved[30] = moved[60] + cell[0]
    with pytest.raises(ValueError, match="particles 30 and 60 coincide and are not excluded"):
        solver.compute(moved)
    assert relative(solver.compute(x).forces, expected.forces) <= 5e-4
