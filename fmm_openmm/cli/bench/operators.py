"""Time of each M2L operator against order and depth, with errors, utilisation of the GPU and
crossovers."""

import itertools

from fmm_openmm import backends
from fmm_openmm.cli.bench.common import add_precisions, panels

ORDERS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20]


EXAMPLE = "fmm-openmm bench operators --precision single --depths 4"


def add_arguments(parser) -> None:
    """Orders, depths, precisions, the separation and operators."""
    parser.add_argument(
        "--orders",
        type=int,
        nargs="+",
        default=ORDERS,
        metavar="P",
        help=f"1 to 20; default: {ORDERS}",
    )
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[3, 4, 5], metavar="D", help="default: 3 4 5"
    )
    add_precisions(parser)
    parser.add_argument(
        "--separation", type=int, choices=(1, 2), default=1, help="default: %(default)s"
    )
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="default: all")


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    backends.backend_class("cuda")  # refuses what this machine cannot do
    from fmm_openmm.literature.operators import measure as bench

    names = args.operators or bench.NAMES
    check_choices("--operators", names, bench.NAMES)
    check_choices("--orders", args.orders, range(1, 21))
    check_choices("--depths", args.depths, range(bench.BASE_DEPTH, 8))
    combined = list(itertools.product(args.precision, args.depths, args.orders))
    levels = [
        bench.Level(order, 2**depth, args.separation, bench.DTYPES[precision])
        for precision, depth, order in combined
    ]
    terminal.say(
        f"Separation {args.separation}, {bench.COUNT[args.separation]} boxes a list; "
        "times in microseconds\n"
    )
    terminal.heading(
        (
            "precision",
            "depth",
            "order",
            "operator",
            "time",
            "error",
            "multiply-adds / limit",
            "bytes / limit",
        ),
    )
    rows = []
    with terminal.progress("operators", len(combined) * len(names)) as advance:
        advance(0, description="compiling")
        bench.compile_all(levels, names)
        for row in bench.rows(args.orders, args.depths, args.precision, names, args.separation):
            rows.append(row)
            terminal.row(cells(row))
            advance(description=f"depth {row['depth']}, order {row['order']}, {row['operator']}")
    crossovers, claims = bench.crossovers(rows), bench.claims(rows)
    for each in crossovers:
        terminal.say(
            f"{each['precision']}, depth {each['depth']}: {each['faster']} is faster than "
            f"{each['than']} from order {each['from_order']} on"
        )
    for each in claims:
        terminal.say(
            f"{each['operator']}, {each['precision']}, depth {each['depth']}, order "
            f"{each['order']}: {each['measured']:.2f}; {each['claim']} ({each['source']})"
        )
    if drawing:
        order_lines(drawing, rows)
    return {"separation": args.separation, "rows": rows, "crossovers": crossovers, "claims": claims}


def check_choices(option: str, values, choices) -> None:
    """Check that every value is one of the choices.

    Raises:
        ValueError: names the option and the value.
    """
    for value in values:
        if value not in choices:
            raise ValueError(f"{option} must be among {', '.join(map(str, choices))}, got {value}")


def cells(row: dict) -> list[str]:
    """Return the cells of a row of the table."""
    first = [row["precision"], str(row["depth"]), str(row["order"]), row["operator"]]
    if "failure" in row:
        return [*first, row["failure"], *["-"] * 3]
    shares = (
        "-" if row[name] is None else f"{row[name]:.3f}"
        for name in ("compute_share", "memory_share")
    )
    return [
        *first,
        f"{1e6 * row['seconds']:.1f}",
        "-" if row["error"] is None else f"{row['error']:.1e}",
        *shares,
    ]


def order_lines(drawing, rows) -> None:
    """Plot the time against order at the largest measured depth, one panel per precision and one
    line per operator."""
    depth = max((row["depth"] for row in rows if "seconds" in row), default=None)
    for axes, of_precision in panels(drawing, rows, "order", "M2L, ms", f"depth {depth}, "):
        for name in dict.fromkeys(row["operator"] for row in rows):
            points = [
                (row["order"], 1e3 * row["seconds"])
                for row in of_precision
                if (row["operator"], row["depth"]) == (name, depth) and "seconds" in row
            ]
            if points:
                axes.semilogy(*zip(*points, strict=True), "o-", label=name)
