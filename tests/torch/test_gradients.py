"""First and second derivatives against finite differences, and under ``torch.compile``."""

import shutil

import pytest

from tests.support.charges import relative
from tests.torch.systems import EXCLUSIONS, boundary, small, torch

import fmm_openmm.torch as fmm_torch  # isort: skip
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # isort: skip

TIGHT = {"tolerance": 1e-8, "precision": "double"}
NAMES = ["cubic", "open", "triclinic", "left-handed"]


def energy_of(name, tolerance=1e-5):
    def energy(x, q, cell=None):
        options = {"exclusions": EXCLUSIONS, "boundary": boundary(name), "precision": "double"}
        return fmm_torch.coulomb(x, q, cell, tolerance=tolerance, **options)

    return energy


@pytest.mark.parametrize("name", NAMES)
def test_positions_and_charges(name):
    x, q, cell = small(name)
    cell = None if cell is None else cell.detach()
    assert gradcheck(energy_of(name), (x, q, cell))
    assert gradgradcheck(energy_of(name, 1e-8), (x, q, cell))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triclinic", "left-handed", "cubic"])
def test_cell(name):
    """All nine elements. The gradient is that of the computed energy at any tolerance."""
    x, q, cell = small(name, particles=6)
    assert gradcheck(lambda cell: energy_of(name, 1e-3)(x.detach(), q.detach(), cell), cell)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triclinic", "cubic"])
def test_second_derivatives_with_the_cell(name):
    """Rounding depends on the cells that a solver had before; differences of 1e-5 nm amplify it."""
    energy, arguments = energy_of(name, 1e-8), small(name, particles=6)
    assert gradgradcheck(energy, arguments, fast_mode=True, atol=1e-4, nondet_tol=1e-2)


@pytest.mark.slow
def test_outputs_are_differentiable():
    """Forces, potentials and virial, by one ``backward``."""

    def outputs(x, q, cell):
        return fmm_torch.evaluate(x, q, cell, exclusions=EXCLUSIONS, **TIGHT)

    assert gradcheck(outputs, small("triclinic", particles=6), fast_mode=True, atol=1e-4)


def test_forces_are_differentiable():
    x, q, cell = small("triclinic")

    def forces(x, q):
        return fmm_torch.evaluate(x, q, cell.detach(), exclusions=EXCLUSIONS, **TIGHT)[1:3]

    assert gradcheck(forces, (x, q))


def test_third_derivatives_are_refused():
    x, q, cell = small("cubic")
    energy = energy_of("cubic")(x, q, cell.detach())
    (first,) = torch.autograd.grad(energy, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(second.sum(), q)


def test_operators():
    """``opcheck`` compares shapes, schema and gradients of eager and traced operators."""
    for name in ("triclinic", "open"):
        x, q, cell = small(name)
        options = 1e-6, boundary(name), "double", False, 1.0, 1.0, cell is not None
        torch.library.opcheck(
            torch.ops.fmm_openmm.coulomb.default, (x, q, cell, EXCLUSIONS, *options)
        )
        x, q, cell = (None if value is None else value.detach() for value in (x, q, cell))
        torch.library.opcheck(
            torch.ops.fmm_openmm.coulomb_hvp.default,
            (x, q, cell, EXCLUSIONS, torch.ones_like(x), q, cell, *options),
        )


@pytest.mark.parametrize(
    ("compiler", "pairs"), [("aot_eager", EXCLUSIONS.tolist()), ("inductor", EXCLUSIONS)]
)
def test_compiled(compiler, pairs):
    """An energy, and a loss of forces with its gradient, without a break in the graph."""
    if compiler == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs a C++ compiler")
    x, q, cell = (tensor.detach() for tensor in small("triclinic"))
    q.requires_grad_()

    def loss(x, q, cell):
        found = fmm_torch.evaluate(x, torch.tanh(q), cell, exclusions=pairs, tolerance=1e-6)
        return found.energy + found.forces.square().sum()

    compiled = torch.compile(loss, backend=compiler, fullgraph=True)
    expected, found = loss(x, q, cell), compiled(x, q, cell)
    assert relative(found.detach(), expected.detach()) < 1e-9
    gradients = [torch.autograd.grad(value, q)[0] for value in (found, expected)]
    assert relative(*gradients) < 1e-7


def test_other_gradients_pass_through():
    """Charges that a model predicts from positions: both paths of the chain rule."""
    x, q, cell = small("cubic")

    def energy(x):
        return energy_of("cubic")(x, q.detach() * (1 + torch.sin(5 * x).sum(1)), cell.detach())

    assert gradcheck(energy, x)


def test_hessian():
    """By ``torch.autograd.functional``; ``torch.func`` does not take operators of others."""
    x, q, cell = (tensor.detach() for tensor in small("triclinic"))

    def energy(x, q):
        return energy_of("triclinic", 1e-8)(x, q, cell)

    hessian = torch.autograd.functional.hessian(lambda q: energy(x, q), q)
    assert relative(hessian, hessian.T) < 1e-9
    assert relative(0.5 * q @ hessian @ q, energy(x, q)) < 1e-7
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(energy)(x, q)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_forward_mode_is_refused(which):
    """As are transforms, with gradients or without."""
    given = [tensor.detach() for tensor in small("cubic")]
    one = given[which]
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        given[which] = forward_ad.make_dual(one, torch.ones_like(one))
        fmm_torch.evaluate(*given)

    def energy(tensor):
        given[which] = tensor
        return fmm_torch.coulomb(*given)

    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.vmap(energy)(torch.stack([one, one]))


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_traced(differentiated):
    x, q, cell = (tensor.detach() for tensor in small("cubic"))
    q.requires_grad_(differentiated)
    energy = energy_of("cubic")
    traced = torch.jit.trace(lambda q: energy(x, q, cell), q, check_trace=False)
    assert relative(traced(2.0 * q).detach(), energy(x, 2.0 * q, cell).detach()) < 1e-9


def test_parameters_of_a_module():
    x, q, cell = (tensor.detach() for tensor in small("triclinic"))
    module = fmm_torch.Coulomb(tolerance=1e-6)
    charges = torch.nn.Parameter(q.clone())
    module(x, charges, cell).backward()
    expected = fmm_torch.evaluate(x, q, cell, tolerance=1e-6).potentials
    assert torch.equal(charges.grad, expected)
