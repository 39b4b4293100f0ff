"""What a tolerance delivers: measured force errors of FMM and of PME against a converged Ewald sum,
for salt water.

``tolerance`` is the relative RMS force error that the FMM promises. PME's ``ewaldErrorTolerance``
is a measure of its error too, but no bound.
"""

import numpy as np
import openmm
from common import COLOURS, new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.oracle import ewald_sum


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


def draw(tolerances, errors):
    """Error against tolerance."""
    figure = new_figure(5.6, 4.8)
    axes = figure.subplots()
    axes.loglog(tolerances, tolerances, "k--", linewidth=1, label="error = tolerance")
    for (method, values), marker in zip(errors.items(), "so", strict=True):
        axes.loglog(tolerances, values, marker=marker, color=COLOURS[method], label=method)
    axes.set(title="Forces in 1 M NaCl", xlabel="tolerance", ylabel="relative RMS force error")
    axes.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "a smaller box and fewer tolerances")
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

    print()
    save(draw(tolerances, errors), arguments)
    if missed:
        raise SystemExit(f"FMM misses a tolerance of {', '.join(missed)}")


if __name__ == "__main__":
    main()
