"""Coulomb energies of every frame of a trajectory and, on request, more.

Electrostatics alone, exceptions excluded, by the stand-alone solver, at any tolerance, regardless
of the one used in the simulation. Energies and virials are in kJ/mol, potentials at the atoms in
kJ/mol/e, forces in kJ/mol/nm.
"""

import csv
from contextlib import ExitStack

import numpy as np

from fmm_openmm.cli import inputs, notes, options, readers
from fmm_openmm.cli.interrupts import first_interrupt
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.cli.workers import add_workers_argument, check_workers, workers
from fmm_openmm.convert.frames import read_frames
from fmm_openmm.errors import AnalysisError
from fmm_openmm.integration.analysis import analyse
from fmm_openmm.integration.validation import charges_and_cell, electrostatics
from fmm_openmm.solver import CoulombSolver

EXAMPLE = """fmm-openmm analyse topology.prmtop run.nc --potentials \\
      --output potentials.npz"""

ARRAYS = ("potentials", "forces", "virial")


def add_arguments(parser) -> None:
    """Add the arguments of the command: files, frames, quantities and output."""
    inputs.add_arguments(parser)
    parser.epilog += f"\n\n{inputs.TRAJECTORY_FILES}"
    group = parser.add_argument_group("analysis")
    group.add_argument(
        "--stride", type=options.count, default=1, metavar="N", help="every Nth frame (default 1)"
    )
    add_workers_argument(group)
    group.add_argument("--potentials", action="store_true", help="potentials at the atoms as well")
    group.add_argument("--forces", action="store_true", help="electrostatic forces as well")
    group.add_argument("--virial", action="store_true", help="electrostatic virials as well")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=".csv: frame, time and energy; .npz: arrays frames, times, energies and, of type "
        "float32, potentials (frames, atoms) and forces (frames, atoms, 3), and virial "
        "(frames, 3, 3)",
    )
    add_plot_argument(group)
    options.add_fmm_arguments(parser, context=False)


def run(args, terminal) -> Outcome:
    """Read the system, evaluate all frames up to an interrupt, and write the results."""
    wanted = [name for name in ARRAYS if getattr(args, name)]
    check_arguments(args, wanted)
    drawing = figure(args.plot)
    with ExitStack() as stack:
        advance = stack.enter_context(terminal.progress("reading"))
        path = inputs.files_by_kind(args.files).get("trajectory")
        if path is None:
            raise ValueError(
                f"no trajectory among {readers.listed(args.files)}: give a .dcd, .xtc or .nc file "
                "with it, or use fmm-openmm validate for a single structure"
            )
        molecules = inputs.load(args)
        noted = notes.look(args, molecules, terminal)
        solver, box_vectors = make_solver(args, molecules)
        executor, threads = stack.enter_context(workers(args.workers))
        interrupt = stack.enter_context(first_interrupt())
        times: list[float] = []

        def until_interrupt():
            for frame in read_frames(path, len(molecules.positions), args.stride):
                advance(description=f"frame {len(times) * args.stride}")
                times.append(frame.time)
                has_own = frame.box_vectors is not None and not args.box
                yield frame.positions, frame.box_vectors if has_own else box_vectors
                if interrupt.came:
                    return

        arrays, done, failure = analysed(
            until_interrupt(), solver, ("energy", *wanted), executor, threads
        )
    if not times:
        raise ValueError(f"{path} has no frames")
    numbers = args.stride * done
    if interrupt.came:
        terminal.say(f"Interrupted after frame {numbers[-1]}\n")
    energies = arrays.pop("energy")
    columns = {"frames": numbers, "times": np.array(times, float)[done], "energies": energies}
    if args.output:
        write(args.output, columns, arrays)
    if failure:
        where = f", in {args.output}" if args.output else ""
        raise ValueError(f"{failure}{where}") from failure
    if drawing:
        draw(drawing, columns)
        drawing.savefig(args.plot)
    terminal.pairs(
        [
            ("particles", str(len(molecules.positions))),
            ("boundary", noted["boundary"]),
            ("frames", str(len(done))),
            ("mean Coulomb energy", f"{energies.mean():.6f} kJ/mol"),
            ("standard deviation", f"{energies.std():.6f} kJ/mol"),
            *([("written to", args.output)] if args.output else []),
        ]
    )
    found = {"particles": len(molecules.positions), "file": args.output, **columns, **noted}
    return Outcome(found | {"interrupted": interrupt.came}, interrupted=interrupt.came)


def analysed(frames, solver, quantities, executor, threads):
    """Return the arrays of :func:`fmm_openmm.analyse`, the numbers of their frames, and the error
    that ended it early."""
    try:
        arrays = analyse(
            frames, solver, quantities, executor, False, threads=threads, dtype=np.float32
        )
    except AnalysisError as error:
        return error.arrays, error.frames, error
    return arrays, np.arange(len(arrays["energy"])), None


def check_arguments(args, wanted: list[str]) -> None:
    """Check the arguments of the output before anything is read.

    Raises:
        ValueError: an argument is invalid.
    """
    if args.stride < 1:
        raise ValueError(f"--stride must be at least 1, got {args.stride}")
    check_workers(args)
    if args.output and not args.output.endswith((".csv", ".npz")):
        raise ValueError(f"--output must end in .csv or .npz, got {args.output}")
    if wanted and not (args.output or "").endswith(".npz"):
        given = f", got {args.output}" if args.output else ""
        raise ValueError(f"--{wanted[0]} needs --output FILE.npz{given}")


def make_solver(args, molecules) -> tuple[CoulombSolver, np.ndarray | None]:
    """Make the solver for the charges of a System, with the options of its FMMForce unless options
    are given; return also the default box vectors, None in free space."""
    definition, _ = electrostatics(molecules.system)
    given = options.fmm_options(args)
    structure = definition.structure.with_boundary(given.pop("boundary", None))
    chosen = definition.options.replaced_by(given)
    charges, cell = charges_and_cell(molecules.system, definition)
    # where boxes follow the particles, those of the first frame decide
    typical = None if structure.boundary.is_partial else molecules.positions
    return structure.solver(chosen, charges, cell, typical), cell


def write(path: str, columns: dict, arrays: dict) -> None:
    """Write all arrays to an .npz file, or the columns to a CSV file."""
    if path.endswith(".npz"):
        np.savez(path, **columns, **arrays)
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("frame", "time_ps", "coulomb_energy"))
        table.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def draw(drawing, columns: dict) -> None:
    """Plot the energy against time or, where the trajectory has no times, the number of the
    frame."""
    has_times = bool(np.isfinite(columns["times"]).all())
    axes = drawing.add_subplot()
    axes.plot(columns["times" if has_times else "frames"], columns["energies"], ".-")
    axes.set_xlabel("time, ps" if has_times else "frame")
    axes.set_ylabel("Coulomb energy, kJ/mol")
