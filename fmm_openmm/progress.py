"""Progress of long work on stderr: in a terminal or a notebook, nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def show_progress(
    description: str, total: int | None = None, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """A progress bar for a ``with`` block; yields ``advance(steps=1, description=None)``.

    Args:
        description: description of the current step.
        total: number of steps; None where it is not known.
        shown: False for no bar at all.
    """
    console = Console(stderr=True)
    if not (shown and (console.is_terminal or console.is_jupyter)):
        yield lambda steps=1, description=None: None
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    if total is not None:
        columns[2:2] = [BarColumn(), MofNCompleteColumn()]
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1, description: str | None = None) -> None:
            named = description is not None  # shown at once, however short what it names is
            bar.update(task, advance=steps, description=description, refresh=named)

        yield advance
