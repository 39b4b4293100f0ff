"""When boxes stay, move and are chosen anew."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest

from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.planner import RECHECK_INTERVAL, Change, Planner
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import Request

X = np.random.default_rng(0).uniform(0.0, 4.0, (2000, 3))
Q = np.resize([1.0, -1.0], len(X))
NONE = np.zeros((0, 2), np.int64)
CELL = 4.0 * np.eye(3)


def planner(cell=EMPTY_SPACE, precision="auto", tolerance=5e-4, smoothing=None, **options):
    request = Request(tolerance, precision=precision, smoothing=smoothing)
    load = Load.from_charges(Q, NONE)
    return Planner(Problem(request, load, NONE, False, cell), **options)


def stretched(by):
    return CELL * [[1.0], [1.0], [1.0 + by]]


def test_boxes_that_cover_particles_follow_them():
    plans = planner()
    first = plans.plan(X, EMPTY_SPACE)
    assert first.change is Change.REPLACE
    assert plans.plan(X, EMPTY_SPACE).change is Change.KEEP
    moved = plans.plan(X + 3.0, EMPTY_SPACE)
    assert (moved.change, moved.choice) == (Change.MOVE, first.choice)
    np.testing.assert_allclose(moved.boxes.corner - first.boxes.corner, 3.0, atol=0.2)
    grown = plans.plan(2.0 * X, EMPTY_SPACE)
    assert grown.change is Change.REPLACE
    assert plans.choices == (grown.choice,)


@pytest.mark.slow
def test_particles_that_have_left_are_believed():
    """Even where float64 finds them inside: the boxes go to where the particles are in the
    middle."""
    plans = planner()
    first = plans.plan(X, EMPTY_SPACE).boxes
    corner = first.corner + 0.1 * first.width
    assert first.cover(X.min(0), X.max(0)) is first
    shifted = plans.plan(X + 0.1 * first.width, EMPTY_SPACE, left=True)
    assert shifted.change is Change.MOVE
    np.testing.assert_allclose(shifted.boxes.corner, corner)


def test_boxes_over_a_cell():
    plans = planner(CELL, memory=2)
    first = plans.plan(X, CELL)
    assert plans.plan(X, CELL).change is Change.KEEP
    scaled = plans.plan(X, 1.5 * CELL)
    assert (scaled.change, scaled.choice) == (Change.MOVE, first.choice)
    trial = plans.plan(X, stretched(0.01))
    assert trial.change is Change.REPLACE
    assert trial.parameters == first.parameters
    assert plans.plan(X, CELL).choice == first.choice
    assert plans.choices == (first.choice, trial.choice)
    other = plans.plan(X, stretched(0.3))
    assert plans.choices == (other.choice, first.choice)


def test_the_same_cell_again():
    """Is not compared with the boxes anew, unless the problem has become another."""
    plans, cell = planner(CELL, memory=2), 1.5 * CELL
    first = plans.plan(X, CELL)
    assert plans.plan(X, cell).change is Change.MOVE
    again = plans.plan(X, cell)
    assert (again.change, again.choice) == (Change.KEEP, first.choice)
    assert again.boxes.width == pytest.approx(1.5 * first.boxes.width)
    plans.revise(replace(plans.problem, request=Request(1e-6)))
    renewed = plans.plan(X, cell)
    assert renewed.change is Change.REPLACE and renewed.choice != first.choice
    assert renewed.problem is plans.problem


@pytest.mark.slow
def test_trust_ends():
    plans = planner()
    assert plans.reuse(EMPTY_SPACE) is None
    first = plans.plan(X, EMPTY_SPACE)
    reused = [plans.reuse(EMPTY_SPACE) for _ in range(RECHECK_INTERVAL)]
    assert {plan.choice for plan in reused[:-1]} == {first.choice}
    assert reused[-1] is None
    assert planner(CELL).reuse(CELL) is None


@pytest.mark.slow
def test_other_charges():
    plans = planner(CELL)
    first = plans.plan(X, CELL)
    assert plans.accepts(-Q)
    assert plans.accepts(Q, X, CELL)
    assert plans.plan(X, CELL).choice == first.choice
    few = np.where(np.arange(len(Q)) < 200, Q, 0.0)
    assert not plans.accepts(few, X, CELL)
    assert plans.plan(X, CELL).change is Change.REPLACE


def test_a_problem_that_is_refused_changes_nothing():
    plans = planner(CELL)
    first = plans.plan(X, CELL)
    refused = replace(plans.problem, request=Request(6e-6, precision="single", smoothing=0.05))
    with pytest.raises(ValueError, match="for these charges"):
        plans.revise(refused)
    assert plans.plan(X, CELL).choice == first.choice
    assert plans.problem is not refused


@pytest.mark.parametrize("tolerance", [5e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("precision", ["auto", "single"])
def test_limits_say_when_to_ask(precision, tolerance):
    """Fields that shrink, and two that grow: other parameters or a warning wherever the sums that a
    device compares with limits are beyond these, and within them nothing."""
    if precision == "single" and tolerance < 1e-5:
        pytest.skip("out of reach")
    rng, planned = np.random.default_rng(4), planner(CELL, precision, tolerance=tolerance)
    planned.plan(X, CELL)
    liquid = 4.0 * rng.normal(size=X.shape)
    single = planned.plan(X, CELL).parameters.precision == "single"
    for growing in (False, True):
        passed = []
        for size in np.geomspace(1.0, 1e12 if growing else 1e-3, 20):
            fields = liquid * size
            if growing:
                fields[2:] = liquid[2:]
            plans, sums = copy.copy(planned), force_sums(Q, fields)
            held = plans.force_limits(Q).hold(*sums)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fits = plans.accepts_forces(Q, *sums, cell=CELL)
            assert held == (fits and not caught)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(3):
                    width = plans.plan(X, CELL).boxes.width / planned.plan(X, CELL).boxes.width
                    sums = force_sums(Q, fields * width**2)
                    if plans.accepts_forces(Q, *sums, cell=CELL):
                        break
            assert plans.force_limits(Q).hold(*sums)
            error = plans.with_forces(plans.plan(X, CELL).parameters).expected_error
            assert error <= tolerance or precision == "single"
            passed.append(not held)
        assert passed == sorted(passed)
        assert 2 < sum(passed) < 18 or (growing and not single)


def test_limits_of_large_potentials():
    """With smoothing their rounding is compared with the forces: beyond its limit double precision
    is needed, which has none."""
    plans = planner(CELL, smoothing=0.01)
    plans.plan(X, CELL)
    squares, cubes, _ = force_sums(Q, 4.0 * np.random.default_rng(4).normal(size=X.shape))
    limits, passed = plans.force_limits(Q), []
    for potentials in squares * np.geomspace(1.0, 1e12, 25):
        copied = copy.copy(plans)
        passed.append(not copied.accepts_forces(Q, squares, cubes, potentials))
        assert limits.hold(squares, cubes, potentials) != passed[-1]
        precision = copied.plan(X, CELL).parameters.precision
        assert precision == ("double" if passed[-1] else "single")
    assert passed == sorted(passed)
    assert 2 < sum(passed) < 23
    assert copied.accepts_forces(Q, squares, cubes, squares * 1e12)
    assert copied.force_limits(Q).potentials == 0.0


def test_small_forces_make_parameters_strict_until_they_grow():
    plans = planner(CELL)
    liquid = np.random.default_rng(4).normal(size=X.shape)

    def parameters(size):
        before, sums = plans.plan(X, CELL).boxes.parameters, force_sums(Q, size * liquid)
        if plans.accepts_forces(Q, *sums):
            return before
        after = plans.plan(X, CELL).boxes.parameters
        assert plans.accepts_forces(Q, *sums)
        assert plans.with_forces(after).expected_error <= 5e-4
        return after

    usual = parameters(4.0)
    small = parameters(0.05)
    assert small.order > usual.order
    assert parameters(0.1) == small
    assert plans.force_limits(Q).hold(*force_sums(Q, 0.1 * liquid))
    assert not plans.force_limits(Q).hold(*force_sums(Q, liquid))
    assert parameters(4.0) == usual


def test_forces_that_are_zero_are_not_rounded():
    plans = planner(CELL)
    plans.plan(X, CELL)
    plans.accepts_forces(Q, 0.0, 0.0)
    assert plans.plan(X, CELL).parameters.precision == "single"
    assert plans.force_limits(Q).hold(0.0, 0.0)
    assert plans.force_limits(np.zeros_like(Q)).hold(0.0, 0.0)


def test_two_particles_far_apart_in_a_narrow_slab():
    """Boxes stay compact, although there are many more of them than particles."""
    cell, x = np.where(np.eye(3) > 0, [3.0, 3.0, np.inf], 0.0), np.diag([1.0, 0.0, 1e4])[[0, 2]]
    load = Load.from_charges(np.array([1.0, -1.0]), NONE)
    boxes = Planner(Problem(Request(), load, NONE, False, cell)).plan(x, cell).boxes
    assert boxes.parameters.expected_error <= 5e-4
    assert boxes.heights[2] < 12 and boxes.lattice.size < 5000
