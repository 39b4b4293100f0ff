"""One evaluation of the solver for tensors on the CPU or on a GPU: units, orientation of the cell,
and the way of the data."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fmm_openmm.arrays import is_on_device
from fmm_openmm.boundary import NAMES
from fmm_openmm.convert.orientation import orient_cell, periodic_first
from fmm_openmm.oriented import BOUNDARIES
from fmm_openmm.torch.solvers import Configuration, KeptSolver, borrow_solver

RECHECK_INTERVAL = 1024
"""Evaluations on a GPU after which charges are copied to the host, to see whether parameters still
suit them; at first after 1, 2, 4, 8, ..."""


@dataclass(frozen=True)
class Options:
    """Options of an evaluation.

    Attributes:
        tolerance, boundary, precision, exclusions_periodic: as in
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
    """Result of an evaluation in the units of the options: energy (), forces (n, 3) in the dtype of
    the positions, potentials (n,) in that of the charges and, on request, virial (3, 3);
    energy and virial in float64."""

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


@lru_cache(maxsize=64)
def _oriented(
    vectors: bytes, boundary: str, length: float, device: torch.device
) -> "tuple[np.ndarray, Tensor | None]":
    """The reduced cell, nm, of cell vectors (3, 3), float64, in units of length, and the rotation
    into it, on a device: see :func:`fmm_openmm.convert.orientation.orient_cell`."""
    cell = periodic_first(np.frombuffer(vectors).reshape(3, 3), np.array(NAMES[boundary]))
    box, turned = orient_cell(cell * length)
    with torch.inference_mode(False):
        return box, None if turned is None else torch.from_numpy(turned).to(device)


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
    device, on_host = x.device, x.device.type == "cpu"
    box, rotation = None, None
    if cell is not None:
        vectors = cell.detach().to("cpu", torch.float64).numpy().tobytes()
        box, rotation = _oriented(vectors, options.boundary, options.length, device)
    configuration = Configuration(
        len(x),
        options.tolerance,
        BOUNDARIES[sum(NAMES[options.boundary])],
        options.precision,
        options.exclusions_periodic,
        "cpu" if on_host else "cuda",
        device.index or 0,
    )
    host = _host_exclusions(exclusions, on_host)

    def placed(out: "Tensor | None" = None) -> Tensor:
        """Positions in the cell of the solver, nm."""
        return _placed(x, rotation, options.length, out)

    def example():
        return q.double().cpu().numpy(), placed().double().cpu().numpy()

    with _device_of(device), borrow_solver(configuration, box, host, example) as kept:
        queued = not on_host and _can_queue(kept, q, virial)
        if queued:
            found = _queued(kept, placed, q, box, virial)
        else:
            found = _computed(kept, placed(), q, box, virial)
        return _in_units(found, rotation, options, x.dtype, q.dtype, overwritten=queued)


def _placed(x: Tensor, rotation: "Tensor | None", length: float, out: "Tensor | None") -> Tensor:
    """Positions in the orientation of the solver, nm; in ``out``, float64, if that is given."""
    if rotation is not None:  # as float64, which neither autocast nor TF32 rounds
        x = torch.matmul(x.double(), rotation, out=out)
    if length != 1.0:
        x = torch.mul(x.double(), length, out=out)
    return x if out is None or x is out else out.copy_(x)


def _computed(
    kept: KeptSolver, positions: Tensor, charges: Tensor, box: np.ndarray | None, virial: bool
) -> Values:
    """The solver's result, on the host or a GPU."""
    x, q = _as_array(positions), _as_array(charges)
    if is_on_device(q) or not np.array_equal(q, kept.solver.charges):
        kept.solver.set_charges(q)
    found = kept.solver.compute(x, None if box is kept.cell else box, virial=virial)
    values = found.energy, found.forces, found.potentials, found.virial
    return Values(*(None if value is None else _as_tensor(value) for value in values))


def _can_queue(kept: KeptSolver, charges: Tensor, virial: bool) -> bool:
    """Whether an evaluation on a GPU can be queued for tensors; after the charges have been copied
    to the host if it is time to see whether parameters still suit them."""
    count = kept.evaluations
    if count & (count - 1) == 0 or count % RECHECK_INTERVAL == 0:
        kept.solver.set_charges(charges.double().cpu().numpy())
    return kept.solver.evaluation.can_queue(virial)


def _queued(
    kept: KeptSolver, placed: Callable[[Tensor], Tensor], charges: Tensor, box, virial: bool
) -> Values:
    """The solver's result for tensors on a GPU, in memory that the next evaluation overwrites.

    Args:
        placed: queues the positions in a tensor.
    """

    def fill(run):
        buffers = _tensors_of(run)
        placed(buffers["positions"])
        buffers["charges"].copy_(charges)

    found = _tensors_of(kept.solver.evaluation.queue(fill, box, virial))
    return Values(found["energy"], found["forces"], found["potentials"], found.get("virial"))


_tensors: WeakKeyDictionary[Any, dict[str, Tensor]] = WeakKeyDictionary()
"""Tensors in the memory of the buffers of programs."""


def _tensors_of(run) -> dict[str, Tensor]:
    """The tensors in the memory of the buffers of a program on the current device."""
    if run not in _tensors:
        names = "positions", "charges", "energy", "forces", "potentials", "virial"
        with torch.inference_mode(False):
            _tensors[run] = {
                name: torch.from_dlpack(run.buffers[name]) for name in names if name in run.buffers
            }
    return _tensors[run]


def _in_units(
    found: Values,
    rotation: "Tensor | None",
    options: Options,
    of_forces: torch.dtype,
    of_potentials: torch.dtype,
    overwritten: bool,
) -> Values:
    """A result of the solver in the units of the options and in the orientation of the cell; forces
    and potentials in the given types, the rest in float64; in memory of its own if that of the
    solver is overwritten."""

    def own(values: Tensor, before: Tensor, dtype: torch.dtype) -> Tensor:
        return values.to(dtype, copy=overwritten and values is before)

    energy, forces, potentials, virial = found.energy, found.forces, found.potentials, found.virial
    if rotation is not None:
        forces = forces.double() @ rotation.T
        virial = None if virial is None else rotation @ virial.double() @ rotation.T
    if options.energy != 1.0 or options.length != 1.0:
        energy, potentials = energy / options.energy, potentials / options.energy
        forces = forces * (options.length / options.energy)
        virial = None if virial is None else virial / options.energy
    return Values(
        own(energy, found.energy, torch.float64).reshape(()),
        own(forces, found.forces, of_forces),
        own(potentials, found.potentials, of_potentials),
        None if virial is None else own(virial, found.virial, torch.float64),
    )


def _device_of(device: torch.device) -> AbstractContextManager:
    """Context manager in which the solver computes on a device, in the order of PyTorch's current
    stream."""
    if device.type == "cpu":
        return nullcontext()
    from fmm_openmm.backends.cuda.execute.cupy.exchange import on_stream

    return on_stream(device.index, torch.cuda.current_stream(device.index).cuda_stream)


def _as_array(tensor: Tensor):
    """A tensor as NumPy's or CuPy's array of the same memory."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    from fmm_openmm.backends.cuda.execute.cupy.exchange import as_array

    return as_array(tensor)


def _as_tensor(values) -> Tensor:
    """An array of the solver as a tensor of the same memory; a number as a new tensor, float64."""
    if is_on_device(values):
        return torch.from_dlpack(values)
    return torch.as_tensor(values, dtype=torch.float64)
