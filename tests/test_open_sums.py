"""The direct sum and the treecode against the oracle's direct sum."""

import numpy as np
import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.backends import open_sum
from fmm_openmm.oracle import direct_sum
from fmm_openmm.units import COULOMB_CONSTANT

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


@pytest.fixture(params=["cpu", "cuda"])
def backend(request):
    try:
        open_sum(request.param, "direct")
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    return request.param


def on_host(array):
    return array.get() if hasattr(array, "get") else array


def errors(found, system):
    positions, charges, pairs = system
    exact = direct_sum(positions, charges, pairs)
    for array, expected in zip(found, (exact.potentials, exact.fields), strict=True):
        difference = COULOMB_CONSTANT * on_host(array) - expected
        yield np.linalg.norm(difference) / (np.linalg.norm(expected) or 1.0)


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_direct_sum(backend, name, dtype, accuracy):
    positions, charges, pairs = SYSTEMS[name]
    found = open_sum(backend, "direct")(charges, pairs, dtype).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("order", "theta", "accuracy"), [(2, 0.4, 2e-3), (4, 0.5, 5e-4), (8, 0.6, 3e-5), (16, 0.6, 1e-6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_treecode(backend, name, order, theta, accuracy, dtype):
    positions, charges, pairs = SYSTEMS[name]
    found = open_sum(backend, "treecode")(charges, pairs, dtype, order, theta).evaluate(positions)
    assert max(errors(found, SYSTEMS[name])) <= accuracy


def test_treecode_converges_to_rounding(backend):
    system = SYSTEMS["clusters"]
    found = open_sum(backend, "treecode")(system[1], system[2], np.float64, 20, 0.3).evaluate(system[0])
    assert max(errors(found, system)) <= 1e-13


@pytest.mark.parametrize(("name", "settings"), [("direct", ()), ("treecode", (5, 0.6))])
def test_charges_change_and_results_repeat(backend, name, settings):
    positions, charges, pairs = SYSTEMS["clusters"]
    method = open_sum(backend, name)(charges, pairs, np.float32, *settings)
    first, again = method.evaluate(positions), method.evaluate(positions)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(on_host(a), on_host(b))
    method.set_charges(2 * charges)
    for a, b in zip(first, method.evaluate(positions), strict=True):
        np.testing.assert_allclose(on_host(b), 2 * on_host(a), rtol=1e-12)
