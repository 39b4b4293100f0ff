"""Energies among groups on the CPU: equal to separate evaluations, whichever groups are computed
fragment by fragment and whichever by convolution, and to an Ewald sum."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.backends.cpu import groups
from fmm_openmm.openmp import at_most_threads
from fmm_openmm.oracle import ewald_sum
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.ewald import exact

EXCLUDED = [(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)]
FIXED = {"order": 6, "near_radius": 1.8, "smoothing": 0.05, "backend": "cpu"}
GROUP = np.maximum(0, np.arange(60) // 3 - 11)
"""Nine groups of 60 particles, of which the first has 36."""

pytestmark = pytest.mark.filterwarnings("ignore:`tolerance")


def system(net=0.5, n=60):
    """Charges of which some excluded partners are near and others are cells away."""
    x, q = random_charges(n, SKEWED, net=net)
    x[1], x[2] = x[0] + [0.1, 0.0, 0.0], x[0] + [0.0, 0.08, 0.05]
    return x, q


def separately(solver, x, q, group):
    """The matrix from sets of charges, one of each group."""
    sets = np.where(group == np.arange(1 + group.max())[:, None], q, 0.0)
    return solver.compute(x, charges=sets, fields=False).matrix / 2


@pytest.fixture(params=["fragments", "convolutions", "both"])
def way(request, monkeypatch):
    if request.param == "both":
        monkeypatch.setattr(
            groups, "choose_small", lambda fragments, _: np.bincount(fragments.owner) < 30
        )
    else:
        cost = 1e9 if request.param == "fragments" else 0.0
        monkeypatch.setattr(groups, "CONVOLUTION", cost)
    return request.param


@pytest.mark.parametrize("boundary", ["periodic", "slab", "ac", "wire", "open"])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_equal_to_separate_evaluations(boundary, precision, way):
    x, q = system(net=0.5 if boundary in ("periodic", "open") else 0.0)
    box = None if boundary == "open" else SKEWED
    solver = CoulombSolver(q, box, EXCLUDED, boundary=boundary, precision=precision, **FIXED)
    expected = separately(solver, x, q, GROUP)
    found = solver.interaction_energies(x, GROUP)
    assert relative(found, expected) < (1e-13 if precision == "double" else 2e-6)
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize(
    "options",
    [
        {"exclusions_periodic": True},
        {"smoothing": 0.0},
        {"levels": 1, "grid": (2, 2, 2), "smoothing": 0.0},
        {"levels": 1, "grid": (2, 2, 2), "smoothing": 0.0, "precision": "single"},
    ],
    ids=str,
)
def test_with_other_options(options, way):
    x, q = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, **FIXED | {"precision": "double"} | options)
    expected = separately(solver, x, q, GROUP)
    small = 2e-6 if "single" in options.values() else 1e-13
    assert relative(solver.interaction_energies(x, GROUP), expected) < small


@pytest.mark.parametrize("boundary", ["periodic", "open"])
def test_few_fragments_at_a_time(boundary, way, monkeypatch):
    """Boxes without particles come alone, too."""
    x, q = system()
    box = None if boundary == "open" else SKEWED
    solver = CoulombSolver(q, box, EXCLUDED, boundary=boundary, precision="double", **FIXED)
    together = solver.interaction_energies(x, GROUP)
    monkeypatch.setattr(groups, "MAX_ENTRIES", 1)
    assert relative(solver.interaction_energies(x, GROUP), together) < 1e-14


def test_many_particles_of_a_group_in_a_box(way):
    """More than are summed in the working precision, and more fragments than boxes at a time."""
    x, q = system(n=1500)
    options = FIXED | {"grid": (4, 4, 4), "precision": "double"}
    solver = CoulombSolver(q, SKEWED, EXCLUDED, **options)
    group = np.maximum(0, np.arange(1500) - 1300)
    found = solver.interaction_energies(x, group)
    assert relative(found[[0, 77]], separately(solver, x, q, group)[[0, 77]]) < 1e-13


def test_one_group_and_groups_without_charge(way):
    x, q = system()
    q[GROUP == 4] = 0.0
    solver = CoulombSolver(q, SKEWED, EXCLUDED, precision="double", **FIXED)
    energy = solver.compute(x).energy
    assert solver.interaction_energies(x, np.zeros(60, int))[0, 0] == pytest.approx(
        energy, rel=1e-12
    )
    matrix = solver.interaction_energies(x, GROUP)
    assert not matrix[4].any() and not matrix[:, 4].any()
    assert matrix.sum() == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("tolerance", [5e-4, 1e-6])
def test_against_the_oracle(tolerance):
    """Five molecules of water that are close to each other, 300 around them, and the rest; the
    error is relative to the energies of a group with all."""
    d, _ = exact("water")
    molecules = len(d.charges) // 3
    oxygens = d.positions[::3]
    nearest = np.argsort(np.linalg.norm(oxygens - oxygens[7], axis=1))
    number = np.full(molecules, 301)
    number[nearest[:5]] = 0
    number[nearest[5:305]] = np.arange(1, 301)
    group = np.repeat(number, 3)
    solver = CoulombSolver(d.charges, d.box_vectors, d.exclusions, tolerance, backend="cpu")
    matrix = solver.interaction_energies(d.positions, group)
    for each in (0, 1, 250, 301):
        charges = np.where(group == each, d.charges, 0.0)
        phi = ewald_sum(d.positions, charges, d.box_vectors, d.exclusions).potentials
        expected = 0.5 * np.bincount(group, d.charges * phi)
        assert relative(matrix[each], expected) < tolerance


def test_small_groups_are_chosen_by_cost():
    """Residues, and not the water around them."""
    x = np.random.default_rng(2).random((4000, 3)) * 4.0
    q = np.resize([1.0, -1.0], 4000)
    nearest = np.argsort(np.linalg.norm(x - 2.0, axis=1))
    group = np.full(4000, 20)
    group[nearest[:300]] = np.arange(300) // 15
    solver = CoulombSolver(q, 4.0 * np.eye(3), **FIXED)
    chosen = []
    choose = groups.choose_small
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "choose_small", lambda *a: chosen.append(choose(*a)) or chosen[-1])
        solver.interaction_energies(x, group)
    assert np.array_equal(chosen[0], np.arange(21) < 20)


def test_results_do_not_depend_on_threads(way):
    x, q = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, **FIXED)
    matrix = solver.interaction_energies(x, GROUP)
    with at_most_threads(1):
        assert np.array_equal(solver.interaction_energies(x, GROUP), matrix)


@pytest.mark.parametrize("precision", ["double", "single"])
def test_coincident_charges(precision):
    x, q = system()
    x[20] = x[30]
    options = FIXED | {"precision": precision}
    excluded = CoulombSolver(q, SKEWED, [*EXCLUDED, (20, 30)], **options)
    assert np.isfinite(excluded.interaction_energies(x, GROUP)).all()
    uncharged = CoulombSolver(np.where(np.arange(60) == 20, 0.0, q), SKEWED, EXCLUDED, **options)
    assert np.isfinite(uncharged.interaction_energies(x, GROUP)).all()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, **options)
    solver.compute(system()[0])  # so that the charges are not evaluated by themselves
    with pytest.raises(ValueError, match="particles 20 and 30 coincide and are not excluded"):
        solver.interaction_energies(x, GROUP)
