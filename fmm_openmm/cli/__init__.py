"""The command line: ``fmm-openmm`` and ``python -m fmm_openmm``.

One module a command. Each has ``add_arguments(parser)`` and ``run(args, terminal) -> Outcome``;
what they print goes through :class:`fmm_openmm.cli.terminal.Terminal`.

Exit codes: 0 done, 1 a check failed, 2 bad usage or input (one line on stderr), 130 interrupted.
"""

import argparse
import logging
import sys
import warnings
from contextlib import contextmanager

import openmm

from fmm_openmm import UnsupportedError, __version__
from fmm_openmm.cli import bench, check, convert, info, run, validate
from fmm_openmm.cli.outputs import check_outputs
from fmm_openmm.cli.terminal import Terminal, one_line

COMMANDS = {
    "info": info,
    "check": check,
    "validate": validate,
    "run": run,
    "bench": bench,
    "convert": convert,
}

# What bad input, a missing file or package, too little memory, or a System that is
# not supported may raise.
EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    UnsupportedError,
    openmm.OpenMMException,
)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and raised."""

    def error(self, message):
        raise ValueError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(prog="fmm-openmm", description="Fast multipole electrostatics for OpenMM.")
    parser.add_argument("--version", action="version", version=f"fmm_openmm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        summary = module.__doc__.partition("\n\n")[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_argument(
            "--json", action="store_true", help="print the results as JSON, and nothing else"
        )
        command.add_argument(
            "--debug", action="store_true", help="show the Python traceback of an error"
        )
        module.add_arguments(command)
    return parser


class _Told(logging.Handler):
    """Prints what the package logs, on stderr."""

    def emit(self, record):
        sys.stderr.write(f"fmm-openmm: {one_line(record.getMessage())}\n")


@contextmanager
def _telling():
    """For a ``with`` block in which warnings and the log, from INFO on,
    are one line each on stderr."""
    log, handler = logging.getLogger("fmm_openmm"), _Told()
    usual, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    level = log.level
    log.addHandler(handler)
    log.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        warnings.formatwarning = usual


def _one_line_warning(message, *_, **__) -> str:
    return f"fmm-openmm: {one_line(message)}\n"


def main(argv=None) -> int:
    """Run one command; returns the exit code.

    Args:
        argv: the arguments, ``sys.argv[1:]`` where None.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(argv)
        check_outputs(args)
        terminal = Terminal(args.json)
        with _telling():
            outcome = COMMANDS[args.command].run(args, terminal)
        terminal.write_json(outcome.result)
    except SystemExit as request:  # --help and --version
        return request.code
    except KeyboardInterrupt:
        return 130
    except EXPECTED as error:
        if debug:
            raise
        sys.stderr.write(f"fmm-openmm: {one_line(error)}\n")
        return 2
    if outcome.interrupted:
        return 130
    return 0 if outcome.passed else 1
