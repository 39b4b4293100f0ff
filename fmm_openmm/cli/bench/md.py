"""Time of whole MD steps with PME and with FMM, force errors and memory; for water also the
marginal cost of the Coulomb interaction.

The system is water (--sizes), a membrane that OpenMM ships (--preset) or a file (--system).
Membranes and files are minimised and simulated for 4 ps with PME before they are timed. PME is
measured at the given cutoff and, at tolerances below 1e-4, at the fastest of this, 0.9, 1.05 and
1.2 nm. If the Lennard-Jones interaction is switched off or is a CustomNonbondedForce, as in
CHARMM36, the cutoff is a parameter of the force field, and PME is measured at no other.
"""

import argparse
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from fmm_openmm.checks import check_number
from fmm_openmm.cli import inputs
from fmm_openmm.cli.bench.common import (
    add_cases,
    add_smoothing,
    chosen_platform,
    default_sizes,
    lines,
)
from fmm_openmm.cli.bench.presets import BILAYERS, PRESETS
from fmm_openmm.cli.options import add_platform_argument
from fmm_openmm.cli.readers import USED_BY
from fmm_openmm.cli.run import without_baths

COLUMNS = {
    "cutoff, nm": ("cutoff", "g", 1.0),
    "step, ms": ("step_seconds", ".4g", 1e3),
    "ns/day": ("ns_per_day", ".4g", 1.0),
    "over one device's": ("over_one", ".2f", 1.0),
    "over PME's": ("over_pme", ".2f", 1.0),
    "over best PME's": ("over_best_pme", ".2f", 1.0),
    "marginal, ms": ("marginal_seconds", ".3g", 1e3),
    "marginal over PME's": ("marginal_over_pme", ".2f", 1.0),
    "force error": ("force_error", ".1e", 1.0),
    "memory, MB": ("memory", ".0f", 1e-6),
}
"""Columns of the table after system, atoms, tolerance, precision and method: key of the row,
format, and factor of the unit. Columns of marginal costs and of several devices are omitted if
these are not measured. Memory is that of the device that uses most."""

HYDROGEN_MASS, USUAL_TIMESTEP = 1.5, 0.002
"""Mass of hydrogens, amu, in time steps longer than the usual one, ps."""

OF_PRESETS = ("cutoff", "switch", "constraints", "tile")
"""Options of files that also apply to presets."""


EXAMPLE = "fmm-openmm bench md --preset popc --tolerance 5e-4 --json=popc.json"


def add_arguments(parser) -> None:
    """Add the arguments: sizes, presets or files, tolerances, platform, precision and smoothing."""
    add_cases(parser)
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        nargs="+",
        metavar="NAME",
        help=f"membranes with Lipid17: {', '.join(BILAYERS).lower()}; the same in OPC water: "
        "popc-opc and others; with CHARMM36: popc-charmm36 and others",
    )
    parser.add_argument(
        "--tile",
        type=tile,
        nargs="+",
        metavar="NxN[xN]",
        help="copies of a membrane or --system along a, b (and c), one or several",
    )
    parser.add_argument(
        "--ensemble",
        choices=("nvt", "npt"),
        default="nvt",
        help="npt: at 1 bar with a MonteCarloBarostat, or for a --preset with a "
        "MonteCarloMembraneBarostat, XYIsotropic and ZFree (default: nvt)",
    )
    add_platform_argument(parser)
    parser.add_argument(
        "--devices",
        type=device_indices,
        metavar="N,N",
        help="measure PME and FMM also on these GPUs together, for example 0,1",
    )
    parser.add_argument(
        "--precision",
        choices=("single", "mixed", "double"),
        help="precision of OpenMM (default: mixed, or double for tolerances beyond single "
        "precision)",
    )
    add_smoothing(parser, "auto")
    parser.add_argument(
        "--every-atom",
        action="store_true",
        help="make hydrogens Lennard-Jones sites, as in CHARMM's TIP3P",
    )
    parser.add_argument(
        "--slab",
        action="store_true",
        help="a layer of water and, along c, twice as much vacuum: FMM with boundary 'slab', PME "
        "without the correction of a slab",
    )
    parser.add_argument(
        "--timestep",
        type=float,
        help="time step, ps (default: 0.002, or 0.004 for a --system); above 0.002 hydrogens have "
        "a mass of 1.5 amu",
    )
    parser.add_argument(
        "--no-errors",
        action="store_true",
        help="measure no force errors, which saves an Ewald sum",
    )
    parser.add_argument(
        "--marginal",
        action=argparse.BooleanOptionalAction,
        help="measure also steps with all charges zero, and FMM with the Lennard-Jones pairs "
        "computed by OpenMM (default: for water in NVT)",
    )
    # the force field of OpenMM's examples/benchmarks/benchmark.py
    inputs.add_arguments(parser, "--system", forcefield=["amber99sb.xml", "tip3p.xml"])


def tile(text: str) -> tuple[int, ...]:
    """Parse the numbers of copies along a, b and c."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
        raise argparse.ArgumentTypeError(
            f"a tile is copies along a, b (and c), as 2x2 or 2x2x3, got {text}"
        )
    return tuple(map(int, f"{text}x1".split("x")[:3]))


def device_indices(text: str) -> list[str]:
    """Parse indices of several devices."""
    if not re.fullmatch(r"\d+(,\d+)+", text):
        raise argparse.ArgumentTypeError(f"devices are indices, as 0,1, got {text}")
    return text.split(",")


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.md import TIGHT, Comparison, precision_of

    where, on_gpu = chosen_platform(args)
    if args.devices and where.getName() != "CUDA":
        raise ValueError(f"--devices is for the CUDA platform, not {where.getName()}")
    tolerances = args.tolerance or ((5e-4, 1e-5, 1e-6) if on_gpu else (5e-4, 1e-5))
    precisions = {
        tolerance: precision_of(where, tolerance, args.precision) for tolerance in tolerances
    }
    system, timestep, cases = chosen_cases(args, on_gpu)
    if args.marginal and args.ensemble == "npt":
        raise ValueError("--marginal is for NVT: without charges a liquid expands")
    water = not (args.files or args.preset)
    marginal = water and args.ensemble == "nvt" if args.marginal is None else args.marginal
    columns = {
        name: column
        for name, column in COLUMNS.items()
        if (marginal or not name.startswith("marginal"))
        and (args.devices or name != "over one device's")
    }
    steps = f"{args.ensemble.upper()}, Langevin steps of {1e3 * timestep:g} fs at 300 K"
    terminal.say(f"Platform {where.getName()}; {steps}; {system}\n")
    terminal.heading(("system", "atoms", "tolerance", "precision", "method", *columns))
    rows = []
    with terminal.progress("md", len(cases) * len(precisions)) as advance:
        for name, make in cases.items():
            advance(0, description=f"preparing {name}")
            comparison = Comparison(make(), where, args.devices)
            for tolerance, precision in precisions.items():
                advance(0, description=f"{name}, {tolerance:g}")
                for row in comparison.rows(tolerance, precision, args.smoothing, marginal):
                    rows.append(row)
                    terminal.row(cells(row, columns))
                advance()
    own = dict.fromkeys(
        row["system"] for row in rows if row["own_cutoff"] and row["tolerance"] < TIGHT
    )
    if own:
        terminal.say(f"\nPME at no other cutoff, a parameter of the force field: {', '.join(own)}")
    if drawing:
        whole = [row for row in rows if "failure" not in row and row["method"] != "charges zero"]
        keys = ("system", "method", "tolerance")
        lines(drawing, whole, keys, lambda row: 1e3 * row["step_seconds"], "time of a step, ms")
    return {
        "platform": where.getName(),
        "system": system,
        "ensemble": args.ensemble,
        "timestep": timestep,
        "rows": rows,
    }


def chosen_cases(args, on_gpu: bool) -> tuple[str, float, dict[str, Callable]]:
    """Return a description of the systems, the time step in ps, and functions that make a
    :class:`fmm_openmm.bench.md.Case`, by its name."""
    from fmm_openmm.bench.md import Case

    timestep = (
        args.timestep if args.timestep is not None else 0.004 if args.files else USUAL_TIMESTEP
    )
    check_number(timestep, "timestep", 1e-4, 0.01)
    check_options(args)
    options = {"timestep": timestep, "errors": not args.no_errors}
    if not (args.files or args.preset):

        def water(size):
            case = Case.from_size(size, every_atom=args.every_atom, **options)
            set_ensemble(case.sample.system, args)
            return case.as_slab() if args.slab else case

        system = "rigid TIP3P water"
        system += ", every atom a Lennard-Jones site" if args.every_atom else ""
        system += ", between vacuum" if args.slab else ""
        return (
            system,
            timestep,
            {str(size): partial(water, size) for size in args.sizes or default_sizes(on_gpu)},
        )

    args.hydrogen_mass = HYDROGEN_MASS if timestep > USUAL_TIMESTEP else None
    if args.preset:
        named = {name: PRESETS[name].arguments(args) for name in args.preset}
        load: dict[str, Callable] = {
            name: partial(inputs.load, chosen) for name, chosen in named.items()
        }
    else:
        named = {", ".join(Path(name).name for name in args.files): args}
        molecules = inputs.load(args)  # bad files are named before anything is printed
        load = dict.fromkeys(named, lambda: molecules)

    @cache
    def relaxed(name):
        molecules = load[name]()
        set_ensemble(molecules.system, args)
        return Case.from_system(name, molecules.system, molecules.positions, **options)

    def tiled(name, copies):
        return relaxed(name).tiled(copies)

    tiles = args.tile or [(1, 1, 1)]
    cases: dict[str, Callable] = {
        f"{name}:{'x'.join(map(str, copies))}": partial(tiled, name, copies)
        for name in named
        for copies in tiles
    }
    return "; ".join(described(name, chosen) for name, chosen in named.items()), timestep, cases


def check_options(args) -> None:
    """Check that every option applies to the systems that are measured.

    Raises:
        ValueError: names the option.
    """
    if args.files and args.preset:
        raise ValueError("--preset and --system: give one of them")
    if (args.files or args.preset) and (args.sizes or args.every_atom or args.slab):
        raise ValueError(
            "--sizes, --every-atom and --slab are for water: leave them out with --system and "
            "--preset"
        )
    if args.slab and args.ensemble == "npt":
        raise ValueError("--slab is for NVT: leave out --ensemble npt")
    for name in (*USED_BY, "box", "tile"):
        others, where = (
            (args.preset, "--system or --preset") if name in OF_PRESETS else (None, "--system")
        )
        if getattr(args, name) is not None and not (args.files or others):
            raise ValueError(f"--{name} applies only with {where}: leave it out")


def set_ensemble(system, args) -> None:
    """Replace the barostats and thermostats of a System by the barostat of ``--ensemble``, if
    any."""
    from fmm_openmm.bench.systems import barostat

    without_baths(system)
    if args.ensemble == "npt":
        system.addForce(barostat(membrane=bool(args.preset)))


def described(name: str, args) -> str:
    """Return the name of a system with force field, cutoff and switching distance, if given."""
    chosen = [" ".join(args.forcefield)] if args.forcefield else []
    chosen += [f"cutoff {args.cutoff:g} nm"] if args.cutoff is not None else []
    chosen += [f"switched off from {args.switch:g} nm"] if args.switch is not None else []
    return f"{name} ({', '.join(chosen)})" if chosen else name


def cells(row: dict, columns: dict) -> list[str]:
    """Return the cells of a row of the table."""
    method = row["method"] + (", host bridge" if row.get("bridge") == "host" else "")
    first = [
        row["system"],
        str(row["atoms"]),
        f"{row['tolerance']:g}",
        row["precision"] or "-",
        method,
    ]
    if "failure" in row:
        return [*first, " ".join(row["failure"].split()), *["-"] * (len(columns) - 1)]
    shown = ((row.get(name), form, scale) for name, form, scale in columns.values())
    return first + [
        "-" if value is None else format(scale * value, form) for value, form, scale in shown
    ]
