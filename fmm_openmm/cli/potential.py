"""Map of the electrostatic potential on a grid, averaged over a trajectory.

The potential of all charges and their periodic images, whose mean over a cell
with images along all vectors is zero. OpenDX files (.dx) have Angstrom and the
unit of --units, Gaussian cube files (.cube) Bohr and Hartree/e, .npz files nm
and kJ/mol/e.
"""

from contextlib import ExitStack

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.cli import inputs, notes, options
from fmm_openmm.cli.analyse import make_solver
from fmm_openmm.cli.interrupts import first_interrupt
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.cli.workers import add_workers_argument, check_workers, workers
from fmm_openmm.convert.frames import read_frames
from fmm_openmm.integration.potential_map import (
    AXES,
    MARGINS,
    SPACINGS,
    UNITS,
    WIDTHS,
    PotentialMap,
    potential_map,
)
from fmm_openmm.solver import CoulombSolver

EXAMPLE = """fmm-openmm potential topology.prmtop run.nc -o map.dx --units kT/e \\
      --plot profile.png --axis z"""

ENDINGS = (".dx", ".cube", ".cub", ".npz")

MARGIN = 0.5
"""Default of ``--margin``, nm."""

TEMPERATURE = 300.0
"""Default of ``--temperature``, K."""


def add_arguments(parser) -> None:
    """Add the arguments of the command: files, frames, grid and output."""
    inputs.add_arguments(parser)
    parser.epilog += f"\n\n{inputs.TRAJECTORY_FILES} Without it the map is that of the structure."
    group = parser.add_argument_group("map")
    group.add_argument(
        "--trajectory",
        action="append",
        default=[],
        dest="trajectories",
        metavar="FILE",
        help="the trajectory, which may also be given among the other files",
    )
    group.add_argument(
        "--stride", type=options.count, metavar="N", help="every Nth frame (default 1)"
    )
    group.add_argument(
        "--grid",
        type=float,
        default=0.1,
        dest="spacing",
        metavar="LENGTH",
        help="largest distance between neighbouring points, nm (default 0.1)",
    )
    group.add_argument(
        "--charge-width",
        type=float,
        default=0.0,
        metavar="LENGTH",
        help="replace each charge by a Gaussian of this standard deviation, nm, which makes "
        "averages smooth (default 0: point charges)",
    )
    group.add_argument(
        "--margin",
        type=float,
        metavar="LENGTH",
        help="how far the grid extends beyond the particles along directions without images, nm "
        f"(default {MARGIN:g})",
    )
    add_workers_argument(group)
    group.add_argument("-o", "--output", metavar="FILE", help=".dx, .cube or .npz")
    group.add_argument(
        "--units",
        choices=tuple(UNITS),
        default="kJ/mol/e",
        help="unit of the potential in .dx files (default kJ/mol/e)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        help=f"temperature for --units kT/e, K (default {TEMPERATURE:g})",
    )
    group.add_argument(
        "--axis",
        choices=AXES,
        help="axis of the profile in --plot and --json, which averages over planes normal to it "
        "(default z, or the direction of a slab without images)",
    )
    add_plot_argument(group)
    options.add_fmm_arguments(parser, context=False, without=("grid",))


def run(args, terminal) -> Outcome:
    """Read the system, average the potential over all frames up to an interrupt, and write it."""
    check_arguments(args)
    figure(args.plot)  # refuses what cannot be written
    args.files += args.trajectories
    with ExitStack() as stack:
        advance = stack.enter_context(terminal.progress("reading"))
        path = inputs.files_by_kind(args.files).get("trajectory")
        if path is None and args.stride is not None:
            raise ValueError("--stride is for a trajectory: give one, or leave it out")
        stride = 1 if args.stride is None else args.stride
        molecules = inputs.load(args)
        noted = notes.look(args, molecules, terminal)
        solver, box_vectors = make_solver(args, molecules)
        if args.margin is not None and solver.boundary == "periodic":
            raise ValueError(
                "--margin is for directions without images, of which a periodic box has none: "
                "leave it out, or give --boundary"
            )
        executor, threads = stack.enter_context(workers(args.workers))
        interrupt = stack.enter_context(first_interrupt())

        def until_interrupt():
            if path is None:
                yield molecules.positions, box_vectors
                return
            for number, frame in enumerate(read_frames(path, len(molecules.positions), stride)):
                advance(description=f"frame {number * stride}")
                has_own = frame.box_vectors is not None and not args.box
                yield frame.positions, frame.box_vectors if has_own else box_vectors
                if interrupt.came:
                    return

        try:
            found = potential_map(
                until_interrupt(),
                solver,
                args.spacing,
                executor,
                False,
                margin=MARGIN if args.margin is None else args.margin,
                charge_width=args.charge_width,
                threads=threads,
            )
        except MemoryError as error:
            raise MemoryError(f"{error}: --grid {args.spacing:g} nm is too fine") from error
    args.axis = args.axis or usual_axis(solver)
    if interrupt.came:
        terminal.say(f"Interrupted after {found.frames} frames\n")
    return report(args, terminal, found, molecules, noted, interrupt.came)


def usual_axis(solver: CoulombSolver) -> str:
    """Return the axis of the only direction without images, else "z"."""
    free = np.flatnonzero(Boundary.from_name(solver.boundary).free)
    return AXES[free[0]] if len(free) == 1 else "z"


def report(args, terminal, found: PotentialMap, molecules, noted: dict, interrupted: bool):
    """Write the map and the plot, and print a summary."""
    drawing = figure(args.plot)
    if args.output:
        elements = [atom.element for atom in molecules.topology.atoms()]
        numbers = [0 if element is None else element.atomic_number for element in elements]
        found.save(
            args.output,
            units=args.units,
            temperature=TEMPERATURE if args.temperature is None else args.temperature,
            atoms=(numbers, molecules.positions),
        )
    if drawing:
        draw(drawing, found, args.axis)
        drawing.savefig(args.plot)
    places, means = found.profile(args.axis)
    terminal.pairs(
        [
            ("particles", str(len(molecules.positions))),
            ("boundary", noted["boundary"]),
            ("frames", str(found.frames)),
            ("grid", " x ".join(map(str, found.values.shape))),
            (
                "spacing",
                " x ".join(f"{s:.4f}" for s in np.linalg.norm(found.steps, axis=1)) + " nm",
            ),
            (
                f"plane averages along {args.axis}",
                f"{means.min():.3f} to {means.max():.3f} kJ/mol/e",
            ),
            *([("written to", args.output)] if args.output else []),
        ]
    )
    result = {
        "particles": len(molecules.positions),
        "frames": found.frames,
        "counts": found.values.shape,
        "origin": found.origin,
        "vectors": found.vectors,
        "axis": args.axis,
        "places": places,
        "profile": means,
        "file": args.output,
        **noted,
    }
    return Outcome(result | {"interrupted": interrupted}, interrupted=interrupted)


def check_arguments(args) -> None:
    """Check the arguments of grid and output before anything is read.

    Raises:
        ValueError: an argument is invalid.
    """
    if args.stride is not None and args.stride < 1:
        raise ValueError(f"--stride must be at least 1, got {args.stride}")
    if not SPACINGS[0] <= args.spacing <= SPACINGS[1]:
        raise ValueError(
            f"--grid must lie between {SPACINGS[0]:g} and {SPACINGS[1]:g} (nm), got {args.spacing}"
        )
    if args.temperature is not None:
        if not 0 < args.temperature < np.inf:
            raise ValueError(
                f"--temperature must be finite and above 0 (K), got {args.temperature}"
            )
        if args.units != "kT/e":
            raise ValueError("--temperature is for --units kT/e: give both, or neither")
    if not 0 <= args.charge_width <= WIDTHS[1]:
        raise ValueError(
            f"--charge-width must lie between 0 and {WIDTHS[1]:g} (nm), got {args.charge_width}"
        )
    if args.output and not args.output.lower().endswith(ENDINGS):
        raise ValueError(f"--output must end in {', '.join(ENDINGS)}, got {args.output}")
    if args.units != "kJ/mol/e" and not (args.output or "").lower().endswith(".dx"):
        given = f", got {args.output}" if args.output else ""
        raise ValueError(f"--units {args.units} needs --output FILE.dx{given}")
    if args.margin is not None and not MARGINS[0] <= args.margin <= MARGINS[1]:
        raise ValueError(
            f"--margin must lie between {MARGINS[0]:g} and {MARGINS[1]:g} (nm), got {args.margin}"
        )
    check_workers(args)


def draw(drawing, found: PotentialMap, axis: str) -> None:
    """Plot averages over planes against their position."""
    axes = drawing.add_subplot()
    axes.plot(*found.profile(axis))
    axes.set_xlabel(f"{axis}, nm")
    axes.set_ylabel("mean potential, kJ/mol/e")
