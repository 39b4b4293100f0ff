"""Slabs and wires with their exact forces."""

from functools import cache

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import partial_ewald_sum
from tests.support.charges import SKEWED
from tests.support.free_space import droplet, lattice_points
from tests.systems import build, charge_arrays

NONE = np.zeros((0, 2), np.int64)
PARTIAL = ["slab", "wire", "bc", "ac", "a", "b"]
"""Names of boundaries with images along one or two vectors, each once."""


def cell_of(name, box_vectors):
    return Boundary.from_name(name).cell(np.asarray(box_vectors, float))


def water():
    d = charge_arrays(build("water"))
    return d.positions, d.charges, d.exclusions, d.box_vectors


def sheet(angle=90.0, units=4):
    """Ions of alternating sign in a plane, slightly displaced from their sites."""
    cell = (
        0.6 * units * np.array([[1.0, 0.0], [np.cos(np.radians(angle)), np.sin(np.radians(angle))]])
    )
    numbers = np.stack(np.meshgrid(*2 * [np.arange(2 * units)]), -1).reshape(-1, 2)
    x = np.zeros((len(numbers), 3))
    x[:, :2] = numbers / (2 * units) @ cell
    x += np.random.default_rng(3).normal(0.0, 0.02, x.shape)
    box = np.eye(3)
    box[:2, :2] = cell
    return x, (-1.0) ** numbers.sum(1), NONE, box


def chain(n=60):
    x = np.zeros((n, 3))
    x[:, 2] = 0.3 * np.arange(n)
    x += np.random.default_rng(4).normal(0.0, 0.02, x.shape)
    return x, np.resize([1.0, -1.0], n), NONE, np.diag([1.0, 1.0, 0.3 * n])


def melt(box_vectors, n=216, seed=5):
    """Ions at sites of a jittered lattice, and wrapped nowhere."""
    x = lattice_points(n, 0.3)
    x = x / np.ptp(x, axis=0) * 0.93 @ np.asarray(box_vectors, float)
    q = np.random.default_rng(seed).permutation(np.resize([1.0, -1.0], n))
    return x, q, NONE, np.asarray(box_vectors, float)


def dipolar():
    """Cations above anions: a slab with a net dipole moment along its normal."""
    x, _, pairs, box = melt([[2.2, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.1]])
    return x, np.where(x[:, 2] > np.median(x[:, 2]), 1.0, -1.0), pairs, box


def molecule():
    x, q, pairs = droplet(1)
    return x, q, pairs, np.diag([60.0, 50.0, 1.0])


SYSTEMS = {
    "water": ("slab", water),
    "square sheet": ("slab", sheet),
    "hexagonal sheet": ("slab", lambda: sheet(60.0)),
    "oblique": ("slab", lambda: melt([[2.0, 0, 0], [0.8, 1.8, 0], [0.3, -0.5, 2.0]])),
    "dipolar": ("slab", dipolar),
    "thin": ("slab", lambda: melt(np.diag([4.0, 4.0, 0.4]))),
    "molecule in a plane": ("slab", molecule),
    "a and c": ("ac", lambda: melt(SKEWED)),
    "b and c": ("bc", lambda: melt(SKEWED)),
    "chain": ("wire", chain),
    "skewed wire": ("wire", lambda: melt(SKEWED)),
    "thick wire": ("a", lambda: melt(np.diag([0.9, 3.0, 3.0]))),
    "along b": ("b", lambda: melt(SKEWED)),
}


@cache
def exact(name):
    """Boundary, positions, charges, exclusions and box vectors of a system, and its exact sum."""
    boundary, make = SYSTEMS[name]
    x, q, pairs, box = make()
    return (boundary, x, q, pairs, box), partial_ewald_sum(x, q, cell_of(boundary, box), pairs)
