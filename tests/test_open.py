"""``boundary="open"``: the accuracy promise against the direct sum, and what free space has that
a periodic box has not."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.fft

import fmm_openmm.evaluation
from fmm_openmm import CoulombSolver
from fmm_openmm.box import PaddedLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.oracle import direct_sum
from fmm_openmm.planning.cover import MAX_BOXES
from fmm_openmm.units import COULOMB_CONSTANT
from tests.support.charges import relative
from tests.support.free_space import NONE, SYSTEMS, droplet, exact, ions

TOLERANCES = (1e-2, 5e-4, 1e-5, 1e-6, 1e-8)


TRUE_COST = fmm_openmm.evaluation.CPU_COST


@pytest.fixture(autouse=True)
def far_field(monkeypatch):
    """Pairs cost a lot, so that small systems have a far field too."""
    monkeypatch.setattr(fmm_openmm.evaluation, "CPU_COST", replace(TRUE_COST, pair=1e-7))


def solver_for(system, **options):
    return CoulombSolver(
        system[1], None, system[2], boundary="open", **{"backend": "cpu", **options}
    )


# The promise


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_promise(name, tolerance):
    system, expected = exact(name)
    result = solver_for(system, tolerance=tolerance).compute(system[0])
    assert relative(result.forces, expected.forces) <= tolerance
    assert abs(result.energy - expected.energy) <= tolerance * abs(expected.energy)
    assert np.linalg.norm(result.forces.sum(0)) <= tolerance * np.linalg.norm(result.forces)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_the_error_is_not_wastefully_small(tolerance):
    """There is a far field: the promise is not kept by a direct sum."""
    system, expected = exact("droplet")
    solver = solver_for(system, tolerance=tolerance, positions=system[0])
    planned = solver.parameters.expected_error
    error = relative(solver.compute(system[0]).forces, expected.forces)
    assert error >= planned / 20 >= tolerance / 400
    assert np.diag(solver.parameters.counts).min() > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["charged droplet", "clusters"])
def test_reference(name):
    """The readable backend gives what the fast one gives."""
    system, expected = exact(name)
    options = {
        "tolerance": 1e-4,
        "precision": "double",
        "order": 6,
        "near_radius": 2.34,
        "smoothing": 0.05,
    }
    fast, obvious = (
        solver_for(system, backend=b, **options).compute(system[0]) for b in ("cpu", "reference")
    )
    assert relative(obvious.forces, expected.forces) <= 1e-2
    assert relative(fast.forces, obvious.forces) <= 1e-11
    assert relative(fast.potentials, obvious.potentials) <= 1e-11


@pytest.mark.slow
def test_reference_keeps_the_promise():
    system, expected = exact("charged droplet")
    assert (
        relative(solver_for(system, backend="reference").compute(system[0]).forces, expected.forces)
        <= 5e-4
    )


@pytest.mark.slow
def test_tight_tolerances_give_potentials_and_fields():
    system, expected = exact("charged droplet")
    result = solver_for(system, tolerance=1e-9).compute(system[0])
    assert relative(result.potentials, expected.potentials) <= 1e-9
    assert relative(result.fields, expected.fields) <= 1e-8
    np.testing.assert_allclose(result.forces, system[1][:, None] * result.fields)


@pytest.mark.slow
def test_two_clusters_far_apart(monkeypatch):
    monkeypatch.setattr(fmm_openmm.evaluation, "CPU_COST", TRUE_COST)
    x, q, pairs = droplet(300)
    x = np.concatenate([x, x + np.array([1000.0, 3.0, 500.0])])
    system = x, np.tile(q, 2), np.concatenate([pairs, pairs + len(q)])
    expected = direct_sum(*system)
    for tolerance in (1e-2, 5e-4, 1e-6):
        solver = solver_for(system, tolerance=tolerance)
        assert relative(solver.compute(x).forces, expected.forces) <= tolerance
        assert np.diag(solver.parameters.counts).prod() <= MAX_BOXES


@pytest.mark.slow
def test_wide_boxes_do_not_drown_single_precision(monkeypatch):
    """In boxes of 1000 nm float32 does not resolve a dense cluster."""
    monkeypatch.setattr(fmm_openmm.evaluation, "CPU_COST", TRUE_COST)
    rng = np.random.default_rng(8)
    system = (
        rng.random((1000, 3)) + np.repeat([[0.0] * 3, [1000.0, 3.0, 500.0]], 500, axis=0),
        rng.normal(size=1000),
        NONE,
    )
    assert (
        relative(solver_for(system).compute(system[0]).forces, direct_sum(*system).forces) <= 5e-4
    )
    with pytest.warns(
        UserWarning, match=r"^`tolerance=2e-05` is out of reach in single precision for particles"
    ):
        solver_for(system, tolerance=2e-5, precision="single").compute(system[0])


@pytest.mark.slow
@pytest.mark.parametrize("net", [0.0, 20.0, 200.0, 2000.0])
def test_net_charges_do_not_drown_single_precision(net):
    """The potential of a net charge is far larger than the fields that remain of it: "auto" sees
    it and takes double."""
    x, q, pairs = system = droplet(900, net)
    solver = solver_for(system, tolerance=1e-5, near_radius=3.08, smoothing=0.025)
    assert relative(solver.compute(x).forces, direct_sum(*system).forces) <= 1e-5
    if net != 20.0:
        assert solver.parameters.precision == ("double" if net else "single")
    later = solver_for(
        (x, droplet(900)[1], pairs), tolerance=1e-5, near_radius=3.08, smoothing=0.025
    )
    later.compute(x)
    later.set_charges(q)
    assert relative(later.compute(x).forces, direct_sum(*system).forces) <= 1e-5


# The operator


@pytest.mark.parametrize(
    "span, radius", [((5, 3, 4), 1.87), ((1, 7, 2), 2.34), ((2, 2, 1), 1.0), ((4, 4, 9), 3.24)]
)
def test_operator(span, radius):
    """Transformed back, it is the irregular harmonics at every displacement of two boxes, and 0
    at the near ones."""
    lattice, top = PaddedLattice(np.array(span), radius), 4
    operator = lattice_operator(lattice, top // 2)
    l = degrees(top)[:, None, None, None]
    transform = np.array([1, 1, -1, -1])[l % 4] * np.where(l % 2, 1j, 1) * operator
    found = scipy.fft.irfftn(transform, lattice.fft_shape, axes=(1, 2, 3)).reshape(
        len(operator), -1
    )
    offsets = np.array(list(product(*[range(1 - n, n) for n in span])), float)
    slots = lattice.slot(offsets.astype(int))
    assert len(np.unique(slots)) == len(offsets)  # the circular convolution is the plain one
    near = lattice.is_near(offsets)
    r = np.where(near, 1.0, np.linalg.norm(offsets, axis=1))
    expected = (
        regular(offsets, top) * irregular_norm(top)[:, None] / r ** (2 * degrees(top)[:, None] + 1)
    )
    np.testing.assert_allclose(
        found[:, slots], np.where(near, 0.0, expected), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("n", range(1, 12))
@pytest.mark.parametrize("radius", [1.0, 2.34, 5.15])
def test_no_box_is_near_through_the_boundary(n, radius):
    lattice = PaddedLattice(np.array([n, 1, 1]), radius)
    length = lattice.counts[0, 0]
    for i, j in product(range(n), repeat=2):
        found = [
            near
            for near in lattice.near[(lattice.near[:, 1:] == 0).all(1), 0]
            if (i + near - j) % length == 0
        ]
        assert found == ([j - i] if lattice.is_near(np.array([j - i, 0, 0])) else [])


# Few particles, and special ones


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("distance", [1e-3, 0.3, 500.0])
def test_two_charges(distance, backend):
    x = np.array([[7.0, 7.0, 7.0], [7.0, 7.0 + distance, 7.0]])
    result = CoulombSolver(
        [1.0, 1.0], None, boundary="open", precision="double", backend=backend
    ).compute(x)
    assert result.energy == pytest.approx(COULOMB_CONSTANT / distance, rel=1e-10)
    force = COULOMB_CONSTANT / distance**2
    np.testing.assert_allclose(
        result.forces, [[0, -force, 0], [0, force, 0]], rtol=1e-9, atol=1e-9 * force
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_one_charge(backend):
    result = CoulombSolver([3.0], None, boundary="open", backend=backend).compute([[1.0, 2.0, 3.0]])
    assert result.energy == 0.0
    assert not result.forces.any()
    assert not result.potentials.any()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_coincident_particles(backend):
    x, q, _ = ions(64)
    x[1] = x[0]
    result = CoulombSolver(
        q, None, [(0, 1)], boundary="open", tolerance=1e-8, backend=backend
    ).compute(x)
    assert relative(result.forces, direct_sum(x, q, [(0, 1)]).forces) <= 1e-8
    with pytest.raises(
        ValueError, match="`positions`: particles 0 and 1 coincide and are not excluded"
    ):
        CoulombSolver(q, None, boundary="open", backend=backend).compute(x)
    both = CoulombSolver([1.0, 1.0], None, [(0, 1)], boundary="open", backend=backend).compute(
        np.ones((2, 3))
    )
    assert both.energy == 0.0


@pytest.mark.slow
def test_exclusions_at_any_distance():
    x, q, _ = exact("ions")[0]
    pairs = np.random.default_rng(7).permutation(len(q)).reshape(-1, 2)
    for periodic in (False, True):  # there is one image
        result = solver_for((x, q, pairs), tolerance=1e-6, exclusions_periodic=periodic).compute(x)
        assert relative(result.forces, direct_sum(x, q, pairs).forces) <= 1e-6


# Symmetry and motion


@pytest.mark.slow
def test_rotation_and_translation():
    system, expected = exact("charged droplet")
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    solver = solver_for(system, tolerance=1e-5)
    result = solver.compute(system[0] @ turn.T + [100.0, -20.0, 3.0])
    assert relative(result.forces @ turn, expected.forces) <= 1e-5
    assert result.energy == pytest.approx(expected.energy, rel=1e-5)


def test_forces_are_the_gradient_of_the_energy():
    (x, q, pairs), _ = exact("charged droplet")
    solver = solver_for((x, q, pairs), precision="double", tolerance=1e-2)
    forces = solver.compute(x).forces
    direction = np.random.default_rng(2).normal(size=x.shape)
    step = 1e-5
    slope = (
        solver.compute(x + step * direction).energy - solver.compute(x - step * direction).energy
    ) / (2 * step)
    assert len(solver.evaluation.used) == 1
    assert slope == pytest.approx(-(forces * direction).sum(), rel=1e-6)


@pytest.mark.slow
def test_boxes_follow_the_particles(monkeypatch):
    """Vibrations and drift keep the stages, at any place; growth and collapse make new ones; the
    two last are kept."""
    (x, q, pairs), expected = exact("droplet")
    solver = solver_for((x, q, pairs))
    made = []
    make = solver.evaluation.evaluator_class
    monkeypatch.setattr(
        solver.evaluation, "evaluator_class", lambda *args: made.append(args) or make(*args)
    )
    rng = np.random.default_rng(4)
    for step in range(20):
        moved = x + step * np.array([0.2, 0.0, -0.1])
        assert relative(solver.compute(moved).forces, expected.forces) <= 5e-4
        solver.compute(moved + rng.normal(0.0, 0.01, x.shape))
    assert len(made) == 1
    for escape in (1.0, 3.0, 30.0, 1.0, 3.0):
        moved = x.copy()
        moved[:3] += [escape, 0.0, 0.0]
        assert relative(solver.compute(moved).forces, direct_sum(moved, q, pairs).forces) <= 5e-4
    assert len(made) <= 6
    assert len(solver.evaluation.used) == 2
    wide, narrow = 20 * x, x
    solver.compute(wide)
    count = len(made)
    for _ in range(3):
        assert relative(solver.compute(narrow).forces, expected.forces) <= 5e-4
        solver.compute(wide)
    assert len(made) <= count + 1


@pytest.mark.slow
def test_smooth_motion_out_of_the_boxes():
    """When the boxes change, energy and forces jump by no more than the tolerance."""
    (x, q, pairs), _ = exact("charged droplet")
    solver = solver_for((x, q, pairs), tolerance=1e-4)
    for distance in np.linspace(0.0, 2.0, 9):
        moved = x.copy()
        moved[-3:] += [0.0, distance, 0.0]
        result, expected = solver.compute(moved), direct_sum(moved, q, pairs)
        assert relative(result.forces, expected.forces) <= 1e-4
        assert result.energy == pytest.approx(expected.energy, rel=1e-4)


@pytest.mark.slow
def test_charges_may_change(backend):
    (x, q, pairs), expected = exact("charged droplet")
    solver = CoulombSolver(0 * q, None, pairs, boundary="open", positions=x, backend=backend)
    assert not solver.compute(x).forces.any()
    solver.set_charges(q)
    assert relative(solver.compute(x).forces, expected.forces) <= 5e-4


# Parameters and refusals


@pytest.mark.slow
def test_parameters():
    (x, q, pairs), _ = exact("droplet")
    solver = solver_for((x, q, pairs), order=4, near_radius=2.64, smoothing=0.1, precision="double")
    with pytest.raises(
        ValueError,
        match="`parameters` are chosen for positions: give `positions`, or call `compute` first",
    ):
        _ = solver.parameters
    solver.compute(x)
    p = solver.parameters
    assert (p.order, p.near_radius, p.smoothing, p.precision, p.levels) == (
        4,
        2.64,
        0.1,
        "double",
        0,
    )
    solver = solver_for((x, q, pairs), positions=x)
    chosen = solver.parameters
    assert chosen.expected_error <= 5e-4
    solver.compute(x + 0.01)
    errors = {"expected_error": 0.0, "expected_largest_error": 0.0}  # now of the forces found
    assert replace(solver.parameters, **errors) == replace(chosen, **errors)
    assert solver.backend == "cpu"
    assert not (p.counts - np.diag(np.diag(p.counts))).any()


def test_sparse_systems_get_few_boxes():
    x = np.random.default_rng(0).normal(size=(3000, 3)) ** 5
    solver = CoulombSolver(np.ones(3000), None, boundary="open", positions=x, backend="cpu")
    assert np.diag(solver.parameters.counts).prod() <= MAX_BOXES


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"box_vectors": np.eye(3)},
            ValueError,
            r"`box_vectors` must be None with `boundary='open'`",
        ),
        (
            {"grid": (4, 4, 4)},
            ValueError,
            r"`grid` must be None with `boundary='open'`, where it is chosen for .*\(4, 4, 4\)",
        ),
        (
            {"positions": np.zeros((3, 3))},
            ValueError,
            r"`positions` must have shape \(n, 3\) with n = 2",
        ),
    ],
    ids=str,
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        CoulombSolver([1.0, -1.0], **{"box_vectors": None, "boundary": "open", **options})


def test_box_vectors_are_refused_later():
    solver = CoulombSolver([1.0, -1.0], None, boundary="open")
    with pytest.raises(ValueError, match=r"`box_vectors` must be None with `boundary='open'`"):
        solver.compute(np.eye(3)[:2], np.eye(3))


def test_precision_single_is_refused_where_it_cannot_do():
    solver = CoulombSolver(
        [1.0, -1.0], None, boundary="open", tolerance=5e-6, precision="single", smoothing=0.05
    )
    with pytest.raises(
        ValueError, match=r"`tolerance` must be at least .* ask for `precision='double'`"
    ):
        solver.compute(np.eye(3)[:2])
