"""Measured and predicted times of P2P with indexed and with replicated sources against density, on
a GPU."""

from dataclasses import asdict

from fmm_openmm import backends
from fmm_openmm.checks import check_number
from fmm_openmm.cli.bench.common import add_precisions, panels

DENSITIES = [1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200]


EXAMPLE = "fmm-openmm bench layouts --densities 5 20 60"


def add_arguments(parser) -> None:
    """Add the arguments: densities, particles, near radius, precisions and ``--calibrate``."""
    parser.add_argument(
        "--densities",
        type=float,
        nargs="+",
        default=DENSITIES,
        metavar="N",
        help=f"particles per box; default: {DENSITIES}",
    )
    parser.add_argument(
        "--particles", type=float, default=1e6, metavar="N", help="approximate number; default: 1e6"
    )
    parser.add_argument(
        "--near-radius",
        type=float,
        default=1.75,
        metavar="R",
        help="largest distance between the centres of near boxes, in box widths; default: 1.75, "
        "which makes 27 near boxes",
    )
    add_precisions(parser)
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the costs of the model again"
    )


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    for density in args.densities:
        check_number(density, "--densities", 0.01, 1e4)
    check_number(args.particles, "--particles", 1e3, 1e8)
    check_number(args.near_radius, "--near-radius", 1.0, 4.0)
    backends.backend_class("cuda")  # refuses what this machine cannot do
    from fmm_openmm.literature.layouts import measure as bench

    costs = {precision: bench.load_costs(precision, args.calibrate) for precision in args.precision}
    for precision, cost in costs.items():
        values = ", ".join(f"{name} {1e12 * seconds:.3g}" for name, seconds in asdict(cost).items())
        terminal.say(f"Costs, {precision}, picoseconds: {values}")
    terminal.say("\nTimes in microseconds, predicted ones in brackets\n")
    terminal.heading(
        (
            "precision",
            "density",
            "near",
            "indexed",
            "replicated",
            "copying",
            "p2p",
            "faster",
            "picked",
            "error",
        ),
    )
    rows = []
    with terminal.progress("layouts", len(args.densities) * len(args.precision)) as advance:
        for row in bench.rows(
            args.densities, args.precision, args.particles, args.near_radius, costs
        ):
            rows.append(row)
            terminal.row(cells(row))
            advance(description=f"density {row['density']:.3g}, {row['precision']}")
    summary = bench.summary(rows)
    for each in summary:
        terminal.say(
            f"\n{each['precision']}: the faster layout is picked in {each['right']} of "
            f"{each['of']} cases; picks take at most {100 * each['loss']:.0f} percent longer; "
            f"predictions are off by {100 * each['off']:+.0f} percent at most\n"
            f"{each['precision']}: {each['measured']:.1f}; {each['claim']} ({each['source']})"
        )
    if drawing:
        density_lines(drawing, rows)
    return {
        "costs": {name: asdict(cost) for name, cost in costs.items()},
        "rows": rows,
        "summary": summary,
    }


def cells(row: dict) -> list[str]:
    """Return the cells of a row of the table."""
    first = [row["precision"], f"{row['density']:.3g}", str(row["near"])]
    if "failure" in row:
        return [*first, row["failure"], *["-"] * 6]
    times = [(row["seconds"][name], row["predicted"][name]) for name in ("indexed", "replicated")]
    times += [
        (row["kernel_seconds"][name], row["kernel_predicted"][name])
        for name in ("replicate", "p2p_replicated")
    ]
    return [
        *first,
        *(f"{1e6 * seconds:.0f} ({1e6 * predicted:.0f})" for seconds, predicted in times),
        row["faster"],
        row["picked"],
        f"{row['error']:.1e}",
    ]


def density_lines(drawing, rows) -> None:
    """Plot the time against density, one panel per precision: measured points, predicted lines."""
    for axes, of_precision in panels(drawing, rows, "particles a box", "P2P, ms"):
        done = sorted(
            (row for row in of_precision if "seconds" in row), key=lambda row: row["density"]
        )
        for color, name in zip(("C0", "C1"), ("indexed", "replicated"), strict=True):
            if done:
                density, seconds, predicted = zip(
                    *(
                        (row["density"], 1e3 * row["seconds"][name], 1e3 * row["predicted"][name])
                        for row in done
                    ),
                    strict=True,
                )
                axes.loglog(density, seconds, color + "o", label=name)
                axes.loglog(density, predicted, color + "-")
