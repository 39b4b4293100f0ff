"""Potentials at the atoms and dE/dlambda, which OpenMM's PME does not give: charging an ion in
water.

The charge of a sodium ion is a global parameter through an offset in the NonbondedForce, which
``use_fmm`` takes over. Both kinds of derivative are checked against central differences, exact here
since the energy is quadratic in the charges. The integral of <dE/dlambda> is the free energy of
charging.
"""

import argparse
from pathlib import Path

import numpy as np
import openmm
from matplotlib.figure import Figure
from openmm import app, unit
from scipy.integrate import trapezoid

import fmm_openmm as fmm

OUTPUT = Path(__file__).with_name("output")
EDGE = 2.0  # nm


def build():
    """Topology, positions and System of a sodium ion, atom 0, in water; its charge is the global
    parameter lambda."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    topology = app.Topology()
    topology.addAtom("Na", app.element.sodium, topology.addResidue("NA", topology.addChain()))
    modeller = app.Modeller(topology, [openmm.Vec3(EDGE, EDGE, EDGE) / 2] * unit.nanometers)
    modeller.addSolvent(
        forcefield, boxSize=openmm.Vec3(EDGE, EDGE, EDGE) * unit.nanometers, neutralize=False
    )
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometers
    )
    nonbonded = next(
        force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)
    )
    charge, sigma, epsilon = nonbonded.getParticleParameters(0)
    nonbonded.setParticleParameters(0, 0, sigma, epsilon)
    nonbonded.addGlobalParameter("lambda", 0)
    nonbonded.addParticleParameterOffset("lambda", 0, charge, 0, 0)
    return modeller.topology, modeller.positions, system


def check(name, derivative, context, change, step=0.5):
    """Print a derivative beside the central difference of the energy in `change`,
    and stop if they differ."""
    energies = []
    for value in (step, -step, 0.0):
        change(value)
        energies.append(
            context.getState(energy=True).getPotentialEnergy() / unit.kilojoules_per_mole
        )
    difference = (energies[0] - energies[1]) / (2 * step)
    print(f"{name:22}{derivative:14.3f}{difference:20.3f}   kJ/mol/e")
    if abs(derivative - difference) > 1e-3 * abs(difference):
        raise SystemExit(f"{name} is not the derivative of the energy")


def draw(lambdas, means, errors, around, path):
    """<dE/dlambda> with the area that is integrated, and the potentials of one frame."""
    figure = Figure(figsize=(9.6, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.errorbar(lambdas, means, errors, marker="o", markersize=4, capsize=3)
    left.fill_between(lambdas, means, alpha=0.2)
    left.set(
        title="Charging of Na⁺ in water",
        xlabel="λ = charge of the ion, e",
        ylabel="⟨dE/dλ⟩, kJ/mol",
    )
    for name, (distances, potentials) in around.items():
        right.plot(distances, potentials, ".", markersize=5, label=name)
    right.set(
        title="One frame at λ = 1",
        xlabel="distance from the ion, nm",
        ylabel="potential at the atom, kJ/mol/e",
    )
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="fewer values of lambda, shorter runs")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where the picture goes"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    lambdas, samples = (
        (np.linspace(0, 1, 3), 20) if arguments.short else (np.linspace(0, 1, 9), 150)
    )

    topology, positions, system = build()
    force = fmm.use_fmm(system, tolerance=5e-4)  # this line is all there is to it

    integrator = openmm.LangevinMiddleIntegrator(
        300 * unit.kelvin, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    simulation = app.Simulation(topology, system, integrator)
    context = simulation.context
    context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=50)
    context.setVelocitiesToTemperature(300 * unit.kelvin)

    means, errors = [], []
    print(f"{topology.getNumAtoms()} atoms\n{'lambda':8}{'<dE/dlambda>, kJ/mol':>24}")
    for value in lambdas:
        context.setParameter("lambda", value)
        simulation.step(4 * samples)
        derivatives = []
        for _ in range(samples):
            simulation.step(10)
            derivatives.append(force.getEnergyParameterDerivativesInContext(context)["lambda"])
        blocks = np.reshape(derivatives, (5, -1)).mean(axis=1)
        means.append(blocks.mean())
        errors.append(blocks.std(ddof=1) / 5**0.5)
        print(f"{value:<8.3f}{means[-1]:17.1f} +- {errors[-1]:.1f}")
    print(f"Free energy of charging in this periodic box: {trapezoid(means, lambdas):.0f} kJ/mol")

    print(f"\n{'':22}{'derivative':>14}{'central difference':>20}")
    derivatives = force.getEnergyParameterDerivativesInContext(context)
    check(
        "dE/dlambda",
        derivatives["lambda"],
        context,
        lambda step: context.setParameter("lambda", 1 + step),
    )

    potentials = force.getPotentialsInContext(context)
    charge = force.getParticleParameters(1)

    def change_charge(step):
        force.setParticleParameters(1, charge + step * unit.elementary_charge)
        force.updateParametersInContext(context)

    check("potential at atom 1", potentials[1], context, change_charge)

    x = context.getState(positions=True).getPositions(asNumpy=True) / unit.nanometers
    distances = np.linalg.norm(x - x[0] - EDGE * np.rint((x - x[0]) / EDGE), axis=1)
    symbols = np.array([atom.element.symbol for atom in topology.atoms()])
    elements = {"oxygen": symbols == "O", "hydrogen": symbols == "H"}
    around = {name: (distances[chosen], potentials[chosen]) for name, chosen in elements.items()}
    picture = arguments.output / "06_potentials_and_lambda.png"
    draw(lambdas, means, errors, around, picture)
    print(f"\nPicture: {picture}")


if __name__ == "__main__":
    main()
