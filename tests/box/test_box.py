"""Box vectors and the box lattice: exact integer properties, checked on random cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmm import Vec3, unit

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import (
    BoxLattice,
    box_width,
    check_box_vectors,
    choose_counts,
    counts_matrix,
    deformation,
    near_stencil,
    row_cycle,
)
from fmm_openmm.box.group import compact_cycles, smith_normal_form
from fmm_openmm.planning.search import DEFORMATION_LIMIT
from tests.support.cells import DODECAHEDRON, OCTAHEDRON

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def counts_matrices(draw, largest=9):
    counts = np.diag(draw(st.lists(st.integers(1, largest), min_size=3, max_size=3)))
    counts[1, 0], counts[2, 0], counts[2, 1] = (
        draw(st.integers(-largest, largest)) for _ in range(3)
    )
    return counts


@st.composite
def reduced_cells(draw):
    a, b, c = (draw(st.floats(0.7, 2.0)) for _ in range(3))
    tilts = [draw(st.floats(-0.5, 0.5)) for _ in range(3)]
    return np.array([[a, 0, 0], [tilts[0] * a, b, 0], [tilts[1] * a, tilts[2] * b, c]])


def lattice_of(counts, radius=2.5):
    """A lattice of exactly cubic boxes."""
    return BoxLattice.from_cell(counts.astype(float), counts, radius)


def indices(seed, n=200, reach=40):
    return np.random.default_rng(seed).integers(-reach, reach, (n, 3))


@SETTINGS
@given(counts_matrices(largest=40))
def test_smith_normal_form(counts):
    """The determinants of the integer matrices U and V multiply to +-1, so each is +-1:
    both are unimodular."""
    u, v, d = smith_normal_form(counts)
    exact = u.astype(object) @ counts.astype(object) @ v.astype(object)
    np.testing.assert_array_equal(exact, np.diag(d))
    assert d.min() > 0 and d.prod() == np.diag(counts).prod()


@SETTINGS
@given(st.lists(st.integers(1, 60), min_size=3, max_size=3), st.integers(0, 1000))
def test_compact_cycles_are_the_same_group(d, seed):
    """No two elements of the group fall together, and the map stays linear."""
    x = np.stack(np.unravel_index(np.random.default_rng(seed).permutation(np.prod(d))[:5000], d), 1)
    v, lengths = compact_cycles(np.eye(3, dtype=np.int64), np.array(d))
    y = np.mod(x @ v, lengths)
    assert lengths.prod() == np.prod(d)
    assert len(np.unique(y, axis=0)) == len(x)
    np.testing.assert_array_equal(
        np.mod((x[1:] + x[:-1]) % d @ v, lengths), np.mod(y[1:] + y[:-1], lengths)
    )
    assert (np.diff(lengths) >= 0).all()


@pytest.mark.parametrize(
    ("d", "lengths"),
    [
        ((1, 1, 504), (7, 8, 9)),
        ((1, 2, 504), (8, 9, 14)),
        ((1, 8, 64), (1, 8, 64)),
        ((2, 2, 6048), (14, 32, 54)),
        ((1, 1, 1), (1, 1, 1)),
        ((1, 1, 101), (1, 1, 101)),
        ((4, 6, 10), (4, 6, 10)),
    ],
)
def test_compact_cycles(d, lengths):
    assert tuple(compact_cycles(np.eye(3, dtype=np.int64), np.array(d))[1]) == lengths


@SETTINGS
@given(counts_matrices())
def test_neighbours_along_the_first_axis_are_neighbours_in_memory(counts):
    """Wherever the cycle that rows are splits off: tried out on all integers there are."""
    length = counts[0, 0]
    y, z = np.meshgrid(np.arange(length), np.arange(length))
    v = np.stack([np.ones(length**2, np.int64), y.ravel(), z.ravel()])
    splits_off = not (counts @ v % length).any(0).all()
    found = row_cycle(counts)
    assert (found is not None) == splits_off
    if splits_off:
        assert found[0] == 1 and not (counts @ found % length).any()
        rows = lattice_of(counts).slots.reshape(-1, length)
        np.testing.assert_array_equal(np.mod(np.diff(rows, axis=1) - 1, length), 0)
        assert not np.diff(rows // length, axis=1).any()


@pytest.mark.parametrize(
    ("counts", "lengths"),
    [
        # a grid
        ([[6, 0, 0], [0, 5, 0], [0, 0, 4]], (4, 5, 6)),
        # rows and columns split off
        ([[40, 0, 0], [0, 40, 0], [20, 20, 30]], (30, 40, 40)),
        # rows do, columns are of another length
        ([[42, 0, 0], [0, 42, 0], [21, 21, 54]], (27, 84, 42)),
        # nothing does
        ([[54, 0, 0], [18, 54, 0], [-18, 27, 45]], (18, 81, 90)),
    ],
)
def test_cycles(counts, lengths):
    assert lattice_of(np.array(counts)).fft_shape == lengths


@SETTINGS
@given(counts_matrices())
def test_every_box_has_one_slot_and_one_number(counts):
    lattice = lattice_of(counts)
    every = np.arange(lattice.size)
    np.testing.assert_array_equal(np.sort(lattice.slots), every)
    n0, n1, n2 = np.diag(counts)
    z, y, x = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(n2), np.arange(n1), np.arange(n0), indexing="ij")
    )
    np.testing.assert_array_equal(lattice.linear(np.stack([x, y, z], -1)), every)
    assert np.prod(lattice.fft_shape) == lattice.size


@SETTINGS
@given(counts_matrices(), st.integers(0, 1000))
def test_cell_translations_change_nothing(counts, seed):
    lattice = lattice_of(counts)
    i, m = indices(seed), indices(seed + 1, reach=1000)
    home = lattice.home(i)
    assert (home >= 0).all() and (home < np.diag(counts)).all()
    translations = (i - home) @ np.linalg.inv(counts)
    np.testing.assert_allclose(translations, np.rint(translations), atol=1e-9)
    for label in (lattice.home, lattice.linear, lattice.slot):
        np.testing.assert_array_equal(label(i + m @ counts), label(i))
    np.testing.assert_array_equal(lattice.slots[lattice.linear(i)], lattice.slot(i))


@pytest.mark.parametrize(
    "counts",
    [[[217, 0, 0], [32, 346, 0], [-12, -79, 342]], [[143, 0, 0], [25, 376, 0], [-22, 121, 146]]],
)
def test_cell_translations_where_integers_grow_long(counts):
    """64 bits do not hold the matrix of the normal form, or its products with
    the cycles' lengths."""
    counts = np.array(counts)
    v, lengths = lattice_of(counts).cycles
    assert not (counts @ v % lengths).any()
    assert lengths.prod() == np.diag(counts).prod()


@SETTINGS
@given(counts_matrices(), st.integers(0, 1000))
def test_displacements_add_in_the_fft_array(counts, seed):
    """Hence a sum over all boxes and images is a circular convolution."""
    lattice = lattice_of(counts)
    i, j = indices(seed), indices(seed + 1)
    at = np.array(
        np.unravel_index([lattice.slot(i), lattice.slot(j), lattice.slot(i + j)], lattice.fft_shape)
    )
    np.testing.assert_array_equal(
        (at[:, 0] + at[:, 1]) % np.array(lattice.fft_shape)[:, None], at[:, 2]
    )


@pytest.mark.parametrize(
    "radius, boxes", [(1.0, 27), (1.75, 27), (2.3, 57), (2.5, 81), (2.9, 93), (3.5, 179)]
)
def test_near_stencil_of_cubes(radius, boxes):
    """The numbers of the design's accuracy table; 27 touching boxes at least."""
    assert len(near_stencil(np.eye(3), radius)) == boxes


@SETTINGS
@given(reduced_cells(), st.floats(1.0, 4.0))
def test_near_stencil(cell, radius):
    boxes = cell / np.cbrt(np.linalg.det(cell))
    near = near_stencil(boxes, radius)
    z, y, x = (axis.ravel() for axis in np.meshgrid(*3 * [np.arange(-12, 13)], indexing="ij"))
    offsets = np.stack([x, y, z], -1)
    wanted = (np.linalg.norm(offsets @ boxes, axis=1) <= radius) | (np.abs(offsets) <= 1).all(1)
    # so sorted, first axis fastest, and each once
    np.testing.assert_array_equal(near, offsets[wanted])
    np.testing.assert_array_equal(near, -near[::-1])
    lattice = BoxLattice(np.eye(3, dtype=np.int64), boxes, radius)
    np.testing.assert_array_equal(lattice.is_near(offsets), wanted)
    np.testing.assert_array_equal(
        lattice.is_near(offsets.reshape(25, 25, 25, 3)), wanted.reshape(25, 25, 25)
    )


@SETTINGS
@given(reduced_cells(), st.floats(4.0, 20.0))
def test_chosen_boxes_are_nearly_cubes(cell, per_edge):
    width = np.diag(cell).min() / per_edge
    counts = choose_counts(cell, width)
    assert not np.triu(counts, 1).any()
    assert deformation(cell, counts) < DEFORMATION_LIMIT
    assert 0.8 < box_width(cell, counts) / width < 1.25
    for n in smith_normal_form(counts)[2].tolist():
        for factor in (2, 3, 5, 7):
            while n % factor == 0:
                n //= factor
        assert n == 1


@pytest.mark.parametrize(
    "cell", [np.diag([234.0, 18, 18]), np.diag([93.5, 93.5, 156]), 460 * DODECAHEDRON], ids=str
)
def test_chosen_boxes_where_smooth_lengths_are_rare(cell):
    """None of the seven integers nearest to 156, 234 or 460 has prime factors up to 7 only."""
    counts = choose_counts(cell, 1.0)
    assert deformation(cell, counts) < 1.01
    assert 0.95 < box_width(cell, counts) < 1.05


@pytest.mark.parametrize("per_edge", [6, 10, 14, 20, 33])
def test_a_dodecahedron_is_made_of_cuboids(per_edge):
    counts = choose_counts(DODECAHEDRON, 1 / per_edge)
    boxes = np.linalg.solve(counts.astype(float), DODECAHEDRON)
    np.testing.assert_allclose(boxes, np.diag(np.diag(boxes)), atol=1e-15)
    assert deformation(DODECAHEDRON, counts) < 1.005


@pytest.mark.parametrize(
    "cell", [np.diag([3.0, 1, 1]), np.diag([50.0, 1, 1]), np.diag([20.0, 20, 0.75])], ids=str
)
@pytest.mark.parametrize("per_edge", [1, 2, 7])
def test_rectangular_cells_get_a_plain_grid(cell, per_edge):
    counts = choose_counts(cell, np.diag(cell).min() / per_edge)
    np.testing.assert_array_equal(counts, np.diag(np.diag(counts)))
    assert deformation(cell, counts) < 1.05


def test_a_width_beyond_the_cell_gives_one_box():
    np.testing.assert_array_equal(choose_counts(np.eye(3), 5.0), np.eye(3))


@pytest.mark.parametrize(
    "cell, worst", [(np.eye(3), 1.0), (np.diag([1.0, 1.0, 2.0]), np.sqrt(6 / 3) / 2 ** (1 / 3))]
)
def test_deformation(cell, worst):
    assert deformation(cell, np.eye(3, dtype=int)) == pytest.approx(worst)


def test_lattice_of_a_cell():
    cell, counts = 2.4 * OCTAHEDRON, choose_counts(OCTAHEDRON, 1 / 12)
    lattice = BoxLattice.from_cell(cell, counts, 2.5)
    np.testing.assert_allclose(counts @ lattice.boxes * box_width(cell, counts), cell, atol=1e-14)
    assert np.linalg.det(lattice.boxes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "cell", [np.eye(3), DODECAHEDRON, OCTAHEDRON], ids=["cube", "dodecahedron", "octahedron"]
)
def test_width_in_a_cell_of_the_same_shape(cell):
    lattice = BoxLattice.from_cell(cell, choose_counts(cell, 1 / 12), 2.5)
    for scale in (1e-3, 0.97, 1.0, np.pi, 1e4):
        assert lattice.width_in(scale * cell) == box_width(scale * cell, lattice.counts)
    for i, j in ((0, 0), (1, 0), (2, 1), (2, 2)):
        other = cell.copy()
        other[i, j] += 1e-6
        assert lattice.width_in(other) is None


@pytest.mark.parametrize(
    "grid", [(4, 5, 6), [4, 5, 6], np.diag([4, 5, 6]), np.diag([4, 5, 6]).astype(np.uint16)]
)
def test_grids(grid):
    counts = counts_matrix(grid)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, np.diag([4, 5, 6]))


@pytest.mark.parametrize(
    "grid, message",
    [
        (8, r"`grid` must be three integers or a 3x3 integer matrix, got 8"),
        (
            [[1, 2], [3]],
            r"`grid` must be three integers or a 3x3 integer matrix, got \[\[1, 2\], \[3\]\]",
        ),
        ((8, 8), r"`grid` must be three integers or a 3x3 integer matrix, got \(8, 8\)"),
        ((8.0, 8, 8), r"`grid` must be three integers or a 3x3 integer matrix, got \(8.0, 8, 8\)"),
        (
            (8, 0, 8),
            r"`grid` must be lower triangular with a diagonal of at least 1, got .*\[0, 0, 0\]",
        ),
        (
            (8, 8, -8),
            r"`grid` must be lower triangular with a diagonal of at least 1, got .*\[0, 0, -8\]",
        ),
        (
            np.ones((3, 3), int),
            r"`grid` must be lower triangular with a diagonal of at least 1, got ",
        ),
    ],
)
def test_bad_grids(grid, message):
    with pytest.raises(ValueError, match=message):
        counts_matrix(grid)


REDUCED = [[3.0, 0.0, 0.0], [1.5, 2.0, 0.0], [-1.5, 1.0, 2.5]]
"""Tilts of exactly 1/2."""


@pytest.mark.parametrize(
    "box_vectors",
    [
        REDUCED,
        np.array(REDUCED),
        REDUCED * unit.nanometer,
        10 * np.array(REDUCED) * unit.angstrom,
        [Vec3(*row) for row in REDUCED] * unit.nanometer,
        [Vec3(*row) * unit.nanometer for row in REDUCED],
        tuple(tuple(10 * length * unit.angstrom for length in row) for row in REDUCED),
    ],
    ids=["list", "array", "quantity", "angstrom", "vec3", "vec3_quantities", "quantities"],
)
def test_box_vectors(box_vectors):
    cell = check_box_vectors(box_vectors)
    assert cell.dtype == np.float64
    np.testing.assert_allclose(cell, REDUCED, rtol=1e-15)


def test_box_vectors_may_carry_the_noise_of_a_file():
    noisy = np.array(REDUCED) + 1e-7 * np.random.default_rng(0).uniform(-1, 1, (3, 3))
    assert not np.triu(check_box_vectors(noisy), 1).any()


@pytest.mark.parametrize(
    "box_vectors, message",
    [
        ([3.0, 3.0, 3.0], r"`box_vectors` must have shape \(3, 3\), got \(3,\)"),
        (None, "`box_vectors` must be an array of real numbers, got None"),
        (
            [[3, 0, 0], [0, 3]],
            r"`box_vectors` must be an array of real numbers, got \[\[3, 0, 0\], \[0, 3\]\]",
        ),
        ("cube", r"`box_vectors` must be an array of real numbers, got 'cube'"),
        (np.diag([3.0, np.nan, 3.0]), r"`box_vectors` must be finite, got .*nan"),
        (np.diag([3.0, 3.0, np.inf]), r"`box_vectors` must be finite, got .*inf"),
        (np.zeros((3, 3)), r"`box_vectors` must span a positive volume, got "),
        (np.diag([3.0, 0.0, 3.0]), r"`box_vectors` must span a positive volume, got "),
        (np.diag([3.0, 3.0, -3.0]), r"`box_vectors` must span a positive volume, got "),
        (
            [[3, 0.1, 0], [0, 3, 0], [0, 0, 3]],
            r"reduced form: the first periodic box vector must be parallel to x",
        ),
        (
            [[3, 0, 0], [0, 3, 0.1], [0, 0, 3]],
            r"must be in reduced form: .* the second in the x-y plane",
        ),
        (
            [[1, 0.5, 0], [0, 1, 0], [0, 0, 1e6]],
            r"reduced form: the first periodic box vector must be parallel to x",
        ),
        (
            [[1, 0, 0], [0.9, 1, 0], [0, 0, 1e6]],
            r"periodic box vectors must be in reduced form, got ",
        ),
        (
            [[3, 0, 0], [1.6, 3, 0], [0, 0, 3]],
            r"periodic box vectors must be in reduced form, got ",
        ),
        (
            [[3, 0, 0], [0, 3, 0], [-1.6, 0, 3]],
            r"periodic box vectors must be in reduced form, got ",
        ),
        (
            [[3, 0, 0], [0, 3, 0], [0, 1.6, 3]],
            r"periodic box vectors must be in reduced form, got ",
        ),
    ],
)
def test_bad_box_vectors(box_vectors, message):
    with pytest.raises(ValueError, match=message):
        check_box_vectors(box_vectors)


@pytest.mark.parametrize(
    ("boundary", "row", "column"), [("slab", 1, 0), ("ac", 2, 0), ("bc", 2, 1)]
)
def test_vectors_of_images_must_be_reduced_by_each_other(boundary, row, column):
    box = np.array([[2.0, 0.0, 0.0], [1.5, 2.0, 0.0], [-1.6, 1.7, 2.0]])
    only = Boundary.from_name(boundary)
    with pytest.raises(ValueError, match="periodic box vectors must be in reduced form"):
        check_box_vectors(box, boundary=only)
    box[row, column] = 0.9
    assert np.array_equal(check_box_vectors(box, boundary=only), box)
    with pytest.raises(ValueError, match="periodic box vectors must be in reduced form"):
        check_box_vectors(box)
