"""Test this installation: known answers, every backend, every OpenMM platform.

Rock salt against its Madelung constant, a small water box against an Ewald
sum, and FMMForce against PME on each platform. A platform without a
device on this machine is skipped.
"""

import itertools
import time
from dataclasses import asdict, dataclass

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm import ChargeSystem, CoulombSolver, use_fmm
from fmm_openmm.cli.info import BACKENDS, describe_backend
from fmm_openmm.cli.options import platform_names
from fmm_openmm.cli.terminal import Outcome, add_plot_argument, figure
from fmm_openmm.convert.openmm_system import nonbonded_force
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

MADELUNG_ROCK_SALT = 1.74756459463318219
"""Madelung constant of rock salt for the distance of nearest neighbours; Borwein, Borwein and
Taylor 1985, doi:10.1063/1.526675."""

WATER_TOLERANCES = (5e-4, 1e-6)
PLATFORM_TOLERANCE = 1e-4
PME_TOLERANCE = 1e-5
ALWAYS_THERE = ("Reference", "CPU")


@dataclass
class Check:
    """One check and its outcome. It has passed if ``error <= limit``, is skipped with a reason if
    this machine cannot run it, and has failed with the text ``failure`` after an exception. Where
    forces are compared, ``error`` is the RMS error and ``largest`` that of a single particle, both
    relative to the RMS force."""

    name: str
    limit: float
    error: float | None = None
    largest: float | None = None
    skipped: str | None = None
    failure: str | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.skipped is not None or (self.error is not None and self.error <= self.limit)

    @property
    def verdict(self) -> str:
        if self.skipped is not None:
            return "skipped"
        return "passed" if self.passed else "FAILED"

    def compare(self, forces: np.ndarray, others: np.ndarray, scale: np.ndarray) -> None:
        """Set both errors from forces, shape (n, 3), relative to the RMS of a third array."""
        differences = np.linalg.norm(forces - others, axis=1)
        rms = np.linalg.norm(scale) / len(scale) ** 0.5
        self.error = float(np.sqrt(np.mean(differences**2)) / rms)
        self.largest = float(differences.max() / rms)


EXAMPLE = "fmm-openmm check"


def add_arguments(parser) -> None:
    """``--plot``."""
    add_plot_argument(parser)


def run(args, terminal) -> Outcome:
    """Run all checks."""
    drawing = figure(args.plot)
    backends = [name for name in BACKENDS if describe_backend(name)[1] is None]
    platforms = platform_names()
    checks = []
    total = len(backends) * (1 + len(WATER_TOLERANCES)) + len(platforms)
    with terminal.progress("building water", total) as advance:
        water, positions = build_water()
        charges = ChargeSystem.from_openmm(water, positions)
        exact = ewald_sum(positions, charges.charges, charges.box_vectors, charges.exclusions)
        pending: list[tuple] = [(madelung, backend) for backend in backends]
        pending += [
            (water_forces, backend, tolerance, charges, positions, exact)
            for backend, tolerance in itertools.product(backends, WATER_TOLERANCES)
        ]
        pending += [(on_platform, name, water, positions, exact) for name in platforms]
        for function, *arguments in pending:
            advance(0, description=f"{function.__name__} {arguments[0]}")
            start = time.perf_counter()
            check = function(*arguments)
            check.seconds = time.perf_counter() - start
            checks.append(check)
            advance()
    terminal.table(
        ("check", "error", "limit", "largest", "seconds", "verdict"),
        [
            (
                c.name,
                "-" if c.error is None else f"{c.error:.1e}",
                f"{c.limit:.1e}",
                "-" if c.largest is None else f"{c.largest:.1e}",
                f"{c.seconds:.2f}",
                c.verdict,
            )
            for c in checks
        ],
    )
    for check in checks:
        if reason := check.skipped or check.failure:
            terminal.say(f"{check.name}: {reason}")
    if drawing:
        draw(drawing, checks)
        drawing.savefig(args.plot)
    passed = all(check.passed for check in checks)
    terminal.say("all checks passed" if passed else "SOME CHECKS FAILED")
    entries = [{**asdict(check), "verdict": check.verdict.lower()} for check in checks]
    return Outcome({"passed": passed, "checks": entries}, passed)


def build_water() -> tuple[openmm.System, np.ndarray]:
    """Build a 2 nm box of TIP3P water: the System and positions, shape (n, 3), nm."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(2, 2, 2) * unit.nanometer)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer
    )
    return system, np.array(modeller.positions.value_in_unit(unit.nanometer))


def madelung(backend: str) -> Check:
    """Check the energy of rock salt, 4 x 4 x 4 cells: relative error."""
    check = Check(f"Madelung constant, {backend}", limit=1e-7)
    sites = np.stack(np.meshgrid(*[np.arange(8)] * 3, indexing="ij"), -1).reshape(-1, 3)
    charges, distance = 1.0 - 2.0 * (sites.sum(1) % 2), 0.282
    solver = CoulombSolver(charges, 8 * distance * np.eye(3), tolerance=1e-8, backend=backend)
    energy = solver.compute(sites * distance).energy
    exact = -0.5 * len(sites) * MADELUNG_ROCK_SALT * COULOMB_CONSTANT / distance
    check.error = abs(energy / exact - 1.0)
    return check


def water_forces(
    backend: str, tolerance: float, charges: ChargeSystem, positions: np.ndarray, exact
) -> Check:
    """Check the forces of the solver in water: errors against the Ewald sum."""
    check = Check(f"water: Ewald, {backend}, {tolerance:g}", limit=tolerance)
    result = charges.solver(tolerance=tolerance, backend=backend).compute(positions)
    check.compare(result.forces, exact.forces, exact.forces)
    return check


def on_platform(name: str, water: openmm.System, positions: np.ndarray, exact) -> Check:
    """Check the forces of an FMMForce on a platform: difference from PME, relative to the
    electrostatic forces."""
    check = Check(f"water: PME, platform {name}", limit=PLATFORM_TOLERANCE + PME_TOLERANCE)
    with_pme, with_fmm = openmm.XmlSerializer.clone(water), openmm.XmlSerializer.clone(water)
    nonbonded_force(with_pme).setEwaldErrorTolerance(PME_TOLERANCE)
    use_fmm(with_fmm, tolerance=PLATFORM_TOLERANCE)
    try:
        pme = forces_on(name, with_pme, positions)
    except openmm.OpenMMException as error:
        if name in ALWAYS_THERE:
            raise
        check.skipped = str(error)
        return check
    try:
        fmm = forces_on(name, with_fmm, positions)
    except Exception as error:
        check.failure = f"{type(error).__name__}: {error}"
        return check
    check.compare(fmm, pme, exact.forces)
    return check


def forces_on(platform: str, system: openmm.System, positions: np.ndarray) -> np.ndarray:
    """Evaluate the forces of a System on a platform, shape (n, 3), kJ/mol/nm."""
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName(platform)
    )
    context.setPositions(positions)
    forces = context.getState(forces=True).getForces(asNumpy=True)
    return forces.value_in_unit(unit.kilojoule_per_mole / unit.nanometer)


def draw(drawing, checks) -> None:
    """Plot the error and the limit of each check."""
    made = [check for check in checks if check.error is not None][::-1]
    axes = drawing.add_subplot()
    axes.barh(
        [c.name for c in made],
        [c.error for c in made],
        color=["C0" if c.passed else "C3" for c in made],
    )
    axes.plot([c.limit for c in made], range(len(made)), "k|", markersize=14, label="limit")
    axes.set_xscale("log")
    axes.set_xlabel("relative error")
    axes.legend()
