"""Energies, forces, potentials and virials of tensors are those of an Ewald sum."""

import inspect
import threading

import numpy as np
import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.oracle import direct_sum, ewald_sum
from fmm_openmm.units import BOHR, HARTREE, VOLT
from tests.support.charges import relative
from tests.torch.systems import CELLS, EXCLUSIONS, boundary, small, torch

import fmm_openmm.torch as fmm_torch  # isort: skip
from fmm_openmm.torch import interface, solvers  # isort: skip


def exact(x, q, cell, exclusions=EXCLUSIONS):
    x, q = x.detach().numpy(), q.detach().numpy()
    if cell is None:
        return direct_sum(x, q, exclusions.numpy())
    return ewald_sum(x, q, cell.detach().numpy(), exclusions.numpy())


@pytest.mark.parametrize("name", CELLS)
def test_values(name):
    x, q, cell = small(name)
    found = fmm_torch.evaluate(
        x, q, cell, exclusions=EXCLUSIONS, tolerance=1e-8, boundary=boundary(name), virial=True
    )
    expected = exact(x, q, cell)
    assert found.energy.item() == pytest.approx(expected.energy, rel=1e-8)
    assert relative(found.forces.detach(), expected.forces) < 1e-8
    assert relative(found.potentials.detach(), expected.potentials) < 1e-8
    assert found.virial.trace().item() == pytest.approx(expected.energy, rel=1e-8)
    assert found.virial.dtype == found.energy.dtype == torch.float64


def test_exclusions_at_the_nearest_image():
    """Pairs are excluded at their nearest image where positions were wrapped atom by atom."""
    cell = torch.eye(3, dtype=torch.float64)
    x = torch.tensor([[0.98, 0.5, 0.5], [0.05, 0.5, 0.5], [0.4, 0.2, 0.1]], dtype=torch.float64)
    q = torch.tensor([-0.8, 0.4, 0.7], dtype=torch.float64)
    whole = x + torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0]])
    options = {"exclusions": [[0, 1]], "tolerance": 1e-8}
    expected = fmm_torch.coulomb(whole, q, cell, **options)
    found = fmm_torch.coulomb(x, q, cell, exclusions_periodic=True, **options)
    assert found.item() == pytest.approx(expected.item(), rel=1e-8)
    assert fmm_torch.coulomb(x, q, cell, **options).item() != pytest.approx(expected.item(), 0.1)


@pytest.mark.parametrize("units", ["A,eV,e", "bohr,hartree,e", "nm,kcal/mol,e"])
def test_units(units):
    length, energy = {"A": 0.1, "bohr": BOHR, "nm": 1.0}, {"eV": VOLT, "hartree": HARTREE}
    length, energy = length[units.split(",")[0]], energy.get(units.split(",")[1], 4.184)
    x, q, cell = (tensor.detach() for tensor in small("triclinic"))
    options = {"exclusions": EXCLUSIONS, "tolerance": 1e-8, "virial": True}
    expected = fmm_torch.evaluate(x, q, cell, **options)
    found = fmm_torch.evaluate(x / length, q, cell / length, units=units, **options)
    factors = 1 / energy, length / energy, 1 / energy, 1 / energy
    for values, others, factor in zip(found, expected, factors, strict=True):
        assert relative(values, factor * others) < 1e-9


def test_float32():
    exact_values = fmm_torch.evaluate(*small("triclinic"), tolerance=1e-5, exclusions=EXCLUSIONS)
    found = fmm_torch.evaluate(
        *small("triclinic", dtype=torch.float32), tolerance=1e-5, exclusions=EXCLUSIONS
    )
    assert found.forces.dtype == found.potentials.dtype == torch.float32
    assert found.energy.dtype == torch.float64
    for values, others in zip(found, exact_values, strict=True):
        assert relative(values.detach(), others.detach()) < 1e-5


def test_gradients_are_in_the_dtype_of_what_they_belong_to():
    x, q, cell = small("triclinic", dtype=torch.float32)
    energy = fmm_torch.coulomb(x, q, cell)
    for gradient in torch.autograd.grad(energy, (x, q, cell)):
        assert gradient.dtype == torch.float32


def test_the_virial_is_computed_only_if_it_is_needed():
    x, q, cell = small("cubic")
    assert fmm_torch.evaluate(x, q, cell.detach()).virial is None
    assert fmm_torch.evaluate(x, q, cell).virial.shape == (3, 3)
    with torch.no_grad():
        assert fmm_torch.evaluate(x, q, cell).virial is None
    assert fmm_torch.evaluate(x, q, cell.detach(), virial=True).virial.shape == (3, 3)


def test_batch():
    names = ["cubic", "triclinic", "left-handed"]
    systems = [small(name, particles) for name, particles in zip(names, (5, 7, 7), strict=True)]
    lists = [list(values) for values in zip(*systems, strict=True)]
    pairs = [EXCLUSIONS[:1], None, EXCLUSIONS]
    energies = fmm_torch.coulomb(*lists, exclusions=pairs)
    module = fmm_torch.Coulomb(exclusions=pairs)
    assert torch.equal(module(*lists), energies)
    for energy, system, excluded in zip(energies, systems, pairs, strict=True):
        assert energy == fmm_torch.coulomb(*system, exclusions=excluded)
    gradients = torch.autograd.grad(energies.sum(), lists[0])
    alone = fmm_torch.coulomb(*systems[0], exclusions=pairs[0])
    assert torch.equal(gradients[0], torch.autograd.grad(alone, systems[0][0])[0])


def test_solvers_are_kept():
    fmm_torch.clear_solvers()
    x, q, cell = (tensor.detach() for tensor in small("cubic"))
    for scale in (1.0, 1.001, 1.1):  # the shape stays
        energy = fmm_torch.coulomb(scale * x, 2 * q, scale * cell, tolerance=1e-8)
        assert energy == pytest.approx(
            exact(scale * x, 2 * q, scale * cell, EXCLUSIONS[:0]).energy, rel=1e-8
        )
    assert len(solvers._kept) == 1
    fmm_torch.coulomb(x, q, cell, tolerance=1e-8, exclusions=EXCLUSIONS)
    fmm_torch.coulomb(x, q, cell * torch.tensor([[1.0], [1.0], [1.5]]), tolerance=1e-8)
    assert len(solvers._kept) == 3
    for tolerance in np.linspace(1e-4, 1e-3, 2 * solvers.MAX_SOLVERS):
        fmm_torch.coulomb(x, q, cell, tolerance=tolerance)
    assert len(solvers._kept) == solvers.MAX_SOLVERS


def test_changed_exclusions_are_noticed():
    x, q, cell = (tensor.detach() for tensor in small("cubic"))
    as_tensor, as_array = EXCLUSIONS.clone(), EXCLUSIONS.numpy().copy()
    for changed in (as_tensor, as_array):
        before = fmm_torch.coulomb(x, q, cell, exclusions=changed, tolerance=1e-8)
        changed[0, 1] = 4
        after = fmm_torch.coulomb(x, q, cell, exclusions=changed, tolerance=1e-8)
        expected = exact(x, q, cell, torch.as_tensor(changed)).energy
        assert before != after
        assert after.item() == pytest.approx(expected, rel=1e-8)


def test_threads():
    """Charges of one thread do not get into the results of another."""
    x, q, cell = (tensor.detach() for tensor in small("cubic"))
    expected = [fmm_torch.coulomb(x, q * scale, cell) for scale in range(1, 5)]
    found = [[] for _ in expected]

    def run(number):
        for _ in range(20):
            found[number].append(fmm_torch.coulomb(x, q * (number + 1), cell))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for energies, energy in zip(found, expected, strict=True):
        assert len(energies) == 20
        assert relative(energies, [energy] * 20) < 1e-12


def test_charges_may_start_at_zero():
    x, q, cell = (tensor.detach() for tensor in small("cubic"))
    fmm_torch.clear_solvers()
    zero = torch.zeros_like(q, requires_grad=True)
    energy = fmm_torch.coulomb(x, zero, cell, tolerance=1e-6)
    (gradient,) = torch.autograd.grad(energy, zero, create_graph=True)
    assert energy == 0 and not gradient.any()
    (second,) = torch.autograd.grad(gradient, zero, q)
    expected = exact(x, q, cell, EXCLUSIONS[:0]).potentials
    assert relative(second, expected) < 1e-6


BAD = {
    "`positions` must be a tensor": (TypeError, {"positions": np.zeros((7, 3))}),
    "`charges` must be float32 or float64": (TypeError, {"charges": torch.ones(7).bfloat16()}),
    r"`positions` must have shape \(n, 3\)": (ValueError, {"positions": torch.zeros(7, 2)}),
    r"`charges` must have shape \(n,\) with n = 7": (ValueError, {"charges": torch.zeros(8)}),
    r"`cell` must have shape \(3, 3\)": (ValueError, {"cell": torch.ones(3)}),
    "`cell` must be finite and span a volume": (ValueError, {"cell": torch.ones(3, 3)}),
    "`cell` must be given": (ValueError, {"cell": None}),
    "`cell` must be None": (ValueError, {"boundary": "open"}),
    "`boundary` must be one of": (ValueError, {"boundary": "closed"}),
    "`units` must name a length": (ValueError, {"units": "A,eV"}),
    "`units` must name .*, got 3": (ValueError, {"units": 3}),
    "`tolerance` must lie between": (ValueError, {"tolerance": 0.5}),
    "`tolerance` must be a number, got 'a'": (TypeError, {"tolerance": "a"}),
    "`precision` must be one of": (ValueError, {"precision": "half"}),
    "`exclusions` must hold indices": (ValueError, {"exclusions": [[0, 7]]}),
    r"`exclusions` must be integer pairs .*, got \[\[0, 1\], \[2\]\]": (
        ValueError,
        {"exclusions": [[0, 1], [2]]},
    ),
    "`exclusions` must have no masked entries": (
        ValueError,
        {"exclusions": np.ma.array([[0, 1]], mask=True)},
    ),
    "on the CPU or on an NVIDIA GPU": (
        UnsupportedError,
        {"positions": torch.zeros(7, 3, device="meta")},
    ),
    "`positions` must be finite": (ValueError, {"positions": torch.full((7, 3), torch.nan)}),
    "`charges` must be finite": (ValueError, {"charges": torch.full((7,), torch.inf)}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused(message):
    error, changes = BAD[message]
    names = ("positions", "charges", "cell")
    arguments = dict(zip(names, small("cubic"), strict=True)) | changes
    with pytest.raises(error, match=message):
        fmm_torch.evaluate(**arguments)


@pytest.mark.parametrize("options", [{"tolerance": "a"}, {"boundary": "closed"}, {"units": 3}])
def test_bad_options_are_refused_when_the_module_is_made(options):
    with pytest.raises((TypeError, ValueError), match=f"`{next(iter(options))}` must"):
        fmm_torch.Coulomb(**options)


@pytest.mark.parametrize("function", [fmm_torch.coulomb, fmm_torch.Coulomb])
def test_keywords(function):
    """Those that type checkers read are those of ``evaluate``."""
    names = set(interface.CoulombKeywords.__annotations__) | {"exclusions"}
    assert names <= set(inspect.signature(function).parameters)
    assert names == set(inspect.signature(fmm_torch.evaluate).parameters) - {
        "positions", "charges", "cell", "virial"
    }  # fmt: skip
    with pytest.raises(TypeError, match="did you mean `tolerance`"):
        function(tolerence=1e-3)


def test_lists_of_different_lengths_are_refused():
    x, q, cell = small("cubic")
    with pytest.raises(ValueError, match="`charges` must have one entry for each of the 2 systems"):
        fmm_torch.coulomb([x, x], [q], [cell, cell])
    with pytest.raises(ValueError, match="at least one system"):
        fmm_torch.coulomb([], [], [])
