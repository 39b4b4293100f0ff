"""Droplets of water in vacuum: all pairs, a reaction field, and the FMM, which is exact as well but
not quadratic.

The last two cut Lennard-Jones off while they are timed. The picture shows the time of an evaluation
against the number of atoms, with quartiles, and the force errors.
"""

import time

import numpy as np
import openmm
from common import BLACK, BLUE, ORANGE, new_figure, parse_arguments, save
from openmm import app, unit

import fmm_openmm as fmm

TOLERANCE = 5e-4
CUTOFF = 1.0 * unit.nanometers
FORCE = unit.kilojoules_per_mole / unit.nanometer
METHODS = {"all pairs": BLACK, "reaction field": ORANGE, "FMM": BLUE}  # and their colours


def droplet(forcefield, radius):
    """Topology and positions of the molecules within a radius (nm) of the
    middle of a box of water."""
    modeller = app.Modeller(app.Topology(), [] * unit.nanometers)
    edge = 2 * radius + 0.2
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(edge, edge, edge) * unit.nanometers)
    positions = np.array(modeller.positions.value_in_unit(unit.nanometers))
    middle = positions.mean(axis=0)
    oxygens = [next(residue.atoms()) for residue in modeller.topology.residues()]
    outside = [o.residue for o in oxygens if np.linalg.norm(positions[o.index] - middle) > radius]
    modeller.delete(outside)
    modeller.topology.setPeriodicBoxVectors(None)
    return modeller.topology, modeller.positions


def systems(forcefield, topology):
    """A System for each method; the FMM replaces the reaction field,
    and Lennard-Jones keeps its cutoff."""
    made = {"all pairs": forcefield.createSystem(topology, nonbondedMethod=app.NoCutoff)}
    for name in ("reaction field", "FMM"):
        made[name] = forcefield.createSystem(
            topology, nonbondedMethod=app.CutoffNonPeriodic, nonbondedCutoff=CUTOFF
        )
    fmm.use_fmm(made["FMM"], tolerance=TOLERANCE, allow_reaction_field=True)
    return made


def uncut(system):
    """The System, with Lennard-Jones between all pairs if the FMM computes Coulomb."""
    nonbonded = next(
        force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)
    )
    if fmm.find_fmm(system):
        nonbonded.setNonbondedMethod(openmm.NonbondedForce.NoCutoff)
    return system


def evaluate(system, positions, repeats=1):
    """Forces, shape (n, 3), kJ/mol/nm, and the quartiles of the time of an evaluation after the
    first, ms."""
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    times = []
    for _ in range(repeats + 1):
        context.setPositions(positions)
        begin = time.perf_counter()
        forces = context.getState(forces=True, energy=True).getForces(asNumpy=True)
        times.append(time.perf_counter() - begin)
    return forces / FORCE, 1e3 * np.quantile(times[1:], (0.25, 0.5, 0.75))


def draw(atoms, times, errors):
    """Times against the number of atoms, medians with quartiles, and force errors."""
    figure = new_figure(9.6, 4.2)
    left, right = figure.subplots(1, 2)
    for name, values in times.items():
        lower, median, upper = np.transpose(values)
        spread = median - lower, upper - median
        left.errorbar(atoms, median, spread, marker="o", capsize=3, color=METHODS[name], label=name)
    for name, values in errors.items():
        right.plot(atoms, values, "o-", color=METHODS[name], label=name)
    right.axhline(TOLERANCE, color="black", linestyle=":", label="tolerance of the FMM")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="atoms")
        axes.legend()
    left.set(title="Droplets of water in vacuum", ylabel="time of energy and forces, ms")
    right.set(title="Against all pairs", ylabel="relative RMS force error")
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "two small droplets")
    radii, repeats = ((0.9, 1.2), 2) if arguments.short else ((1.2, 1.6, 2.1, 2.8), 5)

    forcefield = app.ForceField("amber14/tip3p.xml")
    atoms, times = [], {name: [] for name in METHODS}
    errors = {name: [] for name in METHODS if name != "all pairs"}
    print(f"{'atoms':>7}{'all pairs':>12}{'reaction field':>30}{'FMM':>24}")
    for radius in radii:
        topology, positions = droplet(forcefield, radius)
        atoms.append(topology.getNumAtoms())
        made = systems(forcefield, topology)
        for name in METHODS:
            times[name].append(evaluate(made[name], positions, repeats)[1])
        forces = {name: evaluate(uncut(made[name]), positions)[0] for name in METHODS}
        exact = forces["all pairs"]
        for name in errors:
            errors[name].append(np.linalg.norm(forces[name] - exact) / np.linalg.norm(exact))
        compared = "".join(
            f"{times[name][-1][1]:12.2f} ms, error {errors[name][-1]:.0e}" for name in errors
        )
        print(f"{atoms[-1]:7}{times['all pairs'][-1][1]:9.2f} ms{compared}")

    print(f"\nMedian times, relative RMS force errors; tolerance of the FMM {TOLERANCE:g}.")
    save(draw(atoms, times, errors), arguments)
    if max(errors["FMM"]) > TOLERANCE:
        raise SystemExit("the FMM misses its tolerance")


if __name__ == "__main__":
    main()
