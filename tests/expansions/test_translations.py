"""m2m, m2l and l2l: exact identities, the chain against a direct sum,
and both operators against each other."""

import numpy as np
import pytest

from fmm_openmm.expansions.harmonics import irregular_norm, regular, term_count
from fmm_openmm.expansions.translations import (
    Rotation,
    exchange,
    exchanged,
    irregular,
    m2l_matrix,
    m2m_matrix,
    order_of,
    to_child,
    to_parent,
    turn,
)
from fmm_openmm.implementations import M2L, implementation, names

OPERATORS = {name: implementation(M2L, name, "reference")() for name in names(M2L, "reference")}
ORDERS = range(1, 21)
POINTS = np.random.default_rng(0).normal(size=(20, 3))
SHIFTS = [
    (0.3, -0.5, 0.4),
    (0, 0, 0.5),
    (0, 0, -0.5),
    (0.5, 0, 0),
    (-0.5, 0, 0),
    (0, -0.7, 0),
    (-0.5, -0.5, -0.5),
]
operators = pytest.mark.parametrize("operator", OPERATORS)


def moments_of(x, charges, order):
    return regular(x, order) @ charges


def assert_equal_moments(actual, expected, tolerance):
    """Relative to the largest of all terms, scaled to one size:
    R is about 1 / sqrt((l - m)! (l + m)!)."""
    scale = np.sqrt(irregular_norm(order_of(expected))).reshape(-1, *[1] * (expected.ndim - 1))
    np.testing.assert_allclose(
        scale * actual, scale * expected, rtol=0, atol=tolerance * np.abs(scale * expected).max()
    )


def assert_equal_local(actual, expected, tolerance):
    scale = 1 / np.sqrt(irregular_norm(order_of(expected))).reshape(-1, *[1] * (expected.ndim - 1))
    np.testing.assert_allclose(
        scale * actual, scale * expected, rtol=0, atol=tolerance * np.abs(scale * expected).max()
    )


# The pieces of the rotation


@pytest.mark.parametrize("order", [1, 5, 20])
def test_exchange_of_two_axes(order):
    assert_equal_moments(
        exchanged(regular(POINTS, order)), regular(POINTS[:, [0, 2, 1]], order), 1e-13
    )
    for block in exchange(order):
        scale = np.sqrt(irregular_norm(order)[(len(block) // 2) ** 2 :][: len(block)])
        np.testing.assert_allclose(
            scale[:, None] * (block @ block) / scale, np.eye(len(block)), atol=1e-13
        )


@pytest.mark.parametrize("angle", [0.0, 0.7, -2.1, np.pi])
def test_turn_about_z(angle):
    c, s = np.cos(angle), np.sin(angle)
    turned = POINTS @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    assert_equal_moments(turn(regular(POINTS, 8), angle), regular(turned, 8), 1e-13)


@pytest.mark.parametrize("shift", SHIFTS)
def test_rotation_takes_the_shift_onto_the_z_axis(shift):
    rotation, order = Rotation.from_shift(np.array(shift)), 6
    assert_equal_moments(
        rotation.moments(regular(np.array(shift), order)),
        regular(np.array([0, 0, rotation.r]), order),
        1e-14,
    )
    x = regular(POINTS, order)
    assert_equal_moments(rotation.moments_back(rotation.moments(x)), x, 1e-13)
    y = np.random.default_rng(1).normal(size=x.shape) * irregular_norm(order)[:, None] ** 0.5
    assert_equal_local(rotation.local_back(rotation.local(y)), y, 1e-13)
    np.testing.assert_allclose(  # potentials do not depend on the frame
        (rotation.local(y) * rotation.moments(x)).sum(0), (y * x).sum(0), rtol=1e-9
    )


# Exact identities


@operators
@pytest.mark.parametrize("shift", SHIFTS)
def test_moments_about_another_centre(operator, shift):
    """Moments of a degree depend on those of lower degrees only, so m2m makes no error."""
    q, order = np.linspace(-1, 2, len(POINTS)), 10
    found = OPERATORS[operator].m2m(moments_of(POINTS, q, order), np.array(shift))
    assert_equal_moments(found, moments_of(POINTS + shift, q, order), 1e-13)


@operators
@pytest.mark.parametrize("shift", SHIFTS)
def test_local_expansion_about_another_centre(operator, shift):
    local = np.random.default_rng(1).normal(size=term_count(6))
    found = OPERATORS[operator].l2l(local, np.array(shift))
    np.testing.assert_allclose(
        found @ regular(POINTS, 6), local @ regular(POINTS + shift, 6), rtol=1e-10, atol=1e-10
    )


@operators
def test_constant_kernel(operator):
    """A total charge and a constant potential, of degree 0 only, pass a tree unchanged."""
    q = np.arange(1.0, 9.0)
    corners = np.stack(np.meshgrid(*3 * [[-0.25, 0.25]], indexing="ij"), -1).reshape(-1, 3)
    tools = OPERATORS[operator]
    total = sum(
        tools.m2m(charge * np.eye(1, 25).ravel(), shift)
        for charge, shift in zip(q, corners, strict=True)
    )
    assert total[0] == q.sum()
    for shift in corners:
        np.testing.assert_array_equal(
            tools.l2l(3.0 * np.eye(1, 25).ravel(), shift), 3.0 * np.eye(1, 25).ravel()
        )


def test_shifts_add_up():
    a, b = np.array([0.3, -0.2, 0.5]), np.array([-0.6, 0.1, 0.2])
    np.testing.assert_allclose(
        m2m_matrix(a, 8) @ m2m_matrix(b, 8), m2m_matrix(a + b, 8), atol=1e-13
    )


def test_m2l_is_symmetric_in_source_and_target():
    d = np.array([2.0, -1.5, 2.5])
    np.testing.assert_allclose(m2l_matrix(-d, 6).T, m2l_matrix(d, 6), rtol=1e-13, atol=1e-15)


def test_irregular_harmonics_of_the_lowest_degrees():
    x, y, z = POINTS.T
    r = np.linalg.norm(POINTS, axis=1)
    expected = [1 / r, y / r**3, z / r**3, x / r**3, 6 * x * y / r**5]
    np.testing.assert_allclose(irregular(POINTS, 2)[:5], expected, rtol=1e-13)


# The chain


def chain(tools, order, sources, q, targets):
    """Potentials through a child box, its parent, the parent of the targets' box and that box,
    units of each level.

    The centres of the parents are (3, 1, -2) parents' widths apart.
    """
    # from the parents, child widths
    source_child, target_child = np.array([0.5, -0.5, 0.5]), np.array([-0.5, 0.5, 0.5])
    moments = tools.m2m(moments_of(sources, q, order), source_child) * to_parent(order)
    local = tools.m2l(moments, np.array([3.0, 1.0, -2.0]))
    return tools.l2l(local * to_child(order), target_child) @ regular(targets, order)


@pytest.mark.slow
@operators
def test_chain_converges_to_the_direct_sum(operator):
    rng = np.random.default_rng(3)
    sources, targets, q = (
        rng.uniform(-0.5, 0.5, (30, 3)),
        rng.uniform(-0.5, 0.5, (30, 3)),
        rng.uniform(0.5, 1.0, 30),
    )
    centres = (
        2 * np.array([3.0, 1.0, -2.0]) + np.array([-0.5, 0.5, 0.5]) - np.array([0.5, -0.5, 0.5])
    )
    exact = (q / np.linalg.norm(targets[:, None] + centres - sources, axis=-1)).sum(1)
    orders = np.array([2, 4, 6, 8, 12, 16, 20])
    errors = np.array(
        [
            np.abs(chain(OPERATORS[operator], p, sources, q, targets) / exact - 1).max()
            for p in orders
        ]
    )
    radius = np.sqrt(3) / 2
    # of charges in facing corners of the parents, the worst case
    ratio = radius / (np.sqrt(14) - radius)
    assert (errors < 4 * ratio ** (orders + 1.0)).all()
    assert errors[-1] < 1e-10
    assert (np.diff(errors) < 0).all()


# Both operators


@pytest.mark.parametrize("kind", ["m2m", "m2l", "l2l"])
@pytest.mark.parametrize("order", ORDERS)
def test_rotation_equals_p4(order, kind):
    rng = np.random.default_rng(order)
    shifts = rng.permutation(SHIFTS)[:3] * (5 if kind == "m2l" else 1)
    x = regular(rng.uniform(-0.5, 0.5, (6, 3)), order)
    check = assert_equal_moments
    if kind == "l2l":
        x, check = x * irregular_norm(order)[:, None], assert_equal_local
    if kind == "m2l":
        check = assert_equal_local
    for shift in shifts:
        found, expected = (getattr(OPERATORS[name], kind)(x, shift) for name in ("rotation", "p4"))
        check(found, expected, 1e-12)


@operators
@pytest.mark.parametrize("kind", ["m2m", "m2l", "l2l"])
def test_dtype_and_shape_are_kept(operator, kind):
    x = np.ones((16, 2, 3), np.float32)
    found = getattr(OPERATORS[operator], kind)(x, np.array([1.0, 2.0, 2.0]))
    assert found.dtype == np.float32 and found.shape == x.shape
    expected = getattr(OPERATORS["p4"], kind)(x[:, 1, 2].astype(float), np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(
        found[:, 1, 2], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )
