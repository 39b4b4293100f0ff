"""Misspelt keywords name the function that was called and the keyword that was meant."""

import inspect

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.convert.keywords import suggests_keywords


def made():
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(force.PME)
    for charge in (1.0, -1.0):
        system.addParticle(1.0)
        force.addParticle(charge, 0.3, 0.0)
    system.addForce(force)
    return system


CALLS = {
    "use_fmm": lambda **keywords: fmm.use_fmm(made(), **keywords),
    "FMMForce": lambda **keywords: fmm.FMMForce(**keywords),
    "FMMForce.from_nonbonded": lambda **keywords: fmm.FMMForce.from_nonbonded(
        made().getForce(0), **keywords
    ),
    "validate": lambda **keywords: fmm.validate(made(), np.eye(3)[:2], **keywords),
    "ChargeSystem.solver": lambda **keywords: fmm.ChargeSystem(
        [1.0, -1.0], box_vectors=np.eye(3)
    ).solver(**keywords),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("tolerence", "tolerance"),
        ("Tolerance", "tolerance"),
        ("smooting", "smoothing"),
        ("back_end", "backend"),
    ],
)
def test_did_you_mean(name, misspelt, meant):
    with pytest.raises(TypeError) as caught:
        CALLS[name](**{misspelt: 1})
    assert (
        str(caught.value)
        == f"{name}() got an unexpected keyword argument '{misspelt}': did you mean `{meant}`?"
    )


@pytest.mark.parametrize("name", CALLS)
def test_nothing_close(name):
    with pytest.raises(
        TypeError,
        match=rf"^{name}\(\) got an unexpected keyword argument 'colour': "
        r"its keywords are .*tolerance",
    ):
        CALLS[name](colour="red")


@pytest.mark.parametrize(
    "function", [fmm.use_fmm, fmm.FMMForce.__init__, fmm.FMMForce.from_nonbonded, fmm.validate]
)
def test_keywords_are_typed_and_documented(function):
    parameters = list(inspect.signature(function).parameters.values())
    docstring = fmm.FMMForce.__doc__ if function is fmm.FMMForce.__init__ else function.__doc__
    keywords = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert len(keywords) >= 7 and not any(one.kind is one.VAR_KEYWORD for one in parameters)
    for one in keywords:
        assert one.annotation is not one.empty, one.name
        assert one.name in docstring, one.name


def test_the_solver_of_a_charge_system_has_the_keywords_of_the_solver():
    own = inspect.signature(fmm.ChargeSystem.solver).parameters
    solver = inspect.signature(fmm.CoulombSolver).parameters
    assert own.keys() - {"self"} == solver.keys() - {"charges", "box_vectors", "exclusions"}
    assert all(own[name].default == solver[name].default for name in own.keys() - {"self"})
    with pytest.raises(
        TypeError, match=r"ChargeSystem.solver\(\) got an unexpected keyword argument 'charges'"
    ):
        fmm.ChargeSystem([1.0]).solver(charges=[2.0])


def test_use_fmm_takes_the_tolerance_by_position_and_nothing_else():
    assert fmm.use_fmm(made(), 1e-3)._definition.options.tolerance == 1e-3
    with pytest.raises(TypeError, match="positional"):
        fmm.use_fmm(made(), 1e-3, 5)


def test_every_option_reaches_the_force():
    options = {
        "tolerance": 1e-3, "order": 4, "grid": [4, 4, 4], "near_radius": 2.0, "smoothing": 0.1,
        "levels": 2, "precision": "double", "backend": "cpu", "bridge": "host",
        "lennard_jones": "openmm",
    }  # fmt: skip
    system = made()
    for force in (
        fmm.use_fmm(system, **options),
        fmm.FMMForce(**options),
        fmm.FMMForce.from_nonbonded(system.getForce(0), **options),
    ):
        assert {name: getattr(force._definition.options, name) for name in options} == options


def test_the_decorated_function_looks_like_itself():
    def plain(a, /, b, *, c: int = 3):
        """What it does."""
        return a, b, c

    checked = suggests_keywords(plain)
    assert checked(1, b=2) == (1, 2, 3)
    assert inspect.signature(checked) == inspect.signature(plain)
    assert (checked.__name__, checked.__doc__) == ("plain", "What it does.")
    with pytest.raises(
        TypeError, match=r"^plain.* unexpected keyword argument 'a': its keywords are b, c$"
    ):
        checked(1, 2, a=1)
