"""A charged peptide in salt water, in a rhombic dodecahedron: built, minimised and simulated with
FMM beside PME.

The FMM forces are validated against a converged Ewald sum, and compared with those of PME. The
picture shows potential energy and temperature of two runs from the same start.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from openmm import LangevinMiddleIntegrator, app, unit

import fmm_openmm as fmm

PEPTIDE = Path(__file__).with_name("data") / "peptide.pdb"
OUTPUT = Path(__file__).with_name("output")


def build(padding):
    """The peptide (charge +2) in a dodecahedron of 0.15 M NaCl: topology, positions, and a
    System with PME."""
    pdb = app.PDBFile(str(PEPTIDE))
    forcefield = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(
        forcefield,
        boxShape="dodecahedron",
        padding=padding * unit.nanometers,
        ionicStrength=0.15 * unit.molar,
    )
    system = forcefield.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometers,
        constraints=app.HBonds,
    )
    return modeller.topology, modeller.positions, system


def simulation_of(topology, system):
    integrator = LangevinMiddleIntegrator(
        300 * unit.kelvin, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    return app.Simulation(topology, system, integrator)


def draw(logs, path):
    """Potential energy and temperature of both runs."""
    figure = Figure(figsize=(6.4, 5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    for name, (time, energy, temperature) in logs.items():
        upper.plot(time, energy / 1000, linewidth=1.2, label=name)
        lower.plot(time, temperature, linewidth=1.2, label=name)
    upper.set(title="Peptide in a dodecahedron of salt water", ylabel="potential energy, MJ/mol")
    lower.set(xlabel="time, ps", ylabel="temperature, K")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="less water and shorter runs")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help="where logs and picture go"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    padding, steps = (0.8, 100) if arguments.short else (1.2, 2000)

    topology, positions, with_pme = build(padding)
    with_fmm = copy.deepcopy(with_pme)
    fmm.use_fmm(with_fmm, tolerance=5e-4)  # this line is all there is to it

    simulations = {
        "PME": simulation_of(topology, with_pme),
        "FMM": simulation_of(topology, with_fmm),
    }
    first = simulations["FMM"].context
    first.setPositions(positions)
    simulations["FMM"].minimizeEnergy(maxIterations=200)
    first.setVelocitiesToTemperature(300 * unit.kelvin)
    start = first.getState(positions=True, velocities=True)

    kinds = [residue.name for residue in topology.residues()]
    print(
        f"{topology.getNumAtoms()} atoms, {kinds.count('NA')} sodium and "
        f"{kinds.count('CL')} chloride ions"
    )
    print(f"{'':5}{'minimised, kJ/mol':>19}{'then <E>, kJ/mol':>19}{'<T>, K':>9}")
    forces, logs = {}, {}
    for name, simulation in simulations.items():
        simulation.context.setState(start)
        minimised = simulation.context.getState(energy=True, forces=True)
        forces[name] = minimised.getForces(asNumpy=True) / (
            unit.kilojoules_per_mole / unit.nanometer
        )
        log = arguments.output / f"03_peptide_{name.lower()}.csv"
        reported = dict(time=True, potentialEnergy=True, temperature=True)
        simulation.reporters.append(app.StateDataReporter(str(log), 10, **reported))
        simulation.step(steps)
        logs[name] = np.loadtxt(log, delimiter=",", unpack=True)
        _, energy, temperature = logs[name][:, steps // 20 :].mean(axis=1)  # of the second half
        print(
            f"{name:5}{minimised.getPotentialEnergy() / unit.kilojoules_per_mole:19.1f}"
            f"{energy:19.1f}{temperature:9.1f}"
        )

    report = fmm.validate(with_fmm, start.getPositions(asNumpy=True))
    difference = np.linalg.norm(forces["FMM"] - forces["PME"]) / np.linalg.norm(forces["PME"])
    picture = arguments.output / "03_peptide_dodecahedron.png"
    draw(logs, picture)
    print(
        "\nRelative RMS error of the FMM forces against an Ewald sum: "
        f"{report.relative_rms_force_error:.1e}"
    )
    print(f"Relative RMS difference of all forces between FMM and PME: {difference:.1e}")
    print(f"Picture: {picture}")
    if not report.passed:
        raise SystemExit("FMM misses its tolerance")


if __name__ == "__main__":
    main()
