"""``FMMModel`` in TorchSim."""

import pytest

from tests.torch.systems import torch

torch_sim = pytest.importorskip(
    "torch_sim", reason="needs TorchSim: pip install 'fmm_openmm[torchsim]'"
)
bulk = pytest.importorskip("ase.build").bulk

from torch_sim.io import atoms_to_state  # noqa: E402
from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from fmm_openmm import UnsupportedError  # noqa: E402
from fmm_openmm.ase import FMMCalculator  # noqa: E402
from fmm_openmm.torchsim import FMMModel  # noqa: E402

CHARGES = {11: 1.0, 17: -1.0, 55: 1.0}


def salts():
    """Crystals of two kinds, distorted; one in a primitive cell that is not lower triangular."""
    atoms = [bulk("NaCl", "rocksalt", a=5.64).repeat(2), bulk("CsCl", "cesiumchloride", a=4.12)]
    for each in atoms:
        each.rattle(0.1, seed=2)
    return atoms


def test_agrees_with_ase():
    atoms = salts()
    model = FMMModel(CHARGES, tolerance=1e-8, compute_stress=True)
    state = atoms_to_state(atoms, torch.device("cpu"), torch.float64)
    result = model(state)
    start = 0
    for number, each in enumerate(atoms):
        charges = [CHARGES[z] for z in each.numbers]
        each.calc = FMMCalculator(charges, tolerance=1e-8)
        assert result["energy"][number].item() == pytest.approx(each.get_potential_energy(), 1e-7)
        forces = torch.tensor(each.get_forces())
        found = result["forces"][start : start + len(each)]
        assert (found - forces).norm() < 1e-6 * forces.norm()
        stress = torch.tensor(each.get_stress(voigt=False))
        assert (result["stress"][number] - stress).norm() < 1e-6 * stress.norm()
        start += len(each)


def test_the_interface_of_torchsim():
    model = FMMModel(lambda state: 0.1 * (state.positions[:, 0] > 2.0), compute_stress=True)
    validate_model_outputs(model, torch.device("cpu"), torch.float64)


def test_nve_conserves_energy():
    model = FMMModel(CHARGES, tolerance=1e-6)
    state = atoms_to_state(salts()[:1], torch.device("cpu"), torch.float64)
    initialise, advance = torch_sim.nve(model, dt=torch.tensor(0.02), kT=torch.tensor(0.01), seed=1)
    state, energies = initialise(state), []
    for _ in range(30):
        state = advance(state)
        kinetic = 0.5 * (state.momenta.square() / state.masses[:, None]).sum()
        energies.append(float(state.energy[0] + kinetic))
    assert kinetic > 0.1
    assert max(energies) - min(energies) < 1e-3 * float(kinetic)


def test_free_space():
    state = atoms_to_state(salts()[:1], torch.device("cpu"), torch.float64)
    state.pbc = False
    x = state.positions
    charges = torch.tensor([CHARGES[int(z)] for z in state.atomic_numbers])
    energy = FMMModel(CHARGES, tolerance=1e-8)(state)["energy"]
    pairs = torch.combinations(torch.arange(len(x)))
    distances = (x[pairs[:, 0]] - x[pairs[:, 1]]).norm(dim=1)
    expected = 14.3996454 * (charges[pairs].prod(1) / distances).sum()
    assert energy.item() == pytest.approx(expected.item(), rel=1e-7)


def test_what_is_refused():
    state = atoms_to_state(salts()[:1], torch.device("cpu"), torch.float64)
    with pytest.raises(ValueError, match="`charges` has no entry for the atomic number 11"):
        FMMModel({17: -1.0})(state)
    with pytest.raises(ValueError, match=r"must return shape \(n_atoms,\) .*, got \(3,\)"):
        FMMModel(lambda _: torch.ones(3))(state)
    state.pbc = torch.tensor([True, True, False])
    with pytest.raises(UnsupportedError, match="in all directions or in none"):
        FMMModel(CHARGES)(state)
    state.pbc = False
    with pytest.raises(ValueError, match="`compute_stress` needs a periodic state"):
        FMMModel(CHARGES, compute_stress=True)(state)
