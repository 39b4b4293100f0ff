"""Options as rows of a table; misspelt keywords name the function that was called and the keyword
that was meant."""

import ast
import inspect
import typing
from argparse import ArgumentParser
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.cli.options import add_fmm_arguments, fmm_options
from fmm_openmm.integration.options import ONLY_IN_CONTEXT, ForceKeywords, Options
from fmm_openmm.options import check_options, option, suggests_keywords
from fmm_openmm.planning.request import Request, RequestKeywords, SolverKeywords, SolverOptions


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
    "CoulombSolver": lambda **keywords: fmm.CoulombSolver([1.0, -1.0], np.eye(3), **keywords),
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


@dataclass(frozen=True)
class Lamp:
    """A table of options."""

    colour: str = option("red", "what it shines in", choices=("red", "blue"))
    watts: int | None = option(
        None, "power", ", which the bulb decides if None", kind=int, limits=(1, 60)
    )
    __post_init__ = check_options


def test_a_row_gives_signature_docstring_and_checks():
    @suggests_keywords(like=Lamp)
    def lit(room: str, *, colour: str = "red", **options):
        """Light.

        Args:
            room: where.
            colour: of the light.
            options: those of a
                lamp.

        Returns:
            A lamp.
        """
        return Lamp(colour, **options)

    assert lit("hall", watts=5) == Lamp("red", 5)
    assert str(inspect.signature(lit)) == (
        "(room: str, *, colour: str = 'red', watts: int | None = None)"
    )
    assert inspect.cleandoc(lit.__doc__).splitlines()[2:8] == [
        "Args:",
        "    room: where.",
        "    colour: of the light.",
        "    watts: power, which the bulb decides if None.",
        "",
        "Returns:",
    ]
    assert fields(Lamp)[0].metadata["text"] == '"red" or "blue": what it shines in.'
    for options, error, message in (
        ({"colour": None}, ValueError, "^`colour` must be one of 'red', 'blue', got None$"),
        ({"watts": 61}, ValueError, "^`watts` must lie between 1 and 60, got 61$"),
        ({"watts": 5.5}, TypeError, "^`watts` must be an integer, got 5.5$"),
        ({"wats": 5}, TypeError, "did you mean `watts`"),
    ):
        with pytest.raises(error, match=message):
            lit("hall", **options)


@pytest.mark.parametrize(
    ("keywords", "options", "named"),
    [
        (SolverKeywords, SolverOptions, {"tolerance", "precision"}),
        (RequestKeywords, Request, {"tolerance", "precision"}),
        (ForceKeywords, Options, {"tolerance"}),
    ],
    ids=["solver", "request", "force"],
)
def test_type_checkers_read_what_the_table_says(keywords, options, named):
    """``named`` are parameters of their own in every function that takes the keywords."""
    types = typing.get_type_hints(options)
    rows = {row.name: types[row.name] for row in fields(options) if row.name not in named}
    assert typing.get_type_hints(keywords) == rows


def test_type_checkers_read_where_every_public_name_is():
    tree = ast.parse(Path(find_spec("fmm_openmm").origin).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert fmm._LAZY == {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize(
    ("described", "options"),
    [(fmm.use_fmm, Options), (fmm.FMMForce, Options), (fmm.CoulombSolver, Request)],
    ids=lambda one: one.__name__,
)
def test_docstrings_describe_the_options(described, options):
    own = {"tolerance"} | ({"precision"} if options is Request else set())
    text = " ".join(described.__doc__.split())
    for row in fields(options):
        if row.name not in own:
            assert f" {row.name}: {row.metadata['text']}" in text, row.name


@pytest.mark.parametrize("context", [True, False])
def test_the_command_line_has_the_options(context):
    parser = ArgumentParser()
    add_fmm_arguments(parser, context)
    options = {row.name for row in fields(Options)} - set(() if context else ONLY_IN_CONTEXT)
    assert vars(parser.parse_args([])).keys() == {"boundary", *options}
    assert fmm_options(parser.parse_args(["--near-radius", "2", "--grid", "4", "4", "5"])) == {
        "near_radius": 2.0,
        "grid": [4, 4, 5],
    }
