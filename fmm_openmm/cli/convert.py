"""Write charges, positions, box and exclusions to an .npz file.

The file is what fmm_openmm.ChargeSystem.load reads.
"""

import numpy as np

from fmm_openmm.cli import inputs, notes
from fmm_openmm.cli.terminal import Outcome
from fmm_openmm.convert import ChargeSystem

EXAMPLE = "fmm-openmm convert water.prmtop water.inpcrd -o water.npz"


def add_arguments(parser) -> None:
    """FILE and ``-o``."""
    inputs.add_arguments(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT.npz", help="the file to write"
    )


def run(args, terminal) -> Outcome:
    """Read, convert, save."""
    if not args.output.endswith(".npz"):
        raise ValueError(f"--output must end in .npz, got {args.output}")
    with terminal.progress("reading"):
        molecules = inputs.load(args)
        system = ChargeSystem.from_openmm(molecules.system, molecules.positions)
    noted = notes.look(args, molecules, terminal)
    system.save(args.output)
    result = {
        "file": args.output,
        "particles": len(system),
        "total_charge": float(system.charges.sum()),
        "exclusions": len(system.exclusions),
        "box_vectors": system.box_vectors,
        **noted,
    }
    box = (
        "none"
        if system.box_vectors is None
        else np.array2string(system.box_vectors, precision=4).replace("\n", "")
    )
    terminal.pairs(
        [
            ("particles", str(len(system))),
            ("total charge", f"{system.charges.sum():.6g} e"),
            ("exclusions", str(len(system.exclusions))),
            ("boundary", noted["boundary"]),
            ("box vectors", box if system.box_vectors is None else f"{box} nm"),
            ("written to", args.output),
        ]
    )
    return Outcome(result)
