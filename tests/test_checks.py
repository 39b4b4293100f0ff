"""Input checks: what is accepted, and errors that name the argument and the value."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from openmm import Vec3, unit

from fmm_openmm.checks import (
    MAX_COORDINATE,
    check_charges,
    check_choice,
    check_exclusions,
    check_integer,
    check_number,
    check_positions,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "charges",
    [
        [1, -2],
        (1.0, -2.0),
        np.array([1, -2], np.int8),
        np.array([1, -2.0], object),
        [Decimal(1), Fraction(-2)],
        [1, -2] * unit.elementary_charge,
    ],
)
def test_charges(charges):
    array = check_charges(charges)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, [1.0, -2.0])


def test_charges_are_copied():
    charges = np.array([1.0, -2.0])
    check_charges(charges)[0] = 7.0
    assert charges[0] == 1.0


@pytest.mark.parametrize(
    "charges, message",
    [
        (
            [],
            r"`charges` must hold at least one particle, got an empty array: "
            r"there are no particles",
        ),
        ([[1.0, 2.0]], r"`charges` must have shape \(n,\), got \(1, 2\)"),
        (1.0, r"`charges` must have shape \(n,\), got \(\)"),
        ([1.0, NAN, 2.0], r"`charges` must be finite, got nan for particle 1"),
        ([1.0, 2.0, -INF], r"`charges` must be finite, got -inf for particle 2"),
        ([1.0, -1e154], r"`charges` must be at most 1e\+30 e, got -1e\+154 for particle 1"),
        ([0.0, 1e-46], r"must all be 0, or the largest at least 1e-20 e, got 1e-46 for particle 1"),
    ],
)
def test_bad_charges(charges, message):
    with pytest.raises(ValueError, match=message):
        check_charges(charges)


@pytest.mark.parametrize(
    "positions",
    [
        [[0, 0, 0.1], [1, 2, 3]],
        np.array([[0, 0, 0.1], [1, 2, 3]], order="F"),
        [[0, 0, 1], [10, 20, 30]] * unit.angstrom,
        [Vec3(0, 0, 0.1) * unit.nanometer, Vec3(10, 20, 30) * unit.angstrom],
    ],
    ids=["list", "fortran", "quantity", "vec3"],
)
def test_positions(positions):
    array = check_positions(positions, 2)
    assert array.dtype == np.float64 and array.flags.c_contiguous
    np.testing.assert_allclose(array, [[0, 0, 0.1], [1, 2, 3]], rtol=1e-15)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30, -1e30, 1.001 * MAX_COORDINATE])
@pytest.mark.parametrize("particle, axis", [(0, 0), (2, 1), (3, 2)])
def test_bad_coordinate_names_the_particle(value, particle, axis):
    positions = np.zeros((4, 3))
    positions[particle, axis] = value
    with pytest.raises(
        ValueError,
        match=rf"`positions` must be finite and within 1e\+09 nm .* particle {particle}$",
    ):
        check_positions(positions, 4)


@pytest.mark.parametrize("shape", [(4, 2), (3, 3), (12,), (1, 4, 3), (0, 3)])
def test_bad_shape_of_positions(shape):
    with pytest.raises(ValueError) as error:
        check_positions(np.zeros(shape), 4)
    assert (
        str(error.value)
        == f"`positions` must have shape (n, 3) with n = 4 (from `charges`), got {shape}"
    )


@pytest.mark.parametrize(
    "check, dimension",
    [
        (lambda x: check_charges([1.0, -1.0] * x), "elementary charge"),
        (lambda x: check_charges([1.0 * x, -1.0]), "elementary charge"),
        (lambda x: check_positions(np.zeros((2, 3)) * x, 2), "nanometer"),
        (lambda x: check_positions([[0.1 * x, 0, 0], [0, 0, 0]], 2), "nanometer"),
    ],
)
def test_other_dimensions_are_refused(check, dimension):
    with pytest.raises(ValueError, match=rf"must be in units of {dimension}, got kelvin$"):
        check(unit.kelvin)


@pytest.mark.parametrize("nothing", [None, [], (), np.zeros((0, 2), int)], ids=repr)
def test_no_exclusions(nothing):
    assert check_exclusions(nothing, 3).shape == (0, 2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_exclusions_are_sorted(dtype):
    pairs = check_exclusions(np.array([[2, 1], [0, 3], [0, 1]], dtype), 4)
    assert pairs.dtype == np.int64
    np.testing.assert_array_equal(pairs, [[0, 1], [0, 3], [1, 2]])


@pytest.mark.parametrize(
    "pairs, message",
    [
        ([(0, 1, 2)], r"must be integer pairs of shape \(m, 2\), got shape \(1, 3\) of int64"),
        ([(0.0, 1.0)], r"must be integer pairs of shape \(m, 2\), got shape \(1, 2\) of float64"),
        ([(True, False)], r"must be integer pairs .* of bool"),
        ([0, 1], r"must be integer pairs of shape \(m, 2\), got shape \(2,\)"),
        (3, r"must be integer pairs of shape \(m, 2\), got shape \(\) of int"),
        ([[0, 1], [0]], r"must be integer pairs of shape \(m, 2\), got \[\[0, 1\], \[0\]\]"),
        (np.zeros((0, 3), int), r"must be integer pairs of shape \(m, 2\), got shape \(0, 3\)"),
        ([(0, 1), (2, 4)], r"must hold indices from 0 to 3, got \[2, 4\] in row 1"),
        ([(0, 1), (1, 2), (-1, 2)], r"must hold indices from 0 to 3, got \[-1, 2\] in row 2"),
        ([(0, 1), (2, 2)], r"pairs particle 2 with itself in row 1"),
        ([(0, 1), (2, 3), (0, 1)], r"lists the pair \[0, 1\] twice"),
        ([(0, 1), (2, 3), (3, 2)], r"lists the pair \[2, 3\] twice"),
    ],
)
def test_bad_exclusions(pairs, message):
    with pytest.raises(ValueError, match=r"^`exclusions` " + message):
        check_exclusions(pairs, 4)


def test_choice():
    assert check_choice("a", ("a", "b"), "letter") == "a"
    with pytest.raises(ValueError, match=r"^`letter` must be one of 'a', 'b', got 'c'$"):
        check_choice("c", ("a", "b"), "letter")
    for value in None, ["a"], np.array(["a", "b"]):
        with pytest.raises(ValueError, match="`letter` must be one of 'a', 'b', got "):
            check_choice(value, ("a", "b"), "letter")


@pytest.mark.parametrize("value", [0, 0.5, 1, np.float32(0.5), np.int64(1)])
def test_number(value):
    assert check_number(value, "share", 0.0, 1.0) == value


@pytest.mark.parametrize("value", [-1e-9, 1.1, NAN, INF])
def test_number_out_of_range(value):
    with pytest.raises(ValueError, match=r"^`share` must lie between 0 and 1, got "):
        check_number(value, "share", 0.0, 1.0)


@pytest.mark.parametrize("value", ["0.5", None, True, 1j, [0.5]], ids=repr)
def test_not_a_number(value):
    with pytest.raises(TypeError, match=r"^`share` must be a number, got "):
        check_number(value, "share", 0.0, 1.0)


@pytest.mark.parametrize("value", [1, np.int32(5)])
def test_integer(value):
    found = check_integer(value, "order", 1, 5)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [2.0, "2", None, True], ids=repr)
def test_not_an_integer(value):
    with pytest.raises(TypeError, match=r"^`order` must be an integer, got "):
        check_integer(value, "order", 1, 5)


@pytest.mark.parametrize("value", [0, 6, -1, 10**400], ids=["zero", "six", "negative", "max_field"])
def test_integer_out_of_range(value):
    with pytest.raises(ValueError, match=r"^`order` must lie between 1 and 5, got "):
        check_integer(value, "order", 1, 5)


@pytest.mark.parametrize(
    "value",
    [
        "abc",
        [1, "x"],
        ["1", "-1"],
        [b"1", b"-1"],
        np.array(["1", "-1"], object),
        np.array([1, "-1"], object),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.array([1, -1], "timedelta64[ns]"),
        np.zeros(2, [("charge", float)]),
        [[1], [2, 3]],
        [1.0, 2j],
        [1, 10**400],
        None,
        [1, None],
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_not_numbers_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^`charges` must be an array of real numbers, got "):
        check_charges(value)
    with pytest.raises(ValueError, match=r"^`positions` must be an array of real numbers, got "):
        check_positions(value, 2)


def test_masked_entries_are_refused():
    with pytest.raises(ValueError, match=r"^`charges` must have no masked entries, got 1$"):
        check_charges(np.ma.array([1.0, -1.0], mask=[False, True]))
    with pytest.raises(ValueError, match=r"^`positions` must have no masked entries, got 2$"):
        check_positions(np.ma.array(np.zeros((2, 3)), mask=np.eye(2, 3)) * unit.nanometer, 2)
    with pytest.raises(ValueError, match=r"^`exclusions` must have no masked entries, got 2$"):
        check_exclusions(np.ma.array([[0, 1], [1, 2]], mask=[[False, False], [True, True]]), 3)
    np.testing.assert_array_equal(check_charges(np.ma.array([1.0, -1.0], mask=False)), [1.0, -1.0])
