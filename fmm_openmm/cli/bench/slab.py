"""Time of a layer of water as a slab, as a periodic cube, and by PME with vacuum."""

from fmm_openmm.backends import choose_backend
from fmm_openmm.checks import check_number
from fmm_openmm.cli.bench.common import add_backend

EXAMPLE = "fmm-openmm bench slab --edge 4 --tolerance 1e-4"

EDGES = (2.0, 100.0)
"""Limits of the edge, nm; PME's cutoff needs the lower one."""


def add_arguments(parser) -> None:
    """Add the arguments: edge, tolerance and backend."""
    parser.add_argument(
        "--edge",
        type=float,
        default=6.0,
        metavar="LENGTH",
        help="edge of the cube of water, nm (default %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5e-4,
        help="relative force error to meet (default %(default)s)",
    )
    add_backend(parser)


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.slab import measure

    check_number(args.edge, "edge", *EDGES)
    backend = choose_backend(args.backend)
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}, water\n")
    terminal.heading(("system", "atoms", "evaluation, us", "force error", "parameters"))
    rows = []
    for row in measure(args.edge, args.tolerance, backend):
        rows.append(row)
        terminal.row(
            [
                row["system"],
                str(row["atoms"]),
                f"{1e6 * row['seconds']:.0f}",
                f"{row['force_error']:.1e}",
                row["parameters"],
            ]
        )
    ratio = rows[1]["seconds"] / rows[0]["seconds"]
    terminal.say(f"\nslab over periodic cube: {ratio:.2f}")
    if drawing:
        axes = drawing.add_subplot()
        axes.barh([row["system"] for row in rows], [1e6 * row["seconds"] for row in rows])
        axes.set_xlabel("evaluation, us")
    return {"backend": backend, "tolerance": args.tolerance, "rows": rows, "ratio": ratio}
