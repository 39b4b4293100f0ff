"""Write charges, positions, box and exclusions to an .npz file.

The file is what fmm_openmm.ChargeSystem.load reads.
"""

from dataclasses import replace

import numpy as np

from fmm_openmm.boundary import net_charge
from fmm_openmm.cli import inputs, notes
from fmm_openmm.cli.options import add_boundary_argument
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.convert import ChargeSystem

EXAMPLE = "fmm-openmm convert water.prmtop water.inpcrd -o water.npz"


def add_arguments(parser) -> None:
    """Add the arguments of the command: FILE, ``-o`` and ``--plot``."""
    inputs.add_arguments(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT.npz", help="the file to write"
    )
    add_boundary_argument(parser)
    add_plot_argument(parser)


def run(args, terminal) -> Outcome:
    """Read the files, convert them, and save the result."""
    if not args.output.endswith(".npz"):
        raise ValueError(f"--output must end in .npz, got {args.output}")
    drawing = figure(args.plot)
    with terminal.progress("reading"):
        molecules = inputs.load(args)
        system = ChargeSystem.from_openmm(molecules.system, molecules.positions)
        if args.boundary:
            system = replace(system, boundary=args.boundary)
    noted = notes.look(args, molecules, terminal)
    system.save(args.output)
    if drawing:
        draw(drawing, system.charges, molecules.positions)
        drawing.savefig(args.plot)
    result = {
        "file": args.output,
        "particles": len(system),
        "total_charge": net_charge(system.charges),
        "exclusions": len(system.exclusions),
        "box_vectors": system.box_vectors,
        **noted,
    }
    box = (
        "none"
        if system.box_vectors is None
        else "\n".join(" ".join(f"{x:8.4f}" for x in vector) for vector in system.box_vectors)
    )
    terminal.pairs(
        [
            ("particles", str(len(system))),
            ("total charge", f"{result['total_charge']:.6g} e"),
            ("exclusions", str(len(system.exclusions))),
            ("boundary", noted["boundary"]),
            ("box vectors" if system.box_vectors is None else "box vectors, nm", box),
            ("written to", args.output),
        ]
    )
    return Outcome(result)


def draw(drawing, charges: np.ndarray, positions: np.ndarray) -> None:
    """Plot a histogram of the charges, and the positions projected along z."""
    drawing.set_figwidth(10)
    histogram, plane = drawing.subplots(1, 2)
    histogram.hist(charges, bins=60, log=True)
    histogram.set_title(f"{len(charges)} particles")
    histogram.set_xlabel("charge, e")
    histogram.set_ylabel("particles")
    x, y, _ = positions.T
    plane.hexbin(x, y, gridsize=60, cmap="viridis", mincnt=1)
    plane.set_title("particles along z")
    plane.set_xlabel("x, nm")
    plane.set_ylabel("y, nm")
    plane.set_aspect("equal")
