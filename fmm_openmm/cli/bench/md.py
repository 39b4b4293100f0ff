"""Time of whole MD steps with PME and with FMM, marginal costs of Coulomb, force errors, memory."""

import argparse
from functools import partial
from pathlib import Path

from fmm_openmm.checks import check_number
from fmm_openmm.cli import inputs
from fmm_openmm.cli.bench.common import add_cases, add_smoothing, chosen_platform, default_sizes, heading, lines
from fmm_openmm.cli.options import add_platform_argument

COLUMNS = {
    "cutoff, nm": ("cutoff", "g", 1.0),
    "step, ms": ("step_seconds", ".4g", 1e3),
    "ns/day": ("ns_per_day", ".4g", 1.0),
    "over PME's": ("over_pme", ".2f", 1.0),
    "marginal, ms": ("marginal_seconds", ".3g", 1e3),
    "marginal over PME's": ("marginal_over_pme", ".2f", 1.0),
    "force error": ("force_error", ".1e", 1.0),
    "memory, MB": ("memory", ".0f", 1e-6),
}
"""Columns of the table after atoms, tolerance, precision and method: the key of the row, its format, the factor to its unit."""


def add_arguments(parser) -> None:
    """Sizes, tolerances, the platform, precision and smoothing; or files."""
    add_cases(parser)
    add_platform_argument(parser)
    parser.add_argument("--precision", choices=("single", "mixed", "double"),
                        help="of OpenMM (default: mixed, or double for tolerances beyond single precision)")  # fmt: skip
    add_smoothing(parser, "auto")
    parser.add_argument("--every-atom", action="store_true", help="hydrogens are Lennard-Jones sites as in CHARMM's TIP3P")
    parser.add_argument("--timestep", type=float, help="ps (default: 0.002, of a --system 0.004)")
    parser.add_argument("--no-errors", action="store_true", help="measure no force errors: for --system, an Ewald sum less")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    # as examples/benchmarks/benchmark.py of OpenMM has it
    inputs.add_arguments(parser, "--system", hydrogen_mass=1.5, forcefield=["amber99sb.xml", "tip3p.xml"])


def run(args, terminal, drawing) -> dict:
    """Measure, print, draw."""
    from fmm_openmm.bench.md import Comparison, precision_of

    where, on_gpu = chosen_platform(args)
    tolerances = args.tolerance or ((5e-4, 1e-5, 1e-6) if on_gpu else (5e-4, 1e-5))
    precisions = {tolerance: precision_of(where, tolerance, args.precision) for tolerance in tolerances}
    system, timestep, cases = chosen_cases(args, on_gpu)
    terminal.say(f"Platform {where.getName()}; Langevin steps of {1e3 * timestep:g} fs at 300 K; {system}\n")
    heading(terminal, ("atoms", "tolerance", "precision", "method", *COLUMNS))
    rows = []
    with terminal.progress("md", len(cases) * len(precisions)) as advance:
        for name, make in cases.items():
            advance(0, description=f"preparing {name}")
            comparison = Comparison(make(), where)
            for tolerance, precision in precisions.items():
                advance(0, description=f"{name}, {tolerance:g}")
                for row in comparison.rows(tolerance, precision, args.smoothing):
                    rows.append(row)
                    terminal.row(cells(row))
                advance()
    if drawing:
        whole = [row for row in rows if "failure" not in row and row["method"] != "charges zero"]
        lines(drawing, whole, ("method", "tolerance"), lambda row: 1e3 * row["step_seconds"], "time of a step, ms")
    return {"platform": where.getName(), "system": system, "timestep": timestep, "rows": rows}


def chosen_cases(args, on_gpu: bool) -> tuple[str, float, dict]:
    """What is measured, the time step in ps, and by name what makes each :class:`fmm_openmm.bench.md.Case`."""
    from fmm_openmm.bench.md import Case

    timestep = args.timestep if args.timestep is not None else 0.004 if args.files else 0.002
    check_number(timestep, "timestep", 1e-4, 0.01)
    options = {"timestep": timestep, "errors": not args.no_errors}
    if args.files:
        if args.sizes or args.every_atom:
            raise ValueError("--sizes and --every-atom are for water: leave them out with --system")
        system, molecules = ", ".join(Path(name).name for name in args.files), inputs.load(args)
        options["minimize"] = "amber" in {inputs.kind_of(Path(name)) for name in args.files}
        return system, timestep, {system: partial(Case.from_system, molecules.system, molecules.positions, **options)}
    for name in (*inputs.USED_BY, "box"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} says nothing without --system: leave it out")
    make = partial(Case.from_size, every_atom=args.every_atom, **options)
    system = "rigid TIP3P water" + (", every atom a Lennard-Jones site" if args.every_atom else "")
    return system, timestep, {str(size): partial(make, size) for size in args.sizes or default_sizes(on_gpu)}


def cells(row: dict) -> list[str]:
    """A row of the table."""
    method = row["method"] + (", host bridge" if row.get("bridge") == "host" else "")
    first = [str(row["atoms"]), f"{row['tolerance']:g}", row["precision"] or "-", method]
    if "failure" in row:
        return [*first, " ".join(row["failure"].split()), *["-"] * (len(COLUMNS) - 1)]
    shown = ((row.get(name), form, scale) for name, form, scale in COLUMNS.values())
    return first + ["-" if value is None else format(scale * value, form) for value, form, scale in shown]
