"""The systems the accuracy promise is tested on.

``build(name)`` returns a fresh copy, so a test may change what it gets. Systems are made once
(fixed seeds, CPU platform, a short equilibration at 300 K unless said otherwise) and kept in
``.pytest_cache/systems``.
"""

import hashlib
import os
import pickle
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit

from tests.crystals import CRYSTALS

REPOSITORY = Path(__file__).resolve().parent.parent
PEPTIDE = REPOSITORY / "examples" / "data" / "peptide.pdb"
CACHE = REPOSITORY / ".pytest_cache" / "systems"
SALT = 0.15 * unit.molar

# Joung and Cheatham's ions for TIP3P (doi:10.1021/jp8001614): sigma (nm), epsilon (kJ/mol),
# mass (dalton).
IONS = {
    "Na": (0.243928, 0.365846, 22.99),
    "Cl": (0.447766, 0.148913, 35.45),
    "Cs": (0.360101, 0.375960, 132.91),
}


@dataclass
class Built:
    """One test system; positions (n, 3) and box_vectors (3, 3) in nm, box vectors reduced."""

    name: str
    system: openmm.System
    positions: np.ndarray
    box_vectors: np.ndarray
    topology: app.Topology | None


@dataclass
class ChargeArrays:
    """The electrostatics of a NonbondedForce: charges (n,) e, lengths in nm,
    exclusions (m, 2) int64."""

    charges: np.ndarray
    positions: np.ndarray
    box_vectors: np.ndarray
    exclusions: np.ndarray


def charge_arrays(built) -> ChargeArrays:
    force = nonbonded(built.system)
    charges = [force.getParticleParameters(i)[0]._value for i in range(force.getNumParticles())]
    pairs = [force.getExceptionParameters(k)[:2] for k in range(force.getNumExceptions())]
    return ChargeArrays(
        np.array(charges),
        built.positions,
        built.box_vectors,
        np.array(pairs, np.int64).reshape(-1, 2),
    )


def nonbonded(system) -> openmm.NonbondedForce:
    return next(force for force in system.getForces() if isinstance(force, openmm.NonbondedForce))


def build(name) -> Built:
    """A fresh copy of the system ``SYSTEMS[name]``."""
    return Built(name, *pickle.loads(_pickled(name)))


@cache
def _pickled(name):
    sources = [Path(__file__), Path(__file__).with_name("crystals.py"), PEPTIDE]
    stamp = openmm.Platform.getOpenMMVersion().encode() + b"".join(
        source.read_bytes() for source in sources
    )
    path = CACHE / f"{name}-{hashlib.sha256(stamp).hexdigest()[:16]}.pickle"
    if not path.exists():
        random.seed(name)  # Modeller places ions and hydrogens with it
        content = pickle.dumps(SYSTEMS[name]())
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    return path.read_bytes()


def equilibrated(system, positions, box, topology=None, temperature=300.0, steps=200):
    """The tuple that is pickled, after a minimisation and a short Langevin run."""
    box = np.asarray(box, float)
    system.setDefaultPeriodicBoxVectors(*box)
    integrator = openmm.LangevinMiddleIntegrator(temperature, 5.0, 0.002)
    integrator.setRandomNumberSeed(1)
    platform = openmm.Platform.getPlatform("CPU")  # bitwise repeatable on one thread
    context = openmm.Context(
        system, integrator, platform, {"Threads": "1", "DeterministicForces": "true"}
    )
    context.setPositions(positions)
    context.computeVirtualSites()
    openmm.LocalEnergyMinimizer.minimize(context, 50.0, 50)
    context.setVelocitiesToTemperature(temperature, 1)
    integrator.step(steps)
    settled = context.getState(positions=True).getPositions(asNumpy=True)
    return system, np.array(settled.value_in_unit(unit.nanometer)), box, topology


@cache
def forcefield(*files):
    return app.ForceField(*files)


def parametrised(modeller, field, cutoff=None):
    """(system, positions in nm, box) of a Modeller, with PME, rigid water and
    rigid bonds to hydrogen."""
    box = np.array(modeller.topology.getPeriodicBoxVectors().value_in_unit(unit.nanometer))
    system = field.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=cutoff or min(0.9, 0.45 * box.diagonal().min()),
        constraints=app.HBonds,
    )
    return system, np.array(modeller.positions.value_in_unit(unit.nanometer)), box


def water_modeller(box, field, model="tip3p", **options):
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    vectors = [openmm.Vec3(*row) for row in np.asarray(box, float)] * unit.nanometer
    modeller.addSolvent(field, model=model, boxVectors=vectors, **options)
    return modeller


def water(box, files=("amber14/tip3p.xml",), model="tip3p", **options):
    """Water filling the cell `box` (rows, nm; three numbers for a rectangular one)."""
    field = forcefield(*files)
    box = np.diag(box) if np.ndim(box) == 1 else box
    modeller = water_modeller(box, field, model, **options)
    return equilibrated(*parametrised(modeller, field), modeller.topology)


def water_within(region, box):
    """Water molecules whose oxygen satisfies `region(x)`, x from the centre,
    in a box they do not fill."""
    field, box = forcefield("amber14/tip3p.xml"), np.diag(box).astype(float)
    modeller = water_modeller(np.minimum(box, 3.0 * np.eye(3)), field)
    x = np.array(modeller.positions.value_in_unit(unit.nanometer))
    x -= 0.5 * (x.min(0) + x.max(0))
    modeller.positions = (x + 0.5 * box.diagonal()) * unit.nanometer
    modeller.delete(
        [r for r in modeller.topology.residues() if not region(x[next(r.atoms()).index])]
    )
    modeller.topology.setPeriodicBoxVectors(box * unit.nanometer)
    return equilibrated(*parametrised(modeller, field), modeller.topology)


def peptide(shape="cube", neutralize=True):
    """The peptide of examples/data in TIP3P water; 0.15 M salt,
    or only itself with its charge of +2."""
    pdb, field = app.PDBFile(str(PEPTIDE)), forcefield("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(
        field,
        padding=0.8 * unit.nanometer,
        boxShape=shape,
        neutralize=neutralize,
        ionicStrength=SALT if neutralize else 0 * unit.molar,
    )
    return equilibrated(*parametrised(modeller, field), modeller.topology)


def ions(positions, names, box, cutoff=0.9):
    """Monovalent ions as an (unequilibrated) system: the tuple that is pickled."""
    system, force = openmm.System(), openmm.NonbondedForce()
    box = np.asarray(box, float)
    system.setDefaultPeriodicBoxVectors(*box)
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    force.setCutoffDistance(cutoff)
    for name in names:
        sigma, epsilon, mass = IONS[name]
        system.addParticle(mass)
        force.addParticle(-1.0 if name == "Cl" else 1.0, sigma, epsilon)
    system.addForce(force)
    return system, np.asarray(positions), box, None


def displaced(name, species, repeats):
    """A supercell of a crystal of monovalent ions, each displaced by 0.025 nm (rms)."""
    crystal = CRYSTALS[name].supercell(*3 * [repeats])
    x = crystal.positions + np.random.default_rng(1).normal(
        0.0, 0.025 / np.sqrt(3), crystal.positions.shape
    )
    return ions(x, np.where(crystal.charges > 0, *species), crystal.box_vectors)


def melt():
    """Molten NaCl at 1,200 K and 16 ion pairs a nm^3, from ions in random order on a simple
    cubic lattice."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(10)], indexing="ij"), -1).reshape(-1, 3)
    edge = (len(sites) / 32.0) ** (1 / 3)
    names = np.random.default_rng(1).permutation(["Na", "Cl"] * (len(sites) // 2))
    return equilibrated(
        *ions(sites * edge / 10, names, edge * np.eye(3)), temperature=1200.0, steps=1000
    )


SKEWED = np.array([[2.9, 0.0, 0.0], [0.8, 2.6, 0.0], [-1.1, 0.9, 2.7]])
"""A reduced cell with none of the special angles."""

SYSTEMS: dict[str, Callable[[], tuple]] = {
    "water": lambda: water((2.3, 2.3, 2.3)),
    "water_large": lambda: water((3.0, 3.0, 3.0)),
    "nacl": lambda: displaced("nacl", ("Na", "Cl"), 5),
    "cscl": lambda: displaced("cscl", ("Cs", "Cl"), 8),
    "melt": melt,
    "peptide_cube": lambda: peptide("cube"),
    "peptide_dodecahedron": lambda: peptide("dodecahedron"),
    "peptide_octahedron": lambda: peptide("octahedron"),
    "peptide_charged": lambda: peptide("cube", neutralize=False),
    "water_3_1_1": lambda: water((5.4, 1.8, 1.8)),
    "water_1_1_5": lambda: water((1.5, 1.5, 7.5)),
    "brine_triclinic": lambda: water(
        SKEWED, ("amber14/tip3p.xml",), ionicStrength=1.0 * unit.molar
    ),
    "tip4pew": lambda: water((2.3, 2.3, 2.3), ("amber14/tip4pew.xml",), "tip4pew"),
    "tip5p": lambda: water((2.3, 2.3, 2.3), ("tip5p.xml",), "tip5p"),
    "droplet": lambda: water_within(lambda x: np.linalg.norm(x) < 1.2, (8.0, 8.0, 8.0)),
    "slab": lambda: water_within(lambda x: abs(x[2]) < 0.9, (3.0, 3.0, 9.0)),
}
"""Name -> function making (system, positions, box_vectors, topology)."""
