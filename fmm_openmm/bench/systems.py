"""Systems to measure on, built from what ``openmm.app`` ships."""

from dataclasses import dataclass

import numpy as np
import openmm
from openmm import app, unit


@dataclass(frozen=True)
class Sample:
    """An equilibrated system: PME for its electrostatics, positions (n, 3) in nm, velocities (n, 3) in nm/ps."""

    topology: app.Topology
    system: openmm.System
    positions: np.ndarray
    velocities: np.ndarray


def water_box(vectors, picoseconds: float = 4.0, cutoff: float = 0.9, seed: int = 1) -> Sample:
    """Rigid TIP3P water, minimised and then equilibrated at 300 K.

    Args:
        vectors: box vectors in reduced form, shape (3, 3), nm, or the edge of a cube.
        picoseconds: length of the equilibration.
        cutoff: of the Lennard-Jones interaction, nm.
        seed: of velocities and thermostat.
    """
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    forcefield = app.ForceField("amber14/tip3p.xml")
    vectors = np.eye(3) * vectors if np.ndim(vectors) == 0 else np.asarray(vectors)
    modeller.addSolvent(forcefield, boxVectors=[openmm.Vec3(*v) for v in vectors.tolist()] * unit.nanometer)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=cutoff * unit.nanometer, removeCMMotion=False
    )
    integrator = openmm.LangevinMiddleIntegrator(300.0, 5.0, 0.002)
    integrator.setRandomNumberSeed(seed)
    context = openmm.Context(system, integrator, fastest_platform())
    context.setPositions(modeller.positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=100)
    context.setVelocitiesToTemperature(300.0, seed)
    integrator.step(round(picoseconds / 0.002))
    state = context.getState(positions=True, velocities=True)
    return Sample(
        modeller.topology,
        system,
        state.getPositions(asNumpy=True).value_in_unit(unit.nanometer),
        state.getVelocities(asNumpy=True).value_in_unit(unit.nanometer / unit.picosecond),
    )


def fastest_platform() -> openmm.Platform:
    """The fastest platform OpenMM has on this machine."""
    platforms = [openmm.Platform.getPlatform(i) for i in range(openmm.Platform.getNumPlatforms())]
    return max(platforms, key=lambda platform: platform.getSpeed())
