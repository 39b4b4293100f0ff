"""The free energy of charging a sodium ion in water by MBAR, in boxes of two sizes.

The charge of the ion is a global parameter lambda. MBAR needs the energy of each frame at all
lambdas; fmm.state_energies gives them from one evaluation, since the energy is a quadratic form of
lambda. The picture shows the free energy along lambda and how its parts depend on the box.

The box is periodic and its net charge is neutralised by a uniform background. Three terms of the
finite size are named:

- The energy of the ion with its own images and the background, k q^2 xi / (2 L) with
  xi = -2.837297, is part of the energy of an Ewald sum and of the FMM. It belongs there: water
  screens all of it but the fraction 1/epsilon, and without it the result would depend strongly on
  the box (G. Hummer, L. Pratt and A. Garcia, J. Phys. Chem. 100, 1206 (1996),
  doi:10.1021/jp951011v).
- That fraction, and the effect of the volume from which the ion excludes water,
  2 pi k q^2 (1 - 1/epsilon) R^2 / (3 L^3) with the radius R of Born's formula, are corrected for
  (P. Hunenberger and J. McCammon, J. Chem. Phys. 110, 1856 (1999), doi:10.1063/1.477873;
  G. Rocklin, D. Mobley, K. Dill and P. Hunenberger, J. Chem. Phys. 139, 184103 (2013),
  doi:10.1063/1.4826261).
- The potential at the surface of the liquid, which an ion crosses in an experiment, exists in no
  periodic box and is not corrected for (M. Kastenholz and P. Hunenberger, J. Chem. Phys. 124,
  124106 (2006), doi:10.1063/1.2172593). It cancels in sums over ions without net charge.
"""

import numpy as np
import openmm
from common import BLUE, ORANGE, new_figure, parse_arguments, save, statistical_inefficiency
from openmm import app, unit
from pymbar import MBAR

import fmm_openmm as fmm
from fmm_openmm.units import COULOMB_CONSTANT

TEMPERATURE = 300 * unit.kelvin
KJ = unit.kilojoules_per_mole
KT = unit.MOLAR_GAS_CONSTANT_R * TEMPERATURE / KJ
EPSILON = 97  # of TIP3P: P. Hochtl and others, J. Chem. Phys. 109, 4927 (1998)


def make_simulation(edge):
    """A Simulation of a sodium ion, atom 0, in a box of water with so long an edge, nm; the charge
    of the ion is the global parameter lambda."""
    forcefield = app.ForceField("amber14/tip3p.xml")
    topology = app.Topology()
    topology.addAtom("Na", app.element.sodium, topology.addResidue("NA", topology.addChain()))
    modeller = app.Modeller(topology, [openmm.Vec3(edge, edge, edge) / 2] * unit.nanometers)
    box = openmm.Vec3(edge, edge, edge) * unit.nanometers
    modeller.addSolvent(forcefield, boxSize=box, neutralize=False)
    cutoff = min(0.9, 0.47 * edge) * unit.nanometers
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=cutoff
    )
    nonbonded = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    charge, sigma, epsilon = nonbonded.getParticleParameters(0)
    nonbonded.setParticleParameters(0, 0, sigma, epsilon)
    nonbonded.addGlobalParameter("lambda", 0)
    nonbonded.addParticleParameterOffset("lambda", 0, charge, 0, 0)

    force = fmm.use_fmm(system, tolerance=5e-4)
    force.setForceGroup(1)  # alone, so that one evaluation gives the energies of all states
    integrator = openmm.LangevinMiddleIntegrator(
        TEMPERATURE, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    simulation = app.Simulation(modeller.topology, system, integrator)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE)
    return simulation


def sample(simulation, lambdas, samples, equilibration):
    """Energies of independent frames of a simulation at each lambda, at all K lambdas, shape
    (K, N), kJ/mol, and the number of frames at each lambda."""
    states = [{"lambda": value} for value in lambdas]
    columns, counts = [], []
    for state in states:
        simulation.context.setParameter("lambda", state["lambda"])
        simulation.step(equilibration)
        energies = []
        for _ in range(samples):
            simulation.step(10)
            energies.append(fmm.state_energies(simulation.context, states))
        slope = np.array(energies)[:, -1] - np.array(energies)[:, 0]
        stride = int(np.ceil(statistical_inefficiency(slope)))
        columns += energies[::stride]
        counts.append(len(energies[::stride]))
    return np.transpose(columns), counts


def check_energies(simulation, lambdas):
    """Stop unless the energies of all states are those of one state after another. The tolerance
    of the FMM bounds their difference, as new charges may change its parameters."""
    context = simulation.context
    found = fmm.state_energies(context, [{"lambda": value} for value in lambdas])
    expected = []
    for value in lambdas:
        context.setParameter("lambda", value)
        expected.append(context.getState(energy=True).getPotentialEnergy() / KJ)
    difference = np.abs(np.diff(found) - np.diff(expected)).max()
    print(f"energies of all states against one state after another: {difference:.1e} kJ/mol")
    if difference > 0.05:
        raise SystemExit("these are not the energies of the states")


def finite_size(edge, energy):
    """Energy of the ion with its images and the background, and the two corrections, kJ/mol.

    Args:
        edge: of the box, nm.
        energy: free energy of charging, kJ/mol.
    """
    alone = fmm.CoulombSolver([1.0], edge * np.eye(3), tolerance=1e-6)
    images = alone.compute(np.zeros((1, 3))).energy
    radius = COULOMB_CONSTANT * (1 - 1 / EPSILON) / (2 * abs(energy))
    volume = 2 * np.pi * COULOMB_CONSTANT * (1 - 1 / EPSILON) * radius**2 / (3 * edge**3)
    return images, -images / EPSILON, volume


def draw(lambdas, curves, rows):
    """Free energies along lambda with error bars, and their parts against the inverse edge."""
    figure = new_figure(9.6, 4)
    left, right = figure.subplots(1, 2)
    for (edge, (values, errors)), color in zip(curves.items(), (ORANGE, BLUE), strict=True):
        left.errorbar(lambdas, values, errors, marker="o", markersize=4, color=color, capsize=3)
        left.plot([], [], color=color, marker="o", markersize=4, label=f"{edge} nm")
    left.set(
        title="Charging of Na⁺ in TIP3P water",
        xlabel="λ = charge of the ion, e",
        ylabel="ΔF, kJ/mol",
    )
    left.legend(title="edge of the box")
    edges, (energies, errors, images, corrected) = (
        [1 / row[0] for row in rows],
        np.transpose([row[1:] for row in rows]),
    )
    for label, values in (
        ("without the ion's own images", energies - images),
        ("as computed", energies),
        ("corrected", corrected),
    ):
        right.errorbar(edges, values, errors, marker="o", capsize=3, label=label)
    right.set(title="Size of the box", xlabel="1 / edge, 1/nm", ylabel="ΔF, kJ/mol")
    right.legend()
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "fewer values of lambda, shorter runs")
    lambdas, samples, equilibration = (
        (np.linspace(0, 1, 7), 5, 20) if arguments.short else (np.linspace(0, 1, 9), 300, 800)
    )

    curves, rows = {}, []
    for edge in (1.6, 2.2):
        simulation = make_simulation(edge)
        energies, counts = sample(simulation, lambdas, samples, equilibration)
        mbar = MBAR(energies / KT, counts, initialize="BAR")
        result = mbar.compute_free_energy_differences()
        free, error = KT * result["Delta_f"][0], KT * result["dDelta_f"][0]
        images, screened, volume = finite_size(edge, free[-1])
        curves[edge] = free, error
        rows.append((edge, free[-1], error[-1], images, free[-1] + screened + volume))
        print(
            f"{edge} nm, {simulation.topology.getNumAtoms()} atoms, {sum(counts)} independent "
            f"frames, smallest overlap {np.diag(mbar.compute_overlap()['matrix'], 1).min():.2f}"
        )
        for name, value, spread in (
            ("charging, MBAR", free[-1], f" +- {error[-1]:.1f}"),
            ("  of it the ion's own images", images, ""),
            ("correction: images screened", screened, ""),
            ("correction: volume of the ion", volume, ""),
            ("corrected", rows[-1][-1], f" +- {error[-1]:.1f}"),
        ):
            print(f"  {name:34}{value:8.1f}{spread}   kJ/mol")
    check_energies(simulation, lambdas)

    difference = rows[1][-1] - rows[0][-1]
    uncertainty = np.hypot(rows[0][2], rows[1][2])
    print(f"difference of the boxes, corrected: {difference:.1f} +- {uncertainty:.1f} kJ/mol\n")
    save(draw(lambdas, curves, rows), arguments)
    if not arguments.short and abs(difference) > 4 * uncertainty:
        raise SystemExit("the free energies of the two boxes differ")


if __name__ == "__main__":
    main()
