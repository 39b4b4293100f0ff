"""The command line: ``fmm-openmm`` and ``python -m fmm_openmm``.

One module per command. Each has ``EXAMPLE``, ``add_arguments(parser)`` and
``run(args, terminal) -> Outcome``; they print through
:class:`fmm_openmm.cli.terminal.Terminal`.

Exit codes: 0 done, 1 a check failed or the reader of stdout has ended, 2 bad usage or input (one
line on stderr), 130 interrupted.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress

import openmm

from fmm_openmm import AnalysisError, UnsupportedError, __version__
from fmm_openmm.cli import analyse, bench, check, convert, info, inputs, potential, run, validate
from fmm_openmm.cli.outputs import check_outputs
from fmm_openmm.cli.parser import (
    HelpFormatter,
    Parser,
    add_command,
    add_common_arguments,
    join_json,
)
from fmm_openmm.cli.terminal import Terminal, named_as_options, one_line

COMMANDS = {
    "info": info,
    "check": check,
    "validate": validate,
    "run": run,
    "analyse": analyse,
    "potential": potential,
    "bench": bench,
    "convert": convert,
}

# Errors caused by bad input, a missing file or package, too little memory, or a System that is
# not supported.
EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    UnsupportedError,
    AnalysisError,
    openmm.OpenMMException,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = Parser(
        prog="fmm-openmm",
        description="Fast multipole electrostatics for OpenMM.",
        epilog="example:\n  fmm-openmm check",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fmm_openmm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        add_common_arguments(add_command(commands, name, module))
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of a command, FILE and options in any order.

    Raises:
        ValueError: bad usage.
    """
    parser = build_parser()
    args, rest = parser.parse_known_args(join_json(argv, bench.BENCHMARKS))
    if args.command == "bench" or any(word.startswith("-") for word in rest):
        if rest:
            words = "fmm-openmm", args.command, getattr(args, "benchmark", None)
            raise ValueError(
                f"unrecognized arguments: {' '.join(rest)} (see {' '.join(filter(None, words))} "
                "--help)"
            )
    else:
        inputs.gather_files(args, rest)
    return args


class _StderrHandler(logging.Handler):
    """Writes the log records of the package to stderr, one line each."""

    def __init__(self, line: Callable[[object], str]):
        super().__init__()
        self._line = line

    def emit(self, record):
        sys.stderr.write(self._line(record.getMessage()))


@contextmanager
def _messages_on_stderr(line: Callable[[object], str]):
    """Write warnings and log records from level INFO on to stderr within a ``with`` block, as the
    lines that ``line`` makes of them."""
    log, handler = logging.getLogger("fmm_openmm"), _StderrHandler(line)
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: line(message)
    level = log.level
    log.addHandler(handler)
    log.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        warnings.formatwarning = usual


def _discard_stdout() -> None:
    """Discard what is still to be written to a pipe whose reader, such as ``head``, has ended:
    Python would report an error at exit."""
    with suppress(OSError), open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def main(argv=None) -> int:
    """Run one command; returns the exit code.

    Args:
        argv: the arguments, ``sys.argv[1:]`` where None.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in argv
    options: dict = {}

    def line(message) -> str:
        return f"fmm-openmm: {named_as_options(one_line(message), options)}\n"

    try:
        args = parse(argv)
        options.update(vars(args))
        check_outputs(args)
        terminal = Terminal(args.json, not args.no_progress)
        with _messages_on_stderr(line):
            outcome = COMMANDS[args.command].run(args, terminal)
        terminal.write_json(outcome.result)
        if sys.stdout:
            sys.stdout.flush()
    except SystemExit as request:  # --help and --version
        return int(request.code or 0)
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except KeyboardInterrupt:
        return 130
    except EXPECTED as error:
        if debug:
            raise
        sys.stderr.write(line(error))
        return 2
    if outcome.interrupted:
        return 130
    return 0 if outcome.passed else 1
