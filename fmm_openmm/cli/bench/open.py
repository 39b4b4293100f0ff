"""Time of direct sum, treecode and FMM in free space against the number of atoms."""

import numpy as np

from fmm_openmm.backends import choose_backend
from fmm_openmm.cli.bench.common import add_backend, add_growth, lines, most_atoms

MOST_ATOMS = {"cuda": 1e6, "cpu": 3e4}
"""Default of ``--max-atoms`` on each backend."""

DROPLET = 21480
"""Default number of atoms with ``--cell``."""


EXAMPLE = "fmm-openmm bench open --max-atoms 1e4 --plot=open.png"


def add_arguments(parser) -> None:
    """Add the arguments: tolerance, largest system, cell and backend."""
    add_growth(parser)
    parser.add_argument(
        "--cell",
        type=float,
        metavar="EDGE",
        help="compare instead a droplet in a periodic cube of this edge, nm, with the droplet in "
        "free space and with a cube full of water",
    )
    add_backend(parser)


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.open import crossover, measure

    backend = choose_backend(args.backend)
    if backend == "reference":
        raise ValueError("--backend must be 'cuda' or 'cpu' here, got 'reference'")
    most = most_atoms(args, DROPLET if args.cell else MOST_ATOMS[backend])
    if args.cell is not None:
        return nearly_empty(args, terminal, backend, most)
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}, droplets of water\n")
    terminal.heading(("atoms", "method", "evaluation, us", "force error", "parameters"))
    rows, stopped = [], None
    with terminal.progress("open") as advance:
        for row in measure(most, args.tolerance, backend):
            stopped = row.get("stopped")
            if stopped:
                break
            advance(0, description=f"{row['atoms']} atoms, {row['method']} done")
            rows.append(row)
            error = "-" if row["force_error"] is None else f"{row['force_error']:.1e}"
            terminal.row(
                [
                    str(row["atoms"]),
                    row["method"],
                    f"{1e6 * row['seconds']:.0f}",
                    error,
                    row["parameters"],
                ]
            )
    pairs = (("fmm", "direct"), ("treecode", "direct"), ("fmm", "treecode"))
    crossovers = {
        f"{faster} before {slower}": crossover(rows, faster, slower) for faster, slower in pairs
    }
    for name, atoms in crossovers.items():
        terminal.say(
            f"\n{name}: "
            + ("no crossover among these sizes" if atoms is None else f"from {atoms:.2g} atoms on")
        )
    if stopped:
        terminal.say(f"\nStopped: {stopped}")
    if drawing:
        lines(drawing, rows, ("method",), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {
        "backend": backend,
        "tolerance": args.tolerance,
        "rows": rows,
        "crossovers": crossovers,
        "stopped": stopped,
    }


def nearly_empty(args, terminal, backend: str, atoms: float) -> dict:
    """Run the benchmark of a nearly empty cell (``--cell``)."""
    from fmm_openmm.bench.open import measure_cell

    room = 2 * np.cbrt(atoms / 50)
    if not room <= args.cell <= 1e4:
        raise ValueError(
            f"--cell must lie between {room:.1f} and 10000 (nm) for {atoms:g} atoms, "
            f"got {args.cell:g}"
        )
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}, water\n")
    terminal.heading(("system", "atoms", "evaluation, us", "call, us", "force error", "parameters"))
    rows = []
    for row in measure_cell(atoms, args.cell, args.tolerance, backend):
        rows.append(row)
        times = f"{1e6 * row['seconds']:.0f}", f"{1e6 * row['call_seconds']:.0f}"
        terminal.row(
            [
                row["system"],
                str(row["atoms"]),
                *times,
                f"{row['force_error']:.1e}",
                row["parameters"],
            ]
        )
    return {"backend": backend, "tolerance": args.tolerance, "rows": rows}
