r"""The operators ``fmm_openmm::coulomb`` and ``fmm_openmm::coulomb_hvp``, and their gradients.

With positions x (n, 3), charges q (n,) and a cell h (3, 3), whose rows are vectors, the gradient of
the energy E(x, q, h) is

    dE/dx = -F,    dE/dq = phi,    dE/dh = h^-T (S + x^T F),    S = dE/dstrain = -virial,

where the last follows from S = x^T dE/dx + h^T dE/dh, the chain rule for x -> x (1 + strain),
h -> h (1 + strain). All of it comes from one evaluation.

Forces, potentials and virial are differentiable as well. For incoming gradients f of F, p of phi
and w of the virial, of which only the symmetric part a counts, the scalar to differentiate is

    L = <v, grad E>    with    v = (-f - x a, p, -h a)

so that its gradient is the Hessian-vector product H v, computed by ``coulomb_hvp``, plus what v
itself depends on: F a for the positions, -dE/dh a for the cell.
"""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from fmm_openmm.boundary import NAMES
from fmm_openmm.torch.evaluation import Options, Values, evaluate_tensors

STEP = 1e-5
"""Largest displacement of a particle or a cell vector in central differences, nm."""

NET_CHARGE_STEP = 2e-4
"""Largest net charge of a slab or wire in central differences, e, relative to the sum of all
magnitudes where that is less than 1 e: a fraction of what the solver takes for rounding."""

HVP_TOLERANCE = 1e-7
"""Tolerance of the evaluations, in double precision, whose differences are Hessian-vector products:
their relative error is then about 1e-8 for positions and charges, and 1e-6 for the cell."""


_SCHEMA = (
    "(Tensor positions, Tensor charges, Tensor? cell, Tensor? exclusions, float tolerance, "
    "str boundary, str precision, bool exclusions_periodic, float length, float unit_energy, "
    "bool virial) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("fmm_openmm::coulomb", mutates_args=(), schema=_SCHEMA)
def coulomb_operator(positions, charges, cell, exclusions, *options):
    """:func:`fmm_openmm.torch.evaluation.evaluate_tensors` with the options one by one. The virial
    is empty unless requested."""
    *options, virial = options
    found = evaluate_tensors(positions, charges, cell, exclusions, Options(*options), virial)
    empty = positions.new_empty((0, 3), dtype=torch.float64)
    return *found[:3], empty if found.virial is None else found.virial


@coulomb_operator.register_fake
def _(positions, charges, cell, exclusions, *options):
    virial = options[-1]
    return (
        positions.new_empty((), dtype=torch.float64),
        torch.empty_like(positions, memory_format=torch.contiguous_format),
        torch.empty_like(charges, memory_format=torch.contiguous_format),
        positions.new_empty((3 if virial else 0, 3), dtype=torch.float64),
    )


def _periodic_vectors(cell: Tensor, boundary: str) -> tuple[Tensor, Tensor]:
    """A cell whose vectors without images are perpendicular to the others, float64, and which
    vectors have images, shape (3, 1), float64: both what S = x^T dE/dx + h^T dE/dh needs, as the
    gradient with respect to vectors without images is zero."""
    vectors, periodic = cell.double(), NAMES[boundary]
    if all(periodic):
        return vectors, vectors.new_ones((3, 1))
    mask = torch.tensor(periodic, device=cell.device)[:, None]
    rows = [row for row, has_images in zip(vectors, periodic, strict=True) if has_images]
    others = torch.linalg.svd(torch.stack(rows))[2][len(rows) :]
    filled = torch.zeros_like(vectors).masked_scatter(~mask, others)
    return torch.where(mask, vectors, filled), mask.double()


def _cell_gradient(
    cell: Tensor, positions: Tensor, forces: Tensor, virial: Tensor, boundary: str
) -> Tensor:
    """dE/dh, shape (3, 3), float64, on the device of the cell."""
    product = positions.double().T @ forces.double() - virial
    vectors, periodic = _periodic_vectors(cell, boundary)
    return periodic * torch.linalg.solve(vectors.T, product.to(cell.device))


def _keep_for_backward(ctx, inputs, output):
    positions, charges, cell, exclusions, *options, virial = inputs
    _, forces, potentials, work = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(positions, charges, cell, exclusions, forces, potentials, work)
    ctx.options, ctx.virial = options, virial


def _differentiate(ctx, for_energy, for_forces, for_potentials, for_virial):
    """Gradients of all inputs, from those of all outputs, of which each may be None."""
    if not ctx.virial:
        for_virial = None  # of an empty tensor
    x, q, cell, exclusions, forces, potentials, virial = ctx.saved_tensors
    boundary = ctx.options[1]
    of_x = of_q = of_cell = None
    wants_cell = ctx.needs_input_grad[2]
    if for_energy is not None:
        if ctx.needs_input_grad[0]:
            of_x = (-for_energy * forces).to(x.dtype)
        if ctx.needs_input_grad[1]:
            of_q = (for_energy * potentials).to(q.dtype)
        if wants_cell:
            of_cell = for_energy.to(cell.device) * _cell_gradient(cell, x, forces, virial, boundary)
    if for_forces is not None or for_potentials is not None or for_virial is not None:
        along_x = torch.zeros_like(x, dtype=torch.float64)
        along_q = torch.zeros_like(q, dtype=torch.float64)
        along_cell, strain = None, None
        if for_forces is not None:
            along_x = along_x - for_forces
        if for_potentials is not None:
            along_q = along_q + for_potentials
        if for_virial is not None:
            strain = 0.5 * (for_virial + for_virial.T).double()
            along_x = along_x - x.double() @ strain
            along_cell = None if cell is None else -cell.double() @ strain.to(cell.device)
        hx, hq, hcell = hessian_vector_product(
            x, q, cell, exclusions, along_x, along_q, along_cell, *ctx.options, wants_cell
        )
        if strain is not None:
            hx = hx + forces.double() @ strain
            if wants_cell:
                hcell = hcell - _cell_gradient(cell, x, forces, virial, boundary) @ strain.to(
                    cell.device
                )
        of_x = hx.to(x.dtype) if of_x is None else of_x + hx.to(x.dtype)
        of_q = hq.to(q.dtype) if of_q is None else of_q + hq.to(q.dtype)
        if wants_cell:
            of_cell = hcell if of_cell is None else of_cell + hcell
    if of_cell is not None:
        of_cell = of_cell.to(cell.dtype)
    return of_x, of_q, of_cell, *(None,) * 8


coulomb_operator.register_autograd(_differentiate, setup_context=_keep_for_backward)


class _EagerCoulomb(torch.autograd.Function):
    """The operator without PyTorch's dispatcher."""

    @staticmethod
    def forward(ctx, positions, charges, cell, exclusions, options, virial):
        output = evaluate_tensors(positions, charges, cell, exclusions, options, virial)
        _keep_for_backward(ctx, (positions, charges, cell, exclusions, *options, virial), output)
        return tuple(output)

    @staticmethod
    def backward(ctx, *gradients):
        return *_differentiate(ctx, *gradients)[:3], None, None, None


def apply_coulomb(
    positions: Tensor,
    charges: Tensor,
    cell: "Tensor | None",
    exclusions: "Tensor | None",
    options: Options,
    virial: bool,
) -> "tuple[Tensor, Tensor, Tensor, Tensor | None]":
    """``coulomb_operator`` of these arguments. Where PyTorch does not trace the call its dispatcher
    is avoided, which costs the host more time than all else of a small system, and so is autograd
    where it has nothing to record or to refuse."""
    if torch.compiler.is_compiling() or type(positions) not in (Tensor, torch.nn.Parameter):
        return coulomb_operator(positions, charges, cell, exclusions, *options, virial)
    if _needs_autograd(positions, charges, cell):
        return _EagerCoulomb.apply(positions, charges, cell, exclusions, options, virial)
    return evaluate_tensors(positions, charges, cell, exclusions, options, virial)


def _needs_autograd(*tensors: "Tensor | None") -> bool:
    """Whether a call with these tensors is traced or transformed, or a derivative is recorded, in
    reverse or in forward mode."""
    if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return True
    given = [tensor for tensor in tensors if tensor is not None]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    return recorded or any(unpack_dual(tensor).tangent is not None for tensor in given)


_HVP_SCHEMA = (
    "(Tensor positions, Tensor charges, Tensor? cell, Tensor? exclusions, Tensor along_positions, "
    "Tensor along_charges, Tensor? along_cell, float tolerance, str boundary, str precision, "
    "bool exclusions_periodic, float length, float unit_energy, bool of_cell) "
    "-> (Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("fmm_openmm::coulomb_hvp", mutates_args=(), schema=_HVP_SCHEMA)
def hessian_vector_product(
    positions: Tensor,
    charges: Tensor,
    cell: "Tensor | None",
    exclusions: "Tensor | None",
    along_positions: Tensor,
    along_charges: Tensor,
    along_cell: "Tensor | None",
    tolerance: float,
    boundary: str,
    precision: str,
    exclusions_periodic: bool,
    length: float,
    unit_energy: float,
    of_cell: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Product of the Hessian of the energy with a vector: its parts for the positions (n, 3), the
    charges (n,) and, on request, the cell (3, 3), float64.

    Central differences of the gradient in double precision. The particle or cell vector that moves
    most moves by :data:`STEP`; the change of the charges is at most the largest charge.
    """
    tolerance = min(tolerance, HVP_TOLERANCE)
    options = Options(tolerance, boundary, "double", exclusions_periodic, length, unit_energy)
    x, q = positions.double(), charges.double()
    h = None if cell is None else cell.double()
    step = _step(q, along_positions, along_charges, along_cell, STEP / length)
    if any(NAMES[boundary]) and not all(NAMES[boundary]):  # only neutral charges have an energy
        net = along_charges.sum().abs().clamp_min(1e-30)
        step = torch.minimum(step, NET_CHARGE_STEP * q.abs().sum().clamp_max(1.0) / net)

    def gradient(sign: float) -> "tuple[Tensor, Tensor, Tensor | None]":
        t = sign * step
        moved = x + t * along_positions
        strained = h if along_cell is None or h is None else h + t.to(h.device) * along_cell
        found = evaluate_tensors(
            moved, q + t * along_charges, strained, exclusions, options, of_cell
        )
        return _gradient(moved, strained, found, boundary)

    above, below = gradient(1.0), gradient(-1.0)
    of_x, of_q, of_h = (
        None if a is None or b is None else (a - b) / (2.0 * step.to(a.device))
        for a, b in zip(above, below, strict=True)
    )
    return of_x, of_q, x.new_empty((0, 3)) if of_h is None else of_h.contiguous()


def _gradient(
    positions: Tensor, cell: "Tensor | None", found: Values, boundary: str
) -> "tuple[Tensor, Tensor, Tensor | None]":
    """dE/dx, dE/dq and, if there is a virial, dE/dh."""
    forces = found.forces.double()
    of_cell = None
    if cell is not None and found.virial is not None:
        of_cell = _cell_gradient(cell, positions, forces, found.virial.double(), boundary)
    return -forces, found.potentials.double(), of_cell


def _step(
    charges: Tensor, along_x: Tensor, along_q: Tensor, along_cell: "Tensor | None", length: float
) -> Tensor:
    """The multiple of the vector that differences are taken with, shape (), on its device."""
    moves = along_x.norm(dim=1).max()
    if along_cell is not None:
        moves = torch.maximum(moves, along_cell.to(moves.device).norm(dim=1).max())
    largest = charges.abs().max()
    inverse = torch.maximum(moves / length, along_q.abs().max() / largest.clamp_min(0.1))
    return torch.where(inverse > 0.0, 1.0 / inverse, 1.0)


@hessian_vector_product.register_fake
def _(positions, charges, cell, exclusions, along_positions, along_charges, along_cell, *options):
    return (
        torch.empty_like(positions, dtype=torch.float64),
        torch.empty_like(charges, dtype=torch.float64),
        (cell if options[-1] else positions).new_empty(
            (3 if options[-1] else 0, 3), dtype=torch.float64
        ),
    )
