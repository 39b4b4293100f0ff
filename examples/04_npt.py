"""Water at constant pressure with FMM beside PME: its density, and a cell that is free to change
its shape.

Every barostat works. A uniform change of volume costs the FMM nothing; another shape makes it
rebuild its lattice operator, which takes about 0.1 s a trial move of a flexible, anisotropic or
membrane barostat.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import openmm
from matplotlib.figure import Figure
from openmm import app, unit

import fmm_openmm as fmm

OUTPUT = Path(__file__).with_name("output")
PRESSURE, TEMPERATURE = 1 * unit.bar, 300 * unit.kelvin
TIMESTEP = 2 * unit.femtoseconds
EVERY = 10  # steps between trial moves, and between samples


def build():
    """Topology, positions and a System of a water box with PME."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometers)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(2, 2, 2) * unit.nanometers)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.8 * unit.nanometers
    )
    return modeller.topology, modeller.positions, system


def simulation_of(topology, system):
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 5 / unit.picoseconds, TIMESTEP)
    return app.Simulation(topology, system, integrator)


def run(simulation, steps):
    """Density in g/cm^3, shape (samples,), and angles of the cell in degrees,
    shape (samples, 3)."""
    system = simulation.system
    mass = sum(system.getParticleMass(i) / unit.dalton for i in range(system.getNumParticles()))
    densities, angles = [], []
    for _ in range(steps // EVERY):
        simulation.step(EVERY)
        a, b, c = (
            simulation.context.getState().getPeriodicBoxVectors(asNumpy=True) / unit.nanometers
        )
        densities.append(mass / (a[0] * b[1] * c[2]) * 1.66054e-3)
        cosines = [
            x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in ((b, c), (a, c), (a, b))
        ]
        angles.append(np.degrees(np.arccos(cosines)))
    return np.array(densities), np.array(angles)


def draw(results, path):
    """Density with the isotropic barostat, angles with the flexible one."""
    figure = Figure(figsize=(9.6, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for color, method in (("C0", "PME"), ("C1", "FMM")):
        densities, _ = results["MonteCarloBarostat", method]
        _, angles = results["MonteCarloFlexibleBarostat", method]
        time = EVERY * np.arange(1, len(densities) + 1) * TIMESTEP / unit.picoseconds
        left.plot(time, densities, color, linewidth=1.2, label=method)
        for angle, name, style in zip(angles.T, "αβγ", ("-", "--", ":"), strict=True):
            right.plot(time, angle, color, linestyle=style, linewidth=1.2, label=f"{method} {name}")
    left.set(title="MonteCarloBarostat", xlabel="time, ps", ylabel="density, g/cm³")
    right.set(
        title="MonteCarloFlexibleBarostat", xlabel="time, ps", ylabel="angles of the cell, degrees"
    )
    left.legend()
    right.legend(ncols=2)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="shorter runs")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where the picture goes"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    steps = 100 if arguments.short else 2500

    topology, positions, system = build()
    simulation = simulation_of(topology, system)
    simulation.context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE)
    simulation.step(steps // 2)
    start = simulation.context.getState(positions=True, velocities=True)

    results = {}
    print(
        f"{topology.getNumAtoms()} atoms, {steps} steps\n"
        f"{'':33}{'density, g/cm3':>15}{'angles at the end':>23}"
    )
    for barostat in (openmm.MonteCarloBarostat, openmm.MonteCarloFlexibleBarostat):
        with_pme = copy.deepcopy(system)
        with_pme.addForce(barostat(PRESSURE, TEMPERATURE, EVERY))
        with_fmm = copy.deepcopy(with_pme)
        fmm.use_fmm(with_fmm, tolerance=5e-4)  # this line is all there is to it

        for method, each in (("PME", with_pme), ("FMM", with_fmm)):
            simulation = simulation_of(topology, each)
            simulation.context.setState(start)
            densities, angles = results[barostat.__name__, method] = run(simulation, steps)
            mean = densities[len(densities) // 2 :].mean()
            print(
                f"{barostat.__name__:28}{method:5}{mean:15.3f}  "
                + "".join(f"{angle:7.2f}" for angle in angles[-1])
            )
            if not 0.9 < mean < 1.1:
                raise SystemExit(f"{method}: this is not the density of water")

    picture = arguments.output / "04_npt.png"
    draw(results, picture)
    print(f"\nDensities are means of the second half. Picture: {picture}")


if __name__ == "__main__":
    main()
