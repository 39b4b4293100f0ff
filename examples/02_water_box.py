"""A box of water with PME and with FMM: the same energies and forces, then NVE and NVT runs from
the same start.

The two Systems differ by the one line with ``use_fmm``. The picture shows how well each conserves
the total energy, and the temperatures of the NVT runs with their standard errors.
"""

import numpy as np
import openmm
from common import (
    COLOURS,
    mean_and_error,
    new_figure,
    parse_arguments,
    save,
    statistical_inefficiency,
)
from openmm import app, unit
from scipy.stats import linregress

import fmm_openmm as fmm

TEMPERATURE = 300 * unit.kelvin
KJ = unit.kilojoules_per_mole
KT = unit.MOLAR_GAS_CONSTANT_R * TEMPERATURE / KJ


def build(edge):
    """Topology and positions of a water box, and two identical Systems of it with PME."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometers)
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(edge, edge, edge) * unit.nanometers)
    options = dict(
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometers,
        switchDistance=0.8 * unit.nanometers,
    )
    systems = [forcefield.createSystem(modeller.topology, **options) for _ in range(2)]
    return modeller.topology, modeller.positions, systems


def nvt(topology, system):
    integrator = openmm.LangevinMiddleIntegrator(
        TEMPERATURE, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    return app.Simulation(topology, system, integrator)


def nve(topology, system):
    integrator = openmm.VerletIntegrator(1 * unit.femtoseconds)
    integrator.setConstraintTolerance(1e-8)
    return app.Simulation(topology, system, integrator)


def run(simulation, start, steps, every=5):
    """Potential and kinetic energy every so many steps, shape (2, samples), kJ/mol."""
    simulation.context.setState(start)
    energies = []
    for _ in range(steps // every):
        simulation.step(every)
        state = simulation.context.getState(energy=True)
        energies.append([state.getPotentialEnergy() / KJ, state.getKineticEnergy() / KJ])
    return np.transpose(energies)


def fit_drift(time, energy):
    """Slope of the energy in time, its standard error, and the standard deviation of the energy
    about the line."""
    line = linregress(time, energy)
    residual = energy - line.intercept - line.slope * time
    error = line.stderr * np.sqrt(statistical_inefficiency(residual))
    return line.slope, error, residual.std()


def draw(time, total, temperatures):
    """Total energy of the NVE runs, kJ/mol, and mean temperature of the NVT runs, K."""
    figure = new_figure(9.6, 4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    for name, energy in total.items():
        left.plot(time, energy - energy.mean(), color=COLOURS[name], linewidth=1, label=name)
    left.set(
        title="Water at constant energy (NVE)",
        xlabel="time, ps",
        ylabel="total energy less its mean, kJ/mol",
    )
    left.legend()
    for place, (name, (mean, error)) in enumerate(temperatures.items()):
        right.errorbar(place, mean, error, marker="o", capsize=4, color=COLOURS[name])
    right.axhline(TEMPERATURE / unit.kelvin, color="black", linestyle=":")
    right.set(title="NVT, 300 K", ylabel="mean temperature, K", xlim=(-0.5, 1.5))
    right.set_xticks(range(2), temperatures)
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "a smaller box and shorter runs")
    edge, steps = (2.0, 200) if arguments.short else (2.5, 1500)

    topology, positions, (with_pme, with_fmm) = build(edge)
    fmm.use_fmm(with_fmm, tolerance=5e-4)  # this line is all there is to it

    simulation = nvt(topology, with_pme)
    simulation.context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=100)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE)
    simulation.step(2 * steps)
    start = simulation.context.getState(positions=True, velocities=True)

    freedom = 3 * with_pme.getNumParticles() - with_pme.getNumConstraints() - 3
    time = 0.005 * np.arange(steps // 5)
    forces, total, residual, temperatures = {}, {}, {}, {}
    print(f"{topology.getNumAtoms()} atoms, {steps} steps of NVE (1 fs) and of NVT (2 fs)")
    print(
        f"{'':5}{'energy, kJ/mol':>16}{'NVE drift, kT/ns/dof':>24}"
        f"{'residual, kJ/mol':>18}{'NVT: <T>, K':>16}"
    )
    for name, system in (("PME", with_pme), ("FMM", with_fmm)):
        simulation = nvt(topology, system)
        _, kinetic = run(simulation, start, steps)
        simulation.context.setState(start)
        state = simulation.context.getState(energy=True, forces=True)
        forces[name] = state.getForces(asNumpy=True) / (KJ / unit.nanometer)

        total[name] = run(nve(topology, system), start, steps).sum(axis=0)
        *slope, residual[name] = fit_drift(time, total[name])
        drift, drift_error = 1000 * np.array(slope) / KT / freedom
        mean, error = temperatures[name] = mean_and_error(
            2 * kinetic / (freedom * KT) * TEMPERATURE / unit.kelvin
        )
        energy = state.getPotentialEnergy() / KJ
        print(
            f"{name:5}{energy:16.2f}{drift:+13.4f} +- {drift_error:.4f}"
            f"{residual[name]:18.3f}{mean:10.1f} +- {error:.1f}"
        )

    difference = np.linalg.norm(forces["FMM"] - forces["PME"]) / np.linalg.norm(forces["PME"])
    print(
        f"\nRelative RMS difference of the forces {difference:.1e}.\n"
        "+- are standard errors of correlated samples."
    )
    save(draw(time, total, temperatures), arguments)
    if difference > 2e-3:
        raise SystemExit("FMM and PME disagree by more than their tolerances allow")
    if residual["FMM"] > residual["PME"]:
        raise SystemExit("FMM conserves the total energy worse than PME")


if __name__ == "__main__":
    main()
