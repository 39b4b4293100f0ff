"""The files that pages name as their input: a peptide in water in the format of every package, and
what a simulation of it leaves behind."""

import shutil
from functools import cache
from pathlib import Path

import openmm
import parmed
from openmm import app, unit

PEPTIDE = Path(__file__).parents[2] / "examples" / "data" / "peptide.pdb"
FORCE_FIELD = ("amber14-all.xml", "amber14/tip3p.xml")


@cache
def peptide():
    """The smallest box for a cutoff of 0.9 nm and a pressure: the topology, and positions relaxed
    for a moment, so that a simulation can begin with them."""
    field = app.ForceField(*FORCE_FIELD)
    source = app.PDBFile(str(PEPTIDE))
    modeller = app.Modeller(source.topology, source.positions)
    modeller.addSolvent(field, boxSize=openmm.Vec3(2.1, 2.0, 2.0) * unit.nanometer)
    system = field.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        constraints=app.HBonds,
    )
    integrator = openmm.LangevinMiddleIntegrator(300, 5, 0.001)
    integrator.setRandomNumberSeed(1)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatform("CPU"))
    context.setPositions(modeller.positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=200)
    context.setVelocitiesToTemperature(300, 1)
    integrator.step(200)
    return modeller.topology, context.getState(positions=True).getPositions()


def flexible():
    """A System whose bonds and angles are all there, as topologies of other packages need them."""
    return app.ForceField(*FORCE_FIELD).createSystem(
        peptide()[0],
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        rigidWater=False,
    )


@cache
def structure():
    """The peptide in ParmEd, which writes the formats of other packages."""
    return parmed.openmm.load_topology(peptide()[0], flexible(), peptide()[1])


def write_pdb(path):
    with open(path, "w") as file:
        app.PDBFile.writeFile(*peptide(), file)


def write_system(path):
    system = app.ForceField(*FORCE_FIELD).createSystem(
        peptide()[0],
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        constraints=app.HBonds,
    )
    path.write_text(openmm.XmlSerializer.serialize(system))


def write_parmed(path):
    structure().save(str(path))


@cache
def water():
    """A box of water in ParmEd, for CHARMM: types that ParmEd makes of the peptide's Amber
    parameters would not be unique by name."""
    field = app.ForceField("amber14/tip3p.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(field, boxSize=openmm.Vec3(2.6, 2.5, 2.5) * unit.nanometer)
    system = field.createSystem(modeller.topology, rigidWater=False)
    return parmed.openmm.load_topology(modeller.topology, system, modeller.positions)


def write_charmm(path):
    if path.suffix in (".psf", ".crd"):
        water().save(str(path))
    else:
        found = parmed.charmm.CharmmParameterSet.from_structure(water())
        found.write(top=str(path.with_suffix(".rtf")), par=str(path.with_suffix(".prm")))


def write_trajectory(path):
    """Five frames."""
    simulation = app.Simulation(
        peptide()[0],
        app.ForceField(*FORCE_FIELD).createSystem(
            peptide()[0], nonbondedMethod=app.PME, nonbondedCutoff=0.9, constraints=app.HBonds
        ),
        openmm.LangevinMiddleIntegrator(300, 1, 0.002),
        openmm.Platform.getPlatform("CPU"),
    )
    simulation.context.setPositions(peptide()[1])
    simulation.reporters.append(app.DCDReporter(str(path), 10))
    simulation.step(50)


def write_membrane(path):
    """The smallest of the bilayers that OpenMM ships."""
    shutil.copy(Path(app.__file__).parent / "data" / "DLPC.pdb", path)


INPUTS = {
    "protein.pdb": write_pdb,
    "system.xml": write_system,
    "protein.prmtop": write_parmed,
    "protein.inpcrd": lambda path: structure().save(str(path), format="rst7"),
    "topol.top": write_parmed,
    "conf.gro": write_parmed,
    "system.psf": write_charmm,
    "system.crd": write_charmm,
    "system.prm": write_charmm,
    "system.rtf": write_charmm,
    "trajectory.dcd": write_trajectory,
    "membrane.pdb": write_membrane,
}
"""Writers by the name that pages use."""
