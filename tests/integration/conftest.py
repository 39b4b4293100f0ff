"""Systems of a few hundred atoms, and every platform of this machine, for the tests of
``fmm_openmm.integration``."""

from functools import cache

import numpy as np
import openmm
import pytest
from openmm import app

from tests.integration.boxes import Box, usable_platforms


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.gpu if name == "CUDA" else ())
        for name in usable_platforms()
    ]
)
def platform(request):
    """The name of each platform that makes a Context on this machine."""
    return request.param


@cache
def _solvent(model: str, files: tuple[str, ...], edge: float, rigid: bool):
    forcefield = app.ForceField(*files)
    modeller = app.Modeller(app.Topology(), [])
    modeller.addSolvent(forcefield, boxSize=openmm.Vec3(edge, edge, edge), model=model)
    system = forcefield.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.42 * edge, rigidWater=rigid
    )
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CPU"))
    context.setPositions(modeller.positions)
    context.computeVirtualSites()
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=60)
    return openmm.XmlSerializer.serialize(system), context.getState(positions=True).getPositions(
        asNumpy=True
    )._value


def _box(model, files, edge=1.8, rigid=True) -> Box:
    text, positions = _solvent(model, files, edge, rigid)
    return Box(openmm.XmlSerializer.deserialize(text), positions.copy())


@pytest.fixture
def water() -> Box:
    """555 atoms of rigid TIP3P with PME at the default tolerance."""
    return _box("tip3p", ("tip3p.xml",))


@pytest.fixture
def flexible_water() -> Box:
    """The same without constraints."""
    return _box("tip3p", ("tip3p.xml",), rigid=False)


@pytest.fixture
def tip4pew() -> Box:
    """Water whose negative charge sits on a virtual site."""
    return _box("tip4pew", ("tip4pew.xml",))


@pytest.fixture
def tip5p() -> Box:
    """Water with two charged virtual sites a molecule and an uncharged oxygen."""
    return _box("tip5p", ("tip5p.xml",))


@pytest.fixture
def chains() -> Box:
    """27 six-atom chains with scaled 1-4 exceptions and 14 ions, net charge +2,
    in a triclinic cell."""
    random = np.random.default_rng(5)
    cell = np.array([[2.4, 0, 0], [0.6, 2.3, 0], [-0.7, 0.8, 2.2]])
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*cell)
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    force.setCutoffDistance(0.9)
    force.setUseSwitchingFunction(True)
    force.setSwitchingDistance(0.8)
    bonds, positions = [], []
    sites = [np.array([i, j, k]) for i in range(4) for j in range(4) for k in range(4)]
    zigzag = np.array([[0.1 * i, 0.08 * (i % 2), 0.05 * (i % 3)] for i in range(6)])
    for index, site in enumerate(sites[:27]):
        start = system.getNumParticles()
        for atom, charge in enumerate((0.4, -0.5, 0.3, -0.4, 0.6, -0.4)):
            system.addParticle(12.0)
            force.addParticle(charge + 0.01 * (index % 3 - 1) * (-1) ** atom, 0.2, 0.3)
            if atom:
                bonds.append((start + atom - 1, start + atom))
        positions.extend((site / 4) @ cell + zigzag)
    for index, site in enumerate(sites[36:50]):
        system.addParticle(30.0)
        force.addParticle(-1.0 if index < 6 else 1.0, 0.25, 0.2)
        positions.append((site / 4) @ cell + random.uniform(-0.05, 0.05, 3))
    force.createExceptionsFromBonds(bonds, 0.8333, 0.5)
    system.addForce(force)
    return Box(system, np.array(positions))


@pytest.fixture
def ions() -> Box:
    """Four ions in a 3 nm cube: the smallest System with something to compute."""
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    for charge in (1.0, -1.0, 1.0, -1.0):
        system.addParticle(20.0)
        force.addParticle(charge, 0.3, 0.1)
    system.addForce(force)
    positions = np.array([[0.5, 0.6, 0.7], [1.4, 0.7, 0.5], [1.6, 1.8, 2.0], [2.6, 2.1, 1.1]])
    return Box(system, positions)
