"""What the commands print: tables and progress for people, JSON for programs, pictures."""

import importlib
import json
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from fmm_openmm.progress import show_progress


@dataclass
class Outcome:
    """What a command found.

    Attributes:
        result: for ``--json``.
        passed: whether every check did.
        interrupted: whether it is what was found until Ctrl-C.
    """

    result: dict
    passed: bool = True
    interrupted: bool = False


class Terminal:
    """Writes for people on stdout, or, with ``json``, for programs; progress goes to stderr.

    Args:
        json: print nothing but JSON on stdout; or, a file name, write it there as well as printing
            for people.
        progress: show progress, where stderr is a terminal.
    """

    def __init__(self, json: bool | str = False, progress: bool = True):
        self._json, self._progress = json, progress
        self._columns: list[str] = []
        self._console = Console(quiet=json is True, highlight=False, markup=False)

    def say(self, text: str = "") -> None:
        """One line of text, as it is."""
        self._console.print(text, soft_wrap=True)

    def table(self, columns, rows, title: str | None = None) -> None:
        """A table of strings; the first column is left-aligned, the others right-aligned."""
        table = _table(title)
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def heading(self, columns) -> None:
        """The first two rows of a Markdown table, unless :meth:`row` will write its columns' names
        in every row."""
        self._columns = list(columns)
        if not self._is_too_wide():
            self.row(columns)
            self.row(["---"] * len(columns))

    def row(self, cells) -> None:
        """A row of a Markdown table, at once, above a progress bar; on a terminal that is too
        narrow for the table the first cells and then the others with their names."""
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
        """Whether the table's names alone need more columns than the terminal has."""
        width = sum(len(name) + 3 for name in self._columns) + 1
        return self._console.is_terminal and width > self._console.width

    def pairs(self, rows, title: str | None = None) -> None:
        """Names with their values, all left-aligned."""
        table = _table(title, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)

    def progress(self, description: str, total: int | None = None):
        """A progress bar, where stderr is a terminal, for a ``with`` block, which gets a
        function ``advance(steps=1, description=None)``."""
        return show_progress(description, total, self._progress)

    def write_json(self, result: dict) -> None:
        """With ``json``: the result on stdout or in the file.

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
    """A cell with the name of its column, which may end with a unit: "step 1.2 ms"."""
    what, _, unit = name.partition(", ")
    return f"{name} {cell}" if ", " in unit else f"{what} {cell} {unit}".rstrip()


def _filled(parts: list[str], width: int) -> list[str]:
    """Lines of parts that are not broken, all but the first indented."""
    lines = [""]
    for part in parts:
        if lines[-1].strip() and len(lines[-1]) + len(part) + 3 > width:
            lines.append("   ")
        lines[-1] += f" · {part}" if lines[-1].strip() else f"{' ' if lines[-1] else ''}{part}"
    return lines


def _table(title: str | None, **options) -> Table:
    look = {
        "title_justify": "left",
        "title_style": "bold",
        "box": None,
        "pad_edge": False,
        "padding": (0, 2, 0, 0),
    }
    return Table(title=title, **look, **options)


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
    """The text of an error on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.strerror.lower().removesuffix(' or directory')}: {error.filename}"
    return text


def add_plot_argument(parser) -> None:
    """``--plot FILE``."""
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the results (.png, .pdf or .svg; needs matplotlib)"
    )


def figure(path: str | None):
    """A matplotlib figure to be saved with ``savefig(path)``, None where there is no ``path``.

    Called before the work begins, so that what cannot be drawn is said at once.

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
