"""Coulomb energies, forces, potentials and virials as differentiable functions of PyTorch tensors.

Imported on its own: ``import fmm_openmm.torch``.

Raises:
    ImportError: PyTorch is not installed (extra ``torch``).
"""

from fmm_openmm.convert.packages import require

require("torch", "torch")

from fmm_openmm.torch.interface import Coulomb, CoulombTensors, coulomb, evaluate  # noqa: E402
from fmm_openmm.torch.solvers import clear_solvers  # noqa: E402

__all__ = ["Coulomb", "CoulombTensors", "clear_solvers", "coulomb", "evaluate"]
