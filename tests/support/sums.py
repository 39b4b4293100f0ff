"""Systems for sums over pairs in free space, and every backend."""

import numpy as np

from fmm_openmm.oracle import direct_sum
from fmm_openmm.units import COULOMB_CONSTANT

RNG = np.random.default_rng(11)


def clusters():
    """A uniform cloud, a dense cluster far away, excluded pairs near and far,
    one of them coincident."""
    positions = np.concatenate(
        [
            RNG.uniform(0, 4, (1500, 3)),
            50 + 0.05 * RNG.normal(size=(700, 3)),
            [[7, 7, 7], [7, 7, 7], [90, 0, 9]],
        ]
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


def on_host(array):
    return array.get() if hasattr(array, "get") else array


def errors(found, system):
    positions, charges, pairs = system
    exact = direct_sum(positions, charges, pairs)
    for array, expected in zip(found, (exact.potentials, exact.fields), strict=True):
        difference = COULOMB_CONSTANT * on_host(array) - expected
        yield np.linalg.norm(difference) / (np.linalg.norm(expected) or 1.0)
