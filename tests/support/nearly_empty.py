"""Systems in cells that are nearly empty, with their exact forces."""

from functools import cache
from itertools import product

import numpy as np

from fmm_openmm.oracle import ewald_sum
from tests.support.free_space import droplet

CUBE = np.eye(3) * 12.0


SKEWED = np.array([[9.0, 0.0, 0.0], [4.0, 8.0, 0.0], [-3.0, -2.0, 10.0]])


def wrapped(x, cell, size=3):
    """Molecules of so many particles, each with its first one in the cell."""
    x = x.reshape(-1, size, 3)
    return (x - np.floor(x[:, :1] @ np.linalg.inv(cell)) @ cell).reshape(-1, 3)


def in_cell(cell, at=(0.0, 0.0, 0.0), net=0.0, molecules=300):
    x, q, pairs = droplet(molecules, net)
    return wrapped(x - x.mean(0) + at, cell), q, pairs, cell


def ions():
    """Bare charges, wrapped one by one, in a cell of another shape."""
    cell = np.diag([15.0, 11.0, 8.0])
    rng = np.random.default_rng(2)
    x = (
        np.array(list(product(range(8), range(6), range(5)))) * 0.45
        + rng.uniform(-0.1, 0.1, (240, 3))
        - 1.0
    )
    return (
        wrapped(x, cell, 1),
        rng.permutation(np.repeat([1.0, -1.0], 120)),
        np.zeros((0, 2), np.int64),
        cell,
    )


SYSTEMS = {
    "droplet": lambda: in_cell(CUBE, [4.0, 5.0, 6.0]),
    "over a corner": lambda: in_cell(CUBE, [0.3, 11.8, 0.2]),
    "net charge": lambda: in_cell(np.diag([11.0, 9.0, 20.0]), [5.0, 8.8, 10.0], net=40.0),
    "skewed": lambda: in_cell(SKEWED, [0.3, 0.1, -0.2]),
    "skewed, net charge": lambda: in_cell(SKEWED, [5.0, 5.0, 5.0], net=-20.0),
    "ions": ions,
}


@cache
def exact(name):
    x, q, pairs, cell = system = SYSTEMS[name]()
    return system, ewald_sum(x, q, cell, pairs)
