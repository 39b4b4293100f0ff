"""Run a short simulation with FMM electrostatics.

Prints the speed and, for NVE, the drift of the total energy.
"""

import csv
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm import FMMForce, find_fmm, restore_pme, use_fmm
from fmm_openmm.bench.systems import BOLTZMANN, barostat, degrees_of_freedom
from fmm_openmm.cli import inputs, notes
from fmm_openmm.cli.options import (
    add_fmm_arguments,
    add_platform_argument,
    count,
    fmm_options,
    platform,
)
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.integration.guard import signals

STEPS_AT_ONCE = 10
"""Steps after which an interrupt is noticed; as many as ``openmm.app.Simulation`` takes at once."""

TRAJECTORIES = {
    ".dcd": app.DCDReporter,
    ".xtc": app.XTCReporter,
    ".pdb": app.PDBReporter,
    ".cif": app.PDBxReporter,
}


@dataclass
class Sample:
    """What the log holds of one moment; energies in kJ/mol, lengths in nm. No number: the
    temperature without degrees of freedom, the volume in empty space."""

    step: int
    time_ps: float
    potential_energy: float
    kinetic_energy: float
    total_energy: float
    temperature: float
    volume: float


EXAMPLE = """fmm-openmm run topol.top conf.gro --ensemble npt --steps 1e5 \\
      --trajectory run.xtc --log run.csv"""


def add_arguments(parser) -> None:
    """FILE, the ensemble, what to write, and how to compute."""
    inputs.add_arguments(parser)
    group = parser.add_argument_group("simulation")
    group.add_argument("--steps", type=count, default=1000, help="default %(default)s")
    group.add_argument("--timestep", type=float, default=0.002, help="ps (default %(default)s)")
    group.add_argument(
        "--ensemble",
        choices=("nve", "nvt", "npt"),
        default="nvt",
        help="in place of barostats and thermostats that the System has (default %(default)s)",
    )
    group.add_argument("--temperature", type=float, default=300.0, help="K (default %(default)s)")
    group.add_argument(
        "--friction", type=float, default=1.0, help="1/ps, of nvt and npt (default %(default)s)"
    )
    group.add_argument(
        "--pressure", type=float, default=1.0, help="bar, of npt (default %(default)s)"
    )
    group.add_argument(
        "--minimize",
        type=count,
        default=0,
        metavar="N",
        help="first at most N steps of minimisation",
    )
    group.add_argument(
        "--equilibrate",
        type=count,
        default=0,
        metavar="N",
        help="then N steps before the run, of npt with --ensemble npt, else of nvt",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of velocities and thermostat; 0 for another each time"
    )
    add_platform_argument(group)
    group = parser.add_argument_group("output")
    group.add_argument("--trajectory", metavar="FILE", help=", ".join(TRAJECTORIES))
    group.add_argument("--log", metavar="FILE.csv", help="energies, temperature and volume")
    group.add_argument(
        "--interval", type=count, default=100, help="steps between samples (default %(default)s)"
    )
    add_plot_argument(group)
    add_fmm_arguments(parser)


def run(args, terminal) -> Outcome:
    """Read, convert to FMM, simulate, report."""
    check_arguments(args)
    drawing = figure(args.plot)
    with terminal.progress("reading") as advance:
        molecules = inputs.load(args)
        if args.ensemble == "npt" and not molecules.system.usesPeriodicBoundaryConditions():
            raise ValueError("--ensemble npt needs a periodic box: give one with --box")
        replaced = without_baths(molecules.system)
        force = converted(molecules.system, fmm_options(args))
        noted = notes.look(args, molecules, terminal)
        advance(description="preparing")
        simulation = simulation_of(args, molecules)
    if replaced:
        terminal.say(
            f"Left out of the System, as --ensemble is {args.ensemble}: {', '.join(replaced)}\n"
        )
    parameters = force.getFMMParametersInContext(simulation.context)
    samples, walls = [], []
    with first_interrupt() as interrupt:
        try:
            prepare(args, simulation, terminal, interrupt)
            simulate(args, simulation, terminal, interrupt, samples, walls)
        except KeyboardInterrupt:  # the second
            interrupt.came = True
    if interrupt.came:
        terminal.say(f"Interrupted {interrupt.stage}\n")
    samples = samples or [sample(simulation, degrees_of_freedom(simulation.system))]
    result = (
        summary(args, simulation, samples, seconds_per_step(walls))
        | noted
        | {"fmm": parameters, "interrupted": interrupt.came}
    )
    terminal.pairs(
        described(result),
        title=f"{args.ensemble.upper()}, {simulation.currentStep} steps of {args.timestep:g} ps",
    )
    if drawing:
        draw(drawing, samples)
        drawing.savefig(args.plot)
    return Outcome(result, interrupted=interrupt.came)


def converted(system: openmm.System, options: dict) -> FMMForce:
    """The FMMForce that the System has, unless options are given,
    else a new one in place of PME."""
    forces = find_fmm(system)
    if forces and not options:
        return forces[0]
    if forces:
        restore_pme(system)
    return use_fmm(system, **options)


def without_baths(system: openmm.System) -> list[str]:
    """Remove barostats and thermostats; returns their names."""
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
    """Refuse numbers that make no sense before anything is read."""
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
        if not np.isfinite(getattr(args, name)):
            raise ValueError(f"--{name} must be finite, got {getattr(args, name)}")
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


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2].lower()


def simulation_of(args, molecules) -> app.Simulation:
    """A Simulation at the positions that were read."""
    system = molecules.system
    if args.ensemble == "npt":
        system.addForce(barostat(args.temperature, args.pressure, args.seed))
    thermostat = openmm.LangevinMiddleIntegrator(args.temperature, args.friction, args.timestep)
    thermostat.setRandomNumberSeed(args.seed)
    verlet = openmm.VerletIntegrator(args.timestep)
    integrator = openmm.CompoundIntegrator()
    for each in (thermostat, verlet):
        each.setConstraintTolerance(1e-6)
        integrator.addIntegrator(each)
    simulation = app.Simulation(molecules.topology, system, integrator, platform(args))
    simulation.context.setPositions(molecules.positions)
    simulation.context.computeVirtualSites()
    return simulation


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed, and when: "while ..." or "after ...", for people."""

    came: bool = False
    stage: str = "before the first step"


class _Stop(openmm.MinimizationReporter):
    """Ends a minimisation after an interrupt, whose handler may wait for the end of it."""

    def __init__(self, interrupt: Interrupt):
        super().__init__()
        self.interrupt = interrupt

    def report(self, iteration, x, grad, args):
        return self.interrupt.came or signals.is_waiting()


def prepare(args, simulation: app.Simulation, terminal, interrupt: Interrupt) -> None:
    """Minimise, choose velocities, equilibrate, until an interrupt comes."""
    with terminal.progress("preparing"), simulation_errors(simulation):
        if args.minimize:
            interrupt.stage = "while minimising"
            simulation.minimizeEnergy(maxIterations=args.minimize, reporter=_Stop(interrupt))
        simulation.context.applyConstraints(1e-6)
        simulation.context.setVelocitiesToTemperature(
            args.temperature, *([args.seed] if args.seed else [])
        )
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
def first_interrupt():
    """Take note of the first Ctrl-C in a ``with`` block, in an :class:`Interrupt`, in place of a
    ``KeyboardInterrupt``; a second one acts as usual. In threads other than the main one nothing
    changes."""
    interrupt, usual = Interrupt(), signal.getsignal(signal.SIGINT)

    def take_note(*_):
        interrupt.came = True
        signal.signal(signal.SIGINT, usual)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        signal.signal(signal.SIGINT, take_note)
    try:
        yield interrupt
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, usual)


@contextmanager
def simulation_errors(simulation: app.Simulation):
    """Says of an error inside a ``with`` block at which step it came."""
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
    walls: list[tuple[int, float]],
) -> None:
    """The run itself, to the end or until an interrupt comes.

    Args:
        samples: gets the start and every interval.
        walls: gets steps and wall time of every interval, with sampling and writing.
    """
    dof = degrees_of_freedom(simulation.system)
    samples.append(sample(simulation, dof))
    with ExitStack() as stack:
        log = None
        if args.log:
            log = csv.writer(stack.enter_context(open(args.log, "w", newline="", encoding="utf-8")))
            log.writerow([field.name for field in fields(Sample)])
            log.writerow(astuple(samples[0]))
        if args.trajectory:
            simulation.reporters.append(
                TRAJECTORIES[_suffix(args.trajectory)](args.trajectory, args.interval)
            )
        advance = stack.enter_context(terminal.progress("simulating", total=args.steps))
        stack.enter_context(simulation_errors(simulation))
        while simulation.currentStep < args.steps and not interrupt.came:
            before, start = simulation.currentStep, time.perf_counter()
            end = min(before + args.interval, args.steps)
            while simulation.currentStep < end and not interrupt.came:
                simulation.step(min(STEPS_AT_ONCE, end - simulation.currentStep))
                interrupt.stage = f"after {simulation.currentStep} of {args.steps} steps"
            steps = simulation.currentStep - before
            samples.append(sample(simulation, dof))
            walls.append((steps, time.perf_counter() - start))
            if log:
                log.writerow(astuple(samples[-1]))
            advance(steps)


def seconds_per_step(walls: list[tuple[int, float]]) -> float:
    """Wall time of a step, without the first interval if there are more; not a number without
    any."""
    counted = walls[1:] or walls or [(1, np.nan)]
    return sum(wall for _, wall in counted) / sum(steps for steps, _ in counted)


def sample(simulation: app.Simulation, dof: int) -> Sample:
    """Energies, temperature and volume now.

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


def summary(args, simulation: app.Simulation, samples: list[Sample], seconds: float) -> dict:
    """Speed, means, and for NVE the drift: slope and residual of a line through the total
    energy."""
    values = np.array([astuple(entry) for entry in samples])
    temperature, volume = (values[1:] if len(values) > 1 else values).T[5:7]
    result = {
        "particles": simulation.system.getNumParticles(),
        "platform": simulation.context.getPlatform().getName(),
        "ensemble": args.ensemble,
        "steps": simulation.currentStep,
        "ms_per_step": 1e3 * seconds,
        "ns_per_day": 86.4 * args.timestep / seconds,
        "mean_temperature": float(temperature.mean()),
        "mean_volume": float(volume.mean()),
        "final_total_energy": samples[-1].total_energy,
    }
    if args.ensemble == "nve" and len(samples) > 2:
        time_ps, energy = values[:, 1], values[:, 4]
        slope, intercept = np.polyfit(time_ps, energy, 1)
        result["drift_kJ_mol_ps"] = float(slope)
        thermal = degrees_of_freedom(simulation.system) * BOLTZMANN * result["mean_temperature"]
        result["drift_kT_ns_dof"] = float(1e3 * slope / thermal)
        result["residual_kJ_mol"] = float(np.std(energy - slope * time_ps - intercept))
    return result


def described(result: dict) -> list[tuple[str, str]]:
    """The summary for people."""
    fmm = result["fmm"]
    expansions = f"order {fmm['order']}, near radius {fmm['near_radius']:g}"
    rows = [
        ("particles", str(result["particles"])),
        ("boundary", result["boundary"]),
        ("platform", result["platform"]),
        ("FMM", f"{expansions}, {fmm['precision']} precision, {fmm['backend']} backend"),
        ("Lennard-Jones", f"{fmm['lennard_jones']}: {fmm['lennard_jones_reason']}"),
    ]
    if np.isfinite(result["ms_per_step"]):
        speed = f"{result['ms_per_step']:.4g} ms a step, {result['ns_per_day']:.4g} ns a day"
        rows.append(("speed", speed))
        rows.append(("mean temperature", f"{result['mean_temperature']:.1f} K"))
    else:
        rows.append(("total energy", f"{result['final_total_energy']:.6f} kJ/mol"))
    if result["ensemble"] == "npt":
        rows.append(("mean volume", f"{result['mean_volume']:.4f} nm^3"))
    if "drift_kT_ns_dof" in result:
        per_freedom = f"{result['drift_kT_ns_dof']:.3g} kT/ns per degree of freedom"
        rows.append(
            ("drift of total energy", f"{result['drift_kJ_mol_ps']:.3g} kJ/mol/ps, {per_freedom}")
        )
        rows.append(("residual about it", f"{result['residual_kJ_mol']:.3g} kJ/mol"))
    return rows


def draw(drawing, samples: list[Sample]) -> None:
    """Total energy and temperature against time."""
    times = [entry.time_ps for entry in samples]
    upper, lower = drawing.subplots(2, 1, sharex=True)
    upper.plot(times, [entry.total_energy - samples[0].total_energy for entry in samples])
    upper.set_ylabel("total energy\nless its start, kJ/mol")
    lower.plot(times, [entry.temperature for entry in samples], color="C1")
    lower.set_ylabel("temperature, K")
    lower.set_xlabel("time, ps")
