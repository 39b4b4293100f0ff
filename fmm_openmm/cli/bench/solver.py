"""Time of an evaluation and of its stages, utilisation of the device, and force error."""

import itertools

import numpy as np

from fmm_openmm.backends import choose_backend
from fmm_openmm.cli.bench.common import (
    add_backend,
    add_cases,
    add_cells,
    add_smoothing,
    default_sizes,
    lines,
)
from fmm_openmm.cli.options import add_expansion_arguments

EXAMPLE = "fmm-openmm bench solver --sizes 6 --tolerance 5e-4 1e-5 --plot=solver.png"

COLUMNS = (
    "atoms",
    "cell",
    "tolerance",
    "smoothing",
    "order, radius, boxes",
    "force error",
    "evaluation",
)
COLUMNS_AFTER_STAGES = ("new shape", "10^9 pairs/s", "p2p / limit", "far / limit")


def add_arguments(parser) -> None:
    """Add the arguments: sizes, tolerances, backend, smoothing, cells and explicit parameters."""
    add_cases(parser)
    add_backend(parser)
    add_smoothing(parser, "0 auto")
    add_cells(parser)
    add_expansion_arguments(parser)
    parser.add_argument(
        "--groups",
        type=int,
        metavar="N",
        help="also the energies among N groups: N - 1 of five molecules, and the rest",
    )


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.solver import measure
    from fmm_openmm.bench.timing import STAGES

    backend = choose_backend(args.backend)
    sizes = args.sizes or default_sizes(backend == "cuda")
    fixed = {
        name: getattr(args, name)
        for name in ("order", "grid", "near_radius")
        if getattr(args, name) is not None
    }
    cases = list(
        itertools.product(sizes, args.cells, args.tolerance or (5e-4, 1e-5, 1e-6), args.smoothing)
    )
    terminal.say(
        f"Backend {backend}; times in microseconds; "
        "limits: the rates of multiply-adds and of a copy in memory\n"
    )
    groups = ("groups",) if args.groups else ()
    terminal.heading((*COLUMNS, *STAGES, *COLUMNS_AFTER_STAGES, *groups))
    rows = []
    with terminal.progress("solver", len(cases)) as advance:
        for where, cell, tolerance, smoothing in cases:
            asked = "auto" if smoothing is None else f"{smoothing:g}"
            advance(0, description=f"{where}, {tolerance:g}, smoothing {asked}")
            row = {
                "smoothing_asked": asked,
                **measure(where, tolerance, smoothing, cell, backend, args.groups, **fixed),
            }
            rows.append(row)
            terminal.row(_printed(row, cell, tolerance))
            advance()
    found = _device_limits(backend, sorted({row["precision"] for row in rows}), terminal)
    if drawing:
        lines(
            drawing,
            rows,
            ("cell", "tolerance", "smoothing_asked"),
            lambda row: 1e6 * row["seconds"],
            "evaluation, us",
        )
    return {"limits": found, "rows": rows}


def _printed(row: dict, cell: str, tolerance: float) -> list[str]:
    """Return the cells of a row of the table."""
    from fmm_openmm.bench.timing import STAGES

    stages = (row["stages"][stage] for stage in STAGES)
    times = (row["seconds"], *stages, row["new_shape_seconds"])
    shares = (row["p2p_share"], row["far_share"])
    return [
        str(row["atoms"]),
        cell,
        f"{tolerance:g} {row['precision']}",
        f"{row['smoothing']:g}",
        f"{row['order']}, {row['near_radius']:g}, {np.diag(row['grid']).tolist()}",
        f"{row['force_error']:.1e}",
        *(f"{1e6 * seconds:.0f}" for seconds in times),
        f"{1e-9 * row['pairs_per_second']:.3g}",
        *("-" if share is None else f"{share:.2f}" for share in shares),
        *([f"{1e6 * row['groups_seconds']:.0f}"] if "groups" in row else []),
    ]


def _device_limits(backend: str, precisions: list[str], terminal) -> dict:
    """Print and return the limits of the device in each precision, as far as they are known."""
    from fmm_openmm.bench.solver import limits

    found = {}
    for precision in precisions:
        best = limits(backend, precision)
        if best:
            found[precision] = {
                "multiply_adds_per_second": best.multiply_adds,
                "bytes_per_second": best.bandwidth,
            }
            terminal.say(
                f"\nLimits, {precision}: {best.multiply_adds:.3g} multiply-adds/s, "
                f"{best.bandwidth:.3g} bytes/s"
            )
    return found
