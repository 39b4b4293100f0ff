"""Tensors on a GPU: the results of the CPU, computed there; needs an NVIDIA GPU."""

import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.oracle import ewald_sum
from tests.expected_errors import crystal
from tests.support.charges import relative
from tests.torch.systems import EXCLUSIONS, boundary, small, torch

import fmm_openmm.torch as fmm_torch  # isort: skip
from torch.autograd import gradcheck, gradgradcheck  # isort: skip

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)
try:
    backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)


def on_gpu(name, dtype=torch.float64):
    """The tensors of ``small`` on the GPU."""
    tensors = [None if tensor is None else tensor.detach().cuda() for tensor in small(name)]
    return [None if tensor is None else tensor.to(dtype).requires_grad_() for tensor in tensors]


def host(tensor):
    return tensor.detach().cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["cubic", "triclinic", "open"])
def test_agrees_with_the_cpu(name, dtype):
    options = {"exclusions": EXCLUSIONS, "boundary": boundary(name), "tolerance": 1e-5}
    x, q, cell = on_gpu(name, dtype)
    found = fmm_torch.evaluate(x, q, cell, virial=True, **options)
    expected = fmm_torch.evaluate(*small(name), virial=True, **options)
    for values, others in zip(found, expected, strict=True):
        assert values.is_cuda
        assert relative(host(values), others.detach()) < 3e-5
    gradients = torch.autograd.grad(found.energy, (x, q))
    assert relative(host(gradients[0]), -expected.forces.detach()) < 3e-5
    assert relative(host(gradients[1]), expected.potentials.detach()) < 3e-5


@pytest.mark.parametrize("types", [("float32", "float64"), ("float64", "float32")])
def test_types_and_strides_of_the_tensors(types):
    x, q, cell = (tensor.detach() for tensor in on_gpu("triclinic"))
    x, q = (tensor.to(getattr(torch, dtype)) for tensor, dtype in zip((x, q), types, strict=True))
    expected = fmm_torch.evaluate(x, q, cell, tolerance=1e-5)
    strided = torch.stack([x, x], 2)[..., 0], torch.stack([q, q], 1)[:, 1]
    assert not any(tensor.is_contiguous() for tensor in strided)
    found = fmm_torch.evaluate(*strided, cell, tolerance=1e-5)
    assert (found.forces.dtype, found.potentials.dtype) == (x.dtype, q.dtype)
    for values, others in zip(found[:3], expected[:3], strict=True):
        assert relative(host(values), host(others)) < 1e-6


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_gradients_of_a_weighted_energy(wanted):
    x, q, cell = (tensor.detach() for tensor in on_gpu("triclinic", torch.float32))
    inputs = [tensor.requires_grad_() for tensor, each in zip((x, q), wanted, strict=True) if each]
    found = fmm_torch.evaluate(x, q, cell)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        alone = torch.autograd.grad(-1.5 * found.energy, inputs, retain_graph=True)
    torch.cuda.current_stream().wait_stream(stream)
    weights = torch.tensor([-1.5, 2.0], dtype=torch.float64, device="cuda")
    batch = torch.autograd.grad(
        found.energy, inputs, weights, retain_graph=True, is_grads_batched=True
    )
    recorded = torch.autograd.grad(-1.5 * found.energy, inputs, create_graph=True)
    expected = [1.5 * found.forces, -1.5 * found.potentials]
    expected = [values for values, each in zip(expected, wanted, strict=True) if each]
    for several in (alone, [gradient[0] for gradient in batch], recorded):
        for values, others in zip(several, expected, strict=True):
            assert values.dtype == others.dtype
            assert relative(host(values), host(others)) < 1e-6


@pytest.mark.parametrize("name", ["cubic", "triclinic", "open"])
def test_gradients(name):
    x, q, cell = on_gpu(name)
    cell = None if cell is None else cell.detach()
    options = {"boundary": boundary(name), "tolerance": 1e-9, "precision": "double"}

    def energy(x, q):
        return fmm_torch.coulomb(x, q, cell, exclusions=EXCLUSIONS, **options)

    assert gradcheck(energy, (x, q), nondet_tol=1e-3)
    assert gradgradcheck(energy, (x, q), nondet_tol=1e-1, atol=1e-3)


def test_a_cell_on_the_host():
    x, q, cell = on_gpu("triclinic")
    cell = host(cell).requires_grad_()
    energy = fmm_torch.coulomb(x, q, cell, tolerance=1e-5)
    (gradient,) = torch.autograd.grad(energy, cell)
    x, q, other = small("triclinic")
    (expected,) = torch.autograd.grad(fmm_torch.coulomb(x, q, other, tolerance=1e-5), other)
    assert not gradient.is_cuda
    assert relative(gradient, expected) < 3e-5


def test_charges_that_change():
    """Also in the evaluations that do not copy charges to the host."""
    x, q, cell = (tensor.detach() for tensor in on_gpu("cubic"))
    one = fmm_torch.evaluate(x, q, cell, tolerance=1e-5)
    for scale in range(1, 8):
        found = fmm_torch.evaluate(x, scale * q, cell, tolerance=1e-5)
        assert relative(host(found.potentials), scale * host(one.potentials)) < 1e-4
        assert relative(host(found.energy), scale**2 * host(one.energy)) < 1e-4


def test_small_forces():
    """The first evaluation of a cold crystal is right; when forces become small later, the next
    one warns and is right."""
    fmm_torch.clear_solvers()
    cold, warm = crystal("nacl", 0.006), crystal("nacl", 0.4)
    q, cell = torch.tensor(cold.charges).cuda(), torch.tensor(cold.cell)

    def evaluated(case):
        return fmm_torch.evaluate(torch.tensor(case.positions).cuda(), q, cell).forces

    def error(forces, case):
        exact = ewald_sum(case.positions, case.charges, case.cell).forces
        return relative(host(forces).numpy(), exact)

    assert error(evaluated(cold), cold) <= 5e-4
    for _ in range(3):
        assert error(evaluated(warm), warm) <= 5e-4
    evaluated(cold)
    torch.cuda.synchronize()
    with pytest.warns(UserWarning, match="was missed at the last positions on the device"):
        found = evaluated(cold)
    assert error(found, cold) <= 5e-4


def test_streams():
    """Work queued on PyTorch's current stream is done before the evaluation, and the evaluation
    before what is queued after it."""
    x, q, cell = (tensor.detach() for tensor in on_gpu("cubic"))
    expected = fmm_torch.evaluate(x, q, cell.cpu(), tolerance=1e-5).forces.clone()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late += x
        found = fmm_torch.evaluate(late, q, cell.cpu(), tolerance=1e-5).forces.clone()
    stream.synchronize()
    assert relative(host(found), host(expected)) < 1e-5


def test_evaluations_that_wait_for_the_device_read_their_own_tensors():
    x, q, cell = (tensor.detach() for tensor in on_gpu("triclinic"))
    torch.manual_seed(5)
    systems = [
        ((x + 0.02 * torch.rand_like(x)).to(dtype), (scale * q).to(dtype))
        for scale in (1.0, 1.1, 1.2)
        for dtype in (torch.float64, torch.float32)
    ]
    cell, options = cell.cpu(), {"tolerance": 1e-5, "virial": True}
    fmm_torch.clear_solvers()
    for system in 4 * systems[:2]:  # then charges are copied to the host at the 16th evaluation
        fmm_torch.evaluate(*system, cell, **options)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    found = [fmm_torch.evaluate(*system, cell, **options) for system in systems]
    for (x, q), values in zip(systems, found, strict=True):
        expected = fmm_torch.evaluate(host(x).double(), host(q).double(), cell, **options)
        for each, other in zip(values, expected, strict=True):
            assert relative(host(each), other) < 3e-5


def test_devices_must_agree():
    x, q, cell = on_gpu("cubic")
    with pytest.raises(ValueError, match="`charges` must be on the device of `positions`"):
        fmm_torch.coulomb(x, q.cpu(), cell)


def test_changed_exclusions_are_noticed():
    x, q, cell = (tensor.detach() for tensor in on_gpu("cubic"))
    pairs = EXCLUSIONS.clone()
    before = fmm_torch.coulomb(x, q, cell, exclusions=pairs, tolerance=1e-5)
    pairs[0, 1] = 4
    after = fmm_torch.coulomb(x, q, cell, exclusions=pairs, tolerance=1e-5)
    expected = fmm_torch.coulomb(x, q, cell, exclusions=pairs.tolist(), tolerance=1e-5)
    assert before != after
    assert relative(host(after), host(expected)) < 1e-6


@pytest.mark.parametrize("units", ["nm,kJ/mol,e", "A,eV,e"])
def test_results_stay_when_others_are_computed(units):
    x, q, cell = (tensor.detach() for tensor in on_gpu("triclinic"))
    options = {"units": units, "tolerance": 1e-5, "virial": True}
    first = fmm_torch.evaluate(x, q, cell, **options)
    values = [host(value).clone() for value in first]
    fmm_torch.evaluate(x + 0.1 * torch.rand_like(x), 2.0 * q, cell, **options)
    for value, before in zip(first, values, strict=True):
        assert torch.equal(host(value), before)


def test_inference_mode():
    x, q, cell = (tensor.detach() for tensor in on_gpu("cubic"))
    fmm_torch.clear_solvers()
    with torch.inference_mode():
        inside = fmm_torch.evaluate(x, q, cell, tolerance=1e-5)
    outside = fmm_torch.evaluate(x, q, cell, tolerance=1e-5)
    assert relative(host(inside.forces), host(outside.forces)) < 1e-6


@pytest.mark.parametrize("name", ["slab", "ac", "wire"])
def test_slabs_and_wires(name):
    x, q, cell = (tensor.detach() for tensor in on_gpu("triclinic"))
    q = q - q.mean()
    options = {"boundary": name, "tolerance": 1e-6, "virial": True}
    found = fmm_torch.evaluate(x, q, cell, **options)
    expected = fmm_torch.evaluate(host(x), host(q), host(cell), **options)
    for values, others in zip(found, expected, strict=True):
        assert values.is_cuda
        assert relative(host(values), others) < 3e-5
