"""The CUDA pipeline on the host, through ``tests/emulator``: every stage against the reference
backend. Needs no GPU."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fmm_openmm.backends.cuda.abi import Sums
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.groups import build_groups
from fmm_openmm.backends.cuda.pipeline.points import SOURCES, build_points
from fmm_openmm.backends.cuda.pipeline.sets import SORTING, SUMMING, build_sets
from fmm_openmm.backends.cuda.program import (
    SETUP,
    At,
    Buffer,
    Device,
    Interface,
    Kernel,
    Launch,
    Phase,
    Program,
    Share,
)
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.boundary import EMPTY_SPACE, Boundary
from fmm_openmm.box import BoxLattice, Frame, PaddedLattice, box_width, counts_matrix
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.driver import evaluate
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.integration.native.placement import Placement
from fmm_openmm.neutralization import Cylinders, Sheets
from fmm_openmm.specification import Specification
from fmm_openmm.stages import RepeatedEvaluation
from fmm_openmm.units import COULOMB_CONSTANT
from tests import emulator
from tests.compiler import COMPILER
from tests.emulator import DEVICE, NOTICES_READS, EmulatedStages, Emulator
from tests.support.openmm_arrays import between_openmm
from tests.support.strains import deformation

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

CELLS = {
    "cube": (np.eye(3) * 3.0, (6, 6, 6)),
    "skewed": (
        np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]]),
        [[6, 0, 0], [1, 5, 0], [-2, 2, 5]],
    ),
    "cuboid": (np.diag([3.0, 2, 1]), (9, 6, 3)),
    "one box": (np.diag([3.0, 1, 1]), (1, 1, 1)),
}
SPANS = {"open": (5, 4, 6), "open, one box": (1, 1, 1)}


def charges_in(low, high, n=150, seed=3):
    rng = np.random.default_rng(seed)
    pairs = np.sort(rng.integers(0, n, (n, 2)), 1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return rng.uniform(low, high, (n, 3)), rng.normal(size=n), pairs


def check(
    lattice,
    width,
    positions,
    charges,
    pairs,
    order,
    smoothing,
    minimum_image,
    dtype,
    folder,
    device=DEVICE,
    **levels,
):
    wanted = Specification(
        lattice, order, smoothing, charges, pairs, minimum_image, dtype, **levels
    )
    expected = evaluate(ReferenceStages(replace(wanted, m2l="p4")), positions, width)
    found = EmulatedStages(wanted, folder, device=device).evaluate(positions, width)
    accuracy = 1e-12 if dtype == np.float64 else 2e-5
    for a, b in zip(found, expected, strict=True):
        assert np.linalg.norm(a - b) <= accuracy * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("cell", "dtype", "order", "smoothing", "minimum_image"),
    [
        ("cube", np.float32, 5, 0.0, False),
        ("cube", np.float64, 4, 0.1, True),
        ("skewed", np.float64, 4, 0.0, True),
        ("skewed", np.float32, 3, 0.1, False),
        ("cuboid", np.float64, 6, 0.0, False),
        ("one box", np.float64, 3, 0.1, False),
    ],
)
def test_agrees_with_the_reference_backend(cell, dtype, order, smoothing, minimum_image, folder):
    vectors, grid = CELLS[cell]
    counts = counts_matrix(grid)
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
    check(lattice, width, *charges_in(-2, 3), order, smoothing, minimum_image, dtype, folder)


def charges_of(cell):
    """Boxes, their width, and charges in them, in a cell or in free space."""
    if cell in CELLS:
        vectors, counts = CELLS[cell][0], counts_matrix(CELLS[cell][1])
        lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
        return lattice, width, charges_in(-2, 3)
    lattice = PaddedLattice(np.array(SPANS[cell]), 2.0)
    return lattice, 1.0, charges_in(0.15, lattice.span - 0.35)


@pytest.mark.parametrize(
    ("cell", "dtype", "order", "smoothing", "minimum_image", "sets", "wanted"),
    [
        ("cube", np.float32, 5, 0.0, False, 3, "potentials"),
        ("cube", np.float64, 4, 0.1, True, 2, "fields"),
        ("skewed", np.float64, 4, 0.1, True, 8, "potentials"),
        ("skewed", np.float32, 3, 0.1, False, 8, "fields"),
        ("one box", np.float64, 3, 0.0, False, 5, "fields"),
        ("open", np.float64, 4, 0.1, False, 6, "fields"),
        ("cube", np.float32, 5, 0.0, False, 3, "matrix"),
        ("skewed", np.float64, 4, 0.1, True, 8, "matrix"),
        ("cuboid", np.float64, 3, 0.0, False, 1, "matrix"),
        ("one box", np.float64, 3, 0.0, True, 5, "matrix"),
        ("open", np.float64, 4, 0.1, False, 6, "matrix"),
    ],
)
def test_sets_of_charges_agree_with_single_ones(
    cell, dtype, order, smoothing, minimum_image, sets, wanted, folder
):
    """Against the reference backend, one set after the other; the parts are sorted once."""
    lattice, width, (x, q, pairs) = charges_of(cell)
    charges = np.random.default_rng(5).normal(size=(sets, len(q)))
    charges[0, 10:] = 0.0
    specification = Specification(lattice, order, smoothing, q, pairs, minimum_image, dtype)
    alone = RepeatedEvaluation(ReferenceStages(specification), x, width)
    emulator = Emulator(build_sets(specification, DEVICE, sets, wanted), folder)
    emulator.buffers["parameters"][...] = parameter_block(lattice, width)
    emulator.buffers["positions"][...] = x
    emulator.run([SETUP])
    emulator.run(SORTING)
    small = 1e-12 if dtype == np.float64 else 2e-5
    for each in (charges, charges[::-1]):
        emulator.buffers["sets"][...] = each.T
        emulator.run((*SUMMING, "gather"))
        potentials, vectors = alone.evaluate(each, True)
        scale = COULOMB_CONSTANT / width
        if wanted == "matrix":
            found, matrix = emulator.buffers["matrix"] / scale, alone.matrix(each, np.inf)
            assert np.linalg.norm(found - matrix) <= small * np.linalg.norm(matrix)
            assert np.array_equal(found, found.T)
            continue
        found = emulator.buffers["potentials"] / scale
        assert np.linalg.norm(found - potentials) <= small * np.linalg.norm(potentials)
        if wanted == "fields":
            found = emulator.buffers["fields"] / (scale / width)
            assert np.linalg.norm(found - vectors) <= small * np.linalg.norm(vectors)


@pytest.mark.parametrize(
    ("cell", "dtype", "order", "smoothing", "minimum_image", "shared"),
    [
        ("cube", np.float32, 5, 0.0, False, DEVICE.shared),
        ("cube", np.float64, 4, 0.1, True, DEVICE.shared),
        ("skewed", np.float64, 6, 0.1, True, 32_000),  # matrices in two shares
        ("skewed", np.float32, 3, 0.1, False, DEVICE.shared),
        ("cuboid", np.float64, 6, 0.0, False, DEVICE.shared),
        ("one box", np.float64, 3, 0.1, False, DEVICE.shared),
        ("open", np.float64, 4, 0.1, False, DEVICE.shared),
    ],
)
def test_energies_among_groups(cell, dtype, order, smoothing, minimum_image, shared, folder):
    """Against sets of charges of the reference backend, one after the other; with groups that are
    in one place and one that is everywhere."""
    lattice, width, (x, q, pairs) = charges_of(cell)
    group = np.maximum(0, np.argsort(np.argsort(x[:, 0])) // 10 - 3)
    q[3], x[4] = 0.0, x[3]
    wanted = Specification(lattice, order, smoothing, q, pairs, minimum_image, dtype)
    alone = RepeatedEvaluation(ReferenceStages(wanted), x, width)
    expected = alone.among_groups(q, group, np.inf)
    device = replace(DEVICE, shared=shared)
    emulator = Emulator(build_groups(wanted, device, 1 + group.max()), folder)
    buffers = emulator.buffers
    buffers["parameters"][...] = parameter_block(lattice, width)
    buffers["positions"][...], buffers["group"][...], buffers["limit"][...] = x, group, 1e6
    largest = np.abs(q).max()
    buffers["charges"][...] = q / largest
    emulator.run([SETUP])
    emulator.run()
    found = buffers["energies"] + buffers["energies"].T
    found *= largest**2 / (COULOMB_CONSTANT / width)
    small = 1e-12 if dtype == np.float64 else 2e-5
    assert np.linalg.norm(found - expected) <= small * np.linalg.norm(expected)
    buffers["limit"][...] = 2.0
    emulator.run()
    assert 0 < np.isnan(buffers["energies"]).sum() < buffers["energies"].size


def test_small_groups_beside_large_ones(folder, monkeypatch):
    """Which groups take sets of charges, and where their energies go: with NumPy's arrays."""
    groups = pytest.importorskip("fmm_openmm.backends.cuda.groups")
    vectors, counts = CELLS["skewed"][0], counts_matrix(CELLS["skewed"][1])
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
    x, q, pairs = charges_in(-2, 3)
    slices = np.argsort(np.argsort(x[:, 0])) // 5
    group = np.array([4, 9, *np.setdiff1d(np.arange(10), (4, 9))])[np.maximum(0, slices - 10) // 2]
    wanted = Specification(lattice, 3, 0.0, q, pairs, False, np.float64)
    alone = RepeatedEvaluation(ReferenceStages(wanted), x, width)

    class Array(np.ndarray):
        def set(self, values):
            self[...] = values

    class EmulatedRun(Emulator):
        def __init__(self, program):
            super().__init__(program, folder)
            self.buffers["parameters"] = self.buffers["parameters"].view(Array)

        queue, replay = lambda self, *stages: self.run(stages), Emulator.run

    def energies_of_groups(charges, number, begin, members, count, limit):
        sets = np.where(number == np.arange(count)[:, None], charges, 0.0)
        energies = (charges * alone.evaluate(sets, False)[0])[:, members]
        return COULOMB_CONSTANT / width / 2 * np.add.reduceat(energies, begin[:-1], axis=1)

    particles = SimpleNamespace(
        parameters=parameter_block(lattice, width), lattice=lattice, positions=x,
        energies_of_groups=energies_of_groups,
    )  # fmt: skip
    for name, value in (("cupy", np), ("Run", EmulatedRun), ("current_device", lambda: DEVICE)):
        monkeypatch.setattr(groups, name, value)
    for large in ([4], [1, 4, 9], range(10), []):
        small = ~np.isin(np.arange(10), large)
        monkeypatch.setattr(groups, "choose_small", lambda *_, small=small: small.copy())
        found = groups.GroupsRun(wanted, group).energies(particles, q, np.inf)
        expected = COULOMB_CONSTANT / width / 2 * alone.among_groups(q, group, np.inf)
        assert np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected)


def test_groups_are_small_where_that_costs_less():
    groups = pytest.importorskip("fmm_openmm.backends.cuda.groups")
    lattice = BoxLattice(np.diag((12, 12, 12)), np.eye(3), 2.0)
    wanted = Specification(lattice, 9, 0.0, np.ones(30_000), np.zeros((0, 2), int), False)
    for sizes, small in (
        ([15] * 299 + [25_515], [True] * 299 + [False]),
        ([20, 29_980], [False, False]),
        ([15] * 20 + [3000] * 9 + [2700], [True] * 20 + [False] * 10),
        ([3] * 10_000, [True] * 10_000),
    ):
        assert groups.choose_small(np.array(sizes), wanted).tolist() == small


@pytest.mark.parametrize(
    ("cell", "dtype", "smoothing", "virial"),
    [
        ("cube", np.float32, 0.0, False),
        ("skewed", np.float64, 0.1, True),
        ("one box", np.float64, 0.0, False),
    ],
)
def test_points(cell, dtype, smoothing, virial, folder):
    """Two programs, of which the second takes buffers of the first, which may compute the virial
    too."""
    vectors, counts = CELLS[cell][0], counts_matrix(CELLS[cell][1])
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
    x, q, pairs = charges_in(-2, 3)
    q[10:20] = 0.0
    points = np.random.default_rng(2).uniform(-2, 3, (200, 3))
    points[3] = x[15]
    wanted = Specification(lattice, 4, smoothing, q, pairs, False, dtype)
    expected = ReferenceStages(wanted).evaluate_at(x, points, width)
    stages = EmulatedStages(wanted, folder, with_virial=virial)
    if virial:
        stages.buffers["operator_derivatives"][...] = 0.0  # of which points take nothing
    stages.evaluate(x, width)
    emulator = Emulator(build_points(wanted, DEVICE, len(points)), folder)
    for name, source in SOURCES.items():
        emulator.buffers[name][...] = stages.buffers[source]
    emulator.buffers["parameters"][...] = parameter_block(lattice, width)
    emulator.buffers["positions"][...] = points
    emulator.run([SETUP])
    emulator.run()
    scale, small = COULOMB_CONSTANT / width, 1e-12 if dtype == np.float64 else 2e-5
    for name, unit, each in zip(("potentials", "fields"), (1, width), expected, strict=True):
        found = emulator.buffers[name] / (scale / unit)
        assert np.linalg.norm(found - each) <= small * np.linalg.norm(each)


@pytest.mark.parametrize(("cell", "levels"), [("cuboid", 0), ("skewed", 0), ("skewed", 1)])
def test_a_strained_cell_and_back(cell, levels, folder):
    """The program of another cell computes both cells. The setup's tables are kept, so that a
    return needs no setup."""
    vectors, grid = CELLS[cell]
    counts = counts_matrix([[6, 0, 0], [2, 4, 0], [-2, 2, 6]] if levels else grid)
    lattice, width = BoxLattice.from_cell(vectors, counts, 1.87), box_width(vectors, counts)
    positions, charges, pairs = charges_in(-2, 3)
    stages = EmulatedStages(
        Specification(lattice, 3, 0.0, charges, pairs, False, levels=levels), folder
    )
    before = stages.evaluate(positions, width)
    shaped = {name: stages.buffers[name].copy() for name in stages.emulator.program.shaped}
    change = deformation(
        np.diag([1.0, -1, 1])
        if cell == "cuboid"
        else np.array([[1.0, 0, 0], [1, -1, 0], [-1, 1, 1]])
    )
    stages.lattice = lattice.strained(vectors @ change)
    expected = evaluate(
        ReferenceStages(
            Specification(stages.lattice, 3, 0.0, charges, pairs, False, levels=levels)
        ),
        positions @ change,
        width,
    )
    for a, b in zip(stages.evaluate(positions @ change, width), expected, strict=True):
        assert np.linalg.norm(a - b) <= 1e-12 * np.linalg.norm(b)
    for name, content in shaped.items():
        assert (stages.buffers[name] != content).any()
        stages.buffers[name][...] = content
    stages.lattice = lattice
    for a, b in zip(stages.evaluate(positions, width, set_up=False), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["cuboid", "skewed"])
def test_with_little_shared_memory(cell, folder):
    """Grids are transformed plane by plane and column by column, as large ones are; the operator
    is read where it lies."""
    vectors, grid = CELLS[cell]
    counts = counts_matrix(grid)
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
    check(
        lattice,
        width,
        *charges_in(-2, 3),
        1,
        0.0,
        False,
        np.float64,
        folder,
        device=Device(4, 2048),
    )


@pytest.mark.parametrize(
    ("cell", "root", "levels", "m2l", "dtype", "smoothing"),
    [
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 1, "rotation", np.float32, 0.1),
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 1, "p4", np.float64, 0.1),
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 1, "p4_dynamic", np.float64, 0.1),
        ("cuboid", (2, 2, 1), 1, "p4_symmetric", np.float32, 0.0),
        ("cuboid", (2, 2, 1), 1, "p4_parity", np.float64, 0.0),
        ("cube", (1, 1, 1), 2, "rotation", np.float64, 0.1),
        ("open", (1, 1, 2), 2, "rotation", np.float32, 0.1),
        ("nearly empty", (2, 2, 1), 1, "rotation", np.float64, 0.0),
    ],
)
def test_levels(cell, root, levels, m2l, dtype, smoothing, folder):
    """The net charge makes the trace term count."""
    if cell in ("open", "nearly empty"):
        vectors = EMPTY_SPACE if cell == "open" else np.diag([12.0, 13.0, 11.0])
        span = np.array(root) << levels
        lattice, width = PaddedLattice(span, 1.87, levels=levels, cell=vectors), 1.0
        positions, charges, pairs = charges_in(0.15, lattice.span - 0.35)
    else:
        vectors, counts = CELLS[cell][0], counts_matrix(root) << levels
        lattice, width = BoxLattice.from_cell(vectors, counts, 1.87), box_width(vectors, counts)
        positions, charges, pairs = charges_in(-2, 3)
    check(
        lattice,
        width,
        positions,
        charges + 0.2,
        pairs,
        3,
        smoothing,
        False,
        dtype,
        folder,
        levels=levels,
        m2l=m2l,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "smoothing"), [(np.float64, 0.1), (np.float32, 0.0)])
@pytest.mark.parametrize("span", SPANS)
def test_agrees_in_empty_space(span, dtype, smoothing, folder):
    lattice = PaddedLattice(np.array(SPANS[span]), 1.87)
    system = charges_in(0.15, np.array(SPANS[span]) - 0.35)
    check(lattice, 1.0, *system, 4, smoothing, False, dtype, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "smoothing"), [(np.float64, 0.1), (np.float32, 0.0)])
@pytest.mark.parametrize("cell", ["cuboid", "skewed"])
def test_agrees_in_a_cell_that_is_nearly_empty(cell, dtype, smoothing, folder):
    """The background counts, and in the skewed cell more than an octant of wave vectors."""
    vectors = CELLS[cell][0] * [12.0 / CELLS[cell][0][0, 0], 15.0, 12.0]
    lattice = PaddedLattice(np.array([4, 5, 3]), 1.87, cell=vectors)
    positions, charges, pairs = charges_in(0.15, lattice.span - 0.35)
    check(lattice, 1.0, positions, charges + 0.3, pairs, 4, smoothing, False, dtype, folder)


@pytest.mark.parametrize(
    ("padded", "levels", "boxes"),
    [
        ((False, False, True), 0, np.eye(3)),
        ((False, False, True), 1, np.array([[1.1, 0, 0], [-0.2, 0.95, 0], [0, 0, 1 / 1.045]])),
        ((False, True, True), 0, np.eye(3)),
        ((False, True, True), 1, np.diag([0.9, 1.0, 1 / 0.9])),
    ],
)
def test_padded_along_some_axes(padded, levels, boxes, folder):
    """Slabs and wires: boxes repeat along the other axes, in every stage."""
    span, counts = np.array([6, 4, 8]), np.diag([6, 4, 8])
    counts[1, 0] = 2 if boxes[1, 0] else 0
    vectors = counts @ boxes
    cell = np.where(np.array(padded)[:, None], EMPTY_SPACE, vectors)
    lattice = PaddedLattice(counts, 1.87, levels=levels, cell=cell, padded=padded, boxes=boxes)
    positions, charges, pairs = charges_in(0.15, span - 0.35)
    images = np.random.default_rng(5).integers(-2, 3, (len(positions), 3)) * ~np.array(padded)
    system = positions @ boxes + images @ vectors, charges, pairs
    check(lattice, 1.0, *system, 3, 0.1, False, np.float64, folder, levels=levels)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_crowd_in_one_box(dtype, folder):
    """More particles than a list, a batch or a window holds."""
    positions, charges, pairs = charges_in(0, 3, n=700)
    sites = np.stack(np.unravel_index(np.arange(650), (9, 9, 9)), -1)
    positions[50:] = 0.2 + 0.025 * sites + 0.002 * positions[50:]
    counts = counts_matrix((4, 4, 4))
    lattice, width = (
        BoxLattice.from_cell(np.eye(3) * 3.0, counts, 1.87),
        box_width(np.eye(3) * 3.0, counts),
    )
    check(lattice, width, positions, charges, pairs, 3, 0.0, False, dtype, folder)


@pytest.mark.parametrize(
    ("precision", "smoothing", "accuracy"),
    [("single", 0.1, 2e-5), ("mixed", 0.1, 2e-5), ("mixed", 0.0, 2e-5), ("double", 0.1, 1e-9)],
)
def test_between_the_arrays_of_openmm(precision, smoothing, accuracy, folder):
    """Atoms in another order, coordinates in two parts; forces are added in fixed point, even
    the largest. Where they are all that is wanted, they are the same, and potentials and sums stay
    as they were."""
    positions, charges, pairs = charges_in(-2, 3)
    vectors, grid = CELLS["cube"]
    counts = counts_matrix(grid)
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
    arguments = lattice, 4, smoothing, charges, pairs, False
    exact, fields = evaluate(ReferenceStages(Specification(*arguments)), positions, width)
    expected = COULOMB_CONSTANT / width**2 * charges[:, None] * fields
    strengths = np.linalg.norm(fields, axis=1)

    dtype = np.float64 if precision == "double" else np.float32
    stages = EmulatedStages(Specification(*arguments, dtype), folder, Interface(precision, 160))
    arrays, index = stages.buffers, between_openmm(stages, positions)
    arrays["force_buffer"][:, : len(index)] = 2**32
    stages.run(width)
    found = forces_in_openmm(stages, index) - 1.0
    assert np.linalg.norm(found - expected) <= accuracy * np.linalg.norm(expected)
    assert not arrays["force_buffer"][:, len(index) :].any()
    sums = Sums.from_buffer(arrays["sums"])
    assert sums.energy == pytest.approx((charges @ arrays["potentials"]) / 2, rel=1e-5)
    for found_sum, values, power in (
        (sums.squares, strengths, 2), (sums.cubes, strengths, 3), (sums.potentials, exact, 2),
    ):  # fmt: skip
        assert found_sum == pytest.approx(charges**2 @ values**power, rel=power * accuracy)
    for name in ("sums", "potentials"):
        arrays[name][...] = 7.0
    arrays["potentials_wanted"][...], arrays["force_buffer"][...] = 0, 0
    stages.run(width)
    np.testing.assert_allclose(forces_in_openmm(stages, index), found, rtol=0.0, atol=1e-9)
    assert (arrays["sums"] == 7.0).all()
    assert (arrays["potentials"] == 7.0).all()
    arrays["potentials_wanted"][...] = 1
    arrays["charges"][...] *= 1e7
    arrays["force_buffer"][...] = 0
    stages.run(width)
    largest = forces_in_openmm(stages, index)
    overflow = np.abs(largest) > 2.0**30  # for OpenMM's minimiser
    assert overflow.mean() > 0.9
    stages.run(width)
    # the sum of two still is one, though it wraps; of smaller forces it does not
    twice = forces_in_openmm(stages, index)
    assert (np.abs(twice[overflow]) > 2.0**30).all()
    assert (np.sign(twice) == np.sign(largest))[~overflow].all()


def test_the_sums_of_several_blocks(folder):
    """Those of NumPy over the potentials and fields that the same stages have outside of OpenMM;
    every block adds to them, the last one with a single atom. An evaluation whose ticket is back
    at zero finds them again."""
    rng, width, n = np.random.default_rng(6), 0.7, 3 * 256 + 1
    lattice = BoxLattice(np.diag((4, 4, 4)), np.eye(3), 1.87)
    positions, charges = 4 * width * rng.random((n, 3)), rng.normal(size=n)
    none = np.zeros((0, 2), np.int64)
    wanted = Specification(lattice, 3, 0.0, charges, none, False, np.float32)
    outside = EmulatedStages(wanted, folder)
    potentials, fields = outside.evaluate(positions, width)
    exact = force_sums(charges, fields, potentials)
    np.testing.assert_allclose(outside.buffers["force_sums"], exact, rtol=1e-6)
    inside = EmulatedStages(wanted, folder, Interface("mixed", 800))
    between_openmm(inside, positions)
    for _ in range(2):
        inside.buffers["sums"][...] = np.nan
        inside.run(width)
        sums = Sums.from_buffer(inside.buffers["sums"])
        energy = COULOMB_CONSTANT / width * (charges @ potentials) / 2
        assert sums.energy == pytest.approx(energy, rel=1e-4)
        found = sums.squares, sums.cubes, sums.potentials
        np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("cell", "dtype", "smoothing", "levels", "cut"),
    [
        ("cube", np.float32, 0.1, 0, 101),
        ("skewed", np.float64, 0.0, 0, 64),
        ("skewed", np.float64, 0.1, 1, 7),
        ("open", np.float64, 0.1, 0, 50),
    ],
)
def test_shares_add_up(cell, dtype, smoothing, levels, cut, folder):
    """Forces, potentials and energy of two shares, and of two others that the same program takes
    without being made anew. Neither reads what only the other computes. The far field is divided
    too, or computed in one of them."""
    if cell == "open":
        lattice, width = PaddedLattice(np.array(SPANS[cell]), 2.0), 1.0
        positions, charges, pairs = charges_in(0.15, lattice.span - 0.35)
    else:
        vectors, grid = CELLS[cell]
        counts = counts_matrix([[6, 0, 0], [2, 4, 0], [-2, 2, 6]] if levels else grid)
        lattice, width = BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)
        positions, charges, pairs = charges_in(-2, 3)
    boxes = int(lattice.span.prod())
    wanted = Specification(
        lattice, 4, smoothing, charges, pairs, cell == "skewed" and not levels, dtype, levels
    )
    interface, small = Interface("mixed", 160), 1e-13 if dtype == np.float64 else 1e-6

    def results(stages, share=None):
        index = between_openmm(stages, positions)
        if "outside" in stages.buffers:
            stages.buffers["outside"][...] = 0
        if share:
            stages.buffers["share"][...] = np.reshape(share, (2, 2))
        has_far = share is None or share[2] < share[3]
        stages.run(width, without=() if has_far else (Phase.FAR,))
        sums = Sums.from_buffer(stages.buffers["sums"])
        forces, potentials = forces_in_openmm(stages, index), stages.buffers["potentials"]
        return forces, potentials.astype(float), np.array(sums.energy), np.array(sums.squares)

    whole = results(EmulatedStages(wanted, folder, interface))
    for first_end in (cut, boxes - cut):
        shares = []
        far_end = first_end if first_end == cut else 0
        for share in ((0, first_end, 0, far_end), (first_end, boxes, far_end, boxes)):
            stages = EmulatedStages(wanted, folder, interface, share=Share(0, 1, boxes))
            shares.append(results(stages, share))
        for all_of_it, *parts in zip(whole[:3], *(each[:3] for each in shares), strict=True):
            assert all(np.linalg.norm(part) > 0 for part in parts)
            rounding = 2.0**-32 * all_of_it.size**0.5  # of forces in fixed point
            assert (
                np.linalg.norm(sum(parts) - all_of_it)
                <= small * np.linalg.norm(all_of_it) + rounding
            )
        in_both = (shares[0][1] != 0) & (shares[1][1] != 0)
        assert in_both.any() == (smoothing > 0 or far_end == 0)
        if dtype is np.float32:  # without the particles of which neither computes all
            near = (boxes - first_end) / boxes if far_end == 0 else 1.0
            assert 0.5 * near * whole[3] < shares[0][3] + shares[1][3] < whole[3]
            assert (shares[0][3] > 0) == (far_end > 0)


def test_a_share_has_no_virial():
    wanted = Specification(
        BoxLattice(np.diag((4, 4, 4)), np.eye(3), 1.87), 3, 0.0, np.ones(2), np.zeros((0, 2), int),
        False,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="not for a share"):
        build(wanted, DEVICE, with_virial=True, share=Share(0, 32, 64))


def forces_in_openmm(stages, index) -> np.ndarray:
    """Forces added to OpenMM's, shape (n, 3)."""
    forces = np.empty((len(index), 3))
    forces[index] = stages.buffers["force_buffer"][:, : len(index)].T / 2**32
    return forces


PARTIAL = {
    "slab": (np.array([[3.6, 0.0, 0.0], [0.0, 4.5, 0.0], [0.7, -0.4, 5.2]]), (4, 5, 3)),
    "ac": (np.array([[3.6, 0.0, 0.0], [1.1, 5.3, 0.0], [0.0, 2.7, 3.6]]), (4, 5, 3)),
    "wire": (np.array([[9.0, 0.0, 0.0], [1.3, 11.0, 0.0], [1.2, -2.4, 2.4]]), (4, 5, 3)),
}
"""Box vectors, nm, for boxes of 0.9 nm, and the number of these."""


def partial_in_openmm(name, folder, precision, term=None):
    """Charges, positions, the cell and stages, between OpenMM's arrays, of a slab or wire of which
    any particle may be in any image; what computes forces at positions, and whether a particle is
    reported."""
    width, (box, span) = 0.9, PARTIAL[name]
    boundary, span = Boundary.from_name(name), np.array(span)
    frame = Frame.from_cell(boundary.cell(box))
    padded = tuple((~np.isfinite(np.diag(frame.cell))).tolist())
    lattice = PaddedLattice(span, 1.87, cell=frame.cell / width, padded=padded)
    origin = np.array(padded) * [0.0, -333.2, 1000.7]
    within, charges, pairs = charges_in(0.15, span - 0.35)
    charges -= charges.mean()
    dtype = np.float32 if precision == "mixed" else np.float64
    wanted = Specification(lattice, 4, 0.1, charges, pairs, False, dtype)
    interface = Interface(precision, 160, turned=not frame.is_users)
    in_frame = term.turned(frame.axes) if isinstance(term, Cylinders) else term
    stages = EmulatedStages(wanted, folder, interface, term=in_frame)
    in_boxes = width * within + origin
    outside = EmulatedStages(wanted, folder)
    potentials, fields = outside.evaluate(in_boxes, width, origin)
    positions = in_boxes @ frame.axes.T
    stages.buffers["placement"][...] = Placement(boundary, box, positions).packed(frame.axes)
    queued = {step.stage for step in stages.emulator.program.steps} - {SETUP, "gather"}

    def compute(given):
        images = np.random.default_rng(4).integers(-2, 3, (len(given), 3)) * boundary.free
        stages.buffers["outside"][...], stages.buffers["force_buffer"][...] = 0, 0
        index = between_openmm(stages, given + images @ box)
        stages.buffers["parameters"][...] = parameter_block(lattice, width, origin)
        stages.emulator.run([SETUP])
        stages.emulator.run(queued)
        return forces_in_openmm(stages, index), stages.buffers["outside"][0]

    forces = COULOMB_CONSTANT / width**2 * charges[:, None] * fields @ frame.axes.T
    exact = COULOMB_CONSTANT / width * potentials, forces
    return charges, positions, boundary.cell(box), exact, stages, compute


@pytest.mark.parametrize("name", PARTIAL)
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_what_openmm_has_wrapped(name, precision, folder):
    """Every atom of a slab or wire in any image along the box vectors without images; one that
    comes near the middle of the vacuum is reported, and one that has left the boxes."""
    _, positions, cell, (_, expected), stages, compute = partial_in_openmm(name, folder, precision)
    found, reported = compute(positions)
    accuracy = {"mixed": 2e-5, "double": 1e-9}[precision]
    assert np.linalg.norm(found - expected) <= accuracy * np.linalg.norm(expected)
    assert reported == 0
    free = int(np.flatnonzero(~np.isfinite(np.diag(cell)))[-1])
    middle, farthest, normals = stages.buffers["placement"][:15].reshape(5, 3)[[0, 1, 2 + free]]
    away = np.abs(positions @ normals - middle[free])
    kept = farthest[free]
    stages.buffers["placement"][3 + free] = away.max() - 1e-4
    assert compute(positions)[1] == 1  # in its box
    stages.buffers["placement"][3 + free] = kept
    positions[7] += (
        0.45 * normals / (normals @ normals) * np.sign(positions[7] @ normals - middle[free])
    )
    assert compute(positions)[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "precision", "minimum_image"),
    [
        ("free space", "mixed", False),
        ("cuboid", None, True),
        ("skewed", "double", False),
        ("skewed", None, False),
    ],
)
def test_boxes_elsewhere(cell, precision, minimum_image, folder):
    """Boxes that cover the particles only, far from the origin; molecules in any image, or each
    atom if exclusions mean the nearest one. Inside OpenMM and not;
    a particle without a box is reported."""
    dtype = np.float32 if precision == "mixed" else np.float64
    span, origin, width, order, n = (
        np.array([4, 5, 3]),
        np.array([900.1, -870.3, 1000.7]),
        0.9,
        4,
        150,
    )
    vectors = (
        None if cell == "free space" else CELLS[cell][0] * [12.0 / CELLS[cell][0][0, 0], 15.0, 12.0]
    )
    lattice = (
        PaddedLattice(span, 1.87) if vectors is None else PaddedLattice(span, 1.87, cell=vectors)
    )
    positions, charges, _ = charges_in(0.15, span - 0.35)
    pairs = np.arange(n).reshape(-1, 3)[:, [[0, 1], [1, 2]]].reshape(-1, 2)
    arguments = lattice, order, 0.1, charges, pairs, minimum_image
    _, fields = evaluate(ReferenceStages(Specification(*arguments)), width * positions, width)
    expected = COULOMB_CONSTANT / width**2 * charges[:, None] * fields

    interface = precision and Interface(precision, 160)
    stages = EmulatedStages(Specification(*arguments, dtype), folder, interface)
    images = np.random.default_rng(4).integers(-2, 3, (n, 3))
    if not minimum_image:
        images = images[np.arange(n) // 3]
    given = width * (positions if vectors is None else positions + images @ vectors) + origin

    def forces(given):
        if not interface:
            stages.buffers["positions"][...] = given
            stages.run(width, origin)
            return stages.buffers["forces"], stages.buffers["count"][-1]
        stages.buffers["outside"][...] = 0
        index = between_openmm(stages, given)
        stages.run(width, origin)
        return forces_in_openmm(stages, index), stages.buffers["outside"][0]

    found, outside = forces(given)
    assert np.linalg.norm(found - expected) <= {"mixed": 2e-5}.get(
        precision, 1e-9
    ) * np.linalg.norm(expected)
    assert outside == 0
    given[7] += [0.0, width * span[1], 0.0]
    found, outside = forces(given)
    assert outside == 1
    # not numbers: what OpenMM's minimiser takes for an overflow
    assert not (np.abs(found[7]) <= 2.0**30).any()


# the emulator itself


def emulated(body, folder, monkeypatch, threads=64):
    """Results of a kernel with this body in ``out``, (threads,) integers."""
    text = f'extern "C" __global__ void kernel(int* out) {{ {body} }}'
    monkeypatch.setattr(emulator, "source_of", lambda file, macros: text)
    launch = Launch("stage", 0, "kernel", (1, 1, 1), threads, (At("out"),))
    program = Program(
        {}, {"kernel": Kernel("kernel")}, {"out": Buffer((threads,), np.dtype(np.int32))}, [launch]
    )
    machine = emulator.Emulator(program, folder)
    machine.run()
    return machine.buffers["out"]


def test_threads_meet_at_barriers_and_in_warps(folder, monkeypatch):
    body = """
        __shared__ int shared[64];
        int sum = threadIdx.x;
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < 32) atomicAdd(&shared[32], 1);
        __syncthreads();
        out[threadIdx.x] = shared[63 - threadIdx.x];
    """
    found = emulated(body, folder, monkeypatch)
    low, high = sum(range(32)), sum(range(32, 64))
    expected = np.repeat([high, low], 32)
    expected[31] += 32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("out[threadIdx.x + 1] = 7;", "kernel wrote beyond out"),
        ("if (threadIdx.x == 3) __syncwarp(0xffu);", "wait for each other for ever"),
        ("if (threadIdx.x == 3) __syncwarp(1u);", "not in its own mask"),
        (
            "if (threadIdx.x < 32) __syncthreads(); else __syncwarp(1u << 31);",
            "not in its own mask",
        ),
    ],
)
def test_faults_are_noticed(body, fault, folder, monkeypatch):
    with pytest.raises(AssertionError, match=fault):
        emulated(body, folder, monkeypatch)


@pytest.mark.skipif(not NOTICES_READS, reason="needs g++")
@pytest.mark.parametrize(
    "body",
    [
        "out[threadIdx.x] += 1;",
        "out[threadIdx.x] = atomicExch(out + 1, 7);",
        "extern __shared__ int memory[]; out[threadIdx.x] = memory[threadIdx.x];",
        "__shared__ int memory[64]; memory[0] = 7; out[threadIdx.x] = memory[threadIdx.x];",
    ],
)
def test_reads_of_what_was_never_written_are_noticed(body, folder, monkeypatch):
    with pytest.raises(AssertionError, match="kernel: a thread reads what was never written"):
        emulated(body, folder, monkeypatch)


@pytest.mark.parametrize(
    ("term", "net", "precision"),
    [
        (DipoleTerm(surface_dielectric=3.0), 0.0, "mixed"),
        (DipoleTerm(slab_correction=True), 2.5, "double"),
        (DipoleTerm(slab_correction=True), 0.0, "mixed"),
        (Sheets(np.array([-1.5, 0.2, 6.0])), -3.0, "double"),
        (Sheets(np.array([1.0])), 1.0, "mixed"),
    ],
    ids=str,
)
def test_a_term_in_openmm(term, net, precision, folder):
    """That of the host, of the images of the particles that OpenMM has not wrapped, once per
    evaluation; of two shares the first one adds it."""
    dtype, accuracy = (np.float64, 1e-9) if precision == "double" else (np.float32, 2e-5)
    width, is_dipole = 0.7, isinstance(term, DipoleTerm)
    if is_dipole:
        cell, positions = CELLS["skewed"][0], charges_in(-2, 3)[0]
        lattice = BoxLattice.from_cell(cell, counts_matrix(CELLS["skewed"][1]), 2.0)
        width = box_width(cell, counts_matrix(CELLS["skewed"][1]))
    else:
        lattice = PaddedLattice(
            np.array([4, 5, 3]), 1.87, cell=np.diag([4.0, 5.0, np.inf]), padded=(False, False, True)
        )
        cell, positions = np.diag([4.0, 5.0, 9.0]) * width, charges_in(0.15, 2.65)[0] * width
    charges, none = charges_in(0, 1)[1], np.zeros((0, 2), np.int64)
    charges += net / len(charges) - charges.mean()
    expected = term.at(positions, cell)
    energy, potentials, fields = expected.evaluate(charges)
    images = np.random.default_rng(2).integers(-3, 4, (len(charges), 3)) * [1, 1, is_dipole]
    wanted = Specification(lattice, 3, 0.0, charges, none, False, dtype)

    def results(**options):
        stages = EmulatedStages(wanted, folder, Interface(precision, 160), **options)
        index = between_openmm(stages, positions + images @ cell)
        if is_dipole and "cell_offsets" in stages.buffers:
            stages.buffers["cell_offsets"][...] = np.pad(images[index], ((0, 0), (0, 1)))
        if not is_dipole:
            stages.buffers["outside"][...] = 0
            place = Placement(Boundary.from_name("slab"), cell, positions)
            stages.buffers["placement"][...] = place.packed(np.eye(3))
        queued = {step.stage for step in stages.emulator.program.steps}
        stages.buffers["parameters"][...] = parameter_block(lattice, width)
        stages.emulator.run([SETUP])
        found = []
        for end, wants_potentials in (("gather", 1), ("export", 1), ("export", 0)):
            stages.buffers["potentials_wanted"][...] = wants_potentials
            stages.buffers["force_buffer"][...] = 0
            stages.emulator.run(queued - {SETUP, "gather", "export"} | {end})
            sums = Sums.from_buffer(stages.buffers["sums"])
            of_particles = stages.buffers["potentials"].astype(float)
            found.append((forces_in_openmm(stages, index), of_particles, np.array(sums.energy)))
        assert not found[0][0].any()
        for k in (1, 2):
            np.testing.assert_allclose(found[k][0], found[2][0], rtol=1e-12, atol=1e-9)
            assert np.array_equal(found[k][1], found[0][1])
            assert found[k][2] == found[0][2]
        return found[1]

    without, with_term = results(), results(term=term)
    exact = charges[:, None] * fields, potentials, energy
    for plain, more, added in zip(without, with_term, exact, strict=True):
        scale = max(np.linalg.norm(plain), np.linalg.norm(added))
        assert np.linalg.norm(added) > 1e-3 * scale
        assert np.linalg.norm(more - plain - added) <= accuracy * scale
    boxes = int(lattice.span.prod())
    shares = [
        results(term=term, share=Share(*share, boxes)) for share in ((0, 9), (9, boxes), (0, 0))
    ]
    for parts, together in zip(zip(*shares, strict=True), with_term, strict=True):
        assert np.linalg.norm(sum(parts) - together) <= accuracy * np.linalg.norm(together)


@pytest.mark.parametrize("radius", [0.0, 0.7])
def test_cylinders_in_openmm(radius, folder):
    """Around a wire in another direction than that of its boxes."""
    charges, positions, cell, _, plain, compute_plain = partial_in_openmm("wire", folder, "double")
    points = positions.mean(0) + np.array([[0.3, -0.2, 0.2], [2.5, 1.5, 1.0]])
    term = Cylinders(points, np.array([radius, 0.4]), Boundary.from_name("wire"))
    *_, stages, compute = partial_in_openmm("wire", folder, "double", term)
    charges += 2.0 / len(charges)
    energy, potentials, fields = term.at(positions, cell).evaluate(charges)
    for each in plain, stages:
        each.buffers["charges"][...] = charges
    without, with_term = compute_plain(positions)[0], compute(positions)[0]
    for more, less, added in (
        (with_term, without, charges[:, None] * fields),
        (stages.buffers["potentials"], plain.buffers["potentials"], potentials),
        (stages.buffers["sums"][:1], plain.buffers["sums"][:1], energy),
    ):
        assert np.linalg.norm(added) > 1e-3 * np.linalg.norm(less)
        assert np.linalg.norm(more - less - added) <= 1e-9 * np.linalg.norm(less)
