"""``make_metatomic_model``: the Coulomb interaction as a model of metatomic."""

# ruff: noqa: UP006, UP035, UP045  # metatomic and TorchScript want the types of typing

from collections.abc import Mapping
from typing import Dict, List, Optional

import torch

from fmm_openmm.convert.packages import require
from fmm_openmm.planning.request import TOLERANCE
from fmm_openmm.torch.interface import parse_units

require("metatomic.torch", "metatomic")

from metatensor.torch import Labels, TensorBlock, TensorMap  # noqa: E402
from metatomic.torch import (  # noqa: E402
    AtomisticModel,
    ModelCapabilities,
    ModelMetadata,
    ModelOutput,
    System,
)


class _FMM(torch.nn.Module):
    """The energies of systems, in TorchScript."""

    def __init__(self, charges: Mapping[int, float], tolerance: float, precision: str):
        super().__init__()
        table = torch.full((max(charges) + 1,), torch.nan, dtype=torch.float64)
        for number, charge in charges.items():
            table[number] = charge
        self.register_buffer("charges", table)
        self.tolerance, self.precision = float(tolerance), precision
        self.length, self.unit_energy = parse_units("A,eV,e")

    def forward(
        self,
        systems: List[System],
        outputs: Dict[str, ModelOutput],
        selected_atoms: Optional[Labels] = None,
    ) -> Dict[str, TensorMap]:
        if selected_atoms is not None:
            raise ValueError("`selected_atoms` must be None: the energy is that of all atoms")
        energies: List[torch.Tensor] = []
        for system in systems:
            x = system.positions
            periodic = bool(system.pbc.all())
            if bool(system.pbc.any()) and not periodic:
                raise ValueError("`pbc` must be true in all directions or in none")
            cell: Optional[torch.Tensor] = None
            if periodic:
                cell = system.cell
            energy, _, _, _ = torch.ops.fmm_openmm.coulomb(
                x,
                self.charges[system.types.to(torch.int64)].to(x.dtype),
                cell,
                None,
                self.tolerance,
                "periodic" if periodic else "open",
                self.precision,
                False,
                self.length,
                self.unit_energy,
                periodic and system.cell.requires_grad,
            )
            energies.append(energy)
        device = systems[0].positions.device
        only = torch.zeros((1, 1), dtype=torch.int64, device=device)
        numbers = torch.arange(len(systems), device=device).reshape(-1, 1)
        no_components: List[Labels] = []
        block = TensorBlock(
            values=torch.stack(energies).to(systems[0].positions.dtype).reshape(-1, 1),
            samples=Labels(["system"], numbers),
            components=no_components,
            properties=Labels(["energy"], only),
        )
        return {"energy": TensorMap(Labels(["_"], only), [block])}


def make_metatomic_model(
    charges: Mapping[int, float],
    *,
    tolerance: float = TOLERANCE,
    precision: str = "auto",
    dtype: str = "float64",
) -> AtomisticModel:
    """The Coulomb energy as a model of metatomic, with the output ``energy``, Angstrom and eV.

    Programs that use metatomic take forces and stresses from its gradients. A model that was saved
    can be loaded where ``fmm_openmm.torch`` has been imported before.

    Args:
        charges: the charge of each element by its atomic number, e.
        tolerance, precision: as in :func:`fmm_openmm.torch.evaluate`.
        dtype: "float32" or "float64", of positions and energies.

    Returns:
        the model. It raises ValueError for systems that are periodic in only some directions.

    Raises:
        ImportError: metatomic is not installed (extra ``metatomic``).

    Example:
        >>> make_metatomic_model({11: 1.0, 17: -1.0}).capabilities().atomic_types
        [11, 17]
    """
    capabilities = ModelCapabilities(
        outputs={"energy": ModelOutput(unit="eV")},
        atomic_types=sorted(charges),
        interaction_range=float("inf"),
        length_unit="angstrom",
        supported_devices=["cpu", "cuda"],
        dtype=dtype,
    )
    module = _FMM(charges, tolerance, precision).eval()
    return AtomisticModel(module, ModelMetadata(name="fmm_openmm"), capabilities)
