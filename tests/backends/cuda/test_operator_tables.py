"""The tables of the lattice operator on the GPU, through the formula of
``kernels/setup/operator.cu`` in NumPy. Needs no GPU."""

from itertools import product

import numpy as np
import pytest
from scipy.special import gammainc, gammaincc

from fmm_openmm.backends.cuda.pipeline.setup_tables import (
    OFFSET_TILE,
    OperatorTables,
    mirrored,
    stored_shape,
)
from fmm_openmm.box import BoxLattice, PaddedLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular
from fmm_openmm.expansions.operators import lattice_operator
from tests.support.strains import deformation, is_served

OBLIQUE = np.array([[1.0, 0, 0], [0.05, 1.1, 0], [-0.03, 0.07, 0.95]])
CUBOID = np.diag([1.0, 1.1, 0.95])
LATTICES = {
    "cube": (np.diag([4, 4, 4]), OBLIQUE),
    "long": (np.diag([7, 1, 2]), OBLIQUE),
    "dodecahedron": (np.array([[4, 0, 0], [0, 4, 0], [2, 2, 3]]), OBLIQUE),
    "sheared": (np.array([[27, 0, 0], [4, 2, 0], [-7, -2, 3]]), OBLIQUE),
    "rectangular": (np.diag([4, 5, 2]), CUBOID),
}


def lattice_of(counts, boxes, radius=1.87):
    return BoxLattice.from_cell(counts @ boxes, counts, radius)


def operator(tables, boxes, order):
    """The operator of box vectors ``boxes``, shape (terms, waves stored)."""
    l = degrees(2 * order)
    v, d, shape = (
        tables.group[:9].reshape(3, 3).astype(float),
        tables.group[9:12],
        tables.group[12:],
    )
    kappa = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(-1, 3)
    fraction = (kappa / d) @ v.T
    fraction -= np.rint(fraction)

    x = tables.offsets[:, :3] @ boxes
    r2 = (x * x).sum(1)
    argument, half = tables.alpha**2 * r2, np.arange(2 * order + 1)[:, None] + 0.5
    share = (
        np.where(tables.offsets[:, 3] & 1, -gammainc(half, argument), gammaincc(half, argument))
        / r2**half
    )
    weights = 2 * regular(x, 2 * order) * irregular_norm(2 * order)[:, None] * share[l]
    weights[(l + 1) // 2 % 2 == 1] *= -1
    if (tables.offsets[:, :3] >= 0).all():  # mirrored
        weights *= 2.0 ** ((tables.offsets[:, :3] != 0).sum(1) - 1)
        m = np.arange(len(l)) - l * l - l
        odd = np.stack([(m + (m < 0)) % 2, m < 0, (l + m) % 2], 1)
        angle = 2 * np.pi * tables.offsets[:, :3, None] * fraction.T
        factor = np.stack([np.cos(angle), np.sin(angle)])
        out = np.empty((len(l), len(kappa)))
        for t, axes in enumerate(odd):
            out[t] = (1, 1, -1, -1)[axes.sum()] * (weights[t] @ factor[axes, :, range(3)].prod(0))
    else:
        phase = 2 * np.pi * (tables.offsets[:, :3] @ fraction.T)
        out = np.where(l[:, None] % 2, weights @ np.sin(phase), weights @ np.cos(phase))

    double_factorials = np.cumprod([1.0] + [2.0 * k - 1 for k in range(1, 2 * order + 1)])
    factor = (4 * np.pi * irregular_norm(2 * order) / double_factorials[l])[:, None]
    reciprocal = 2 * np.pi * np.linalg.inv(boxes).T
    for alias in tables.aliases[:, :3]:
        g = -(fraction + alias) @ reciprocal
        g2 = (g * g).sum(1)
        inside = (g2 < tables.cut**2) & (g2 > 1e-20)
        g, g2 = g[inside], g2[inside]
        out[:, inside] += factor * regular(g, 2 * order) * np.exp(-g2 / (4 * tables.alpha**2)) / g2
    out[0] -= 2 * tables.alpha / np.sqrt(np.pi)
    out[0, 0] -= np.pi / tables.alpha**2
    return out


@pytest.mark.parametrize(
    ("order", "radius", "accuracy", "error"),
    [
        (2, 1.87, 1e-5, 1e-7),
        (6, 2.64, 1e-5, 1e-7),
        (5, 4.64, 1e-5, 1e-7),
        (2, 1.87, 1e-12, 1e-13),
        (8, 2.91, 1e-12, 1e-13),
    ],
)
@pytest.mark.parametrize("deformed", [False, True])
@pytest.mark.parametrize("name", LATTICES)
def test_the_formula_equals_the_definition(name, deformed, order, radius, accuracy, error):
    """Formula and definition agree, also in a strained cell, for which the tables were not made."""
    counts, boxes = LATTICES[name]
    lattice = lattice_of(counts, boxes, radius)
    tables = OperatorTables.from_lattice(lattice, order, accuracy)
    if deformed:
        direction = (
            np.diag([-1.0, 1, -1])
            if mirrored(lattice)
            else np.array([[-1.0, 0, 0], [1, 1, 0], [-1, 1, -1]])
        )
        lattice = lattice.strained(lattice.cell @ deformation(direction))
    expected = lattice_operator(lattice, order, octant=mirrored(lattice)).reshape(
        len(degrees(2 * order)), -1
    )
    found = operator(tables, lattice.boxes, order)
    far = tables.offsets[tables.offsets[:, 3] % 2 == 0, :3]
    reach = np.linalg.norm(far @ lattice.boxes, axis=1).min()
    for l in range(2 * order + 1):
        rows = degrees(2 * order) == l
        scale = max(
            np.abs(expected[rows]).max(), np.prod(np.arange(1, 2 * l, 2)) / reach ** (l + 1)
        )
        assert np.abs(found[rows] - expected[rows]).max() < error * scale


@pytest.mark.parametrize("name", LATTICES)
def test_rows_are_consecutive(name):
    lattice = lattice_of(*LATTICES[name], 2.64)
    offsets = OperatorTables.from_lattice(lattice, 4, 1e-5).offsets
    starts = np.flatnonzero(offsets[:, 3] & 2)
    assert {*range(0, len(offsets), OFFSET_TILE)} <= {*starts.tolist()}
    for row in np.split(offsets[:, :3], starts[1:]):
        np.testing.assert_array_equal(row, row[0] + np.outer(np.arange(len(row)), [1, 0, 0]))
    images = np.array(
        list(product((-1, 1), repeat=3)) if mirrored(lattice) else [(1, 1, 1), (-1, -1, -1)]
    )
    everything = np.unique((offsets[:, None, :3] * images).reshape(-1, 3), axis=0)
    multiplicity = (
        2 ** (offsets[:, :3] != 0).sum(1) if mirrored(lattice) else np.full(len(offsets), 2)
    )
    assert len(everything) == multiplicity.sum()
    assert {*map(tuple, lattice.near.tolist())} <= {*map(tuple, everything.tolist())} | {(0, 0, 0)}


@pytest.mark.parametrize("counts", [(4, 5, 6), (1, 2, 3), (5, 1, 8)])
def test_an_octant_gives_all_in_rectangular_cells(counts):
    """Mirrored wave vectors have the same operator, up to the signs of ``kernels/mirrored.cu``."""
    order = 3
    lattice = lattice_of(np.diag(counts), CUBOID)
    assert mirrored(lattice)
    operator = lattice_operator(lattice, order)
    octant = lattice_operator(lattice, order, octant=True)
    assert octant.shape[1:] == stored_shape(lattice)
    l = degrees(2 * order)
    m = np.arange(len(l)) - l * l - l
    y, z = np.where(m < 0, -1.0, 1.0), (-1.0) ** (l + m)
    found = np.full_like(operator, np.nan)
    for mirror_z in (False, True):
        for mirror_y in (False, True):
            sign = np.where(mirror_y, y, 1.0) * np.where(mirror_z, z, 1.0)
            k0, k1 = (
                np.arange(octant.shape[axis]) * (-1 if mirror else 1)
                for axis, mirror in ((1, mirror_z), (2, mirror_y))
            )
            found[:, (k0 % operator.shape[1])[:, None], k1 % operator.shape[2]] = (
                sign[:, None, None, None] * octant
            )
    np.testing.assert_allclose(found, operator, rtol=0, atol=1e-12 * np.abs(operator).max())


def test_a_cell_that_is_no_longer_rectangular_needs_more_than_an_octant():
    counts = np.diag([4, 5, 6])
    rectangular, skewed = (
        lattice_of(counts, np.eye(3)),
        lattice_of(counts, np.eye(3) + 0.001 * np.tri(3, k=-1)),
    )
    assert not mirrored(skewed)
    assert stored_shape(skewed) == (6, 5, 3)
    assert is_served(skewed, rectangular)
    assert not is_served(rectangular, skewed)
    assert is_served(rectangular, lattice_of(counts, np.diag([1.0, 1.0, 1.01])))


def test_empty_space_is_mirrored():
    lattice, order = PaddedLattice(np.array([3, 4, 2]), 1.87), 3
    assert mirrored(lattice)
    octant, (n1, n2, _) = lattice_operator(lattice, order, octant=True), stored_shape(lattice)
    assert octant.shape[1:] == stored_shape(lattice)
    np.testing.assert_array_equal(octant, lattice_operator(lattice, order)[:, :n1, :n2])
