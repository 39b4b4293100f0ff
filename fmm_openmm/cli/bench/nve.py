"""Drift and residual of the total energy in NVE, PME and FMM."""

from fmm_openmm.cli.bench.common import (
    add_cases,
    add_smoothing,
    chosen_platform,
    default_sizes,
)
from fmm_openmm.cli.options import add_platform_argument
from fmm_openmm.planning.request import TOLERANCE

GPU_SIZES, CPU_SIZES = "6 4.5:2x2x2", "3"


EXAMPLE = "fmm-openmm bench nve --sizes 3 --time 5"


def add_arguments(parser) -> None:
    """Add the arguments: sizes, tolerances, platform, explicit FMM parameters, length of a run."""
    add_cases(parser)
    add_platform_argument(parser)
    add_smoothing(parser, "auto 0.02")
    parser.add_argument(
        "--order",
        type=int,
        nargs="+",
        default=[None],
        metavar="P",
        help="order of the FMM, one or several",
    )
    parser.add_argument(
        "--near-radius",
        type=float,
        metavar="R",
        help="largest distance between the centres of near boxes, in box widths",
    )
    parser.add_argument(
        "--time", type=float, help="length of each run, ps (default: 20 on a GPU, else 5)"
    )


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.nve import measure, methods, sample_of

    where, on_gpu = chosen_platform(args)
    sizes = args.sizes or default_sizes(on_gpu, GPU_SIZES, CPU_SIZES)
    tolerances = args.tolerance or (TOLERANCE,)
    picoseconds = (20.0 if on_gpu else 5.0) if args.time is None else args.time
    if not 0.05 <= picoseconds <= 1e5:
        raise ValueError(f"--time must lie between 0.05 and 1e5 (ps), got {picoseconds:g}")
    cases = methods(args.smoothing, args.order, args.near_radius)
    terminal.say(
        f"Platform {where.getName()}; {picoseconds:g} ps in steps of 1 fs, rigid TIP3P water\n"
    )
    terminal.heading(("atoms", "tolerance", "method", "drift, kT/ns/dof", "residual, kJ/mol"))
    rows = []
    with terminal.progress("nve", len(sizes) * len(tolerances) * len(cases)) as advance:
        for size in sizes:
            advance(0, description=f"preparing {size}")
            sample = sample_of(size)
            for tolerance in tolerances:
                advance(0, description=f"{size}, {tolerance:g}")
                for row in measure(sample, picoseconds, tolerance, where, cases):
                    rows.append(row)
                    values = f"{row['drift']:+.4f}", f"{row['residual']:.3f}"
                    terminal.row([str(row["atoms"]), f"{tolerance:g}", row["method"], *values])
                    advance()
    if drawing:
        left, right = drawing.subplots(1, 2, sharey=True)
        names = [f"{row['atoms']}, {row['tolerance']:g}, {row['method']}" for row in rows]
        colors = ["C0" if row["method"] == "PME" else "C1" for row in rows]
        for axes, name, label in (
            (left, "drift", "drift, kT/ns/dof"),
            (right, "residual", "residual, kJ/mol"),
        ):
            axes.barh(names, [row[name] for row in rows], color=colors)
            axes.set_xlabel(label)
    return {"platform": where.getName(), "picoseconds": picoseconds, "rows": rows}
