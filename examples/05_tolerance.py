"""What a tolerance delivers: measured force errors of FMM and of PME against a converged Ewald sum,
for salt water.

``tolerance`` is the relative RMS force error that the FMM promises. PME's ``ewaldErrorTolerance``
is a measure of its error too, but no bound.
"""

import argparse
from pathlib import Path

import numpy as np
import openmm
from matplotlib.figure import Figure
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum

OUTPUT = Path(__file__).with_name("output")


def build(edge):
    """A System of 1 M NaCl in water with PME, and positions that have run for a moment."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometers)
    box = openmm.Vec3(edge, edge, edge) * unit.nanometers
    modeller.addSolvent(forcefield, boxSize=box, ionicStrength=1 * unit.molar)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometers
    )
    integrator = openmm.LangevinMiddleIntegrator(
        300 * unit.kelvin, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    simulation = app.Simulation(modeller.topology, system, integrator)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin)
    simulation.step(200)
    return system, simulation.context.getState(positions=True).getPositions(asNumpy=True)


def pme_forces(system, positions, tolerance):
    """Coulomb forces of PME in double precision, kJ/mol/nm."""
    system = openmm.XmlSerializer.clone(system)
    force = next(force for force in system.getForces() if isinstance(force, openmm.NonbondedForce))
    force.setEwaldErrorTolerance(tolerance)
    for index in range(force.getNumParticles()):
        charge, sigma, _ = force.getParticleParameters(index)
        force.setParticleParameters(index, charge, sigma, 0)  # no Lennard-Jones
    platform = openmm.Platform.getPlatform("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions)
    forces = context.getState(forces=True).getForces(asNumpy=True)
    return forces.value_in_unit(unit.kilojoules_per_mole / unit.nanometers)


def draw(tolerances, errors, path):
    """Error against tolerance."""
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.loglog(tolerances, tolerances, "k--", linewidth=1, label="error = tolerance")
    for (method, values), marker in zip(errors.items(), "so", strict=True):
        axes.loglog(tolerances, values, marker=marker, label=method)
    axes.set(title="Forces in 1 M NaCl", xlabel="tolerance", ylabel="relative RMS force error")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="a smaller box and fewer tolerances")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where the picture goes"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    edge, tolerances = (
        (2.0, (1e-2, 5e-4, 1e-5)) if arguments.short else (2.6, np.logspace(-2, -8, 13))
    )

    system, positions = build(edge)
    charges = fmm.ChargeSystem.from_openmm(system, positions)
    exact = ewald_sum(
        charges.positions, charges.charges, charges.box_vectors, charges.exclusions
    ).forces

    errors, missed = {"PME": [], "FMM": []}, []
    print(f"{len(charges)} atoms, 1 M NaCl{'':13}FMM uses")
    print(
        f"{'tolerance':10}{'PME error':>12}{'FMM error':>12}{'order':>9}"
        f"{'near radius':>13}{'boxes':>12}  precision"
    )
    for tolerance in tolerances:
        solver = charges.solver(tolerance=tolerance)
        forces = {
            "PME": pme_forces(system, positions, tolerance),
            "FMM": solver.compute(charges.positions).forces,
        }
        for method in errors:
            errors[method].append(np.linalg.norm(forces[method] - exact) / np.linalg.norm(exact))
        used = solver.parameters
        boxes = " x ".join(map(str, used.counts.diagonal()))
        print(
            f"{tolerance:<10.1e}{errors['PME'][-1]:12.1e}{errors['FMM'][-1]:12.1e}"
            f"{used.order:9}{used.near_radius:13}{boxes:>12}  {used.precision}"
        )
        if not errors["FMM"][-1] <= tolerance:
            missed.append(f"{tolerance:.1e}")

    picture = arguments.output / "05_tolerance.png"
    draw(tolerances, errors, picture)
    print(f"\nPicture: {picture}")
    if missed:
        raise SystemExit(f"FMM misses a tolerance of {', '.join(missed)}")


if __name__ == "__main__":
    main()
