"""Systems for measurements: equilibrated water boxes, relaxed systems of any kind, and periodic
copies of them."""

import copy
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.nonbonded import (
    nonbonded_forces,
    particle_parameters,
    set_particle_parameters,
)
from fmm_openmm.convert.openmm_system import default_box
from fmm_openmm.oracle import ewald_sum

CUTOFF = 0.9
"""Cutoff of the Lennard-Jones interaction, nm."""

DENSITY, SITES = 99.4, 3
"""Atoms of water in a cubic nm, and in a molecule."""

HYDROGEN_SITE = (0.04, 0.192)
"""Lennard-Jones sigma (nm) and epsilon (kJ/mol) of hydrogen in CHARMM's TIP3P,
doi:10.1021/jp973084f."""

BOLTZMANN = unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoule_per_mole / unit.kelvin)
"""Boltzmann constant, kJ/mol/K."""

TEMPERATURE = 300.0
"""Temperature of all runs, K."""

BAROSTAT_INTERVAL = 25
"""Number of steps between trial moves of a barostat."""

SHAPES = {  # rows a, b, c; only the shape counts
    "cube": np.eye(3),
    "dodecahedron": np.array([[1.0, 0, 0], [0, 1, 0], [0.5, 0.5, np.sqrt(0.5)]]),
    "octahedron": np.array(
        [[1.0, 0, 0], [1 / 3, np.sqrt(8 / 9), 0], [-1 / 3, np.sqrt(2 / 9), np.sqrt(2 / 3)]]
    ),
    "skewed": np.array([[1.0, 0, 0], [0.31, 1.12, 0], [-0.27, 0.43, 0.94]]),
}


def with_smoothing(method: str, smoothing: float | None) -> str:
    """Name of a method with a smoothing; the plain name without one."""
    return method if smoothing is None else f"{method}, smoothing {smoothing:g}"


TERMS = {
    openmm.HarmonicBondForce: (("Bond", 0, 2),),
    openmm.HarmonicAngleForce: (("Angle", 0, 3),),
    openmm.PeriodicTorsionForce: (("Torsion", 0, 4),),
    openmm.RBTorsionForce: (("Torsion", 0, 4),),
    openmm.CMAPTorsionForce: (("Torsion", 1, 9),),
    openmm.CustomBondForce: (("Bond", 0, 2),),
    openmm.CustomAngleForce: (("Angle", 0, 3),),
    openmm.CustomTorsionForce: (("Torsion", 0, 4),),
    openmm.NonbondedForce: (("Particle", 0, 0), ("Exception", 0, 2)),
    openmm.CustomNonbondedForce: (("Particle", 0, 0), ("Exclusion", 0, 2)),
    openmm.CMMotionRemover: (),
    openmm.MonteCarloBarostat: (),
    openmm.MonteCarloMembraneBarostat: (),
}
"""Terms of the forces that :func:`tiled` can repeat: their name in OpenMM's methods, and the range
of the arguments that are particles."""

NOT_REPEATED = ("ParticleParameterOffset", "ExceptionParameterOffset", "InteractionGroup")
"""Terms that :func:`tiled` cannot repeat."""


@dataclass(frozen=True)
class Size:
    """A cell with the volume of a cube of the given edge, nm, repeated along its box vectors."""

    edge: float
    copies: tuple[int, int, int] = (1, 1, 1)

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Parse a size: the edge of a cube in nm, with the number of copies along each axis, as in
        ``6`` or ``6:3x3x5``.

        Raises:
            ValueError: anything else, or an edge below 2 nm.
        """
        match = re.fullmatch(r"(\d+\.?\d*)(?::(\d+)x(\d+)x(\d+))?", text)
        a, b, c = map(int, match.groups(default="1")[1:]) if match else (0, 0, 0)
        if match is None or min(a, b, c) < 1 or float(match[1]) < 2:
            raise ValueError(
                "a size is an edge of at least 2 nm, or this and copies, as 6 or 6:3x3x5, "
                f"got {text}"
            )
        return cls(float(match[1]), (a, b, c))

    def __str__(self) -> str:
        return f"{self.edge:g}:{'x'.join(map(str, self.copies))}"


@dataclass(frozen=True)
class Sample:
    """An equilibrated system.

    Attributes:
        system: with PME.
        positions: shape (n, 3), nm.
        velocities: shape (n, 3), nm/ps.
    """

    system: openmm.System
    positions: np.ndarray
    velocities: np.ndarray


@dataclass(frozen=True)
class Water:
    """A sample of water with its charges and the forces of its Ewald sum, shape (n, 3), kJ/mol/nm,
    computed on first use."""

    sample: Sample

    @cached_property
    def charges(self) -> ChargeSystem:
        return ChargeSystem.from_openmm(self.sample.system, self.sample.positions)

    @cached_property
    def exact(self) -> np.ndarray:
        return exact_forces(self.charges)


def cell_of(size: Size, shape: str) -> np.ndarray:
    """Box vectors of a size, shape (3, 3), nm."""
    vectors = SHAPES[shape]
    return (
        vectors * (size.edge / np.cbrt(np.prod(np.diag(vectors)))) * np.array(size.copies)[:, None]
    )


@cache
def water(edge: float, shape: str = "cube", picoseconds: float = 1.0) -> Water:
    """Cached equilibrated water with the volume of a cube of the given edge, nm."""
    return Water(water_box(cell_of(Size(edge), shape), picoseconds))


def water_box(vectors, picoseconds: float) -> Sample:
    """Rigid TIP3P water, minimised and then equilibrated at 300 K.

    Args:
        vectors: box vectors in reduced form, shape (3, 3), nm, or the edge of a cube.
        picoseconds: length of the equilibration.
    """
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    forcefield = app.ForceField("amber14/tip3p.xml")
    vectors = np.eye(3) * vectors if np.ndim(vectors) == 0 else np.asarray(vectors)
    modeller.addSolvent(
        forcefield, boxVectors=[openmm.Vec3(*v) for v in vectors.tolist()] * unit.nanometer
    )
    system = forcefield.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=CUTOFF * unit.nanometer,
        removeCMMotion=False,
    )
    positions = np.array(modeller.positions.value_in_unit(unit.nanometer))
    return equilibrated(system, positions, picoseconds, minimize=100)


def equilibrated(
    system: openmm.System,
    positions: np.ndarray,
    picoseconds: float,
    seed: int = 1,
    minimize: int = 0,
) -> Sample:
    """The sample after minimisation, new velocities and a Langevin run at 300 K.

    Its box, which a barostat may have changed, becomes the default of the System.

    Args:
        positions: shape (n, 3), nm.
        picoseconds: length of the run.
        seed: seed of velocities and thermostat.
        minimize: largest number of minimisation steps.
    """
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 5.0, 0.002)
    integrator.setRandomNumberSeed(seed)
    context = openmm.Context(system, integrator, fastest_platform())
    context.setPositions(positions)
    if minimize:
        openmm.LocalEnergyMinimizer.minimize(context, maxIterations=minimize)
    context.setVelocitiesToTemperature(TEMPERATURE, seed)
    integrator.step(round(picoseconds / 0.002))
    state = context.getState(positions=True, velocities=True)
    system.setDefaultPeriodicBoxVectors(*state.getPeriodicBoxVectors())
    return Sample(
        system,
        state.getPositions(asNumpy=True).value_in_unit(unit.nanometer),
        state.getVelocities(asNumpy=True).value_in_unit(unit.nanometer / unit.picosecond),
    )


def barostat(
    temperature: float = TEMPERATURE, pressure: float = 1.0, seed: int = 1, membrane: bool = False
) -> openmm.Force:
    """A Monte Carlo barostat of this pressure, bar; with ``membrane`` for a bilayer in the xy
    plane without surface tension: x and y change together, z independently."""
    if membrane:
        plane, normal = (
            openmm.MonteCarloMembraneBarostat.XYIsotropic,
            openmm.MonteCarloMembraneBarostat.ZFree,
        )
        result = openmm.MonteCarloMembraneBarostat(
            pressure, 0.0, temperature, plane, normal, BAROSTAT_INTERVAL
        )
    else:
        result = openmm.MonteCarloBarostat(pressure, temperature, BAROSTAT_INTERVAL)
    result.setRandomNumberSeed(seed)
    return result


def exact_forces(charges: ChargeSystem) -> np.ndarray:
    """Forces of charges in a periodic cell, from a converged Ewald sum, shape (n, 3), kJ/mol/nm."""
    c = charges
    return ewald_sum(
        c.positions, c.charges, c.box_vectors, c.exclusions, c.exclusions_periodic
    ).forces


def with_every_atom_a_site(sample: Sample) -> Sample:
    """The sample with a Lennard-Jones interaction, that of the hydrogens of CHARMM's TIP3P, on
    the atoms that have none."""
    system = copy.deepcopy(sample.system)
    parameters = particle_parameters(nonbonded(system))
    parameters[parameters[:, 2] == 0, 1:] = HYDROGEN_SITE
    set_particle_parameters(nonbonded(system), parameters)
    return replace(sample, system=system)


def tiled(sample: Sample, copies) -> Sample:
    """Repeat a sample along its box vectors, in one periodic cell and a new System.

    Raises:
        ValueError: the System has virtual sites or a force that is not in :data:`TERMS`.
    """
    if any(sample.system.isVirtualSite(i) for i in range(sample.system.getNumParticles())):
        raise ValueError("cannot repeat a System with virtual sites")
    count = int(np.prod(copies))
    box = default_box(sample.system)
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(box * np.array(copies)[:, None]))
    n = sample.system.getNumParticles()
    masses = [sample.system.getParticleMass(i)._value for i in range(n)]
    constraints = [
        sample.system.getConstraintParameters(k) for k in range(sample.system.getNumConstraints())
    ]
    constraints = [(i, j, distance._value) for i, j, distance in constraints]
    for first in range(0, n * count, n):
        for mass in masses:
            system.addParticle(mass)
        for i, j, distance in constraints:
            system.addConstraint(first + i, first + j, distance)
    for force in sample.system.getForces():
        system.addForce(_repeated(force, n, count))
    return Sample(
        system, _shifted(sample.positions, box, copies), np.tile(sample.velocities, (count, 1))
    )


def in_cell(charges: ChargeSystem) -> tuple[np.ndarray, np.ndarray]:
    """Positions, shape (n, 3), nm, and box vectors, shape (3, 3), nm, of charges in a cell.

    Raises:
        ValueError: the positions or the box vectors are missing.
    """
    if charges.positions is None or charges.box_vectors is None:
        raise ValueError(f"positions and box vectors are needed, got {charges!r}")
    return charges.positions, charges.box_vectors


def tiled_charges(charges: ChargeSystem, copies) -> ChargeSystem:
    """Repeat charges along their box vectors, in one periodic cell."""
    x, cell = in_cell(charges)
    n, count = len(charges), int(np.prod(copies))
    exclusions = charges.exclusions[None] + n * np.arange(count)[:, None, None]
    return ChargeSystem(
        np.tile(charges.charges, count),
        _shifted(x, cell, copies),
        cell * np.array(copies)[:, None],
        exclusions.reshape(-1, 2),
    )


def nonbonded(system: openmm.System) -> openmm.NonbondedForce:
    """The first NonbondedForce of a System, which must outlive it."""
    return nonbonded_forces(system)[0]


def degrees_of_freedom(system: openmm.System) -> int:
    """Degrees of freedom: 3 for each particle with mass, minus the number of constraints, minus 3
    if a force removes the motion of the centre of mass."""
    massive = sum(system.getParticleMass(i)._value > 0 for i in range(system.getNumParticles()))
    held = any(isinstance(force, openmm.CMMotionRemover) for force in system.getForces())
    return 3 * massive - system.getNumConstraints() - 3 * held


@contextmanager
def scaled(
    force: openmm.NonbondedForce, charge: float = 1.0, epsilon: float = 1.0, exceptions: float = 1.0
):
    """Context manager that scales the charges and well depths of a NonbondedForce.

    Args:
        charge, epsilon: factors for the charges and well depths of the particles.
        exceptions: factor for charge products and well depths of the exceptions.
    """
    particles = particle_parameters(force)
    pairs = _interacting_exceptions(force) if exceptions != 1 else []

    def give(charge: float, epsilon: float, exceptions: float) -> None:
        set_particle_parameters(force, particles * [charge, 1.0, epsilon])
        for k, i, j, product, sigma, well in pairs:
            force.setExceptionParameters(k, i, j, exceptions * product, sigma, exceptions * well)

    give(charge, epsilon, exceptions)
    try:
        yield
    finally:
        give(1.0, 1.0, 1.0)


def on_gpu(platform: openmm.Platform) -> bool:
    """Whether a platform runs on a GPU."""
    return "Precision" in platform.getPropertyNames()


def fastest_platform() -> openmm.Platform:
    """The fastest platform OpenMM has on this machine."""
    platforms = [openmm.Platform.getPlatform(i) for i in range(openmm.Platform.getNumPlatforms())]
    return max(platforms, key=lambda platform: platform.getSpeed())


def _interacting_exceptions(force: openmm.NonbondedForce) -> list[tuple]:
    """Index, particles, charge product (e^2), sigma (nm) and epsilon (kJ/mol) of the exceptions
    that are not exclusions."""
    exceptions = ((k, *force.getExceptionParameters(k)) for k in range(force.getNumExceptions()))
    return [
        (k, i, j, product._value, sigma._value, epsilon._value)
        for k, i, j, product, sigma, epsilon in exceptions
        if product._value or epsilon._value
    ]


def _repeated(force: openmm.Force, n: int, count: int) -> openmm.Force:
    """A force whose terms act on ``count`` copies of the n particles."""
    kind = type(force)
    if kind not in TERMS:
        raise ValueError(f"cannot repeat a System with a {kind.__name__}")
    for term in NOT_REPEATED:
        if getattr(force, f"getNum{term}s", int)():
            raise ValueError(f"cannot repeat a {kind.__name__} with a {term}")
    result = copy.deepcopy(force)
    for term, begin, end in TERMS[kind]:
        get = getattr(
            force, f"get{term}Particles" if term == "Exclusion" else f"get{term}Parameters"
        )
        entries = [get(k) for k in range(getattr(force, f"getNum{term}s")())]
        # addParticle takes all parameters as one argument
        if (kind, term) == (openmm.CustomNonbondedForce, "Particle"):
            entries = [[parameters] for parameters in entries]
        entries = [[getattr(value, "_value", value) for value in entry] for entry in entries]
        add = getattr(result, f"add{term}")
        for first in range(n, n * count, n):
            for entry in entries:
                add(*entry[:begin], *(first + i for i in entry[begin:end]), *entry[end:])
    return result


def _shifted(positions: np.ndarray, box: np.ndarray, copies) -> np.ndarray:
    shifts = np.array(list(np.ndindex(*copies))) @ box
    return (positions[None] + shifts[:, None]).reshape(-1, 3)
