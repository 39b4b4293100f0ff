"""The lattice operator against plain sums over periodic images, and when it is computed anew."""

import numpy as np
import pytest
import scipy.fft
from scipy.special import gammaincc

from fmm_openmm import CoulombSolver
from fmm_openmm.backends.cpu.operator import harmonic_sums as fast_sums
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular, term_count
from fmm_openmm.expansions.operators import harmonic_sums, lattice_operator, periodic
from fmm_openmm.expansions.splitting import upper_gamma
from tests.support.charges import SKEWED, random_charges

ORDER = 4
TOP = 2 * ORDER
REACH = 24.0
SCALE = irregular_norm(TOP) / 2.0 ** (degrees(TOP) + 1)
"""Size of each term of S at the nearest far boxes, two box widths away."""
GRIDS = {
    "cube": np.diag([4, 4, 4]),
    "one": np.diag([1, 1, 1]),
    "rod": np.diag([7, 1, 2]),
    "dodecahedron": np.array([[4, 0, 0], [0, 4, 0], [2, 2, 3]]),
    "skewed": np.array([[5, 0, 0], [2, 4, 0], [-2, 1, 3]]),
}


def cell_of(counts):
    """A cell whose boxes are nearly cubes, but none exactly."""
    return counts @ np.array([[1.0, 0, 0], [0.05, 1.1, 0], [-0.03, 0.07, 0.95]])


def lattice_of(counts, radius=2.3):
    return BoxLattice.from_cell(cell_of(counts), counts, radius)


def displacements(operator, lattice):
    """T_t at every slot of the FFT array, shape (terms, boxes): the stored real numbers back
    through their signs."""
    l = degrees(TOP)[:, None, None, None]
    spectrum = np.array([1, 1, -1, -1])[l % 4] * np.where(l % 2, 1j, 1) * operator
    values = scipy.fft.irfftn(spectrum, lattice.fft_shape, axes=(1, 2, 3))
    np.testing.assert_allclose(
        scipy.fft.rfftn(values, axes=(1, 2, 3)), spectrum, rtol=0, atol=1e-10 * abs(operator).max()
    )
    return values.reshape(len(operator), -1)


@pytest.mark.parametrize(("points", "columns"), [(3, 1), (200, 1), (50, 3), (3, 16), (3, 37)])
def test_fast_sums_of_harmonics_are_the_obvious_ones(points, columns):
    random = np.random.default_rng(columns)
    x = random.normal(size=(points, 3, columns))
    weight = random.normal(size=(points, TOP + 1, columns))
    weight[1, :, 0] = 0
    expected = np.zeros((term_count(TOP), columns))
    for column in range(columns):
        for j in range(points):
            values = regular(x[j, :, column], TOP)
            expected[:, column] += values * weight[j, degrees(TOP), column]
    for sums in (harmonic_sums, fast_sums):
        np.testing.assert_allclose(sums(x, weight), expected, rtol=1e-12, atol=1e-12)


def test_the_recurrence_of_incomplete_gamma_functions():
    x = np.geomspace(1e-3, 300.0, 50)
    l = np.arange(41)[:, None]
    np.testing.assert_allclose(upper_gamma(40, x), gammaincc(l + 0.5, x), rtol=1e-12, atol=1e-290)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_operator_of_the_cpu_is_that_of_the_reference(grid):
    lattice = lattice_of(GRIDS[grid])
    expected, found = (
        lattice_operator(lattice, ORDER, 1e-17, sums) for sums in (harmonic_sums, fast_sums)
    )
    scale = np.maximum(np.abs(expected).max((1, 2, 3)), SCALE)[:, None, None, None]
    assert (np.abs(found - expected) < 1e-12 * scale).all()


def image_sum(lattice, i, top, weights=(1.0,), steps=((0, 0, 0),)):
    """``sum_s weight_s sum_n S_t(i + step_s + n)`` over images n that are not near.

    Images fade out smoothly between half of `REACH` and `REACH`, which makes the sum converge
    faster than a sharp edge.
    """
    cell = lattice.counts @ lattice.boxes
    limits = np.ceil(REACH * np.linalg.norm(np.linalg.inv(cell), axis=0)).astype(int)
    n = (
        np.stack(np.meshgrid(*[np.arange(-k, k + 1) for k in limits], indexing="ij"), -1).reshape(
            -1, 3
        )
        @ lattice.counts
    )
    fade = np.clip(2 * np.linalg.norm(n @ lattice.boxes, axis=1) / REACH - 1, 0, 1)
    fade, n = (np.cos(np.pi / 2 * fade) ** 2)[fade < 1], n[fade < 1]
    total = np.zeros(term_count(top))
    for weight, step in zip(weights, steps, strict=True):
        far = ~lattice.is_near(i + n + step)
        x = (i + n + step)[far] @ lattice.boxes
        r = regular(x, top) / np.linalg.norm(x, axis=1) ** (2 * degrees(top)[:, None] + 1)
        total += weight * irregular_norm(top) * (r @ fade[far])
    return total


@pytest.mark.parametrize("grid", GRIDS)
def test_high_degrees_are_plain_sums_over_images(grid):
    """From degree 5 on the sum over images converges by itself: no Ewald needed."""
    lattice = lattice_of(GRIDS[grid])
    found = displacements(lattice_operator(lattice, ORDER), lattice)
    rows = degrees(TOP) >= 5
    for i in ([0, 0, 0], [1, 0, 0], [-1, 2, 1], [2, 2, 2]):
        expected = image_sum(lattice, np.array(i), TOP)
        scale = np.array([abs(expected[degrees(TOP) == l]).max() for l in range(TOP + 1)])[
            degrees(TOP)
        ]
        error = abs(found[:, lattice.slot(np.array(i))] - expected) / np.maximum(
            scale, 1e-3 * irregular_norm(TOP)
        )
        assert error[rows].max() < 1e-6


CORNERS = np.stack(np.meshgrid(*3 * [[0, 1]], indexing="ij"), -1).reshape(-1, 3)
ALTERNATING = (-1.0) ** CORNERS.sum(1)


@pytest.mark.parametrize("grid", ["cube", "dodecahedron", "skewed"])
def test_low_degrees_are_plain_sums_for_an_octupole(grid):
    """Eight charges at the corners of a box have neither charge nor dipole nor quadrupole: their
    images just add up."""
    lattice = lattice_of(GRIDS[grid])
    found = displacements(lattice_operator(lattice, ORDER), lattice)
    for i in ([0, 0, 0], [1, 0, 0], [-1, 2, 1]):
        expected = image_sum(lattice, np.array(i), 4, ALTERNATING, CORNERS)
        octupole = found[:25, lattice.slot(np.array(i) + CORNERS)] @ ALTERNATING
        np.testing.assert_allclose(octupole, expected, rtol=0, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("grid", GRIDS)
def test_splitting_does_not_matter(grid, monkeypatch):
    """Nor for degree 0 and its background: the answer of Ewald's method must
    not depend on alpha."""
    lattice = lattice_of(GRIDS[grid])
    chosen = displacements(lattice_operator(lattice, ORDER), lattice)
    for alpha in (0.45, 0.7):
        monkeypatch.setattr(periodic, "ALPHA", alpha)
        other = displacements(lattice_operator(lattice, ORDER), lattice)
        assert (abs(other - chosen).max(1) / SCALE).max() < 1e-12


@pytest.mark.parametrize("accuracy", [1e-4, 1e-7, 1e-10])
def test_accuracy_is_delivered(accuracy):
    lattice = lattice_of(GRIDS["skewed"])
    exact = displacements(lattice_operator(lattice, ORDER), lattice)
    other = displacements(lattice_operator(lattice, ORDER, accuracy), lattice)
    assert 1e-16 < (abs(other - exact).max(1) / SCALE).max() < accuracy


@pytest.mark.parametrize("grid", GRIDS)
def test_inversion(grid):
    """``T_t(-i) = (-1)^l T_t(i)``."""
    lattice = lattice_of(GRIDS[grid])
    found = displacements(lattice_operator(lattice, ORDER), lattice)
    i = np.stack(np.meshgrid(*3 * [np.arange(-3, 4)], indexing="ij"), -1).reshape(-1, 3)
    parity = (-1.0) ** degrees(TOP)[:, None]
    np.testing.assert_allclose(
        found[:, lattice.slot(-i)],
        parity * found[:, lattice.slot(i)],
        rtol=0,
        atol=1e-13 * abs(found).max(),
    )


@pytest.fixture
def computed(monkeypatch):
    """Counts the lattice operators computed."""
    calls, reciprocal = [], periodic._reciprocal
    monkeypatch.setattr(periodic, "_reciprocal", lambda *args: calls.append(1) or reciprocal(*args))
    return calls


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("cell", [2 * np.eye(3), SKEWED], ids=["cube", "skewed"])
def test_only_a_change_of_shape_computes_the_operator_anew(cell, backend, computed):
    x, q = random_charges(40, cell)
    solver = CoulombSolver(q, cell, backend=backend, tolerance=1e-3)
    assert not computed
    for scale in (1.0, 1.01, 0.7, 1.0, 3.0):  # an isotropic barostat
        solver.compute(scale * x, scale * cell)
    solver.set_charges(2 * q)
    solver.compute(x)
    assert len(computed) == 1

    stretched = cell * np.array([[1.0], [1.0], [1.02]])
    for box_vectors in (stretched, cell, 1.1 * stretched, cell):  # trial moves, each rejected
        solver.compute(x, box_vectors)
    assert len(computed) == 2


@pytest.mark.parametrize(
    "counts",
    [
        [[19, 0, 0], [-6, 16, 0], [2, 6, 11]],
        [[36, 0, 0], [7, 24, 0], [13, -11, 25]],
        [[27, 0, 0], [4, 30, 0], [-7, -2, 75]],
        [[5, 0, 0], [2, 4, 0], [-2, 1, 3]],
    ],
    ids=str,
)
def test_equivalent_counts_give_the_same_operator(counts):
    """Rows plus other rows describe the same periodic lattice of boxes; the Smith form of some
    has entries above 1e9."""

    def values(counts, displacements):
        lattice = BoxLattice(counts, np.eye(3), 2.3)
        l = degrees(2)[:, None, None, None]
        transform = (
            np.array([1, 1, -1, -1])[l % 4] * np.where(l % 2, 1j, 1) * lattice_operator(lattice, 1)
        )
        return scipy.fft.irfftn(transform, lattice.fft_shape, axes=(1, 2, 3)).reshape(9, -1)[
            :, lattice.slot(displacements)
        ]

    counts, displacements = np.array(counts), np.random.default_rng(0).integers(-20, 20, (500, 3))
    equivalent = counts - 2 * np.outer([0, 0, 1], counts[0])
    np.testing.assert_allclose(
        values(counts, displacements), values(equivalent, displacements), rtol=0, atol=1e-12
    )
