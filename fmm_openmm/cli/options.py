"""Arguments that several commands share."""

import argparse
from dataclasses import fields

import openmm

from fmm_openmm.backends import BACKENDS
from fmm_openmm.integration.definition import LENNARD_JONES, Options
from fmm_openmm.planning.request import PRECISIONS, TOLERANCE


def count(text: str) -> int:
    """A whole number, also as 1e6."""
    try:
        number = float(text)
        if number.is_integer():
            return int(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")


def add_fmm_arguments(parser, context: bool = True) -> None:
    """The options of :class:`fmm_openmm.FMMForce`, with or without those that
    only a Context has."""
    group = parser.add_argument_group(
        "FMM", "a System with an FMMForce keeps its options, unless any is given here"
    )
    group.add_argument(
        "--tolerance", type=float, help=f"relative force error (default {TOLERANCE:g})"
    )
    add_expansion_arguments(group)
    group.add_argument(
        "--smoothing", type=float, help="smooth box membership, in box widths; 0 for none"
    )
    group.add_argument("--levels", type=int, help="levels of an octree below the grid")
    group.add_argument("--precision", choices=PRECISIONS, help="default: auto")
    group.add_argument("--backend", choices=BACKENDS, help="default: auto")
    if context:
        group.add_argument(
            "--bridge", metavar="NAME", help="into OpenMM: auto, host or native (default: auto)"
        )
        group.add_argument(
            "--lennard-jones",
            choices=LENNARD_JONES,
            help="pairs among their sites, by the native bridge, or by OpenMM (default: auto)",
        )


def add_expansion_arguments(parser) -> None:
    """``--order``, ``--grid`` and ``--near-radius``."""
    parser.add_argument("--order", type=int, help="order of the expansions")
    parser.add_argument("--grid", type=int, nargs=3, metavar="N", help="boxes along a, b and c")
    parser.add_argument("--near-radius", type=float, help="near stencil, in box widths")


def fmm_options(args) -> dict:
    """Those options that were given, as keyword arguments."""
    given = {field.name: getattr(args, field.name, None) for field in fields(Options)}
    return {name: value for name, value in given.items() if value is not None}


def add_platform_argument(parser) -> None:
    """``--platform``."""
    parser.add_argument("--platform", metavar="NAME", help="OpenMM platform (default: the fastest)")


def platform(args) -> openmm.Platform | None:
    """The platform named, None for OpenMM's own choice.

    Raises:
        ValueError: there is no such platform here.
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
    """OpenMM's platforms here, slowest first."""
    platforms = map(openmm.Platform.getPlatform, range(openmm.Platform.getNumPlatforms()))
    return [entry.getName() for entry in sorted(platforms, key=lambda entry: entry.getSpeed())]
