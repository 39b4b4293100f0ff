"""Water at constant pressure with FMM and with PME: its density, and a cell that is free to change
its shape.

Every barostat works. A uniform change of volume costs the FMM nothing; another shape makes it
rebuild its lattice operator, which takes about 0.1 s a trial move of a flexible, anisotropic or
membrane barostat. The picture shows the densities with the isotropic barostat, and their means with
standard errors. The shape of a flexible cell varies too slowly for a mean in so short a run.
"""

import copy

import numpy as np
import openmm
from common import COLOURS, mean_and_error, new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm as fmm

PRESSURE, TEMPERATURE = 1 * unit.bar, 300 * unit.kelvin
TIMESTEP = 2 * unit.femtoseconds
EVERY = 10  # steps between trial moves, and between samples
GRAMS = 1.66053907e-3  # g/cm^3 in a dalton/nm^3


def build():
    """Topology, positions and a System of a water box with PME."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometers)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(2, 2, 2) * unit.nanometers)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.8 * unit.nanometers
    )
    return modeller.topology, modeller.positions, system


def make_simulation(topology, system):
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 5 / unit.picoseconds, TIMESTEP)
    return app.Simulation(topology, system, integrator)


def run(simulation, steps):
    """Density in g/cm^3, shape (samples,), and the angles of the cell at the end, degrees."""
    system = simulation.system
    mass = sum(system.getParticleMass(i) / unit.dalton for i in range(system.getNumParticles()))
    densities = []
    for _ in range(steps // EVERY):
        simulation.step(EVERY)
        box = simulation.context.getState().getPeriodicBoxVectors(asNumpy=True) / unit.nanometers
        densities.append(GRAMS * mass / np.linalg.det(box))
    a, b, c = box / np.linalg.norm(box, axis=1, keepdims=True)
    return np.array(densities), np.degrees(np.arccos([b @ c, a @ c, a @ b]))


def draw(densities, means):
    """Density against time, and its means."""
    figure = new_figure(9.6, 4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    for place, (method, (mean, error)) in enumerate(means.items()):
        right.errorbar(place, mean, error, marker="o", capsize=4, color=COLOURS[method])
        series = densities[method]
        time = EVERY * np.arange(1, len(series) + 1) * TIMESTEP / unit.picoseconds
        left.plot(time, series, color=COLOURS[method], linewidth=0.8, label=method)
        left.axhspan(mean - error, mean + error, color=COLOURS[method], alpha=0.3)
    left.set(
        title="MonteCarloBarostat", xlabel="time, ps", ylabel="density of TIP3P at 300 K, g/cm³"
    )
    left.legend()
    right.set(title="Means", ylabel="mean density, g/cm³", xlim=(-0.5, 1.5))
    right.set_xticks(range(len(means)), means)
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "shorter runs")
    steps, equilibration = (100, 50) if arguments.short else (25000, 5000)

    topology, positions, system = build()
    simulation = make_simulation(topology, system)
    simulation.context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE)
    simulation.step(equilibration)
    start = simulation.context.getState(positions=True, velocities=True)

    densities, means = {}, {}
    print(
        f"{topology.getNumAtoms()} atoms\n"
        f"{'':33}{'steps':>6}{'density, g/cm3':>18}{'angles at the end':>23}"
    )
    for barostat in (openmm.MonteCarloBarostat, openmm.MonteCarloFlexibleBarostat):
        isotropic = barostat is openmm.MonteCarloBarostat
        length = steps if isotropic else steps // 10
        with_pme = copy.deepcopy(system)
        with_pme.addForce(barostat(PRESSURE, TEMPERATURE, EVERY))
        with_fmm = copy.deepcopy(with_pme)
        fmm.use_fmm(with_fmm, tolerance=5e-4)  # this line is all there is to it

        for method, converted in (("PME", with_pme), ("FMM", with_fmm)):
            simulation = make_simulation(topology, converted)
            simulation.context.setState(start)
            series, angles = run(simulation, length)
            mean, error = mean_and_error(series[len(series) // 5 :])
            if isotropic:
                densities[method], means[method] = series, (mean, error)
            shown = f"{mean:.4f} +- {error:.4f}" if isotropic else ""
            print(
                f"{barostat.__name__:28}{method:5}{length:6}{shown:>18}  "
                + "".join(f"{angle:7.2f}" for angle in angles)
            )
            if not 0.9 < mean < 1.1:
                raise SystemExit(f"{method}: this is not the density of water")
        start = simulation.context.getState(positions=True, velocities=True)

    mean, error = np.transpose([means["PME"], means["FMM"]])
    difference, uncertainty = mean[1] - mean[0], np.hypot(*error)
    print(
        f"\nFMM less PME: {difference:+.4f} +- {uncertainty:.4f} g/cm3. Means without the first "
        "fifth of a run."
    )
    save(draw(densities, means), arguments)
    if not arguments.short and abs(difference) > 4 * uncertainty:
        raise SystemExit("FMM and PME give different densities")


if __name__ == "__main__":
    main()
