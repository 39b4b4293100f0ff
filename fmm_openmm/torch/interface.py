"""The functions and the module that users of PyTorch call."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from fmm_openmm.boundary import NAMES
from fmm_openmm.checks import check_choice, check_flag, check_integer_pairs, check_number
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.options import suggests_keywords
from fmm_openmm.planning.request import TOLERANCE, TOLERANCES
from fmm_openmm.torch.evaluation import Options
from fmm_openmm.torch.operators import apply_coulomb
from fmm_openmm.units import BOHR, HARTREE, VOLT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

DTYPES = torch.float32, torch.float64
UNITS = "nm,kJ/mol,e"
LENGTHS = {"nm": 1.0, "A": 0.1, "bohr": BOHR}
"""Units of length, nm."""

ENERGIES = {"kJ/mol": 1.0, "kcal/mol": 4.184, "eV": VOLT, "hartree": HARTREE}
"""Units of energy, kJ/mol."""


class CoulombKeywords(TypedDict, total=False):
    """Keywords of :func:`coulomb` in the form that type checkers read, without exclusions."""

    tolerance: float
    boundary: str
    precision: str
    exclusions_periodic: bool
    units: str


class CoulombTensors(NamedTuple):
    """Result of :func:`evaluate`. Each tensor is differentiable with respect to positions, charges
    and cell.

    Attributes:
        energy: shape (), float64.
        forces: -dE/dpositions, shape (n, 3), in the dtype of the positions.
        potentials: dE/dcharges, shape (n,), in the dtype of the charges.
        virial: -dE/dstrain, symmetric, shape (3, 3), float64; None unless it was requested, or the
            cell requires a gradient.
    """

    energy: Tensor
    forces: Tensor
    potentials: Tensor
    virial: "Tensor | None"


def evaluate(
    positions: Tensor,
    charges: Tensor,
    cell: "Tensor | None" = None,
    *,
    tolerance: float = TOLERANCE,
    exclusions: "Tensor | ArrayLike | None" = None,
    boundary: str = "periodic",
    precision: str = "auto",
    exclusions_periodic: bool = False,
    units: str = UNITS,
    virial: bool = False,
) -> CoulombTensors:
    r"""Coulomb energy, forces and potentials of point charges, and their virial, from one
    evaluation of the FMM.

    The energy is that of :class:`fmm_openmm.CoulombSolver`. With S = dE/dstrain its gradient is

    .. math:: \frac{\partial E}{\partial x} = -F, \quad \frac{\partial E}{\partial q} = \phi, \quad
              \frac{\partial E}{\partial h} = h^{-T} (S + x^T F)

    and all of it is known after the evaluation: ``backward`` costs no other. Gradients of forces,
    potentials and virial, and second derivatives of the energy, are Hessian-vector products,
    computed as central differences of two evaluations in double precision at a tolerance of 1e-7.
    Their relative error is about 1e-8, with respect to the cell about 1e-6. There are no third
    derivatives.

    Args:
        positions: shape (n, 3), float32 or float64, on the CPU or on an NVIDIA GPU; wrapped into
            the cell or not.
        charges: shape (n,), e, float32 or float64, on the same device.
        cell: rows are the cell vectors, shape (3, 3), in any orientation and of either handedness,
            on the same device or on the CPU; None with an open boundary. Of a cell on a GPU 72
            bytes are read back, which waits for the device.
        tolerance: largest relative RMS force error, 1e-10 to 0.1.
        exclusions: excluded pairs, shape (m, 2), integer. With positions on a GPU a tensor is
            faster than anything else, as it is read again only after PyTorch has changed it.
        exclusions_periodic: exclude the nearest image of a pair instead of the image that the
            positions give: for positions that were wrapped into the cell atom by atom.
        boundary: as in :class:`fmm_openmm.CoulombSolver`. Cell vectors without images are
            ignored, and their gradients are zero.
        precision: "auto", "single" or "double", of the solver.
        units: units of length ("nm", "A" or "bohr"), energy ("kJ/mol", "kcal/mol", "eV" or
            "hartree") and charge ("e"), separated by commas.
        virial: compute the virial even if the cell requires no gradient.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names argument and value.
        UnsupportedError: a device other than the CPU and NVIDIA GPUs, or a net charge in a slab or
            wire.

    Example:
        >>> x = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0]], dtype=torch.float64)
        >>> q = torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> result = evaluate(x, q, boundary="open")
        >>> round(float(result.energy), 3), round(float(result.forces[0, 0]), 2)
        (-463.118, 1543.73)
    """
    _check_tensors(positions, charges, cell)
    length, energy = _check_options(tolerance, boundary, units)
    check_flag(exclusions_periodic, "exclusions_periodic")
    if (cell is None) != (boundary == "open"):
        raise ValueError(
            f"`cell` must be {'None' if boundary == 'open' else 'given'} with "
            f"`boundary={boundary!r}`, got {'None' if cell is None else 'a cell'}"
        )
    with_virial = virial or (cell is not None and cell.requires_grad and torch.is_grad_enabled())
    options = Options(
        float(tolerance), boundary, precision, bool(exclusions_periodic), length, energy
    )
    total, forces, potentials, work = apply_coulomb(
        positions, charges, cell, _as_pairs(exclusions), options, with_virial
    )
    return CoulombTensors(total, forces, potentials, work if with_virial else None)


@suggests_keywords(like=evaluate, without=("virial",))
def coulomb(
    positions: "Tensor | Sequence[Tensor]",
    charges: "Tensor | Sequence[Tensor]",
    cell: "Tensor | Sequence[Tensor] | None" = None,
    *,
    exclusions: "Tensor | ArrayLike | Sequence | None" = None,
    **options: "Unpack[CoulombKeywords]",
) -> Tensor:
    """The Coulomb energy of point charges, differentiable twice with respect to positions, charges
    and cell; of one system, or of a batch.

    Args:
        positions, charges, cell, exclusions: as in :func:`evaluate`. For a batch of systems lists
            of as many; cell and exclusions may be None.
        tolerance, boundary, precision, exclusions_periodic, units: as in :func:`evaluate`.

    Returns:
        shape (), or (systems,) for a batch; float64.

    Raises:
        ValueError, TypeError, UnsupportedError: as :func:`evaluate`, or lists of different lengths.

    Example:
        >>> x = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0]], requires_grad=True)
        >>> q = torch.tensor([1.0, -1.0])
        >>> energy = coulomb(x, q, 2.0 * torch.eye(3))
        >>> (forces,) = torch.autograd.grad(-energy, x)
        >>> forces.shape
        torch.Size([2, 3])
    """
    if isinstance(positions, Tensor):
        result = evaluate(positions, charges, cell, exclusions=exclusions, **options)
        return result.energy
    systems = len(positions)
    if systems == 0:
        raise ValueError("`positions` must hold at least one system, got an empty list")
    lists: dict[str, Any] = {"charges": charges, "cell": cell, "exclusions": exclusions}
    for name, values in lists.items():
        if values is None and name != "charges":
            lists[name] = [None] * systems
        elif len(values) != systems:
            raise ValueError(
                f"`{name}` must have one entry for each of the {systems} systems of "
                f"`positions`, got {len(values)}"
            )
    energies = [
        evaluate(x, q, h, exclusions=pairs, **options).energy
        for x, q, h, pairs in zip(positions, *lists.values(), strict=True)
    ]
    return torch.stack(energies)


class Coulomb(torch.nn.Module):
    """The Coulomb energy as a module; see :func:`coulomb`.

    Args:
        tolerance, exclusions, boundary, precision, exclusions_periodic, units: as in
            :func:`coulomb`.
    """

    @suggests_keywords(like=coulomb, without=("positions", "charges", "cell"))
    def __init__(
        self,
        *,
        exclusions: "Tensor | ArrayLike | Sequence | None" = None,
        **options: "Unpack[CoulombKeywords]",
    ):
        super().__init__()
        _check_options(**options)
        self.exclusions, self.options = exclusions, options

    def forward(
        self,
        positions: "Tensor | Sequence[Tensor]",
        charges: "Tensor | Sequence[Tensor]",
        cell: "Tensor | Sequence[Tensor] | None" = None,
    ) -> Tensor:
        """The energy, shape (), or (systems,) for a batch; float64."""
        return coulomb(positions, charges, cell, exclusions=self.exclusions, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def parse_units(units: str) -> tuple[float, float]:
    """Units of length, nm, and of energy, kJ/mol, from their names.

    Raises:
        ValueError: a unit has another name, or charges another unit than e.

    >>> parse_units("A,kcal/mol,e")
    (0.1, 4.184)
    """
    names = units.split(",") if isinstance(units, str) else []
    if len(names) != 3 or names[0] not in LENGTHS or names[1] not in ENERGIES or names[2] != "e":
        raise ValueError(
            f"`units` must name a length ({', '.join(LENGTHS)}), an energy "
            f"({', '.join(ENERGIES)}) and e, such as {UNITS!r}, got {units!r}"
        )
    return LENGTHS[names[0]], ENERGIES[names[1]]


def _check_options(
    tolerance: float = TOLERANCE, boundary: str = "periodic", units: str = UNITS, **others
) -> tuple[float, float]:
    """The units of length, nm, and of energy, kJ/mol, of valid options; others are checked when a
    solver is made."""
    check_number(tolerance, "tolerance", *TOLERANCES)
    check_choice(boundary, tuple(NAMES), "boundary")
    return parse_units(units)


def _as_pairs(exclusions: "Tensor | ArrayLike | None") -> "Tensor | None":
    """Exclusions as a tensor. The solver checks the indices, when it is made."""
    if exclusions is None or isinstance(exclusions, Tensor):
        return exclusions
    if not isinstance(exclusions, np.ma.MaskedArray):  # whose mask a tensor would lose
        with suppress(TypeError, ValueError, RuntimeError):
            return torch.tensor(exclusions)  # which torch.compile can trace
    return torch.from_numpy(check_integer_pairs(exclusions, "exclusions"))


def _check_tensors(positions: Tensor, charges: Tensor, cell: "Tensor | None") -> None:
    """Refuse tensors of other types, shapes or devices."""
    device = getattr(positions, "device", None)
    for name, tensor in (("positions", positions), ("charges", charges), ("cell", cell)):
        if tensor is None and name == "cell":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in DTYPES:
            raise TypeError(f"`{name}` must be float32 or float64, got {tensor.dtype}")
        here = tensor.device
        if not (tensor.is_cuda or tensor.is_cpu):
            raise UnsupportedError(f"`{name}` must be on the CPU or on an NVIDIA GPU, got {here}")
        if here != device and not (name == "cell" and tensor.is_cpu):
            raise ValueError(f"`{name}` must be on the device of `positions`, {device}, got {here}")
    shape = positions.shape
    if len(shape) != 2 or shape[1] != 3:
        raise ValueError(f"`positions` must have shape (n, 3), got {tuple(shape)}")
    if charges.shape != shape[:1]:
        raise ValueError(
            f"`charges` must have shape (n,) with n = {shape[0]} (from `positions`), "
            f"got {tuple(charges.shape)}"
        )
    if cell is not None and cell.shape != (3, 3):
        raise ValueError(f"`cell` must have shape (3, 3), got {tuple(cell.shape)}")
