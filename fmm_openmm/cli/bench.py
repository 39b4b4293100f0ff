"""Measure speed, accuracy and energy conservation on this machine.

solver: an evaluation and its stages, against what the device can do.
md: steps in OpenMM with charges zero, with PME and with FMM.
scaling: growth of an evaluation's time with the number of atoms.
open: direct sum, treecode and FMM in empty space; with --cell, the FMM in a periodic cube that is nearly empty.
nve: drift and residual of the total energy, PME and FMM.
tune: the fastest parameters on this GPU, for later runs to use.
operators: M2L of one level by each operator against order and depth, on a GPU.
layouts: P2P with indexed and with replicated sources against density, on a GPU.

All but tune, operators and layouts on water, all with the force error beside the time. Tables are Markdown.
A size is the edge of a box in nm, or this and the copies of the box that make
the system: 6 or 6:3x3x5.
"""

import argparse
import itertools
from dataclasses import asdict

import numpy as np

from fmm_openmm.backends import BACKENDS, resolve
from fmm_openmm.checks import check_number
from fmm_openmm.cli.info import versions
from fmm_openmm.cli.options import add_platform_argument, platform
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, check_folder, figure
from fmm_openmm.parameters import PRECISIONS, TOLERANCE

SHAPES = ("cube", "dodecahedron", "octahedron", "skewed")

GPU_SIZES, CPU_SIZES = "6 4.5:2x2x2 6:3x3x5", "3 6"
"""21,000, 72,000 and 960,000 atoms; 2,700 and 21,000."""

ORDERS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20]
"""Of ``operators``."""

DENSITIES = [1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200]
"""Of ``layouts``."""

NVE_GPU_SIZES, NVE_CPU_SIZES = "6 4.5:2x2x2", "3"

MOST_ATOMS = {"cuda": 1.05e7, "cpu": 3.5e5, "reference": 1.1e4}
"""Default end of ``scaling`` on each backend."""

MOST_OPEN = {"cuda": 1e6, "cpu": 3e4}
"""Default end of ``open`` on each backend."""

DROPLET = 21480
"""Default atoms of ``open --cell``."""


def size(text: str):
    """A :class:`fmm_openmm.bench.systems.Size`."""
    from fmm_openmm.bench.systems import Size

    try:
        return Size.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser) -> None:
    """One subcommand a benchmark."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, function in BENCHMARKS.items():
        each = benchmarks.add_parser(name, help=function.__doc__, description=function.__doc__)
        each.add_argument("--json", nargs="?", const=True, default=argparse.SUPPRESS, metavar="FILE",
                          help="write the results here as well; without FILE print them, and nothing else")  # fmt: skip
        each.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        add_plot_argument(each)
        if name in ARGUMENTS:
            ARGUMENTS[name](each)
            continue
        if name in ("scaling", "open"):
            each.add_argument("--tolerance", type=float, default=TOLERANCE, help="default %(default)s")
            each.add_argument("--max-atoms", type=float, metavar="N", help="largest system; memory may end it before")
        else:
            each.add_argument("--sizes", type=size, nargs="+", metavar="EDGE[:NxNxN]", help="nm, and copies")
            each.add_argument("--tolerance", type=float, nargs="+", metavar="T", help="one or several")
        if name == "open":
            each.add_argument("--cell", type=float, metavar="EDGE",
                              help="instead: a droplet in a periodic cube, nm, in empty space, and as a cube")  # fmt: skip
        if name in ("solver", "scaling", "open"):
            each.add_argument("--backend", choices=BACKENDS, default="auto")
        elif name != "tune":
            add_platform_argument(each)
        if name in ("solver", "md", "nve"):
            both = name != "md"
            each.add_argument(
                "--smoothing",
                type=width,
                nargs="+",
                default=[0.0, None] if both else [None],
                metavar="S",
                help=f"box widths or auto, one or several (default: {'0 auto' if both else 'auto'})",
            )
        if name == "tune":
            each.add_argument("--smoothing", type=width, metavar="S", help="box widths or auto (default: auto)")
            each.add_argument("--precision", choices=PRECISIONS, default="auto")
        if name in ("solver", "tune"):
            each.add_argument("--cells", choices=SHAPES, nargs="+", default=["cube"], help="shapes, all of the same volume")
        if name == "nve":
            each.add_argument("--time", type=float, help="length of each run, ps (default: 20 on a GPU, else 5)")


def add_operator_arguments(parser) -> None:
    """Of ``operators``."""
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS, metavar="P", help=f"1 to 20; default: {ORDERS}")
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 4, 5], metavar="D", help="default: 3 4 5")
    parser.add_argument("--precision", choices=("single", "double"), nargs="+", default=["single", "double"])
    parser.add_argument("--separation", type=int, choices=(1, 2), default=1, help="default: %(default)s")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="default: all")


def add_layout_arguments(parser) -> None:
    """Of ``layouts``."""
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES, metavar="N",
                        help=f"particles a box; default: {DENSITIES}")  # fmt: skip
    parser.add_argument("--particles", type=float, default=1e6, metavar="N", help="about so many; default: 1e6")
    parser.add_argument("--near-radius", type=float, default=1.75, metavar="R", help="box widths; default: 1.75, 27 boxes")
    parser.add_argument("--precision", choices=("single", "double"), nargs="+", default=["single", "double"])
    parser.add_argument("--calibrate", action="store_true", help="measure the costs of the model again")


ARGUMENTS = {"operators": add_operator_arguments, "layouts": add_layout_arguments}
"""Of the benchmarks that have nothing in common with the others."""


def width(text: str) -> float | None:
    """A transition width, None for "auto"."""
    try:
        return None if text == "auto" else check_number(float(text), "smoothing", 0.0, 0.2)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args, terminal) -> Outcome:
    """Measure, print, draw."""
    from fmm_openmm.bench.timing import hardware

    drawing = figure(args.plot)
    if isinstance(args.json, str):
        check_folder(args.json)
    for tolerance in np.atleast_1d(getattr(args, "tolerance", None) or ()):
        check_number(float(tolerance), "tolerance", 1e-10, 0.1)
    machine = hardware()
    terminal.say(f"{machine}\n")
    result = BENCHMARKS[args.benchmark](args, terminal, drawing)
    if drawing:
        drawing.savefig(args.plot)
    return Outcome({"benchmark": args.benchmark, "hardware": machine, "versions": versions(), **result})


def heading(terminal, columns) -> None:
    """The first two rows of a Markdown table."""
    terminal.row(columns)
    terminal.row(["---"] * len(columns))


def default_sizes(on_gpu: bool, gpu: str = GPU_SIZES, cpu: str = CPU_SIZES) -> list:
    """What is measured when nothing is said."""
    return list(map(size, (gpu if on_gpu else cpu).split()))


def solver(args, terminal, drawing) -> dict:
    """Time of an evaluation and of its stages, work against the device's limits, and the force error."""
    from fmm_openmm.bench.solver import limits, measure
    from fmm_openmm.bench.timing import STAGES

    backend = resolve(args.backend)
    sizes = args.sizes or default_sizes(backend == "cuda")
    cases = list(itertools.product(sizes, args.cells, args.tolerance or (5e-4, 1e-5, 1e-6), args.smoothing))
    terminal.say(f"Backend {backend}; times in microseconds; p2p and far field against multiply-adds and a copy alone\n")
    heading(
        terminal,
        ("atoms", "cell", "tolerance", "smoothing", "order, radius, boxes", "force error", "evaluation", *STAGES, "new shape",
         "10^9 pairs/s", "p2p / limit", "far / limit"),
    )  # fmt: skip
    rows = []
    with terminal.progress("solver", len(cases)) as advance:
        for where, cell, tolerance, smoothing in cases:
            asked = "auto" if smoothing is None else f"{smoothing:g}"
            advance(0, description=f"{where}, {tolerance:g}, smoothing {asked}")
            row = {"smoothing_asked": asked, **measure(where, tolerance, smoothing, cell, backend)}
            rows.append(row)
            times = (row["seconds"], *row["stages"].values(), row["new_shape_seconds"])
            terminal.row(
                [
                    str(row["atoms"]),
                    cell,
                    f"{tolerance:g} {row['precision']}",
                    f"{row['smoothing']:g}",
                    f"{row['order']}, {row['near_radius']:g}, {np.diag(row['grid']).tolist()}",
                    f"{row['force_error']:.1e}",
                    *(f"{1e6 * seconds:.0f}" for seconds in times),
                    f"{1e-9 * row['pairs_per_second']:.3g}",
                    *("-" if row[name] is None else f"{row[name]:.2f}" for name in ("p2p_share", "far_share")),
                ]
            )
            advance()
    found = {}
    for precision in sorted({row["precision"] for row in rows}):
        best = limits(backend, precision)
        if best:
            found[precision] = {"multiply_adds_per_second": best.multiply_adds, "bytes_per_second": best.bandwidth}
            terminal.say(f"\nLimits, {precision}: {best.multiply_adds:.3g} multiply-adds/s, {best.bandwidth:.3g} bytes/s")
    if drawing:
        lines(drawing, rows, ("cell", "tolerance", "smoothing_asked"), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {"limits": found, "rows": rows}


def md(args, terminal, drawing) -> dict:
    """Time of an MD step with charges zero, with PME and with FMM, marginal costs, force errors, memory."""
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
                    terminal.row(md_cells(row))
                advance()
    if drawing:
        costs = [row for row in rows if row.get("marginal_seconds", 0) > 0]
        lines(drawing, costs, ("method", "tolerance"), lambda row: 1e3 * row["marginal_seconds"], "marginal cost, ms a step")
    return {"platform": where.getName(), "rows": rows}


def md_cells(row: dict) -> list[str]:
    """A row of the table of ``md``."""
    cells = [str(row["atoms"]), f"{row['tolerance']:g}", row["precision"] or "-", row["method"]]
    if "failure" in row:
        return [*cells, row["failure"], *["-"] * 5]

    def cell(name: str, form: str, scale: float = 1.0) -> str:
        return "-" if row.get(name) is None else format(scale * row[name], form)

    return [
        *cells,
        cell("cutoff", "g"),
        cell("step_seconds", ".4g", 1e3),
        cell("marginal_seconds", ".3g", 1e3),
        cell("over_pme", ".2f"),
        cell("force_error", ".1e"),
        cell("memory", ".0f", 1e-6),
    ]


def scaling(args, terminal, drawing) -> dict:
    """Growth of the time of an evaluation with the number of atoms."""
    from fmm_openmm.bench.scaling import growth_exponent, measure

    backend = resolve(args.backend)
    most = MOST_ATOMS[backend] if args.max_atoms is None else args.max_atoms
    if not most >= 1000:
        raise ValueError(f"--max-atoms must be at least 1000, got {most:g}")
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}\n")
    heading(terminal, ("atoms", "evaluation, us", "ns an atom", "force error"))
    rows, stopped = [], None
    with terminal.progress("scaling") as advance:
        for row in measure(most, args.tolerance, backend):
            advance(0, description=f"{row['atoms']} atoms done")
            stopped = row.get("stopped")
            if not stopped:
                rows.append(row)
                atoms, seconds = row["atoms"], row["seconds"]
                terminal.row([str(atoms), f"{1e6 * seconds:.0f}", f"{1e9 * seconds / atoms:.3g}", f"{row['force_error']:.1e}"])
    exponent = growth_exponent(rows)
    if exponent is not None:
        terminal.say(f"\nOver the last decade of atoms the time grows as their number to the power {exponent:.2f}")
    if stopped:
        terminal.say(f"\nStopped: {stopped}")
    if drawing:
        lines(drawing, rows, (), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {"backend": backend, "tolerance": args.tolerance, "rows": rows, "exponent": exponent, "stopped": stopped}


def empty_space(args, terminal, drawing) -> dict:
    """Time of direct sum, treecode and FMM in empty space against the number of atoms."""
    from fmm_openmm.bench.open import crossover, measure

    backend = resolve(args.backend)
    if backend == "reference":
        raise ValueError("--backend must be 'cuda' or 'cpu' here, got 'reference'")
    most = (DROPLET if args.cell else MOST_OPEN[backend]) if args.max_atoms is None else args.max_atoms
    if not most >= 1000:
        raise ValueError(f"--max-atoms must be at least 1000, got {most:g}")
    if args.cell is not None:
        return nearly_empty(args, terminal, backend, most)
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}, droplets of water\n")
    heading(terminal, ("atoms", "method", "evaluation, us", "force error", "parameters"))
    rows = []
    with terminal.progress("open") as advance:
        for row in measure(most, args.tolerance, backend):
            advance(0, description=f"{row['atoms']} atoms, {row['method']} done")
            rows.append(row)
            error = "-" if row["force_error"] is None else f"{row['force_error']:.1e}"
            terminal.row([str(row["atoms"]), row["method"], f"{1e6 * row['seconds']:.0f}", error, row["parameters"]])
    pairs = (("fmm", "direct"), ("treecode", "direct"), ("fmm", "treecode"))
    crossovers = {f"{faster} before {slower}": crossover(rows, faster, slower) for faster, slower in pairs}
    for name, atoms in crossovers.items():
        terminal.say(f"\n{name}: " + ("not found" if atoms is None else f"from {atoms:.2g} atoms on"))
    if drawing:
        lines(drawing, rows, ("method",), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {"backend": backend, "tolerance": args.tolerance, "rows": rows, "crossovers": crossovers}


def nearly_empty(args, terminal, backend: str, atoms: float) -> dict:
    """``open --cell``."""
    from fmm_openmm.bench.open import measure_cell

    room = 2 * np.cbrt(atoms / 50)
    if not room <= args.cell <= 1e4:
        raise ValueError(f"--cell must lie between {room:.1f} and 10000 (nm) for {atoms:g} atoms, got {args.cell:g}")
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}, water\n")
    heading(terminal, ("system", "atoms", "evaluation, us", "call, us", "force error", "parameters"))
    rows = []
    for row in measure_cell(atoms, args.cell, args.tolerance, backend):
        rows.append(row)
        times = f"{1e6 * row['seconds']:.0f}", f"{1e6 * row['call_seconds']:.0f}"
        terminal.row([row["system"], str(row["atoms"]), *times, f"{row['force_error']:.1e}", row["parameters"]])
    return {"backend": backend, "tolerance": args.tolerance, "rows": rows}


def nve(args, terminal, drawing) -> dict:
    """Drift and residual of the total energy in NVE, PME and FMM."""
    from fmm_openmm.bench.nve import measure, methods, sample_of

    where, on_gpu = chosen_platform(args)
    sizes = args.sizes or default_sizes(on_gpu, NVE_GPU_SIZES, NVE_CPU_SIZES)
    tolerances = args.tolerance or (TOLERANCE,)
    picoseconds = (20.0 if on_gpu else 5.0) if args.time is None else args.time
    if not 0.05 <= picoseconds <= 1e5:
        raise ValueError(f"--time must lie between 0.05 and 1e5 (ps), got {picoseconds:g}")
    terminal.say(f"Platform {where.getName()}; {picoseconds:g} ps in steps of 1 fs, rigid TIP3P water\n")
    heading(terminal, ("atoms", "tolerance", "method", "drift, kT/ns/dof", "residual, kJ/mol"))
    rows = []
    with terminal.progress("nve", len(sizes) * len(tolerances) * len(methods(args.smoothing))) as advance:
        for each in sizes:
            advance(0, description=f"preparing {each}")
            sample = sample_of(each)
            for tolerance in tolerances:
                advance(0, description=f"{each}, {tolerance:g}")
                for row in measure(sample, picoseconds, tolerance, where, args.smoothing):
                    rows.append(row)
                    values = f"{row['drift']:+.4f}", f"{row['residual']:.3f}"
                    terminal.row([str(row["atoms"]), f"{tolerance:g}", row["method"], *values])
                    advance()
    if drawing:
        left, right = drawing.subplots(1, 2, sharey=True)
        names = [f"{row['atoms']}, {row['tolerance']:g}, {row['method']}" for row in rows]
        colors = ["C0" if row["method"] == "PME" else "C1" for row in rows]
        for axes, name, label in ((left, "drift", "drift, kT/ns/dof"), (right, "residual", "residual, kJ/mol")):
            axes.barh(names, [row[name] for row in rows], color=colors)
            axes.set_xlabel(label)
    return {"platform": where.getName(), "picoseconds": picoseconds, "rows": rows}


def tune(args, terminal, drawing) -> dict:
    """Time what the cost model finds best on this GPU, and keep the winners: later runs on the same model use them."""
    from fmm_openmm.backends import backend_class
    from fmm_openmm.bench.tune import tune as fastest
    from fmm_openmm.parameters import Request
    from fmm_openmm.tuning import KEPT

    backend_class("cuda")  # refuses what this machine cannot do
    if KEPT.path is None:
        KEPT.store({})
    requests = [Request(t, args.precision, smoothing=args.smoothing) for t in args.tolerance or (5e-4, 1e-5, 1e-6)]
    cases = list(itertools.product(args.sizes or default_sizes(True), args.cells, requests))
    terminal.say(f"Winners are kept in {KEPT.path}; times in microseconds\n")
    heading(
        terminal,
        ("atoms", "cell", "tolerance", "smoothing", "order, radius, boxes", "evaluation", "cost model's choice", "candidates"),
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
        lines(drawing, rows, ("cell", "tolerance"), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {"file": str(KEPT.path), "rows": rows}


def operators(args, terminal, drawing) -> dict:
    """Time of M2L by each operator against order and depth, with errors, shares of the GPU's limits and crossovers."""
    from fmm_openmm.backends import backend_class

    backend_class("cuda")  # refuses what this machine cannot do
    from fmm_openmm.bench import operators as bench

    names = args.operators or bench.NAMES
    check_choices("--operators", names, bench.NAMES)
    check_choices("--orders", args.orders, range(1, 21))
    check_choices("--depths", args.depths, range(bench.BASE_DEPTH, 8))
    combined = list(itertools.product(args.precision, args.depths, args.orders))
    levels = [bench.Level(order, 2**depth, args.separation, bench.DTYPES[precision]) for precision, depth, order in combined]
    terminal.say(f"Separation {args.separation}, {bench.COUNT[args.separation]} boxes a list; times in microseconds\n")
    heading(terminal, ("precision", "depth", "order", "operator", "time", "error", "multiply-adds / limit", "bytes / limit"))
    rows = []
    with terminal.progress("operators", len(combined) * len(names)) as advance:
        advance(0, description="compiling")
        bench.compile_all(levels, names)
        for row in bench.rows(args.orders, args.depths, args.precision, names, args.separation):
            rows.append(row)
            terminal.row(operator_cells(row))
            advance(description=f"depth {row['depth']}, order {row['order']}, {row['operator']}")
    crossovers, claims = bench.crossovers(rows), bench.claims(rows)
    for each in crossovers:
        terminal.say(
            f"{each['precision']}, depth {each['depth']}: {each['faster']} is faster than {each['than']} "
            f"from order {each['from_order']} on"
        )
    for each in claims:
        terminal.say(
            f"{each['operator']}, {each['precision']}, depth {each['depth']}, order {each['order']}: {each['measured']:.2f}; "
            f"{each['claim']} ({each['source']})"
        )
    if drawing:
        order_lines(drawing, rows)
    return {"separation": args.separation, "rows": rows, "crossovers": crossovers, "claims": claims}


def check_choices(option: str, values, choices) -> None:
    """Every value is one of the choices."""
    for value in values:
        if value not in choices:
            raise ValueError(f"{option} must be among {', '.join(map(str, choices))}, got {value}")


def operator_cells(row: dict) -> list[str]:
    """A row of the table of ``operators``."""
    cells = [row["precision"], str(row["depth"]), str(row["order"]), row["operator"]]
    if "failure" in row:
        return [*cells, row["failure"], *["-"] * 3]
    shares = ("-" if row[name] is None else f"{row[name]:.3f}" for name in ("compute_share", "memory_share"))
    return [*cells, f"{1e6 * row['seconds']:.1f}", "-" if row["error"] is None else f"{row['error']:.1e}", *shares]


def order_lines(drawing, rows) -> None:
    """Time against order at the largest depth that was measured, one panel a precision, one line an operator."""
    depth = max((row["depth"] for row in rows if "seconds" in row), default=None)
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    panels = np.atleast_1d(drawing.subplots(1, len(precisions), sharey=True))
    for axes, precision in zip(panels, precisions, strict=True):
        for name in dict.fromkeys(row["operator"] for row in rows):
            points = [
                (row["order"], 1e3 * row["seconds"])
                for row in rows
                if (row["precision"], row["operator"], row["depth"]) == (precision, name, depth) and "seconds" in row
            ]
            if points:
                axes.semilogy(*zip(*points, strict=True), "o-", label=name)
        axes.set_title(f"depth {depth}, {precision}")
        axes.set_xlabel("order")
        if axes.lines:
            axes.legend()
    panels[0].set_ylabel("M2L, ms")


def layouts(args, terminal, drawing) -> dict:
    """Time of P2P with indexed and with replicated sources against density, measured and predicted, on a GPU."""
    from fmm_openmm.backends import backend_class

    for density in args.densities:
        check_number(density, "--densities", 0.01, 1e4)
    check_number(args.particles, "--particles", 1e3, 1e8)
    check_number(args.near_radius, "--near-radius", 1.0, 4.0)
    backend_class("cuda")  # refuses what this machine cannot do
    from fmm_openmm.bench.layouts import measure as bench

    costs = {precision: bench.costs_of(precision, args.calibrate) for precision in args.precision}
    for precision, each in costs.items():
        values = ", ".join(f"{name} {1e12 * seconds:.3g}" for name, seconds in asdict(each).items())
        terminal.say(f"Costs, {precision}, picoseconds: {values}")
    terminal.say("\nTimes in microseconds, predicted ones in brackets\n")
    heading(terminal, ("precision", "density", "near", "indexed", "replicated", "copying", "p2p", "faster", "picked", "error"))
    rows = []
    with terminal.progress("layouts", len(args.densities) * len(args.precision)) as advance:
        for row in bench.rows(args.densities, args.precision, args.particles, args.near_radius, costs):
            rows.append(row)
            terminal.row(layout_cells(row))
            advance(description=f"density {row['density']:.3g}, {row['precision']}")
    summary = bench.summary(rows)
    for each in summary:
        terminal.say(
            f"\n{each['precision']}: the faster layout is picked in {each['right']} of {each['of']} cases; picks take at most "
            f"{100 * each['loss']:.0f} percent longer; predictions are off by {100 * each['off']:+.0f} percent at most\n"
            f"{each['precision']}: {each['measured']:.1f}; {each['claim']} ({each['source']})"
        )
    if drawing:
        density_lines(drawing, rows)
    return {"costs": {name: asdict(each) for name, each in costs.items()}, "rows": rows, "summary": summary}


def layout_cells(row: dict) -> list[str]:
    """A row of the table of ``layouts``."""
    cells = [row["precision"], f"{row['density']:.3g}", str(row["near"])]
    if "failure" in row:
        return [*cells, row["failure"], *["-"] * 6]
    times = [(row["seconds"][name], row["predicted"][name]) for name in ("indexed", "replicated")]
    times += [(row["kernel_seconds"][name], row["kernel_predicted"][name]) for name in ("replicate", "p2p_replicated")]
    return [
        *cells,
        *(f"{1e6 * seconds:.0f} ({1e6 * predicted:.0f})" for seconds, predicted in times),
        row["faster"],
        row["picked"],
        f"{row['error']:.1e}",
    ]


def density_lines(drawing, rows) -> None:
    """Time against density, one panel a precision; measured as points, predicted as lines."""
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    panels = np.atleast_1d(drawing.subplots(1, len(precisions), sharey=True))
    for axes, precision in zip(panels, precisions, strict=True):
        done = [row for row in rows if row["precision"] == precision and "seconds" in row]
        done.sort(key=lambda row: row["density"])
        for color, name in zip(("C0", "C1"), ("indexed", "replicated"), strict=True):
            if done:
                density, seconds, predicted = zip(
                    *((row["density"], 1e3 * row["seconds"][name], 1e3 * row["predicted"][name]) for row in done), strict=True
                )
                axes.loglog(density, seconds, color + "o", label=name)
                axes.loglog(density, predicted, color + "-")
        axes.set_title(precision)
        axes.set_xlabel("particles a box")
        if axes.lines:
            axes.legend()
    panels[0].set_ylabel("P2P, ms")


BENCHMARKS = {
    "solver": solver,
    "md": md,
    "scaling": scaling,
    "open": empty_space,
    "nve": nve,
    "tune": tune,
    "operators": operators,
    "layouts": layouts,
}


def chosen_platform(args):
    """The OpenMM platform to measure on, and whether it is a GPU's."""
    from fmm_openmm.bench.systems import fastest_platform

    chosen = platform(args) or fastest_platform()
    return chosen, chosen.getName() in ("CUDA", "HIP", "OpenCL")


def lines(drawing, rows, keys, value, label: str) -> None:
    """Values against atoms, both logarithmic, one line for each combination of the keys; dotted: in proportion to atoms."""
    axes = drawing.add_subplot()
    for case in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        points = [(row["atoms"], value(row)) for row in rows if tuple(row[key] for key in keys) == case]
        axes.loglog(*zip(*points, strict=True), "o-", label=", ".join(map(str, case)))
    if rows:
        ends = np.array(sorted(row["atoms"] for row in rows))[[0, -1]]
        axes.loglog(ends, ends * value(rows[-1]) / rows[-1]["atoms"], "k:", linewidth=1)
    if keys and rows:
        axes.legend()
    axes.set_xlabel("atoms")
    axes.set_ylabel(label)
