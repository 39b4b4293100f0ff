"""``FMMModel``: the Coulomb interaction as a model of TorchSim."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fmm_openmm.convert.packages import require
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.planning.request import TOLERANCE
from fmm_openmm.torch import evaluate

require("torch_sim", "torchsim")

from torch_sim.models.interface import ModelInterface  # noqa: E402
from torch_sim.state import SimState  # noqa: E402


class FMMModel(ModelInterface):
    """Coulomb energies, forces and stresses of the systems of a state, one FMM evaluation each.

    In TorchSim's units: Angstrom, eV and e. Each system is periodic in all three directions or in
    none, as the state says.

    Args:
        charges: the charge of each element by its atomic number, e; or a function of a state that
            returns charges, shape (n_atoms,), e. Results are not differentiable.
        tolerance, precision: as in :func:`fmm_openmm.torch.evaluate`.
        device, dtype: device and dtype of the tensors of the states.
        compute_forces, compute_stress: quantities that a result holds in addition to energies. A
            stress needs the virial.

    Raises:
        ImportError: TorchSim is not installed (extra ``torchsim``).
    """

    def __init__(
        self,
        charges: "Mapping[int, float] | Callable[[SimState], torch.Tensor]",
        *,
        tolerance: float = TOLERANCE,
        precision: str = "auto",
        device: "torch.device | str" = "cpu",
        dtype: torch.dtype = torch.float64,
        compute_forces: bool = True,
        compute_stress: bool = False,
    ):
        super().__init__()
        self._charges = charges
        self._options: dict[str, Any] = {
            "tolerance": tolerance,
            "precision": precision,
            "units": "A,eV,e",
        }
        self._device, self._dtype = torch.device(device), dtype
        self._compute_forces, self._compute_stress = compute_forces, compute_stress
        self._memory_scales_with = "n_atoms"

    def forward(self, state: SimState, **_) -> dict[str, torch.Tensor]:
        """Energies and, if they are wanted, forces and stresses.

        Returns:
            ``energy`` (n_systems,), eV; ``forces`` (n_atoms, 3), eV/A; ``stress``
            (n_systems, 3, 3), dE/dstrain over the volume, eV/A^3.

        Raises:
            ValueError: an element without a charge, charges of another shape, or a stress without
                a cell.
            UnsupportedError: periodic in only some directions.
        """
        if isinstance(state, dict):
            state = SimState(**state)
        given = self._charges
        charges = given(state) if callable(given) else _by_element(given, state)
        if charges.shape != state.atomic_numbers.shape:
            raise ValueError(
                f"`charges` must return shape (n_atoms,) with n_atoms = {len(state.positions)}, "
                f"got {tuple(charges.shape)}"
            )
        periodic = _is_periodic(state)
        if self._compute_stress and not periodic:
            raise ValueError("`compute_stress` needs a periodic state, got one without a cell")
        energies, forces, stresses = [], torch.zeros_like(state.positions), []
        with torch.no_grad():
            for number, cell in enumerate(state.row_vector_cell):
                atoms = state.system_idx == number
                found = evaluate(
                    state.positions[atoms],
                    charges[atoms].to(state.positions),
                    cell if periodic else None,
                    boundary="periodic" if periodic else "open",
                    virial=self._compute_stress,
                    **self._options,
                )
                energies.append(found.energy)
                forces[atoms] = found.forces
                if found.virial is not None:
                    stresses.append(-found.virial / cell.det().abs())
        result = {"energy": torch.stack(energies).to(state.positions)}
        if self._compute_forces:
            result["forces"] = forces
        if stresses:
            result["stress"] = torch.stack(stresses).to(state.positions)
        return result


def _by_element(given: Mapping[int, float], state: SimState) -> torch.Tensor:
    """Charges of the atoms of a state by their elements, shape (n_atoms,), e."""
    table = torch.full((200,), torch.nan, dtype=torch.float64)
    for number, charge in given.items():
        table[number] = charge
    charges = table.to(state.positions.device)[state.atomic_numbers.long()]
    missing = state.atomic_numbers[charges.isnan()]
    if len(missing):
        raise ValueError(f"`charges` has no entry for the atomic number {int(missing[0])}")
    return charges


def _is_periodic(state: SimState) -> bool:
    """Whether a state is periodic in all directions; else it is in none."""
    directions = torch.as_tensor(state.pbc).reshape(-1)
    if bool(directions.all()):
        return True
    if bool(directions.any()):
        raise UnsupportedError(
            f"`pbc` must be true in all directions or in none, got {directions.tolist()}"
        )
    return False
