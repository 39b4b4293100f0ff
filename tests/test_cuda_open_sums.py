"""The direct sum and the treecode on the GPU against the oracle's direct sum; needs an NVIDIA GPU."""

import numpy as np
import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.oracle import direct_sum
from fmm_openmm.units import COULOMB_CONSTANT

try:
    backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)

from fmm_openmm.backends.cuda.direct import DirectSum
from fmm_openmm.backends.cuda.treecode import Treecode

RNG = np.random.default_rng(11)


def clusters():
    """A uniform cloud, a dense cluster far away, excluded pairs near and far, one of them coincident."""
    positions = np.concatenate(
        [RNG.uniform(0, 4, (1500, 3)), 50 + 0.05 * RNG.normal(size=(700, 3)), [[7, 7, 7], [7, 7, 7], [90, 0, 9]]]
    )
    pairs = np.sort(RNG.integers(0, 2200, (1200, 2)), 1)
    pairs = np.concatenate([np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0), [[2200, 2201]]])
    return positions, RNG.normal(size=len(positions)), pairs


SYSTEMS = {
    "clusters": clusters(),
    "a hundred": (RNG.normal(size=(100, 3)), RNG.normal(size=100), np.zeros((0, 2), int)),
    "two": (np.array([[0.0, 0, 0], [0, 0, 2]]), np.array([1.0, -3.0]), np.zeros((0, 2), int)),
    "one": (np.ones((1, 3)), np.ones(1), np.zeros((0, 2), int)),
}


def errors(found, system):
    positions, charges, pairs = system
    exact = direct_sum(positions, charges, pairs)
    for array, expected in zip(found, (exact.potentials, exact.fields), strict=True):
        difference = COULOMB_CONSTANT * array.get() - expected
        yield np.linalg.norm(difference) / (np.linalg.norm(expected) or 1.0)


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_direct_sum(name, dtype, accuracy):
    positions, charges, pairs = SYSTEMS[name]
    found = DirectSum(charges, pairs, dtype).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("order", "theta", "accuracy"), [(2, 0.4, 2e-3), (4, 0.5, 5e-4), (8, 0.6, 3e-5), (16, 0.6, 1e-6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_treecode(name, order, theta, accuracy, dtype):
    positions, charges, pairs = SYSTEMS[name]
    found = Treecode(charges, pairs, dtype, order, theta).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


def test_treecode_converges_to_rounding():
    system = SYSTEMS["clusters"]
    found = Treecode(system[1], system[2], np.float64, 20, 0.3).evaluate(system[0])
    assert max(errors(found, system)) <= 1e-13


@pytest.mark.parametrize("make", [DirectSum, lambda *arguments: Treecode(*arguments, 5, 0.6)])
def test_charges_change_and_results_repeat(make):
    positions, charges, pairs = SYSTEMS["clusters"]
    method = make(charges, pairs, np.float32)
    first, again = method.evaluate(positions), method.evaluate(positions)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())
    method.set_charges(2 * charges)
    for a, b in zip(first, method.evaluate(positions), strict=True):
        np.testing.assert_allclose(b.get(), 2 * a.get(), rtol=1e-12)
