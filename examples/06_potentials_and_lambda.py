"""Potentials at the atoms and dE/dlambda, which OpenMM's PME does not give: the hydration free
energy of a sodium ion.

The charge of the ion is a global parameter through an offset in the NonbondedForce, which
``use_fmm`` takes over. Both kinds of derivative are checked against central differences, exact here
since the energy is quadratic in the charges. The integral of <dE/dlambda> is the free energy of
charging the ion; Widom's insertion of the uncharged ion into water gives the rest of its hydration
free energy.
"""

import numpy as np
import openmm
from common import BLACK, BLUE, ORANGE, mean_and_error, new_figure, parse_arguments, save
from openmm import app, unit
from scipy.integrate import simpson

import fmm_openmm as fmm

EDGE = 2.0  # nm
TEMPERATURE = 300 * unit.kelvin
KJ = unit.kilojoules_per_mole
KT = unit.MOLAR_GAS_CONSTANT_R * TEMPERATURE / KJ

# kJ/mol, R. Schmid, A. Miah and V. Sapunov, Phys. Chem. Chem. Phys. 2, 97 (2000),
# doi:10.1039/a907160a. The parameters of this ion were fitted to it: I. Joung and T. Cheatham,
# J. Phys. Chem. B 112, 9020 (2008), doi:10.1021/jp8001614. A box of this size changes the computed
# value by about 2: G. Hummer, L. Pratt and A. Garcia, J. Phys. Chem. 100, 1206 (1996),
# doi:10.1021/jp951011v.
PUBLISHED = -371


def find_nonbonded(system):
    return next(force for force in system.getForces() if isinstance(force, openmm.NonbondedForce))


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
    nonbonded = find_nonbonded(system)
    charge, sigma, epsilon = nonbonded.getParticleParameters(0)
    nonbonded.setParticleParameters(0, 0, sigma, epsilon)
    nonbonded.addGlobalParameter("lambda", 0)
    nonbonded.addParticleParameterOffset("lambda", 0, charge, 0, 0)
    return modeller.topology, modeller.positions, system


def make_simulation(topology, system, positions, steps):
    """A Simulation that has run for so many steps."""
    integrator = openmm.LangevinMiddleIntegrator(
        TEMPERATURE, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    simulation = app.Simulation(topology, system, integrator)
    simulation.context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE)
    simulation.step(steps)
    return simulation


def insert(topology, system, positions, frames, points=20000, every=100):
    """Excess chemical potential of the uncharged ion in pure water, and its standard error,
    kJ/mol, from insertions at random points (B. Widom, doi:10.1063/1.1734110)."""
    nonbonded = find_nonbonded(system)
    ion, oxygen = (nonbonded.getParticleParameters(i)[1:] for i in (0, 1))
    sigma = (ion[0] + oxygen[0]) / 2 / unit.nanometers
    epsilon = (ion[1] * oxygen[1]).sqrt() / KJ
    water = app.Modeller(topology, positions)
    water.delete([next(topology.atoms())])
    symbols = np.array([atom.element.symbol for atom in water.topology.atoms()])
    pure = app.ForceField("amber14/tip3p.xml").createSystem(
        water.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometers
    )
    fmm.use_fmm(pure, tolerance=5e-4)
    simulation = make_simulation(water.topology, pure, water.positions, 10 * every)
    random = np.random.default_rng(1)
    factors = []
    for _ in range(frames):
        simulation.step(every)
        x = simulation.context.getState(positions=True).getPositions(asNumpy=True)
        oxygens = (x / unit.nanometers)[symbols == "O"]
        total = 0.0
        for chunk in np.split(random.uniform(0, EDGE, (points, 3)), 20):
            shift = chunk[:, None] - oxygens
            shift -= EDGE * np.rint(shift / EDGE)
            sixth = (sigma**2 / (shift**2).sum(axis=2)) ** 3
            total += np.exp(-4 * epsilon * (sixth**2 - sixth).sum(axis=1) / KT).sum()
        factors.append(total / points)
    mean, error = mean_and_error(factors)
    return -KT * np.log(mean), KT * error / mean


def check(name, derivative, context, change, step=0.5):
    """Print a derivative and the central difference of the energy in `change`,
    and stop if they differ."""
    energies = []
    for value in (step, -step, 0.0):
        change(value)
        energies.append(context.getState(energy=True).getPotentialEnergy() / KJ)
    difference = (energies[0] - energies[1]) / (2 * step)
    print(f"{name:22}{derivative:14.3f}{difference:20.3f}   kJ/mol/e")
    if abs(derivative - difference) > 1e-3 * abs(difference):
        raise SystemExit(f"{name} is not the derivative of the energy")


def draw(lambdas, means, errors, around):
    """<dE/dlambda> with the area that is integrated, and the potentials of one frame."""
    figure = new_figure(9.6, 4)
    left, right = figure.subplots(1, 2)
    left.errorbar(lambdas, means, errors, marker="o", markersize=4, capsize=3, color=BLUE)
    left.fill_between(lambdas, means, color=BLUE, alpha=0.2)
    left.set(
        title="Charging of Na⁺ in TIP3P water",
        xlabel="λ = charge of the ion, e",
        ylabel="⟨dE/dλ⟩, kJ/mol",
    )
    markers = {"oxygen": (ORANGE, "o"), "hydrogen": (BLACK, "+")}
    for name, (distances, potentials) in around.items():
        color, marker = markers[name]
        right.plot(distances, potentials, marker, color=color, markersize=4, label=name)
    right.set(
        title="Potential at the atoms of water, λ = 1",
        xlabel="distance from the ion, nm",
        ylabel="potential, kJ/mol/e",
    )
    right.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "fewer values of lambda, shorter runs")
    lambdas, samples, equilibration, frames = (
        (np.linspace(0, 1, 3), 20, 80, 2)
        if arguments.short
        else (np.linspace(0, 1, 9), 400, 1000, 100)
    )

    topology, positions, system = build()
    cavity, cavity_error = insert(topology, system, positions, frames)
    force = fmm.use_fmm(system, tolerance=5e-4)  # this line is all there is to it

    simulation = make_simulation(topology, system, positions, equilibration)
    context = simulation.context
    means, errors = [], []
    print(f"{topology.getNumAtoms()} atoms\n{'lambda':8}{'<dE/dlambda>, kJ/mol':>24}")
    for value in lambdas:
        context.setParameter("lambda", value)
        simulation.step(equilibration)
        derivatives = []
        for _ in range(samples):
            simulation.step(10)
            derivatives.append(force.getEnergyParameterDerivativesInContext(context)["lambda"])
        mean, error = mean_and_error(derivatives)
        means.append(mean)
        errors.append(error)
        print(f"{value:<8.3f}{mean:17.1f} +- {error:.1f}")
    weights = simpson(np.eye(len(lambdas)), x=lambdas)
    charging, charging_error = weights @ means, np.linalg.norm(weights * errors)
    total, total_error = charging + cavity, np.hypot(charging_error, cavity_error)
    print(
        f"\nkJ/mol\n{'insertion of the uncharged ion':34}{cavity:8.2f} +- {cavity_error:.2f}"
        f"\n{'charging':34}{charging:8.1f} +- {charging_error:.1f}"
        f"\n{'hydration free energy':34}{total:8.1f} +- {total_error:.1f}"
        f"\n{'published':34}{PUBLISHED:6}"
    )

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
    print()
    save(draw(lambdas, means, errors, around), arguments)
    if not arguments.short and abs(total - PUBLISHED) > 0.03 * abs(PUBLISHED):
        raise SystemExit("this is not the hydration free energy of sodium")


if __name__ == "__main__":
    main()
