"""Slabs and wires: values against converged sums, and derivatives by finite differences."""

import numpy as np
import pytest

from fmm_openmm.boundary import NAMES
from fmm_openmm.oracle import partial_ewald_sum
from tests.support.charges import relative
from tests.support.partial import cell_of
from tests.torch.systems import EXCLUSIONS, ROTATION, small, torch

import fmm_openmm.torch as fmm_torch  # isort: skip
from torch.autograd import gradcheck, gradgradcheck  # isort: skip

BOUNDARIES = ["slab", "a", "bc"]
REDUCED = 0.6 * np.array([[1.0, 0, 0], [0.3, 1.1, 0], [-0.2, 0.4, 1.2]])


def neutral():
    """Positions and cell in an orientation of their own, and charges without a net charge."""
    x, q, _ = small("cubic")
    x, cell = (torch.tensor(array @ ROTATION) for array in (x.detach().numpy(), REDUCED))
    return [tensor.requires_grad_() for tensor in (x, (q - q.mean()).detach(), cell)]


def energy_of(boundary, tolerance):
    def energy(x, q, cell):
        options = {"exclusions": EXCLUSIONS, "boundary": boundary, "precision": "double"}
        return fmm_torch.coulomb(x, q, cell, tolerance=tolerance, **options)

    return energy


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_values(boundary):
    x, q, cell = (tensor.detach() for tensor in neutral())
    options = {"exclusions": EXCLUSIONS, "boundary": boundary, "tolerance": 1e-8}
    found = fmm_torch.evaluate(x, q, cell, virial=True, **options)
    turned, charges = x.numpy() @ ROTATION.T, q.numpy()
    expected = partial_ewald_sum(turned, charges, cell_of(boundary, REDUCED), EXCLUSIONS.numpy())
    assert found.energy.item() == pytest.approx(expected.energy, rel=1e-7)
    assert relative(found.forces, expected.forces @ ROTATION) < 1e-8
    ignored = cell.clone()
    ignored[~np.array(NAMES[boundary])] *= 1.5
    assert relative(fmm_torch.coulomb(x, q, ignored, **options), found.energy) < 1e-8


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_positions_and_charges(boundary):
    x, q, cell = neutral()
    assert gradcheck(energy_of(boundary, 1e-8), (x, q, cell.detach()))
    arguments = x, q, cell.detach()
    assert gradgradcheck(energy_of(boundary, 1e-8), arguments, fast_mode=True, nondet_tol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_cell(boundary):
    """All nine elements, of which those of vectors without images do not matter."""
    x, q, cell = neutral()
    energy = energy_of(boundary, 1e-5)
    assert gradcheck(lambda cell: energy(x.detach(), q.detach(), cell), cell, atol=1e-4)


@pytest.mark.slow
def test_second_derivatives_with_the_cell():
    energy = energy_of("slab", 1e-8)
    assert gradgradcheck(energy, neutral(), fast_mode=True, atol=1e-3, nondet_tol=1e-2)
