"""Time of an evaluation against the number of atoms."""

from fmm_openmm.backends import choose_backend
from fmm_openmm.cli.bench.common import add_backend, add_growth, lines, most_atoms

MOST_ATOMS = {"cuda": 1.05e7, "cpu": 3.5e5, "reference": 1.1e4}
"""Default of ``--max-atoms`` on each backend."""


EXAMPLE = "fmm-openmm bench scaling --max-atoms 1e5"


def add_arguments(parser) -> None:
    """Add the arguments: tolerance, largest system and backend."""
    add_growth(parser)
    add_backend(parser)


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    from fmm_openmm.bench.scaling import ATOMS, growth_exponent, measure

    backend = choose_backend(args.backend)
    most = most_atoms(args, MOST_ATOMS[backend], ATOMS)
    terminal.say(f"Backend {backend}, tolerance {args.tolerance:g}\n")
    terminal.heading(("atoms", "evaluation, us", "ns an atom", "force error"))
    rows, stopped = [], None
    with terminal.progress("scaling") as advance:
        for row in measure(most, args.tolerance, backend):
            advance(0, description=f"{row['atoms']} atoms done")
            stopped = row.get("stopped")
            if not stopped:
                rows.append(row)
                atoms, seconds = row["atoms"], row["seconds"]
                terminal.row(
                    [
                        str(atoms),
                        f"{1e6 * seconds:.0f}",
                        f"{1e9 * seconds / atoms:.3g}",
                        f"{row['force_error']:.1e}",
                    ]
                )
    exponent = growth_exponent(rows)
    if exponent is not None:
        terminal.say(
            "\nOver the last decade of atoms the time grows as their number "
            f"to the power {exponent:.2f}"
        )
    if stopped:
        terminal.say(f"\nStopped: {stopped}")
    if drawing:
        lines(drawing, rows, (), lambda row: 1e6 * row["seconds"], "evaluation, us")
    return {
        "backend": backend,
        "tolerance": args.tolerance,
        "rows": rows,
        "exponent": exponent,
        "stopped": stopped,
    }
