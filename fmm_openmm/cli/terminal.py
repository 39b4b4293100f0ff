"""Output of the commands: tables and progress for people, JSON for programs, and figures."""

import importlib
import json
import math
import re
import sys
from collections.abc import Container
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from fmm_openmm.progress import show_progress


@dataclass
class Outcome:
    """Result of a command.

    Attributes:
        result: the data for ``--json``.
        passed: whether all checks passed.
        interrupted: whether Ctrl-C ended the command early.
    """

    result: dict
    passed: bool = True
    interrupted: bool = False


class Terminal:
    """Writes text or JSON to stdout, and progress to stderr.

    Args:
        json: True for JSON on stdout in place of text; a file name for JSON in that file besides
            text on stdout.
        progress: whether to show progress if stderr is a terminal.
    """

    def __init__(self, json: bool | str = False, progress: bool = True):
        self._json, self._progress = json, progress
        self._columns: list[str] = []
        self._console = Console(quiet=json is True, highlight=False, markup=False)

    def silence(self) -> None:
        """Print and write nothing from now on."""
        self._json = self._progress = False
        self._console.quiet = True

    def say(self, text: str = "") -> None:
        """Print a line of text unchanged."""
        self._console.print(text, soft_wrap=True)

    def table(self, columns, rows, title: str | None = None) -> None:
        """Print a table of strings, the first column left-aligned, the others right-aligned."""
        table = _table(title)
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def heading(self, columns) -> None:
        """Print the first two rows of a Markdown table, unless :meth:`row` will print the names of
        the columns in every row."""
        self._columns = list(columns)
        if not self._is_too_wide():
            self.row(columns)
            self.row(["---"] * len(columns))

    def row(self, cells) -> None:
        """Print a row of a Markdown table at once, above a progress bar. On a terminal that is too
        narrow for the table, cells are printed with the names of their columns."""
        if self._console.quiet:
            return
        if not self._is_too_wide():
            columns = self._columns or cells
            padded = [cell.ljust(len(name)) for name, cell in zip(columns, cells, strict=True)]
            print(f"| {' | '.join(padded)} |", flush=True)
            return
        named = [
            _named(name, cell)
            for name, cell in zip(self._columns, cells, strict=True)
            if cell != "-"
        ]
        for line in _filled(named, self._console.width):
            print(line, flush=True)

    def _is_too_wide(self) -> bool:
        """Return whether the names of the columns are wider than the terminal."""
        width = sum(len(name) + 3 for name in self._columns) + 1
        return self._console.is_terminal and width > self._console.width

    def pairs(self, rows, title: str | None = None) -> None:
        """Print names and values, left-aligned."""
        table = _table(title, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)

    def progress(self, description: str, total: int | None = None):
        """Show a progress bar during a ``with`` block if stderr is a terminal; the block receives a
        function ``advance(steps=1, description=None)``."""
        return show_progress(description, total, self._progress)

    def write_json(self, result: dict) -> None:
        """Write the result as JSON to stdout or to the file, if ``json`` was given.

        Numbers that are not finite become null.
        """
        if self._json:
            with (
                nullcontext(sys.stdout)
                if self._json is True
                else open(self._json, "w", encoding="utf-8") as file
            ):
                json.dump(_jsonable(result), file, indent=2, allow_nan=False)
                file.write("\n")


def _named(name: str, cell: str) -> str:
    """Return a cell with the name of its column, which may end with a unit: "step 1.2 ms"."""
    what, _, unit = name.partition(", ")
    return f"{name} {cell}" if ", " in unit else f"{what} {cell} {unit}".rstrip()


def _filled(parts: list[str], width: int) -> list[str]:
    """Fill lines with parts, none of which is broken; all lines but the first are indented."""
    lines = [""]
    for part in parts:
        if lines[-1].strip() and len(lines[-1]) + len(part) + 3 > width:
            lines.append("   ")
        lines[-1] += f" · {part}" if lines[-1].strip() else f"{' ' if lines[-1] else ''}{part}"
    return lines


def _table(title: str | None, show_header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        show_header=show_header,
    )


def _jsonable(value):
    if isinstance(value, dict):
        return {key: _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.filename:
        reason = error.strerror or "no such file"
        return f"{reason.lower().removesuffix(' or directory')}: {error.filename}"
    return text


def named_as_options(text: str, names: Container[str]) -> str:
    """Return a text in which arguments of Python, as in `` `precision='double'` ``, are written as
    options of the command line.

    Args:
        names: the arguments that the command has options for.

    Example:
        >>> named_as_options("`levels` needs `precision='double'` and `charges`", ["precision"])
        '`levels` needs --precision double and `charges`'
        >>> named_as_options("`devices=[0, 1]` needs CUDA", ["devices"])
        '--devices 0,1 needs CUDA'
    """

    def option(argument: re.Match) -> str:
        name, value = argument[1], argument[2]
        if name not in names:
            return argument[0]
        words = [f"--{name.replace('_', '-')}", *([] if value in (None, "True") else [value])]
        return re.sub(r"['\[\]]", "", " ".join(words).replace(", ", ","))

    return re.sub(r"`(\w+)(?:=([^`[]*|\[[^`]*\]))?`", option, text)


def add_plot_argument(parser) -> None:
    """Add ``--plot FILE``."""
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the results (.png, .pdf or .svg; needs matplotlib)"
    )


def figure(path: str | None):
    """Make a matplotlib figure to be saved with ``savefig(path)``; None if ``path`` is None.

    Commands call it before the work begins, so that errors occur at once.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib cannot write this kind of file.
    """
    if path is None:
        return None
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'fmm_openmm[plot]'") from error
    drawing = figures.Figure(figsize=(7, 4.2), layout="constrained", dpi=150)
    known = drawing.canvas.get_supported_filetypes()
    suffix = str(path).rpartition(".")[2].lower()
    if suffix not in known:
        raise ValueError(
            f"--plot must name a file ending in {', '.join(sorted(known))}, got {path}"
        )
    return drawing
