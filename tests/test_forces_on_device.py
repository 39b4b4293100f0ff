"""Forces of evaluations on a device are examined, at the first one and later at the next, by arrays
and an evaluator that only behave as if they were there."""

import sys
import warnings

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.oracle import ewald_sum
from tests.expected_errors import crystal
from tests.support.charges import apart_and_close, relative
from tests.support.on_device import DeviceEvaluator, device_array

COLD, WARM = crystal("nacl", 0.006), crystal("nacl", 0.4)
MISSED = "was missed at the last positions on the device"


def on_device(solver):
    """The solver, as if on a GPU."""
    solver.evaluation.backend, solver.evaluation.evaluator_class = "cuda", DeviceEvaluator
    DeviceEvaluator.waits = 0
    return solver


@pytest.fixture
def solver():
    """A solver for the charges of the crystals that takes arrays on the device."""
    solver = on_device(CoulombSolver(COLD.charges, COLD.cell, backend="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield solver


def computed(solver, case, scale=1.0):
    """Forces on scaled charges."""
    solver.set_charges(device_array(scale * case.charges))
    for evaluator in solver.evaluation.evaluators.values():
        evaluator.charges = scale * case.charges
    return solver.compute(device_array(case.positions)).forces


def queued(solver, case, scale=1.0):
    def fill(run):
        run.buffers |= {
            "positions": device_array(case.positions),
            "charges": device_array(scale * case.charges),
        }

    return solver.evaluation.queue(fill, case.cell).buffers["forces"]


def error(forces, case, scale=1.0):
    exact = scale**2 * ewald_sum(case.positions, case.charges, case.cell).forces
    return relative(forces.get(), exact)


@pytest.mark.parametrize("evaluated", [computed, queued])
def test_the_first_evaluation_is_waited_for(solver, evaluated):
    """It is right, with other parameters than those of a liquid; the next ones wait for nothing."""
    usual = solver.parameters.order
    assert error(evaluated(solver, COLD), COLD) <= 5e-4
    assert solver.parameters.order > usual
    assert solver.parameters.expected_error <= 5e-4
    waits = DeviceEvaluator.waits
    for _ in range(3):
        assert error(evaluated(solver, COLD), COLD) <= 5e-4
    assert DeviceEvaluator.waits == waits


@pytest.mark.parametrize("evaluated", [computed, queued])
def test_later_evaluations_are_examined_at_the_next_one(solver, evaluated):
    evaluated(solver, WARM)
    usual, waits = solver.parameters.order, DeviceEvaluator.waits
    evaluated(solver, WARM)
    assert DeviceEvaluator.waits == waits
    assert error(evaluated(solver, COLD), COLD) > 5e-4
    evaluated(solver, COLD)
    with pytest.warns(UserWarning, match=MISSED):
        found = evaluated(solver, COLD)
    assert error(found, COLD) <= 5e-4
    assert solver.parameters.order > usual
    for _ in range(3):
        found = evaluated(solver, WARM)
    assert error(found, WARM) <= 5e-4
    assert solver.parameters.order == usual


def test_sets_of_charges_are_examined_now_and_then(monkeypatch):
    """One call in twenty evaluates the solver's own charges too, whose forces the next one
    examines."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    x, close, q, cell = apart_and_close()
    solver = on_device(CoulombSolver(q, cell, backend="cpu"))

    def matrix_at(x):
        sets = device_array([q, q])
        return solver.compute(device_array(x), charges=sets, potentials=False).matrix

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix_at(x)
        waits = DeviceEvaluator.waits
        for _ in range(20):
            matrix_at(x)
        assert DeviceEvaluator.waits == waits
        for _ in range(20):
            matrix_at(close)
        assert solver.parameters.precision == "single"
    with pytest.warns(UserWarning, match=MISSED):
        found = matrix_at(close)
    assert solver.parameters.precision == "double"
    np.testing.assert_allclose(found / 2, ewald_sum(close, q, cell).energy, rtol=1e-5)


@pytest.mark.parametrize(
    "used",
    [
        lambda solver, x: solver.coulomb_operator(x),
        lambda solver, x: solver.interaction_energies(x, np.arange(len(x)) // 40),
    ],
)
def test_matrices_that_are_kept_are_examined_at_once(used):
    x, close, q, cell = apart_and_close()
    solver = on_device(CoulombSolver(q, cell, backend="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        used(solver, device_array(x))
        assert solver.parameters.precision == "single"
        used(solver, device_array(close))
    assert solver.parameters.precision == "double"


def test_charges_that_change(solver):
    """Forces are examined with the charges that they act on: nothing is small here. Limits follow
    charges from the host."""
    for scale in (1.0, 0.1, 10.0, 0.01, 0.01, 1.0):
        assert error(queued(solver, WARM, scale), WARM, scale) <= 5e-4
    with pytest.warns(UserWarning, match=MISSED):
        solver.set_charges(10.0 * COLD.charges)
        for _ in range(3):
            found = queued(solver, COLD, 10.0)
    assert error(found, COLD, 10.0) <= 5e-4


def test_what_is_not_a_number_changes_nothing(solver):
    computed(solver, WARM)
    before = solver.parameters
    bad = device_array(WARM.positions)
    bad[3] = np.nan
    with np.errstate(invalid="ignore"):
        solver.compute(bad)
    computed(solver, WARM)
    assert solver.parameters == before
