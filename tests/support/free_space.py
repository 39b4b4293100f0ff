"""Systems in free space with their exact forces."""

from functools import cache
from itertools import product

import numpy as np

from fmm_openmm.oracle import direct_sum
from tests.systems import build, charge_arrays

NONE = np.zeros((0, 2), np.int64)


def lattice_points(n, spacing):
    """n points of a jittered simple cubic lattice: like a melt, no two are close."""
    rng = np.random.default_rng(n)
    side = int(np.ceil(np.cbrt(n)))
    x = np.array(list(product(range(side), repeat=3)), float)[:n] * spacing
    return x + rng.uniform(-0.15, 0.15, (n, 3)) * spacing


@cache
def _arrays(name):
    """The charges of a system of ``tests/systems.py``, which nobody changes."""
    return charge_arrays(build(name))


def droplet(molecules, net=0.0, at=0.0, name="water_large"):
    """A sphere of liquid water, whole molecules; each carries its share of the charge ``net``."""
    d = _arrays(name)
    period = np.diag(d.box_vectors)
    x = d.positions.reshape(-1, 3, 3)
    x = np.concatenate([x + np.array(image) * period for image in product(range(-1, 1), repeat=3)])
    x = x[np.argsort(np.linalg.norm(x[:, 0] - x[:, 0].mean(0), axis=1))[:molecules]].reshape(-1, 3)
    first = 3 * np.arange(molecules)
    pairs = np.concatenate(
        [np.stack([first + i, first + j], 1) for i, j in ((0, 1), (0, 2), (1, 2))]
    )
    return x + at, np.tile(d.charges[:3], molecules) + net / len(x), pairs


def clusters():
    """Five small droplets in a space they hardly fill."""
    x, q, pairs = droplet(60)
    places = np.random.default_rng(3).uniform(0, 14, (5, 3))
    moved = np.concatenate([x + place for place in places])
    return moved, np.tile(q, 5), np.concatenate([pairs + k * len(x) for k in range(5)])


def ions(n=1000):
    return (
        lattice_points(n, 0.28),
        np.random.default_rng(0).permutation(np.repeat([1.0, -1.0], n // 2)),
        NONE,
    )


def plane():
    x = np.random.default_rng(5).permutation(lattice_points(1000, 0.3)) * [5.0, 5.0, 0.0]
    return x, np.random.default_rng(6).normal(size=len(x)), NONE


def line():
    """Charges about as far apart as molecules: float32 does not resolve the shortest of 512 random
    distances along 40 nm."""
    x = np.arange(512) + np.random.default_rng(8).uniform(-0.3, 0.3, 512)
    return np.outer(0.08 * x, [1.0, 0.0, 0.0]), np.ones(512), NONE


SYSTEMS = {
    "droplet": lambda: droplet(500),
    "charged droplet": lambda: droplet(500, net=60.0),
    "far from the origin": lambda: droplet(400, at=[1e6, -3e5, 12.0]),
    "clusters": clusters,
    "ions": ions,
    "one sign": lambda: (lattice_points(1000, 0.3), np.ones(1000), NONE),
    "plane": plane,
    "line": line,
}


@cache
def exact(name):
    system = SYSTEMS[name]()
    return system, direct_sum(*system)
