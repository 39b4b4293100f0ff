"""Time of an MD step with charges zero, with PME and with FMM, marginal costs, force errors, memory."""

from fmm_openmm.cli.bench.common import add_cases, add_smoothing, chosen_platform, default_sizes, heading, lines
from fmm_openmm.cli.options import add_platform_argument


def add_arguments(parser) -> None:
    """Sizes, tolerances, the platform and smoothing."""
    add_cases(parser)
    add_platform_argument(parser)
    add_smoothing(parser, "auto")


def run(args, terminal, drawing) -> dict:
    """Measure, print, draw."""
    from fmm_openmm.bench.md import Comparison, precision_of

    where, on_gpu = chosen_platform(args)
    tolerances = args.tolerance or ((5e-4, 1e-5, 1e-6) if on_gpu else (5e-4, 1e-5))
    for tolerance in tolerances:
        precision_of(where, tolerance)
    sizes = args.sizes or default_sizes(on_gpu)
    terminal.say(f"Platform {where.getName()}; Langevin steps of 2 fs, rigid TIP3P water\n")
    heading(
        terminal,
        ("atoms", "tolerance", "precision", "method", "cutoff, nm", "step, ms", "marginal, ms", "over PME's", "force error",
         "memory, MB"),
    )  # fmt: skip
    rows = []
    with terminal.progress("md", len(sizes) * len(tolerances)) as advance:
        for each in sizes:
            advance(0, description=f"preparing {each}")
            comparison = Comparison(each, where)
            for tolerance in tolerances:
                advance(0, description=f"{each}, {tolerance:g}")
                for row in comparison.rows(tolerance, args.smoothing):
                    rows.append(row)
                    terminal.row(cells(row))
                advance()
    if drawing:
        costs = [row for row in rows if row.get("marginal_seconds", 0) > 0]
        lines(drawing, costs, ("method", "tolerance"), lambda row: 1e3 * row["marginal_seconds"], "marginal cost, ms a step")
    return {"platform": where.getName(), "rows": rows}


def cells(row: dict) -> list[str]:
    """A row of the table."""
    first = [str(row["atoms"]), f"{row['tolerance']:g}", row["precision"] or "-", row["method"]]
    if "failure" in row:
        return [*first, row["failure"], *["-"] * 5]

    def cell(name: str, form: str, scale: float = 1.0) -> str:
        return "-" if row.get(name) is None else format(scale * row[name], form)

    return [
        *first,
        cell("cutoff", "g"),
        cell("step_seconds", ".4g", 1e3),
        cell("marginal_seconds", ".3g", 1e3),
        cell("over_pme", ".2f"),
        cell("force_error", ".1e"),
        cell("memory", ".0f", 1e-6),
    ]
