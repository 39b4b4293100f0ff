"""Energies are those of torch-pme's Ewald sum, for crystals and for random cells."""

import numpy as np
import pytest

from tests.crystals import CRYSTALS
from tests.support.charges import relative
from tests.torch.systems import CELLS, small, torch

import fmm_openmm.torch as fmm_torch  # isort: skip
from fmm_openmm.units import COULOMB_CONSTANT  # isort: skip

torchpme = pytest.importorskip("torchpme", reason="needs torch-pme: pip install torch-pme")

SMEARING = 0.08
"""Width of the Gaussians of the Ewald sum, nm: both of its sums then converge to 1e-12."""


def neighbours(x, cell, cutoff):
    """All ordered pairs within the cutoff, shape (m, 2), and their distances, shape (m,)."""
    reach = np.ceil(cutoff * np.linalg.norm(np.linalg.inv(cell.numpy()), axis=0)).astype(int) + 2
    images = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in reach), indexing="ij"), -1)
    shifts = torch.tensor(images.reshape(-1, 3), dtype=torch.float64) @ cell
    distances = (x[:, None, None] - x[None, :, None] - shifts).norm(dim=-1)
    near = (distances > 1e-9) & (distances < cutoff)
    return near.nonzero()[:, :2], distances[near]


def ewald(x, q, cell):
    """Energy, kJ/mol, by torch-pme."""
    inverse = torch.linalg.inv(cell)
    wrapped = x - torch.floor(x @ inverse) @ cell
    pairs, distances = neighbours(wrapped.detach(), cell, 7.5 * SMEARING)
    calculator = torchpme.EwaldCalculator(
        torchpme.CoulombPotential(smearing=SMEARING),
        lr_wavelength=np.pi * SMEARING / 7.5,  # it keeps waves up to half of the number it names
        full_neighbor_list=True,
    ).double()
    potentials = calculator(q[:, None], cell, wrapped, pairs, distances)
    return COULOMB_CONSTANT * float(potentials[:, 0] @ q)


@pytest.mark.parametrize("name", ["cscl", "nacl_primitive", "zincblende", "wurtzite", "cuprite"])
def test_crystals(name):
    crystal = CRYSTALS[name]
    x, q, cell = map(torch.tensor, (crystal.positions, crystal.charges, crystal.box_vectors))
    expected = ewald(x, q, cell)
    assert expected == pytest.approx(crystal.energy, rel=max(1e-9, crystal.digits))
    for tolerance in (1e-5, 1e-9):
        energy = fmm_torch.coulomb(x, q, cell, tolerance=tolerance)
        assert energy.item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("name", [name for name, cell in CELLS.items() if cell is not None])
def test_random_cells(name):
    x, q, cell = (tensor.detach() for tensor in small(name))
    q -= q.mean()
    energy = fmm_torch.coulomb(x, q, cell, tolerance=1e-9)
    assert relative(energy, ewald(x, q, cell)) < 1e-9
