"""What is shown in a terminal: progress, and tables that fit."""

from functools import partial

import pytest
from rich.console import Console

import fmm_openmm as fmm
from fmm_openmm import progress
from fmm_openmm.cli import main, terminal
from tests.cli.inputs import WATER
from tests.convert.small_water import small_water


def test_no_progress_without_a_terminal(monkeypatch, capsys):
    """Nothing is printed, not even the empty line with which some versions of rich end a hidden
    bar."""
    monkeypatch.setattr(progress, "Progress", None)
    with terminal.Terminal().progress("waiting", total=2) as advance:
        advance()
        advance(0, description="still waiting")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("options", [[], ["--no-progress"]])
def test_progress_can_be_switched_off(options, monkeypatch, capsys, tmp_path):
    """``--no-progress`` hides the bar in a terminal."""
    monkeypatch.setattr(progress, "Console", partial(Console, force_terminal=True))
    assert main(["convert", *WATER, "-o", str(tmp_path / "out.npz"), *options]) == 0
    assert ("reading" in capsys.readouterr().err) is not options


@pytest.mark.parametrize("shown", [True, False])
def test_progress_of_validate(shown, monkeypatch, capsys):
    monkeypatch.setattr(progress, "Console", partial(Console, force_terminal=True))
    _, system, positions = small_water()
    fmm.validate(system, positions, tolerance=1e-2, backend="cpu", progress=shown)
    printed = capsys.readouterr().err
    assert ("FMM" in printed) is ("reference, ewald" in printed) is shown


def table(capsys, width):
    """Lines that a person reads of one row, and whether they are a Markdown table."""
    shown = terminal.Terminal()
    shown._console = Console(force_terminal=True, width=width)
    shown.heading(COLUMNS)
    shown.row(["6:3x3x5", "962280", "FMM, host bridge", "12.5", "-", "6, 2.5, [9, 9, 9]"])
    return capsys.readouterr().out.splitlines()


COLUMNS = ("system", "atoms", "method", "step, ms", "over PME's", "order, radius, boxes")


def test_a_table_that_is_too_wide_for_the_terminal(capsys):
    """Each cell with its name, no line longer than the terminal."""
    assert table(capsys, 80)[0].startswith("| system | atoms | method | step, ms |")
    assert table(capsys, 60) == [
        "system 6:3x3x5 · atoms 962280 · method FMM, host bridge",
        "    step 12.5 ms · order, radius, boxes 6, 2.5, [9, 9, 9]",
    ]


@pytest.mark.parametrize("name", ["solver", "md"])
def test_tables_of_benchmarks_fit_100_columns(name, capsys, monkeypatch):
    """Whatever is in their cells."""
    names = []
    monkeypatch.setattr(terminal.Terminal, "heading", lambda _, columns: names.extend(columns))
    monkeypatch.setattr("fmm_openmm.bench.solver.measure", stopped)
    monkeypatch.setattr("fmm_openmm.bench.md.Case.from_size", stopped)
    assert main(["bench", name, "--sizes", "3"]) == 2
    monkeypatch.undo()
    shown = terminal.Terminal()
    shown._console = Console(force_terminal=True, width=100)
    shown.heading(names)
    shown.row(["12345.67"] * len(names))
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert len(names) > 10 and max(map(len, lines)) <= 100 and "12345.67" in lines[-1]


def stopped(*_, **__):
    raise ValueError("enough")
