"""The argument parser: help of 80 columns, FILE and options in any order, and ``--json=FILE``."""

import argparse
import re
import shutil
import sys
import textwrap

WIDTH = 80
"""Largest number of columns of ``--help``."""


ARGUMENT, CHOICE = (
    re.compile(r"argument (\S+?):(?: `\w+`(?= must))?( must)?"),
    re.compile(r"(\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)"),
)
"""How argparse words its errors: ``argument --steps: expected one argument``."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors, one line each, as ``ValueError``."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.register("type", int, integer)
        self.register("type", float, number)

    def error(self, message):
        message = ARGUMENT.sub(lambda found: found[1] + (found[2] or ":"), message, count=1)
        if choice := CHOICE.fullmatch(message):
            names = choice[3].replace("'", "")
            message = f"{choice[1]} must be one of {names}, got {choice[2]}"
        raise ValueError(f"{message} (see {self.prog} --help)")


def integer(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text}") from None


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text}") from None


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs, keeps indented lines, and writes ``--json[=FILE]``."""

    def __init__(self, prog, **options):
        columns = min(shutil.get_terminal_size().columns, WIDTH)
        super().__init__(prog, **{"width": columns - 2} | options)

    def _fill_text(self, text, width, indent):
        paragraphs = textwrap.dedent(text).strip().split("\n\n")
        return "\n\n".join(
            paragraph
            if "\n  " in paragraph
            else textwrap.fill(
                paragraph,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for paragraph in paragraphs
        )

    def format_help(self):
        text = super().format_help().replace("--json [=FILE]  ", "--json[=FILE]   ")
        return text.replace("--json [=FILE]", "--json[=FILE]")


def add_command(commands, name: str, module) -> argparse.ArgumentParser:
    """Add a subcommand, whose help is the docstring of a module and its ``EXAMPLE``."""
    command = commands.add_parser(
        name,
        help=module.__doc__.partition("\n\n")[0],
        description=module.__doc__,
        formatter_class=HelpFormatter,
    )
    module.add_arguments(command)
    example = f"example:\n  {module.EXAMPLE}"
    command.epilog = f"{command.epilog}\n\n{example}" if command.epilog else example
    return command


def add_common_arguments(parser, **options) -> None:
    """Add ``--json``, ``--no-progress`` and ``--debug``.

    Args:
        options: keywords of ``add_argument``, for another default.
    """
    parser.add_argument(
        "--json",
        nargs="?",
        const=True,
        type=lambda text: text or True,
        metavar="=FILE",
        help="print only the results, as JSON; with =FILE, write them to FILE in addition to the "
        "usual output",
        **{"default": False} | options,
    )
    parser.add_argument(
        "--no-progress",
        action="store_true",
        help="do not show the progress of long computations",
        **options,
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="show the Python traceback of an error",
        **options,
    )


def join_json(argv: list[str], benchmarks) -> list[str]:
    """Replace ``--json`` by ``--json=``, so that the next word is not read as its file.

    After ``bench`` the form ``--json FILE`` is deprecated: it is accepted, with a warning on
    stderr.
    """
    joined: list[str] = []
    for word in argv:
        if len(word) > 2 and "--json".startswith(word):
            word = "--json="
        elif (
            joined[:1] == ["bench"]
            and joined[-1] == "--json="
            and not word.startswith("-")
            and word not in benchmarks
        ):
            joined[-1] += word
            sys.stderr.write(
                f"fmm-openmm: write --json={word} for --json {word}, which the next release "
                "will not accept\n"
            )
            continue
        joined.append(word)
    return joined
