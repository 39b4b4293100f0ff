"""Time the candidates of the cost model on this GPU and store the fastest parameters, which later
runs on the same model of GPU use."""

import itertools
from dataclasses import asdict

import numpy as np

from fmm_openmm import backends
from fmm_openmm.cli.bench.common import add_cases, add_cells, default_sizes, lines, width
from fmm_openmm.planning.request import PRECISIONS, Request
from fmm_openmm.planning.tuning import KEPT

EXAMPLE = "fmm-openmm bench tune --sizes 6 4.5:2x2x2 --tolerance 5e-4"


def add_arguments(parser) -> None:
    """Add the arguments: sizes, tolerances, smoothing, precision and cells."""
    add_cases(parser)
    parser.add_argument(
        "--smoothing", type=width, metavar="S", help="box widths or auto (default: auto)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    add_cells(parser)


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.tune import tune as fastest

    backends.backend_class("cuda")  # refuses what this machine cannot do
    if KEPT.path is None:
        KEPT.store({})
    requests = [
        Request(t, precision=args.precision, smoothing=args.smoothing)
        for t in args.tolerance or (5e-4, 1e-5, 1e-6)
    ]
    cases = list(itertools.product(args.sizes or default_sizes(True), args.cells, requests))
    terminal.say(f"Winners are kept in {KEPT.path}; times in microseconds\n")
    terminal.heading(
        (
            "atoms",
            "cell",
            "tolerance",
            "smoothing",
            "order, radius, boxes",
            "evaluation",
            "cost model's choice",
            "candidates",
        ),
    )
    rows = []
    with terminal.progress("tune", len(cases)) as advance:
        for where, cell, request in cases:
            advance(0, description=f"{where}, {request.tolerance:g}")
            row = fastest(where, request, cell)
            winner = row["winner"]
            KEPT.store({row["key"]: winner})
            rows.append({**row, "winner": asdict(winner), "seconds": winner.seconds})
            terminal.row(
                [
                    str(row["atoms"]),
                    cell,
                    f"{request.tolerance:g} {row['precision']}",
                    f"{winner.smoothing:g}",
                    f"{winner.order}, {winner.near_radius:g}, {np.diag(row['grid']).tolist()}",
                    f"{1e6 * winner.seconds:.0f}",
                    f"{1e6 * row['model_seconds']:.0f}",
                    str(len(row["candidates"])),
                ]
            )
            advance()
    if drawing:
        lines(
            drawing, rows, ("cell", "tolerance"), lambda row: 1e6 * row["seconds"], "evaluation, us"
        )
    return {"file": str(KEPT.path), "rows": rows}
