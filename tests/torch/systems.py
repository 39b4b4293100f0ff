"""Small systems as tensors in float64."""

import numpy as np
import pytest

from tests.support.charges import SKEWED

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fmm_openmm[torch]'")

EXCLUSIONS = torch.tensor([[0, 1], [0, 2], [3, 5]])

ROTATION = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
CELLS = {
    "cubic": 0.6 * np.eye(3),
    "triclinic": 0.6 * SKEWED / SKEWED[0, 0] @ ROTATION,
    "left-handed": np.array([[0.6, 0.2, -0.1], [-0.1, 0.2, 0.7], [0.1, 0.6, 0.1]]),
    "open": None,
}
"""Cells, shape (3, 3), nm."""


def small(name, particles=7, dtype=torch.float64):
    """Positions on a perturbed grid, charges with a net charge, and the cell; each requires a
    gradient."""
    random = np.random.default_rng(3)
    sites = np.stack(np.meshgrid(*3 * [[0.0, 0.5]], indexing="ij"), -1).reshape(-1, 3)[:particles]
    fractions = sites + random.uniform(-0.07, 0.07, sites.shape)
    cell = CELLS[name]
    x = fractions @ (CELLS["cubic"] if cell is None else cell)
    x[0] += 0.6  # out of the cell
    q = random.normal(size=particles)
    return [
        None if array is None else torch.tensor(array, dtype=dtype, requires_grad=True)
        for array in (x, q, cell)
    ]


def boundary(name):
    return "open" if CELLS[name] is None else "periodic"
