"""The tables of the lattice operator on the GPU, through the formula of ``kernels/operator.cu`` in NumPy. Needs no GPU."""

import numpy as np
import pytest
from scipy.special import gammainc, gammaincc

from fmm_openmm.backends.cuda.operator import OFFSET_TILE, SLACK, OperatorTables
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular
from fmm_openmm.expansions.lattice import lattice_operator

OBLIQUE = np.array([[1.0, 0, 0], [0.05, 1.1, 0], [-0.03, 0.07, 0.95]])
COUNTS = {
    "cube": np.diag([4, 4, 4]),
    "long": np.diag([7, 1, 2]),
    "dodecahedron": np.array([[4, 0, 0], [0, 4, 0], [2, 2, 3]]),
    "sheared": np.array([[27, 0, 0], [4, 2, 0], [-7, -2, 3]]),
}


def operator(tables, boxes, order):
    """The operator of box vectors ``boxes``, shape (terms, waves)."""
    l = degrees(2 * order)
    v, d, shape = tables.group[:9].reshape(3, 3).astype(float), tables.group[9:12], tables.group[12:]
    kappa = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(-1, 3)
    fraction = (kappa / d) @ v.T
    fraction -= np.rint(fraction)

    x = tables.offsets[:, :3] @ boxes
    r2 = (x * x).sum(1)
    argument, half = tables.alpha**2 * r2, np.arange(2 * order + 1)[:, None] + 0.5
    share = np.where(tables.offsets[:, 3] & 1, -gammainc(half, argument), gammaincc(half, argument)) / r2**half
    weights = 2 * regular(x, 2 * order) * irregular_norm(2 * order)[:, None] * share[l]
    weights[(l + 1) // 2 % 2 == 1] *= -1
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


@pytest.mark.parametrize(("order", "radius", "accuracy", "error"), [
    (2, 1.87, 1e-5, 1e-7), (6, 2.64, 1e-5, 1e-7), (5, 4.64, 1e-5, 1e-7), (2, 1.87, 1e-12, 1e-13), (8, 2.91, 1e-12, 1e-13),
])  # fmt: skip
@pytest.mark.parametrize("deformed", [False, True])
@pytest.mark.parametrize("name", COUNTS)
def test_the_formula_equals_the_definition(name, deformed, order, radius, accuracy, error):
    """Also in a deformed cell, for which the tables were not made."""
    counts = COUNTS[name]
    lattice = BoxLattice.from_cell(counts @ OBLIQUE, counts, radius)
    tables = OperatorTables.of(lattice, order, accuracy)
    if deformed:
        near = lattice.near
        boxes = lattice.boxes + 0.9 * SLACK * np.array([[-1, 0, 0], [1, -1, 0], [-1, 1, -1]])
        lattice = BoxLattice.from_cell(counts @ boxes, counts, radius)
        lattice.__dict__["near"] = near  # as it was
    expected = lattice_operator(lattice, order).reshape(len(degrees(2 * order)), -1)
    found = operator(tables, lattice.boxes, order)
    far = tables.offsets[tables.offsets[:, 3] % 2 == 0, :3]
    reach = np.linalg.norm(far @ lattice.boxes, axis=1).min()
    for l in range(2 * order + 1):
        rows = degrees(2 * order) == l
        scale = max(np.abs(expected[rows]).max(), np.prod(np.arange(1, 2 * l, 2)) / reach ** (l + 1))
        assert np.abs(found[rows] - expected[rows]).max() < error * scale


@pytest.mark.parametrize("name", COUNTS)
def test_rows_are_consecutive(name):
    lattice = BoxLattice.from_cell(COUNTS[name] @ OBLIQUE, COUNTS[name], 2.64)
    offsets = OperatorTables.of(lattice, 4, 1e-5).offsets
    starts = np.flatnonzero(offsets[:, 3] & 2)
    assert {*range(0, len(offsets), OFFSET_TILE)} <= {*starts.tolist()}
    for row in np.split(offsets[:, :3], starts[1:]):
        np.testing.assert_array_equal(row, row[0] + np.outer(np.arange(len(row)), [1, 0, 0]))
    both = {tuple(i) for i in offsets[:, :3].tolist()} | {tuple(i) for i in (-offsets[:, :3]).tolist()}
    assert len(both) == 2 * len(offsets)
    assert {tuple(i) for i in lattice.near.tolist()} <= both | {(0, 0, 0)}
