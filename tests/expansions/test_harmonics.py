"""Solid harmonics: definition, derivatives, and the error of a chain of translations
falling as predicted."""

import numpy as np
import pytest
from scipy.special import factorial, lpmv

from fmm_openmm.expansions.harmonics import (
    coupling,
    degrees,
    gradient,
    irregular_norm,
    regular,
    term,
    term_count,
)

TOP = 12
POINTS = np.random.default_rng(0).normal(size=(20, 3))


def by_definition(x, order):
    """Complex (R_lm, S_lm) for m >= 0 from Legendre functions, without the Condon-Shortley phase
    SciPy puts in."""
    r, phi = np.linalg.norm(x, axis=1), np.arctan2(x[:, 1], x[:, 0])
    l = np.array([l for l in range(order + 1) for _ in range(l + 1)])[:, None]
    m = np.array([m for l in range(order + 1) for m in range(l + 1)])[:, None]
    angular = (-1.0) ** m * lpmv(m, l, x[:, 2] / r) * np.exp(1j * m * phi)
    return r**l * angular / factorial(l + m), angular * factorial(l - m) / r ** (l + 1)


def real_terms(complex_harmonics, order):
    """Our terms from values for (l, m >= 0) in the order of `by_definition`."""
    out = np.empty((term_count(order), complex_harmonics.shape[1]))
    row = 0
    for l in range(order + 1):
        for m in range(l + 1):
            out[term(l, -m)] = complex_harmonics[row].imag
            out[term(l, m)] = complex_harmonics[row].real
            row += 1
    return out


def irregular(x, order):
    """S_a(x), one column a point."""
    return (
        irregular_norm(order)[:, None]
        * regular(x, order)
        / np.linalg.norm(x, axis=1) ** (2 * degrees(order)[:, None] + 1)
    )


def assert_equal_by_degree(actual, expected, order, tolerance):
    """Relative to the largest value of each degree."""
    for l in range(order + 1):
        rows = degrees(order) == l
        np.testing.assert_allclose(
            actual[rows], expected[rows], rtol=0, atol=tolerance * np.abs(expected[rows]).max()
        )


def test_terms_are_numbered_by_degree():
    numbers = [term(l, m) for l in range(TOP + 1) for m in range(-l, l + 1)]
    assert numbers == list(range(term_count(TOP)))
    np.testing.assert_array_equal(
        degrees(TOP), [l for l in range(TOP + 1) for m in range(-l, l + 1)]
    )


def test_lowest_degrees():
    x, y, z = POINTS.T
    expected = [1, y / 2, z, x / 2]
    expected += [
        x * y / 4,
        y * z / 2,
        (2 * z * z - x * x - y * y) / 4,
        x * z / 2,
        (x * x - y * y) / 8,
    ]
    np.testing.assert_allclose(
        regular(POINTS, 2), np.stack(np.broadcast_arrays(*expected)), rtol=1e-14
    )


def test_regular_and_irregular_harmonics():
    r, s = by_definition(POINTS, TOP)
    assert_equal_by_degree(regular(POINTS, TOP), real_terms(r, TOP), TOP, 1e-13)
    assert_equal_by_degree(irregular(POINTS, TOP), real_terms(s, TOP), TOP, 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_and_dtype_follow_the_points(dtype):
    assert regular(POINTS.reshape(4, 5, 3).astype(dtype), 3).shape == (16, 4, 5)
    assert regular(POINTS.astype(dtype), 3).dtype == dtype
    np.testing.assert_array_equal(regular(np.zeros(3, dtype), 4), np.eye(25)[0])
    np.testing.assert_array_equal(regular(POINTS, 0), np.ones((1, 20)))


def test_gradient_matrix():
    """The harmonics are polynomials, so an imaginary step gives their derivatives to rounding."""
    matrix = gradient(TOP)
    assert np.count_nonzero(matrix, axis=2).max() == 2
    inner = regular(POINTS, TOP - 1)
    for axis in range(3):
        step = POINTS + 1e-30j * np.eye(3)[axis]
        assert_equal_by_degree(matrix[axis] @ inner, regular(step, TOP).imag / 1e-30, TOP, 1e-12)


def test_gradient_by_finite_differences():
    h, order = 1e-5, 6
    for axis, step in enumerate(h * np.eye(3)):
        slope = (regular(POINTS + step, order) - regular(POINTS - step, order)) / (2 * h)
        assert_equal_by_degree(
            gradient(order)[axis] @ regular(POINTS, order - 1), slope, order, 1e-8
        )


def test_harmonics_are_harmonic():
    laplacian = sum(
        matrix @ inner for matrix, inner in zip(gradient(TOP), gradient(TOP - 1), strict=True)
    )
    np.testing.assert_allclose(laplacian, 0.0, atol=1e-15)


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_addition_theorem(ratio):
    """``1/|x - y| = sum_lm conj(R_lm(y)) S_lm(x)``; on a line the error is exactly
    ``ratio^(p + 1) / (|x| - |y|)``."""
    x = POINTS / np.linalg.norm(POINTS, axis=1)[:, None]
    y = ratio * np.concatenate([x[:1], np.roll(x, 1, axis=0)[1:]])
    twice = np.concatenate([np.where(np.arange(-l, l + 1) == 0, 1.0, 2.0) for l in range(TOP + 1)])
    exact = 1 / np.linalg.norm(x - y, axis=1)
    for order in range(TOP + 1):
        n = term_count(order)
        error = np.abs((twice[:n, None] * regular(y, order) * irregular(x, order)).sum(0) - exact)
        bound = ratio ** (order + 1) / (1 - ratio)
        assert (error <= bound * (1 + 1e-6)).all()
        assert error[0] == pytest.approx(bound, rel=1e-6)


def translated(order, displacement, x, y):
    """Potential at `x` (from its centre) of a unit charge at `y` (from its centre),
    through p2m, m2l and l2p."""
    index, weight = coupling(order)
    t = irregular(displacement[None], 2 * order)[:, 0]
    matrix = (-1.0) ** degrees(order)[:, None] * (weight * t[index]).sum(-1)
    return regular(x, order) @ matrix @ regular(y, order)


@pytest.mark.parametrize("reach", [0.3, 0.5, 0.8])
def test_translation_converges_at_the_predicted_rate(reach):
    """Charges facing each other on the line of centres are the worst case. There all terms of
    degree > p of the target sum to ``(t / (d - s))^(p + 1) / (d - s - t)``, those of the source to
    the same.
    """
    distance = 3.0
    direction = POINTS[0] / np.linalg.norm(POINTS[0])
    exact = 1 / (distance - 2 * reach)
    ratio = reach / (distance - reach)
    errors = []
    for order in range(2, 11):
        found = translated(order, distance * direction, -reach * direction, reach * direction)
        errors.append(exact - found)
        assert 0 < errors[-1] <= 2 * ratio ** (order + 1) * exact
    np.testing.assert_allclose(np.divide(errors[5:], errors[4:-1]), ratio, rtol=0.05)


@pytest.mark.parametrize("order", [3, 6, 9])
def test_translation_is_within_the_worst_case_in_any_direction(order):
    rng, exact, found = np.random.default_rng(order), [], []
    directions = rng.normal(size=(200, 3, 3))
    for d, x, y in directions / np.linalg.norm(directions, axis=-1, keepdims=True):
        exact.append(1 / np.linalg.norm(3 * d + 0.8 * x - 0.8 * y))
        found.append(translated(order, 3 * d, 0.8 * x, 0.8 * y))
    worst = 2 * (0.8 / 2.2) ** (order + 1) / (3 - 1.6)
    assert 0.01 * worst < np.abs(np.subtract(exact, found)).max() < worst


@pytest.mark.parametrize("order", [1, 2, 5, 9])
def test_coupling(order):
    """At most two terms for each pair, all of degree l + j; symmetric,
    so that energies are bilinear."""
    index, weight = coupling(order)
    assert index.shape == weight.shape == (*2 * (term_count(order),), 2)
    np.testing.assert_array_equal(index, index.swapaxes(0, 1))
    np.testing.assert_array_equal(weight, weight.swapaxes(0, 1))
    total = np.add.outer(degrees(order), degrees(order))[..., None]
    used = weight != 0
    assert (degrees(2 * order)[index] == total)[used].all()
    assert used.any(-1).sum() > 0.4 * used[..., 0].size
    assert len(np.unique(index[used])) == term_count(2 * order)
