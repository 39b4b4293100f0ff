"""A box of water with PME and with FMM: the same energies and forces, then NVE and NVT runs from
the same start.

The two Systems differ by the one line with ``use_fmm``. The picture shows how well each conserves
the total energy.
"""

import argparse
from pathlib import Path

import numpy as np
import openmm
from matplotlib.figure import Figure
from openmm import app, unit

import fmm_openmm as fmm

OUTPUT = Path(__file__).with_name("output")
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


def draw(time, total, path):
    """Total energy of the NVE runs, kJ/mol."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, energy in total.items():
        axes.plot(time, energy - energy.mean(), linewidth=1, label=name)
    axes.set(
        title="Water at constant energy",
        xlabel="time, ps",
        ylabel="total energy less its mean, kJ/mol",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="a smaller box and shorter runs")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where the picture goes"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
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
    forces, total, residual = {}, {}, {}
    print(f"{topology.getNumAtoms()} atoms, {steps} steps of NVE (1 fs) and of NVT (2 fs)")
    print(
        f"{'':5}{'energy, kJ/mol':>16}{'NVE drift, kT/ns/dof':>22}"
        f"{'residual, kJ/mol':>18}{'NVT: <T>, K':>13}"
    )
    for name, system in (("PME", with_pme), ("FMM", with_fmm)):
        simulation = nvt(topology, system)
        _, kinetic = run(simulation, start, steps)
        simulation.context.setState(start)
        state = simulation.context.getState(energy=True, forces=True)
        forces[name] = state.getForces(asNumpy=True) / (KJ / unit.nanometer)

        total[name] = run(nve(topology, system), start, steps).sum(axis=0)
        slope, offset = np.polyfit(time, total[name], 1)
        residual[name] = np.std(total[name] - slope * time - offset)
        drift = 1000 * slope / KT / freedom
        temperature = 2 * kinetic.mean() / (freedom * KT) * TEMPERATURE / unit.kelvin
        energy = state.getPotentialEnergy() / KJ
        print(f"{name:5}{energy:16.2f}{drift:+22.4f}{residual[name]:18.3f}{temperature:13.1f}")

    difference = np.linalg.norm(forces["FMM"] - forces["PME"]) / np.linalg.norm(forces["PME"])
    picture = arguments.output / "02_water_box.png"
    draw(time, total, picture)
    print(f"\nRelative RMS difference of the forces {difference:.1e}. Picture: {picture}")
    if difference > 2e-3:
        raise SystemExit("FMM and PME disagree by more than their tolerances allow")
    if residual["FMM"] > residual["PME"]:
        raise SystemExit("FMM conserves the total energy worse than PME")


if __name__ == "__main__":
    main()
