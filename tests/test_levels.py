"""Levels below the root grid: the tree, the accuracy promise,
and agreement with the single level."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import fmm_openmm.evaluation
from fmm_openmm import CoulombSolver
from fmm_openmm.backends.cpu import CpuStages
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice, PaddedLattice, box_width
from fmm_openmm.driver import evaluate
from fmm_openmm.implementations import M2L, names
from fmm_openmm.octree import PARITIES, Octree, children, is_nested, parities
from fmm_openmm.oracle import direct_sum, ewald_sum, partial_ewald_sum
from fmm_openmm.planning.cost import CPU_COST
from fmm_openmm.specification import Specification
from tests.support.cells import DODECAHEDRON, OCTAHEDRON
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.free_space import droplet
from tests.systems import build, charge_arrays

OPERATORS = names(M2L, "cpu")
BACKENDS = {"cpu": CpuStages, "reference": ReferenceStages}
BOXES = {
    "cubes": np.eye(3),
    "cuboids": np.diag([0.95, 1.0, 1.05]),
    "skewed": np.array([[1.0, 0, 0], [0.2, 0.95, 0], [-0.15, 0.25, 1.05]]),
}
ROOTS = {
    "one": np.diag([1, 1, 1]),
    "two": np.diag([2, 2, 2]),
    "triclinic": np.array([[2, 0, 0], [1, 2, 0], [-1, 1, 3]]),
}
SHAPES = {
    "cube": np.eye(3),
    "slab": np.diag([2.0, 2.0, 1.0]),
    "skewed": SKEWED,
    "dodecahedron": DODECAHEDRON,
    "octahedron": OCTAHEDRON,
}
NEEDLES = np.array([[2.55, 0, 0], [-1.275, 0.52, 0], [-1.275, 0, 1.34]])
WATER = (
    "water",
    "peptide_dodecahedron",
    "peptide_octahedron",
    "peptide_charged",
    "brine_triclinic",
    "water_3_1_1",
    "melt",
)


# The tree


@pytest.mark.parametrize("boxes", BOXES)
@pytest.mark.parametrize("root", ROOTS)
def test_every_pair_of_boxes_interacts_once(boxes, root):
    """The constant kernel: leaves get by m2l below the root and from near leaves what their root
    box's near boxes hold."""
    lattice = BoxLattice.from_cell(ROOTS[root] * 4 @ BOXES[boxes], ROOTS[root] * 4, 2.64)
    octree = Octree(lattice, 2)
    held = np.random.default_rng(1).integers(1, 100, lattice.size)

    def index(level):
        n = np.diag(octree.lattices[level].counts)
        return np.stack(np.meshgrid(*[np.arange(k) for k in n], indexing="ij"), -1).reshape(-1, 3)

    sums, total = [held], np.zeros(octree.root.size, int)
    for finer in octree.lattices[:0:-1]:
        sums.insert(0, sum(children(sums[0], finer.counts, parity).ravel() for parity in PARITIES))
    for offset in octree.root.near:
        total[octree.root.linear(index(0))] += sums[0][octree.root.linear(index(0) + offset)]
    for level in (1, 2):
        at, finer = index(level), octree.lattices[level]
        found = np.zeros(finer.size, int)
        for target, parity in zip(at, at % 2, strict=True):
            row = int(np.flatnonzero((PARITIES == parity).all(1))[0])
            found[finer.linear(target)] = sums[level][
                finer.linear(target + octree.interactions[row])
            ].sum()
        if level == 2:
            for offset in finer.near:
                found[finer.linear(at)] += sums[2][finer.linear(at + offset)]
        finest = np.zeros(finer.size, int)
        finest[finer.linear(at)] = total[octree.lattices[level - 1].linear(at // 2)]
        total = finest - found
    np.testing.assert_array_equal(total, 0)


def test_parities_and_centres():
    octree = Octree(BoxLattice(4 * ROOTS["triclinic"], BOXES["skewed"], 2.64), 2)
    found = parities(octree.leaf)
    assert (np.bincount(found) == octree.leaf.size // 8).all()
    centres = octree.from_root
    np.testing.assert_allclose(centres.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(centres[0], -1.5 * BOXES["skewed"].sum(0))
    np.testing.assert_allclose(centres[1] - centres[0], BOXES["skewed"][0])


def test_nested_stencils():
    assert is_nested(BoxLattice(np.eye(3, dtype=int), np.eye(3), 1.0))
    needles = NEEDLES / np.cbrt(np.linalg.det(NEEDLES))
    assert not is_nested(BoxLattice(np.eye(3, dtype=int), needles, 2.64))
    assert is_nested(BoxLattice(np.eye(3, dtype=int), needles, 4.0))


# The stages


def particles(cell, n=150, net=1.5):
    x, q = random_charges(n, cell, net=net)
    return x, q, np.array([(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)])


@cache
def solved(
    backend, boxes, root, levels, order=6, m2l="p4", smoothing=0.1, dtype=np.float64, depth=2
):
    """Potentials and fields with leaves ``2^depth`` times below the root, in ``levels`` levels."""
    counts = ROOTS[root] * 2**depth
    cell = 0.4 * counts @ BOXES[boxes]
    x, q, pairs = particles(cell)
    lattice = BoxLattice.from_cell(cell, counts, 2.64)
    wanted = Specification(lattice, order, smoothing, q, pairs, False, dtype, levels, m2l)
    return evaluate(BACKENDS[backend](wanted), x, box_width(cell, counts))


@pytest.mark.parametrize(
    ("root", "boxes", "smoothing"),
    [
        (root, boxes, (0.0, 0.1)[(i + j) % 2])
        for i, root in enumerate(ROOTS)
        for j, boxes in enumerate(BOXES)
    ],
)
def test_cpu_equals_reference(root, boxes, smoothing):
    """Every pair of a root, boxes and a smoothing, with every operator."""
    expected = solved("reference", boxes, root, 2, 4, "p4", smoothing)
    for m2l in OPERATORS:
        found = solved("cpu", boxes, root, 2, 4, m2l, smoothing)
        assert max(map(relative, found, expected)) < 1e-12


@pytest.mark.parametrize("m2l", OPERATORS)
def test_single_precision(m2l):
    for found, expected in zip(
        solved("cpu", "skewed", "two", 2, m2l=m2l, dtype=np.float32),
        solved("cpu", "skewed", "two", 2, m2l=m2l),
        strict=True,
    ):
        assert relative(found, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("boxes", BOXES)
@pytest.mark.parametrize("root", ROOTS)
def test_levels_equal_one_level_to_truncation(root, boxes):
    """The net charge makes the trace term count. The difference is the truncation error, and falls
    with the order."""
    differences = []
    for order in (3, 6, 9):
        one, *several = [solved("cpu", boxes, root, levels, order) for levels in (0, 1, 2)]
        differences.append(
            [
                relative(found, expected)
                for each in several
                for found, expected in zip(each, one, strict=True)
            ]
        )
    bound = np.array([1e-2, 5e-4, 2e-5])
    assert (np.max(differences, axis=1) < bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_orders_of_both_operators(backend):
    for order in (1, 2, 3, 8) if backend == "reference" else (1, 2, 3, 7, 13):
        a, b = (solved(backend, "skewed", "one", 2, order, m2l) for m2l in OPERATORS)
        assert max(relative(found, expected) for found, expected in zip(a, b, strict=True)) < 1e-12


# The solver


@cache
def with_exact_sum(name):
    d = charge_arrays(build(name))
    return d, ewald_sum(d.positions, d.charges, d.box_vectors, d.exclusions)


@pytest.mark.parametrize("m2l", OPERATORS)
@pytest.mark.parametrize("tolerance", [5e-4, 1e-6])
@pytest.mark.parametrize("name", WATER)
def test_promise(name, tolerance, m2l):
    d, expected = with_exact_sum(name)
    solver = CoulombSolver(
        d.charges, d.box_vectors, d.exclusions, tolerance, levels=1, m2l=m2l, backend="cpu"
    )
    result = solver.compute(d.positions)
    assert solver.parameters.levels == 1 and solver.parameters.m2l == m2l
    assert relative(result.forces, expected.forces) <= tolerance
    assert abs(result.energy - expected.energy) <= tolerance * abs(expected.energy)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 2, 2)])
def test_classical_octree(grid):
    d, expected = with_exact_sum("water")
    levels = 3 if grid[0] == 1 else 2
    solver = CoulombSolver(
        d.charges, d.box_vectors, d.exclusions, 1e-4, grid=grid, levels=levels, backend="cpu"
    )
    assert relative(solver.compute(d.positions).forces, expected.forces) <= 1e-4
    assert solver.parameters.grid == tuple(map(tuple, np.diag(grid).tolist()))
    np.testing.assert_array_equal(solver.parameters.counts, np.diag([8, 8, 8]))
    assert solver.backend == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_cell_shape(shape):
    cell = SHAPES[shape] * 2.0 / np.cbrt(np.linalg.det(SHAPES[shape]))
    x, q, pairs = particles(cell, 300, net=2.0)
    expected = ewald_sum(x, q, cell, pairs)
    for levels in (1, 2):
        result = CoulombSolver(q, cell, pairs, 1e-5, levels=levels, backend="cpu").compute(x)
        assert relative(result.forces, expected.forces) <= 1e-5
        assert relative(result.potentials, expected.potentials) <= 1e-4


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("tolerance", [5e-4, 1e-6])
@pytest.mark.parametrize("net", [0.0, 5.0])
def test_promise_in_empty_space(net, tolerance, levels, monkeypatch):
    # a far field, in small systems too
    monkeypatch.setattr(fmm_openmm.evaluation, "CPU_COST", replace(CPU_COST, pair=1e-7))
    x, q, pairs = droplet(300, net)
    expected = direct_sum(x, q, pairs)
    solver = CoulombSolver(q, None, pairs, tolerance, boundary="open", levels=levels, backend="cpu")
    for moved in (x, x + np.array([0.3, 0.0, -0.2])):
        result = solver.compute(moved)
        assert relative(result.forces, expected.forces) <= tolerance
        assert abs(result.energy - expected.energy) <= tolerance * abs(expected.energy)
    p = solver.parameters
    assert p.levels == levels and (p.counts == np.array(p.grid) * 2**levels).all()


@pytest.mark.slow
def test_boxes_in_empty_space_stay_while_the_particles_do():
    x, q, pairs = droplet(60)
    solver = CoulombSolver(q, None, pairs, boundary="open", levels=3, backend="cpu")
    solver.compute(x)
    before = solver.evaluation.used[0]
    solver.compute(x + 1e-3)
    assert solver.evaluation.used[0] is before


def test_open_lattices_of_all_levels():
    octree = Octree(PaddedLattice(np.array([8, 12, 4]), 2.64, levels=2), 2)
    assert [lattice.span.tolist() for lattice in octree.lattices] == [
        [2, 3, 1],
        [4, 6, 2],
        [8, 12, 4],
    ]
    for above, below in zip(octree.lattices, octree.lattices[1:], strict=False):
        np.testing.assert_array_equal(below.counts, 2 * above.counts)
    assert all(lattice.background == 0.0 for lattice in octree.lattices)


def test_forces_are_the_gradient_of_the_energy():
    x, q, pairs = particles(SKEWED, 60)
    options = {"grid": (1, 1, 1), "levels": 2, "order": 3, "near_radius": 2.64, "smoothing": 0.1}
    solver = CoulombSolver(q, SKEWED, pairs, precision="double", **options)
    forces, h = solver.compute(x).forces, 1e-5
    for i, axis in ((0, 0), (7, 1), (33, 2)):
        step = np.zeros_like(x)
        step[i, axis] = h
        slope = (solver.compute(x + step).energy - solver.compute(x - step).energy) / (2 * h)
        assert slope == pytest.approx(-forces[i, axis], rel=1e-5, abs=1e-4)


@pytest.mark.slow
def test_another_shape_and_charges():
    x, q, pairs = particles(SKEWED, 100)
    solver = CoulombSolver(q, SKEWED, pairs, 1e-5, levels=1, backend="cpu")
    solver.compute(x)
    cell = SKEWED * np.array([1.0, 1.0, 1.03])
    expected = ewald_sum(x, 2 * q, cell, pairs)
    solver.set_charges(2 * q)
    assert relative(solver.compute(x, cell).forces, expected.forces) <= 1e-5


@pytest.mark.parametrize(
    ("edges", "levels", "order"), [((1.9, 1.9, 0.4), 2, None), ((0.13, 0.63, 0.63), 3, 20)]
)
def test_few_charges_in_a_slab(edges, levels, order):
    """Levels need more boxes than charges; boxes so long that there are fewer would diverge."""
    rng = np.random.default_rng(1)
    x, q, cell = rng.random((14, 3)) * edges, np.tile([1.0, -1.0], 7), np.diag(edges)
    exact = partial_ewald_sum(x, q, Boundary.from_name("bc").cell(cell)).forces
    given = {"levels": levels, "order": order, "backend": "cpu"}
    solver = CoulombSolver(q, cell, tolerance=1e-5, boundary="bc", **given)
    assert relative(solver.compute(x).forces, exact) < 1e-5


def test_the_automatic_choice_is_one_level():
    _, q, pairs = particles(SKEWED)
    parameters = CoulombSolver(q, SKEWED, pairs, backend="cpu").parameters
    assert (parameters.levels, parameters.m2l) == (0, None)


def test_stencils_that_are_not_nested_are_refused():
    message = (
        r"^`near_radius` must be larger with `levels` for boxes of this shape, got 2\.64: "
        r"near boxes must have near parents$"
    )
    with pytest.raises(ValueError, match=message):
        CoulombSolver([1.0, -1.0], NEEDLES, grid=(1, 1, 1), near_radius=2.64, levels=1)


def test_a_shape_without_nested_stencils_is_refused():
    cell = [[44.6, 0.0, 0.0], [20.79, 2.09, 0.0], [2.78, -0.5, 16.78]]
    with pytest.raises(
        ValueError,
        match=r"^`levels` must be fewer for boxes of this shape, got 3: near boxes must have near",
    ):
        CoulombSolver([1.0, -1.0], cell, levels=3)
