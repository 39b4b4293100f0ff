"""One evaluation of the solver for tensors on the CPU or on a GPU: units, orientation of the cell,
and data flow."""

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fmm_openmm.arrays import is_on_device
from fmm_openmm.boundary import NAMES
from fmm_openmm.convert.orientation import orient_cell, periodic_first
from fmm_openmm.oriented import BOUNDARIES
from fmm_openmm.torch.solvers import Configuration, KeptSolver, find_solver

RECHECK_INTERVAL = 1024
"""Evaluations on a GPU after which charges are copied to the host, to see whether parameters still
suit them; at first after 1, 2, 4, 8, ..."""


class Options(NamedTuple):
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


class Values(NamedTuple):
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
    vectors: tuple[tuple[float, ...], ...], boundary: str, length: float, device: torch.device
) -> "tuple[np.ndarray, Tensor | None]":
    """The reduced cell, nm, of cell vectors (3, 3) in units of length, and the rotation into it,
    on a device: see :func:`fmm_openmm.convert.orientation.orient_cell`."""
    cell = periodic_first(np.array(vectors), np.array(NAMES[boundary]))
    box, turned = orient_cell(cell * length)
    with torch.inference_mode(False):
        return box, None if turned is None else torch.from_numpy(turned).contiguous().to(device)


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
    x, q, device = positions, charges, positions.device
    backend = "cuda" if x.is_cuda else "cpu"
    box, rotation = None, None
    if cell is not None:
        vectors = tuple(map(tuple, cell.tolist()))
        box, rotation = _oriented(vectors, options.boundary, options.length, device)
    configuration = Configuration(
        x.shape[0],
        options.tolerance,
        BOUNDARIES[sum(NAMES[options.boundary])],
        options.precision,
        options.exclusions_periodic,
        backend,
        device.index or 0,
    )
    host = _host_exclusions(exclusions, backend == "cpu")

    def example():
        return _host_array(q), _host_array(_placed(x, rotation, options.length))

    with _device_of(device):
        kept = find_solver(configuration, box, host, example)
        with kept.lock:
            kept.evaluations += 1
            if backend == "cuda" and _can_queue(kept, q, virial):
                return _queued(kept, x, q, rotation, options, box, virial)
            found = _computed(kept, _placed(x, rotation, options.length), q, box, virial)
            return _in_units(found, rotation, options, x.dtype, q.dtype)


def _placed(x: Tensor, rotation: "Tensor | None", length: float) -> Tensor:
    """Positions in the orientation of the solver, nm."""
    if rotation is not None:  # as float64, which neither autocast nor TF32 rounds
        x = x.double() @ rotation
    return x if length == 1.0 else x.double() * length


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
        kept.solver.set_charges(_host_array(charges))
    return kept.solver.evaluation.can_queue(virial)


def _queued(
    kept: KeptSolver,
    positions: Tensor,
    charges: Tensor,
    rotation: "Tensor | None",
    options: Options,
    box,
    virial: bool,
) -> Values:
    """The result for tensors on a GPU, in the units of the options: a kernel reads the tensors and
    another one writes the results into new ones."""
    x, q = positions.resolve_neg().contiguous(), charges.resolve_neg().contiguous()
    sizes = x.element_size(), q.element_size()
    given = _exchange().Given(
        x.shape[0], *sizes, options.length, options.energy, _address(rotation)
    )

    def fill(run):
        return given.take(run.buffers, x.data_ptr(), q.data_ptr())

    run = kept.solver.evaluation.queue(fill, box, virial)
    found = Values(
        torch.empty_like(_template((), x.device)),
        torch.empty_like(x),
        torch.empty_like(q),
        torch.empty_like(_template((3, 3), x.device)) if virial else None,
    )
    run.launch(given.give(run.buffers, *map(_address, found)))
    return found


@cache
def _template(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A tensor, float64, that others are made like: faster than by shape and type."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=torch.float64, device=device)


def _address(tensor: "Tensor | None") -> int:
    """Address of a tensor; 0 if there is none."""
    return 0 if tensor is None else tensor.data_ptr()


def _in_units(
    found: Values,
    rotation: "Tensor | None",
    options: Options,
    of_forces: torch.dtype,
    of_potentials: torch.dtype,
) -> Values:
    """A result of the solver in the units of the options and in the orientation of the cell; forces
    and potentials in the given types, the rest in float64."""
    energy, forces, potentials, virial = found
    if rotation is not None:
        forces = forces.double() @ rotation.T
        virial = None if virial is None else rotation @ virial.double() @ rotation.T
    if options.energy != 1.0 or options.length != 1.0:
        energy, potentials = energy / options.energy, potentials / options.energy
        forces = forces * (options.length / options.energy)
        virial = None if virial is None else virial / options.energy
    return Values(
        energy.double().reshape(()),
        forces.to(of_forces).contiguous(),
        potentials.to(of_potentials).contiguous(),
        None if virial is None else virial.double().contiguous(),
    )


@cache
def _exchange() -> Any:
    """The module that needs CuPy."""
    from fmm_openmm.backends.cuda.execute.cupy import exchange

    return exchange


def _device_of(device: torch.device) -> AbstractContextManager:
    """Context manager in which the solver computes on a device, in the order of PyTorch's current
    stream."""
    if device.type == "cpu":
        return nullcontext()
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # no object of it is made
    return _exchange().on_stream(device.index, stream)


def _as_array(tensor: Tensor):
    """A tensor as NumPy's or CuPy's array of the same memory."""
    tensor = tensor.detach()
    return _exchange().as_array(tensor) if tensor.is_cuda else tensor.numpy()


def _host_array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array on the host, float64."""
    return tensor.detach().double().cpu().numpy()


def _as_tensor(values) -> Tensor:
    """An array of the solver as a tensor of the same memory; a number as a new tensor, float64."""
    if is_on_device(values):
        return torch.from_dlpack(values)
    return torch.as_tensor(values, dtype=torch.float64)
