"""Arguments, tables and figures used by several benchmarks."""

import argparse

import numpy as np

from fmm_openmm.backends import BACKENDS
from fmm_openmm.checks import check_number
from fmm_openmm.cli.options import platform
from fmm_openmm.cli.parser import number
from fmm_openmm.planning.request import PRECISIONS, TOLERANCE

GPU_SIZES, CPU_SIZES = "6 4.5:2x2x2 6:3x3x5", "3 6"
"""Default sizes: 21,000, 72,000 and 960,000 atoms; 2,700 and 21,000."""


def size(text: str):
    """Parse a :class:`fmm_openmm.bench.systems.Size`."""
    from fmm_openmm.bench.systems import Size

    try:
        return Size.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def width(text: str) -> float | None:
    """Parse a width of the smoothing; None for "auto"."""
    try:
        return None if text == "auto" else check_number(number(text), "smoothing", 0.0, 0.2)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_cases(parser) -> None:
    """Add ``--sizes`` and ``--tolerance``, each with one or several values."""
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        metavar="EDGE[:NxNxN]",
        help="edges of boxes of water, nm, each with the copies along a, b and c if several",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        nargs="+",
        metavar="T",
        help="relative force errors to meet, one or several",
    )


def add_growth(parser) -> None:
    """Add ``--tolerance``, with one value, and ``--max-atoms``."""
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help="relative force error to meet (default %(default)s)",
    )
    parser.add_argument(
        "--max-atoms",
        type=float,
        metavar="N",
        help="atoms of the largest system; smaller ones may be the last if memory does not suffice",
    )


def add_backend(parser) -> None:
    """Add ``--backend``."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="implementation of the FMM (default: %(default)s)",
    )


def add_smoothing(parser, default: str) -> None:
    """Add ``--smoothing``, with one or several values."""
    parser.add_argument(
        "--smoothing",
        type=width,
        nargs="+",
        default=list(map(width, default.split())),
        metavar="S",
        help="half width of the transition from box to box, in box widths, or auto, one or several "
        f"(default: {default})",
    )


def add_cells(parser) -> None:
    """Add ``--cells``."""
    shapes = "cube", "dodecahedron", "octahedron", "skewed"
    parser.add_argument(
        "--cells",
        choices=shapes,
        nargs="+",
        default=["cube"],
        metavar="SHAPE",
        help=f"{', '.join(shapes)}, all of the same volume (default: cube)",
    )


def add_precisions(parser) -> None:
    """Add ``--precision``, with one or several values."""
    both = list(PRECISIONS[1:])
    parser.add_argument(
        "--precision", choices=both, nargs="+", default=both, metavar="P", help=" or ".join(both)
    )


def default_sizes(on_gpu: bool, gpu: str = GPU_SIZES, cpu: str = CPU_SIZES) -> list:
    """Return the sizes that are measured by default."""
    return list(map(size, (gpu if on_gpu else cpu).split()))


def chosen_platform(args):
    """Return the OpenMM platform to measure on, and whether it runs on a GPU."""
    from fmm_openmm.bench.systems import fastest_platform, on_gpu

    chosen = platform(args) or fastest_platform()
    return chosen, on_gpu(chosen)


def most_atoms(args, default: float, least: int = 1000) -> float:
    """Return ``--max-atoms``, or its default.

    Raises:
        ValueError: the smallest system has more atoms.
    """
    most = default if args.max_atoms is None else args.max_atoms
    if not most >= least:
        raise ValueError(f"--max-atoms must be at least {least}, got {most:g}")
    return most


def lines(drawing, rows, keys, value, label: str) -> None:
    """Plot values against the number of atoms on logarithmic axes, one line for each combination of
    the keys; the dotted line is proportional to the number of atoms."""
    axes = drawing.add_subplot()
    for case in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        points = [
            (row["atoms"], value(row)) for row in rows if tuple(row[key] for key in keys) == case
        ]
        axes.loglog(*zip(*points, strict=True), "o-", label=", ".join(map(str, case)))
    if rows:
        ends = np.array(sorted(row["atoms"] for row in rows))[[0, -1]]
        axes.loglog(ends, ends * value(rows[-1]) / rows[-1]["atoms"], "k:", linewidth=1)
    if keys and rows:
        axes.legend()
    axes.set_xlabel("atoms")
    axes.set_ylabel(label)


def panels(drawing, rows, x: str, y: str, title: str = ""):
    """Yield axes and rows for each precision."""
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    found = np.atleast_1d(drawing.subplots(1, len(precisions), sharey=True))
    found[0].set_ylabel(y)
    for axes, precision in zip(found, precisions, strict=True):
        yield axes, [row for row in rows if row["precision"] == precision]
        axes.set_title(title + precision)
        axes.set_xlabel(x)
        if axes.lines:
            axes.legend()
