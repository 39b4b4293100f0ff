"""One evaluation of the solver for tensors on the CPU or on a GPU: units, orientation of the cell,
and the way of the data."""

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fmm_openmm.boundary import NAMES
from fmm_openmm.convert.orientation import orient_cell, periodic_first
from fmm_openmm.oriented import BOUNDARIES
from fmm_openmm.results import CoulombResult
from fmm_openmm.torch.solvers import Configuration, KeptSolver, borrow_solver

RECHECK_INTERVAL = 1024
"""Evaluations on a GPU after which charges are copied to the host, to see whether parameters still
suit them; at first after 1, 2, 4, 8, ..."""


@dataclass(frozen=True)
class Options:
    """Options of an evaluation.

    Attributes:
        tolerance, boundary, precision, exclusions_periodic: as of
            :class:`fmm_openmm.CoulombSolver`.
        length: unit of length, nm.
        energy: unit of energy, kJ/mol.
    """

    tolerance: float
    boundary: str
    precision: str
    exclusions_periodic: bool
    length: float
    energy: float


@dataclass(frozen=True)
class Values:
    """Result of an evaluation in the units of the options, in float64 or the precision of the
    solver: energy (), forces (n, 3), potentials (n,) and, if it was asked for, virial (3, 3)."""

    energy: Tensor
    forces: Tensor
    potentials: Tensor
    virial: "Tensor | None"


_exclusions: OrderedDict[tuple, tuple[Tensor, np.ndarray]] = OrderedDict()
MAX_EXCLUSIONS = 16
"""Tensors of exclusions whose copies on the host are kept for evaluations on a GPU."""


def _host_exclusions(exclusions: "Tensor | None", on_host: bool) -> np.ndarray | None:
    """Exclusions, shape (m, 2), on the host.

    With positions on the host they are read, and compared, at each evaluation. Otherwise a
    read-only copy is kept as long as PyTorch's count of changes of the tensor stays, so that
    nothing is transferred. The tensor is kept with it: no other can take its place in memory.
    """
    if exclusions is None:
        return None
    exclusions = exclusions.detach()
    if on_host or exclusions.is_inference():
        return exclusions.cpu().numpy()
    key = exclusions.device, exclusions.data_ptr(), exclusions._version, exclusions.shape
    if key not in _exclusions:
        copy = exclusions.cpu().numpy().copy()
        copy.flags.writeable = False
        _exclusions[key] = exclusions, copy
        while len(_exclusions) > MAX_EXCLUSIONS:
            _exclusions.popitem(last=False)
    return _exclusions[key][1]


def evaluate_tensors(
    positions: Tensor,
    charges: Tensor,
    cell: "Tensor | None",
    exclusions: "Tensor | None",
    options: Options,
    virial: bool,
) -> Values:
    """Evaluate without any gradient.

    Args:
        positions: shape (n, 3), float32 or float64, on the CPU or a GPU.
        charges: shape (n,), e, on the same device.
        cell: rows are the cell vectors, shape (3, 3); None with an open boundary.
        exclusions: shape (m, 2), integer; or None.
        options: tolerance, boundary, precision and units.
        virial: whether to compute the virial.

    Raises:
        ValueError, TypeError, UnsupportedError, MemoryError: as
            :meth:`fmm_openmm.CoulombSolver.compute`.
    """
    x, q = positions.detach(), charges.detach()
    box, rotation = None, None
    if cell is not None:
        vectors = cell.detach().to("cpu", torch.float64).numpy()
        periodic = np.array(NAMES[options.boundary])
        box, turned = orient_cell(periodic_first(vectors, periodic) * options.length)
        if turned is not None:
            rotation = torch.from_numpy(turned).to(x.device)
            x = x.double() @ rotation  # as float64, which neither autocast nor TF32 rounds
    if options.length != 1.0:
        x = x.double() * options.length
    on_host = x.device.type == "cpu"
    configuration = Configuration(
        len(x),
        options.tolerance,
        BOUNDARIES[sum(NAMES[options.boundary])],
        options.precision,
        options.exclusions_periodic,
        "cpu" if on_host else "cuda",
        x.device.index or 0,
    )
    host = _host_exclusions(exclusions, on_host)

    def example():
        return q.double().cpu().numpy(), x.double().cpu().numpy()

    with _device_of(x), borrow_solver(configuration, box, host, example) as kept:
        _set_charges(kept, q, on_host)
        given = x.numpy() if on_host else _as_array(x)
        box = None if box is kept.cell else box
        found = kept.solver.compute(given, box, virial=virial)
    return _in_units(found, rotation, options, x.device)


def _in_units(
    found: CoulombResult, rotation: "Tensor | None", options: Options, device: torch.device
) -> Values:
    """A result of the solver in the units of the options and in the orientation of the cell."""
    energy, forces, potentials = (
        _as_tensor(value, device) for value in (found.energy, found.forces, found.potentials)
    )
    virial = None if found.virial is None else _as_tensor(found.virial, device).double()
    if rotation is not None:
        forces = forces.double() @ rotation.T
        virial = None if virial is None else rotation @ virial @ rotation.T
    if options.energy != 1.0 or options.length != 1.0:
        energy, potentials = energy / options.energy, potentials / options.energy
        forces = forces * (options.length / options.energy)
        virial = None if virial is None else virial / options.energy
    return Values(energy.reshape(()), forces, potentials, virial)


def _set_charges(kept: KeptSolver, charges: Tensor, on_host: bool) -> None:
    """Give the solver its charges; on a GPU without a copy to the host but for those that
    :data:`RECHECK_INTERVAL` tells of."""
    count = kept.evaluations
    if on_host:
        kept.solver.set_charges(charges.numpy())
    elif count & (count - 1) == 0 or count % RECHECK_INTERVAL == 0:
        kept.solver.set_charges(charges.double().cpu().numpy())
    else:
        kept.solver.set_charges(_as_array(charges))


def _device_of(tensor: Tensor) -> AbstractContextManager:
    """Context manager in which the solver computes on the tensor's device, in the order of
    PyTorch's current stream."""
    if tensor.device.type == "cpu":
        return nullcontext()
    from fmm_openmm.backends.cuda.execute.cupy.exchange import on_stream

    return on_stream(tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream)


def _as_array(tensor: Tensor):
    """A tensor on a GPU as CuPy's array of the same memory."""
    from fmm_openmm.backends.cuda.execute.cupy.exchange import as_array

    return as_array(tensor)


def _as_tensor(values, device: torch.device) -> Tensor:
    """An array of the solver as a tensor of the same memory; a number as a new tensor."""
    if device.type == "cpu":
        return torch.as_tensor(values, dtype=torch.float64)
    return torch.from_dlpack(values)
