"""Arguments used by several commands."""

import argparse
from dataclasses import fields

import openmm

from fmm_openmm.boundary import NAMES
from fmm_openmm.integration.options import ONLY_IN_CONTEXT, Options


def count(text: str) -> int:
    """Parse an integer, also in the form 1e6."""
    try:
        number = float(text)
        if number.is_integer():
            return int(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be an integer, got {text}")


def add_fmm_arguments(parser, context: bool = True, without: tuple[str, ...] = ()) -> None:
    """Add the options of :class:`fmm_openmm.FMMForce`.

    Args:
        context: whether to include the options that only apply to a Context.
        without: names of options to leave out.
    """
    group = parser.add_argument_group(
        "FMM", "a System with an FMMForce keeps its options, unless any is given here"
    )
    if "boundary" not in without:
        add_boundary_argument(group)
    names = [row.name for row in fields(Options) if row.name not in without]
    _add(group, [name for name in names if context or name not in ONLY_IN_CONTEXT])


def add_boundary_argument(parser) -> None:
    """Add ``--boundary``."""
    parser.add_argument(
        "--boundary",
        choices=tuple(NAMES),
        metavar="NAME",
        help="box vectors along which the charges have images: "
        f"{', '.join(NAMES)} (default: those of the files); open leaves out the box of a structure",
    )


def add_expansion_arguments(parser) -> None:
    """Add ``--order``, ``--grid`` and ``--near-radius``."""
    _add(parser, ("order", "grid", "near_radius"))


def _add(parser, names) -> None:
    for row in fields(Options):
        if row.name in names:
            parser.add_argument(f"--{row.name.replace('_', '-')}", **row.metadata["argument"])


def fmm_options(args) -> dict:
    """Return the FMM options that were given, and the boundary, as keyword arguments."""
    names = ["boundary", *(field.name for field in fields(Options))]
    given = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def add_platform_argument(parser) -> None:
    """Add ``--platform``."""
    parser.add_argument("--platform", metavar="NAME", help="OpenMM platform (default: the fastest)")


def platform(args) -> openmm.Platform | None:
    """Return the platform that was named, or None for OpenMM's default.

    Raises:
        ValueError: this machine has no such platform.
    """
    if args.platform is None:
        return None
    names = platform_names()
    if args.platform not in names:
        raise ValueError(
            f"--platform must be one of {', '.join(names)} on this machine, got {args.platform}"
        )
    return openmm.Platform.getPlatformByName(args.platform)


def platform_names() -> list[str]:
    """Return the names of OpenMM's platforms on this machine, slowest first."""
    platforms = map(openmm.Platform.getPlatform, range(openmm.Platform.getNumPlatforms()))
    return [entry.getName() for entry in sorted(platforms, key=lambda entry: entry.getSpeed())]
