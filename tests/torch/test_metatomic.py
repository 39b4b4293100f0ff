"""``make_metatomic_model``, saved and loaded, in metatomic's calculator for ASE."""

import numpy as np
import pytest

from tests.torch.systems import torch

metatomic_ase = pytest.importorskip(
    "metatomic_ase", reason="needs metatomic: pip install 'fmm_openmm[metatomic]' metatomic-ase"
)
bulk = pytest.importorskip("ase.build").bulk

from fmm_openmm.ase import FMMCalculator  # noqa: E402
from fmm_openmm.metatomic import make_metatomic_model  # noqa: E402


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    path = tmp_path_factory.mktemp("metatomic") / "fmm.pt"
    make_metatomic_model({11: 1.0, 17: -1.0}, tolerance=1e-8).save(path)
    return metatomic_ase.MetatomicCalculator(str(path), device="cpu")


def salt(pbc=True):
    atoms = bulk("NaCl", "rocksalt", a=5.64).repeat(2)
    atoms.rattle(0.1, seed=1)
    atoms.pbc = pbc
    return atoms


@pytest.mark.parametrize("pbc", [True, False])
def test_agrees_with_ase(pbc, calculator):
    found, expected = salt(pbc), salt(pbc)
    found.calc = calculator
    expected.calc = FMMCalculator([1, -1] * 8, tolerance=1e-8)
    assert found.get_potential_energy() == pytest.approx(expected.get_potential_energy(), 1e-7)
    forces = expected.get_forces()
    assert np.linalg.norm(found.get_forces() - forces) < 1e-6 * np.linalg.norm(forces)
    if pbc:
        stress = expected.get_stress()
        assert np.linalg.norm(found.get_stress() - stress) < 1e-6 * np.linalg.norm(stress)


def test_what_is_refused(calculator):
    atoms = salt([True, True, False])
    atoms.cell = 20 * np.eye(3)
    atoms.calc = calculator
    with pytest.raises((ValueError, torch.jit.Error), match="in all directions or in none"):
        atoms.get_potential_energy()
    atoms = salt()
    atoms.numbers[0] = 3
    atoms.calc = calculator
    with pytest.raises(Exception, match="atomic type"):
        atoms.get_potential_energy()
