"""Droplets of water in vacuum: all pairs, a reaction field, and the FMM, which is exact as well but
not quadratic.

The last two cut Lennard-Jones off while they are timed. The picture shows the time of an evaluation
against the atoms.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import openmm
from matplotlib.figure import Figure
from openmm import app, unit

import fmm_openmm as fmm

OUTPUT = Path(__file__).with_name("output")
TOLERANCE = 5e-4
CUTOFF = 1.0 * unit.nanometers
FORCE = unit.kilojoules_per_mole / unit.nanometer
METHODS = ("all pairs", "reaction field", "FMM")


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
    for name in METHODS[1:]:
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
    """Forces, shape (n, 3), kJ/mol/nm, and the median time of an evaluation after the first, ms."""
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    times = []
    for _ in range(repeats + 1):
        context.setPositions(positions)
        begin = time.perf_counter()
        forces = context.getState(forces=True, energy=True).getForces(asNumpy=True)
        times.append(time.perf_counter() - begin)
    return forces / FORCE, 1e3 * np.median(times[1:])


def draw(atoms, times, path):
    """Times in ms against the number of atoms."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in times.items():
        axes.loglog(atoms, values, "o-", label=name)
    axes.set(
        title="Droplets of water in vacuum", xlabel="atoms", ylabel="time of energy and forces, ms"
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="two small droplets")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where the picture goes"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    radii, repeats = ((0.9, 1.2), 2) if arguments.short else ((1.2, 1.6, 2.1, 2.8), 5)

    forcefield = app.ForceField("amber14/tip3p.xml")
    atoms, times, errors = [], {name: [] for name in METHODS}, {name: [] for name in METHODS}
    print(f"{'atoms':>7}{'all pairs':>12}{'reaction field':>30}{'FMM':>24}")
    for radius in radii:
        topology, positions = droplet(forcefield, radius)
        atoms.append(topology.getNumAtoms())
        made = systems(forcefield, topology)
        for name in METHODS:
            times[name].append(evaluate(made[name], positions, repeats)[1])
        forces = {name: evaluate(uncut(made[name]), positions)[0] for name in METHODS}
        exact = forces["all pairs"]
        for name in METHODS[1:]:
            errors[name].append(np.linalg.norm(forces[name] - exact) / np.linalg.norm(exact))
        compared = "".join(
            f"{times[name][-1]:12.2f} ms, off by {errors[name][-1]:.0e}" for name in METHODS[1:]
        )
        print(f"{atoms[-1]:7}{times['all pairs'][-1]:9.2f} ms{compared}")

    picture = arguments.output / "07_droplet.png"
    draw(atoms, times, picture)
    print(f"\nTolerance of the FMM {TOLERANCE:g}. Picture: {picture}")
    if max(errors["FMM"]) > TOLERANCE:
        raise SystemExit("the FMM misses its tolerance")


if __name__ == "__main__":
    main()
