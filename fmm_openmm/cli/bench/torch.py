"""Time of the energy and its gradients through PyTorch, compared with torch-pme and
nvalchemi-toolkit-ops if they are installed."""

import numpy as np

from fmm_openmm.backends import choose_backend
from fmm_openmm.cli.bench.common import add_growth, lines, most_atoms
from fmm_openmm.cli.info import versions
from fmm_openmm.convert.packages import require

SIZES = (1e3, 1e4, 1e5, 1e6)
MOST_ATOMS = {"cuda": 1e6, "cpu": 1e4}
"""Default of ``--max-atoms`` on each backend."""

EXAMPLE = "fmm-openmm bench torch --max-atoms 1e4 --dtype float64"


def add_arguments(parser) -> None:
    """Add the arguments: tolerance, largest system, device and dtype."""
    add_growth(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if it is usable")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")


def run(args, terminal, drawing) -> dict:
    """Run the benchmark: measure, print and draw."""
    torch = require("torch", "torch")
    from fmm_openmm.bench.torch import measure

    device = args.device or choose_backend()
    most = most_atoms(args, MOST_ATOMS[device])
    edges = [2 * round(np.cbrt(size) / 2) for size in SIZES if size <= 1.001 * most]
    terminal.say(
        f"{device}, {args.dtype}, tolerance {args.tolerance:g}, molten salt: energy, forces and "
        "potentials\n"
    )
    terminal.heading(("atoms", "code", "time, ms", "memory, MiB", "force error", "parameters"))
    rows = []
    with terminal.progress("torch") as advance:
        for row in measure(edges, args.tolerance, device, getattr(torch, args.dtype)):
            advance(0, description=f"{row['atoms']} atoms, {row['code']} done")
            rows.append(row)
            memory = "-" if row["memory"] is None else f"{row['memory'] / 2**20:.0f}"
            terminal.row(
                [
                    str(row["atoms"]),
                    row["code"],
                    f"{1e3 * row['seconds']:.3g}",
                    memory,
                    f"{row['force_error']:.1e}",
                    row["parameters"],
                ]
            )
    if drawing:
        lines(drawing, rows, ("code",), lambda row: 1e3 * row["seconds"], "time, ms")
    return {
        "versions": versions() | {"PyTorch": torch.__version__},
        "device": device,
        "dtype": args.dtype,
        "tolerance": args.tolerance,
        "rows": rows,
    }
