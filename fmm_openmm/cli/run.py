"""Run a short simulation with FMM electrostatics.

Prints the speed and, for NVE, the drift of the total energy. With --restart
a run continues from the file that --checkpoint wrote.
"""

import csv
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm import FMMForce, find_fmm, pressure_tensor, use_fmm
from fmm_openmm.bench.systems import BOLTZMANN, barostat, degrees_of_freedom
from fmm_openmm.cli import inputs, notes
from fmm_openmm.cli.interrupts import Interrupt, StopMinimisation, first_interrupt
from fmm_openmm.cli.options import (
    add_fmm_arguments,
    add_platform_argument,
    count,
    fmm_options,
    platform,
)
from fmm_openmm.cli.restart import (
    Continuation,
    keep_frames,
    keep_rows,
    load_checkpoint,
    save_checkpoint,
)
from fmm_openmm.cli.summary import (
    PressureSample,
    Sample,
    described,
    draw,
    seconds_per_step,
    summary,
)
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.integration.conversion.system import convert_again

STEPS_AT_ONCE = 10
"""Number of steps between checks for an interrupt, that of ``openmm.app.Simulation``."""

TRAJECTORIES = {
    ".dcd": app.DCDReporter,
    ".xtc": app.XTCReporter,
    ".pdb": app.PDBReporter,
    ".cif": app.PDBxReporter,
}

APPENDED = (".dcd", ".xtc")
"""Trajectory formats to which a restarted run can append."""


EXAMPLE = """fmm-openmm run topol.top conf.gro --ensemble npt --steps 1e5 \\
      --trajectory run.xtc --log run.csv"""


def add_arguments(parser) -> None:
    """Add the arguments of the command: files, ensemble, output and FMM options."""
    inputs.add_arguments(parser)
    group = parser.add_argument_group("simulation")
    group.add_argument(
        "--steps", type=count, default=1000, help="number of time steps (default %(default)s)"
    )
    group.add_argument(
        "--timestep", type=float, default=0.002, help="time step, ps (default %(default)s)"
    )
    group.add_argument(
        "--ensemble",
        choices=("nve", "nvt", "npt"),
        default="nvt",
        help="replaces barostats and thermostats of the System (default %(default)s)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=300.0,
        help="temperature of initial velocities and thermostat, K (default %(default)s)",
    )
    group.add_argument(
        "--friction",
        type=float,
        default=1.0,
        help="friction coefficient of the Langevin thermostat, 1/ps, for nvt and npt "
        "(default %(default)s)",
    )
    group.add_argument(
        "--pressure", type=float, help="pressure for --ensemble npt, bar (default 1.0)"
    )
    group.add_argument(
        "--minimize",
        type=count,
        default=0,
        metavar="N",
        help="first minimise the energy, in at most N steps",
    )
    group.add_argument(
        "--equilibrate",
        type=count,
        default=0,
        metavar="N",
        help="then equilibrate for N steps, in npt with --ensemble npt, else in nvt",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="random seed of velocities, thermostat and barostat; 0 for another one in each run "
        "(default %(default)s)",
    )
    add_platform_argument(group)
    group.add_argument(
        "--restart",
        metavar="FILE",
        help="continue from a file of --checkpoint until --steps in total are done; rows of --log "
        "and frames of --trajectory after the checkpoint are replaced",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--trajectory", metavar="FILE", help=", ".join(TRAJECTORIES))
    group.add_argument("--log", metavar="FILE.csv", help="energies, temperature and volume")
    group.add_argument(
        "--pressure-log", metavar="FILE.csv", help="the pressure tensor of molecules, bar"
    )
    group.add_argument(
        "--interval", type=count, default=100, help="steps between samples (default %(default)s)"
    )
    group.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="update this file with every sample: .xml for an openmm.State, for any machine, else "
        "OpenMM's binary checkpoint, which continues exactly but only on the same machine",
    )
    add_plot_argument(group)
    add_fmm_arguments(parser)
    parser.add_argument(
        "--allow-reaction-field",
        action="store_true",
        help="replace the reaction field of a System with CutoffPeriodic or CutoffNonPeriodic by "
        "the full Coulomb interaction",
    )


def run(args, terminal) -> Outcome:
    """Read the files, convert the System to FMM, simulate, and report."""
    check_arguments(args)
    drawing = figure(args.plot)
    with terminal.progress("reading") as advance:
        molecules = inputs.load(args)
        for option, wanted in (
            ("--ensemble npt", args.ensemble == "npt"),
            ("--pressure-log", args.pressure_log),
        ):
            if wanted and not molecules.system.usesPeriodicBoundaryConditions():
                is_open = args.boundary == "open"
                remedy = "leave out --boundary open" if is_open else "give one with --box"
                raise ValueError(f"{option} needs a periodic box: {remedy}")
        replaced = without_baths(molecules.system)
        force = converted(molecules.system, fmm_options(args), args.allow_reaction_field)
        boundary = force._definition.boundary
        if args.ensemble == "npt" and boundary.is_partial:
            raise ValueError(
                "--ensemble npt scales all box vectors, along some of which there is vacuum with "
                f"--boundary {boundary.name}: use nvt or nve, or for a slab "
                "MonteCarloMembraneBarostat with ZFixed in a script"
            )
        if args.pressure_log:
            separate(force, molecules.system)
        noted = notes.look(args, molecules, terminal)
        advance(description="preparing")
        simulation = make_simulation(args, molecules)
    if replaced:
        terminal.say(
            f"Left out of the System, as --ensemble is {args.ensemble}: {', '.join(replaced)}\n"
        )
    parameters = force.getFMMParametersInContext(simulation.context)
    samples: list[Sample] = []
    pressures: list[PressureSample] = []
    walls: list[tuple[int, float]] = []
    with first_interrupt() as interrupt:
        try:
            prepare(args, simulation, terminal, interrupt, molecules.velocities)
            simulate(args, simulation, terminal, interrupt, samples, pressures, walls)
        except KeyboardInterrupt:  # the second
            interrupt.came = True
    if interrupt.came:
        terminal.say(f"Interrupted {interrupt.stage}\n")
    samples = samples or [sample(simulation, degrees_of_freedom(simulation.system))]
    result = (
        summary(args, simulation, samples, pressures, seconds_per_step(walls))
        | noted
        | {"fmm": parameters, "interrupted": interrupt.came}
    )
    terminal.pairs(
        described(result),
        title=f"{args.ensemble.upper()}, {simulation.currentStep} steps of {args.timestep:g} ps",
    )
    if drawing:
        draw(drawing, samples, args.ensemble)
        drawing.savefig(args.plot)
    return Outcome(result, interrupted=interrupt.came)


def converted(system: openmm.System, options: dict, allow_reaction_field: bool) -> FMMForce:
    """Return the FMMForce of the System, with other options if some are given; if there is none,
    convert the System."""
    forces = find_fmm(system)
    if not forces:
        return use_fmm(system, allow_reaction_field=allow_reaction_field, **options)
    return convert_again(system, **options) if options else forces[0]


def separate(force: FMMForce, system: openmm.System) -> None:
    """Give an FMMForce a force group of its own, for which its virial is exact and cheap."""
    taken = {other.getForceGroup() for other in system.getForces() if other is not force}
    if force.getForceGroup() in taken:
        force.setForceGroup(min(set(range(32)) - taken))


def without_baths(system: openmm.System) -> list[str]:
    """Remove barostats and thermostats from a System; return their names."""
    kinds = [type(force).__name__ for force in system.getForces()]
    baths = [
        k
        for k, kind in enumerate(kinds)
        if kind == "AndersenThermostat" or kind.endswith("Barostat")
    ]
    for k in reversed(baths):
        system.removeForce(k)
    return [kinds[k] for k in baths]


def check_arguments(args) -> None:
    """Check the numbers of the command line before anything is read.

    Raises:
        ValueError: a number is out of range.
    """
    for name, low in (
        ("steps", 1),
        ("interval", 1),
        ("minimize", 0),
        ("equilibrate", 0),
        ("temperature", 0),
    ):
        if not getattr(args, name) >= low:
            raise ValueError(f"--{name} must be at least {low}, got {getattr(args, name)}")
    for name in ("temperature", "friction", "pressure", "timestep"):
        value = getattr(args, name)
        if value is not None and not np.isfinite(value):
            raise ValueError(f"--{name} must be finite, got {value}")
    if args.pressure is not None and args.ensemble != "npt":
        raise ValueError("--pressure is for --ensemble npt")
    if not abs(args.seed) < 2**31:
        raise ValueError(f"--seed must fit into 32 bits, got {args.seed}")
    if not args.friction > 0:
        raise ValueError(f"--friction must be above 0 (1/ps), got {args.friction}")
    if not args.timestep > 0:
        raise ValueError(f"--timestep must be above 0 (ps), got {args.timestep}")
    if args.timestep > 0.01:
        raise ValueError(
            f"--timestep is in ps and must be at most 0.01, got {args.timestep:g}: 0.002 is usual"
        )
    if args.trajectory and _suffix(args.trajectory) not in TRAJECTORIES:
        raise ValueError(
            f"--trajectory must end in {', '.join(TRAJECTORIES)}, got {args.trajectory}"
        )
    check_restart(args)


def check_restart(args) -> None:
    """Check the arguments that restrict a restarted run.

    Raises:
        FileNotFoundError, ValueError: the checkpoint does not exist, or an option excludes
            ``--restart``.
    """
    if args.restart is None:
        return
    if not Path(args.restart).is_file():
        raise FileNotFoundError(2, "no such file", args.restart)
    for name in ("minimize", "equilibrate"):
        if getattr(args, name):
            raise ValueError(f"--{name} is for the start of a run: leave it out with --restart")
    if args.trajectory and _suffix(args.trajectory) not in APPENDED:
        raise ValueError(
            f"--trajectory must end in {' or '.join(APPENDED)} with --restart, as others cannot "
            f"be appended to, got {args.trajectory}"
        )


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2].lower()


def make_simulation(args, molecules) -> app.Simulation:
    """Make a Simulation at the positions that were read."""
    system = molecules.system
    if args.ensemble == "npt":
        pressure = 1.0 if args.pressure is None else args.pressure
        system.addForce(barostat(args.temperature, pressure, args.seed))
    thermostat = openmm.LangevinMiddleIntegrator(args.temperature, args.friction, args.timestep)
    thermostat.setRandomNumberSeed(args.seed)
    verlet = openmm.VerletIntegrator(args.timestep)
    integrator = openmm.CompoundIntegrator()
    for part in (thermostat, verlet):
        part.setConstraintTolerance(1e-6)
        integrator.addIntegrator(part)
    simulation = app.Simulation(molecules.topology, system, integrator, platform(args))
    simulation.context.setPositions(molecules.positions)
    simulation.context.computeVirtualSites()
    return simulation


def prepare(
    args, simulation: app.Simulation, terminal, interrupt: Interrupt, velocities: np.ndarray | None
) -> None:
    """Minimise, set velocities unless a file gave them, and equilibrate, up to an interrupt; or
    load a checkpoint."""
    if args.restart:
        load_checkpoint(simulation, args.restart)
        simulation.integrator.setCurrentIntegrator(int(args.ensemble == "nve"))
        if simulation.currentStep >= args.steps:
            raise ValueError(
                f"--steps must be above {simulation.currentStep}, the step of {args.restart}, "
                f"got {args.steps}"
            )
        return
    with terminal.progress("preparing"), simulation_errors(simulation):
        if args.minimize:
            interrupt.stage = "while minimising"
            simulation.minimizeEnergy(
                maxIterations=args.minimize, reporter=StopMinimisation(interrupt)
            )
        simulation.context.applyConstraints(1e-6)
        if velocities is None or args.minimize:
            simulation.context.setVelocitiesToTemperature(
                args.temperature, *([args.seed] if args.seed else [])
            )
        else:
            simulation.context.setVelocities(velocities)
        while simulation.currentStep < args.equilibrate and not interrupt.came:
            simulation.step(min(STEPS_AT_ONCE, args.equilibrate - simulation.currentStep))
            interrupt.stage = (
                f"after {simulation.currentStep} of {args.equilibrate} steps of equilibration"
            )
    if args.ensemble == "nve":
        simulation.integrator.setCurrentIntegrator(1)
    simulation.currentStep = 0
    simulation.context.setTime(0.0)


@contextmanager
def simulation_errors(simulation: app.Simulation):
    """Add the step to the message of an error within a ``with`` block."""
    try:
        yield
    except openmm.OpenMMException as error:
        raise ValueError(
            f"the simulation failed near step {simulation.currentStep}: {error}; a start from a "
            "minimum (--minimize 100) or a shorter --timestep may help"
        ) from error


def simulate(
    args,
    simulation: app.Simulation,
    terminal,
    interrupt: Interrupt,
    samples: list[Sample],
    pressures: list[PressureSample],
    walls: list[tuple[int, float]],
) -> None:
    """Run the production steps, up to an interrupt.

    Args:
        samples: receives the samples at the start and after every interval.
        pressures: as ``samples``, with ``--pressure-log``.
        walls: receives the number of steps and the wall time of every interval, sampling and
            writing included.
    """
    dof = degrees_of_freedom(simulation.system)
    with ExitStack() as stack:
        restart = simulation.currentStep if args.restart else None
        if args.trajectory:
            atoms = simulation.topology.getNumAtoms()
            goes_on = restart is not None and keep_frames(
                args.trajectory, Continuation(restart, args.interval, args.timestep, atoms)
            )
            append = {"append": True} if goes_on else {}
            simulation.reporters.append(
                TRAJECTORIES[_suffix(args.trajectory)](args.trajectory, args.interval, **append)
            )
        series: list[tuple[list[Any], Callable[[], Any], Log | None]] = []
        wanted: list[tuple[str | None, list[Any], Callable[[], Any]]] = [
            (args.log, samples, lambda: sample(simulation, dof)),
            (args.pressure_log, pressures, lambda: pressure_sample(simulation)),
        ]
        for path, kept, take in wanted:
            if not path and kept is pressures:
                continue
            kept.append(take())
            log = None
            if path:
                log = stack.enter_context(Log(path, type(kept[0]), args.interval, restart))
                if not log.goes_on:
                    log.write(kept[0])
            series.append((kept, take, log))
        advance = stack.enter_context(
            terminal.progress("simulating", args.steps - simulation.currentStep)
        )
        stack.enter_context(simulation_errors(simulation))
        while simulation.currentStep < args.steps and not interrupt.came:
            before, start = simulation.currentStep, time.perf_counter()
            end = min(before - before % args.interval + args.interval, args.steps)
            while simulation.currentStep < end and not interrupt.came:
                simulation.step(min(STEPS_AT_ONCE, end - simulation.currentStep))
                interrupt.stage = f"after {simulation.currentStep} of {args.steps} steps"
            steps = simulation.currentStep - before
            for kept, take, log in series:
                kept.append(take())
                if log:
                    log.write(kept[-1])
            walls.append((steps, time.perf_counter() - start))
            if args.checkpoint:
                save_checkpoint(simulation, args.checkpoint)
            advance(steps)


class Log:
    """A CSV file of samples, which are written immediately.

    Args:
        path: path of the file.
        row: type of the samples, a dataclass.
        interval: steps between samples.
        restart: step from which a run continues: earlier rows are kept; None for a new run.

    Attributes:
        goes_on: whether the file contains rows of an earlier run.
    """

    def __init__(self, path: str, row: type, interval: int, restart: int | None):
        names = [field.name for field in fields(row)]
        self.goes_on = restart is not None and keep_rows(path, restart, interval, names)
        self._file = open(path, "a" if self.goes_on else "w", newline="", encoding="utf-8")
        self._table = csv.writer(self._file)
        if not self.goes_on:
            self._table.writerow(names)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, one: Sample | PressureSample) -> None:
        """Write a row."""
        self._table.writerow(astuple(one))
        self._file.flush()


def sample(simulation: app.Simulation, dof: int) -> Sample:
    """Return energies, temperature and volume of the present state.

    Raises:
        openmm.OpenMMException: the energy is not finite.
    """
    state = simulation.context.getState(energy=True)
    potential = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    kinetic = state.getKineticEnergy().value_in_unit(unit.kilojoule_per_mole)
    if not np.isfinite(potential + kinetic):
        raise openmm.OpenMMException("the energy is not finite")
    periodic = simulation.system.usesPeriodicBoundaryConditions()
    return Sample(
        simulation.currentStep,
        state.getTime().value_in_unit(unit.picosecond),
        potential,
        kinetic,
        potential + kinetic,
        2.0 * kinetic / (dof * BOLTZMANN) if dof else np.nan,
        state.getPeriodicBoxVolume().value_in_unit(unit.nanometer**3) if periodic else np.nan,
    )


def pressure_sample(simulation: app.Simulation) -> PressureSample:
    """Return the pressure tensor of molecules at the present state."""
    tensor = pressure_tensor(simulation.context)
    symmetric = 0.5 * (tensor + tensor.T)
    elements = symmetric[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    picoseconds = simulation.context.getTime().value_in_unit(unit.picosecond)
    pressure = float(np.trace(tensor)) / 3
    return PressureSample(simulation.currentStep, picoseconds, pressure, *elements.tolist())
