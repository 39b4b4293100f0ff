"""A charged peptide in salt water, in a rhombic dodecahedron: built, minimised and simulated with
FMM and with PME.

The FMM forces are validated against a converged Ewald sum. The picture shows the forces of FMM
against those of PME, and the errors of the Coulomb force of every atom with both methods.
"""

import copy
from pathlib import Path

import numpy as np
from common import mean_and_error, new_figure, parse_arguments, save
from openmm import LangevinMiddleIntegrator, app, unit

import fmm_openmm as fmm

PEPTIDE = Path(__file__).with_name("data") / "peptide.pdb"
KJ = unit.kilojoules_per_mole


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


def make_simulation(topology, system):
    integrator = LangevinMiddleIntegrator(
        300 * unit.kelvin, 5 / unit.picoseconds, 2 * unit.femtoseconds
    )
    return app.Simulation(topology, system, integrator)


def run(simulation, start, steps, every=10):
    """Energy, kJ/mol, and forces, kJ/mol/nm, at the start, and the temperature every so many steps
    of the run, K."""
    simulation.context.setState(start)
    first = simulation.context.getState(energy=True, forces=True)
    system = simulation.system
    freedom = 3 * system.getNumParticles() - system.getNumConstraints() - 3
    temperatures = []
    for _ in range(steps // every):
        simulation.step(every)
        kinetic = simulation.context.getState(energy=True).getKineticEnergy()
        temperatures.append(2 * kinetic / freedom / unit.MOLAR_GAS_CONSTANT_R / unit.kelvin)
    forces = first.getForces(asNumpy=True) / (KJ / unit.nanometer)
    return first.getPotentialEnergy() / KJ, forces, temperatures


def draw(forces, report):
    """Components of all forces with FMM against PME, and the Coulomb errors of both."""
    figure = new_figure(9.6, 4.2)
    parity, histogram = figure.subplots(1, 2)
    x, y = (forces[method].ravel() / 1000 for method in ("PME", "FMM"))
    bins = parity.hexbin(x, y, gridsize=60, bins="log", cmap="viridis", rasterized=True)
    parity.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle=":")
    parity.set(
        title="Force components, all interactions",
        xlabel="PME, MJ/mol/nm",
        ylabel="FMM, MJ/mol/nm",
        aspect="equal",
    )
    figure.colorbar(bins, ax=parity, label="components")
    report.plot(histogram)
    histogram.set_title("Errors of the Coulomb forces")
    return figure


def main():
    arguments = parse_arguments(__file__, __doc__, "less water and shorter runs")
    padding, equilibration, steps = (0.8, 50, 100) if arguments.short else (1.2, 2500, 2500)

    topology, positions, with_pme = build(padding)
    with_fmm = copy.deepcopy(with_pme)
    fmm.use_fmm(with_fmm, tolerance=5e-4)  # this line is all there is to it

    simulation = make_simulation(topology, with_pme)
    simulation.context.setPositions(positions)
    simulation.minimizeEnergy(maxIterations=200)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin)
    simulation.step(equilibration)
    start = simulation.context.getState(positions=True, velocities=True)

    kinds = [residue.name for residue in topology.residues()]
    print(
        f"{topology.getNumAtoms()} atoms, {kinds.count('NA')} sodium and "
        f"{kinds.count('CL')} chloride ions, {steps} steps\n"
        f"{'':5}{'energy at the start, kJ/mol':>28}{'mean temperature, K':>22}"
    )
    forces = {}
    for method, system in (("PME", with_pme), ("FMM", with_fmm)):
        simulation = make_simulation(topology, system)
        energy, forces[method], temperatures = run(simulation, start, steps)
        mean, error = mean_and_error(temperatures)
        print(f"{method:5}{energy:28.1f}{mean:15.1f} +- {error:.1f}")

    report = fmm.validate(with_fmm, start.getPositions(asNumpy=True))
    difference = np.linalg.norm(forces["FMM"] - forces["PME"]) / np.linalg.norm(forces["PME"])
    print(
        f"\n{'RMS error of the Coulomb forces, FMM':48}{report.fmm.relative_rms_force_error:.1e}"
        f"\n{'the same, PME':48}{report.pme.relative_rms_force_error:.1e}"
        f"\n{'RMS difference of all forces, FMM and PME':48}{difference:.1e}"
    )
    save(draw(forces, report), arguments)
    if not report.passed:
        raise SystemExit("FMM misses its tolerance")


if __name__ == "__main__":
    main()
