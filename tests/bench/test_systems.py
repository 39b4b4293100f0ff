"""The systems of the benchmarks: water, its tiles, and droplets."""

import numpy as np
import openmm
import pytest
from openmm import app, unit

from fmm_openmm.bench import open as free_space
from fmm_openmm.bench import scaling, systems
from fmm_openmm.bench.solver import relative_error
from fmm_openmm.bench.systems import (
    TERMS,
    Sample,
    Size,
    nonbonded,
    scaled,
    tiled,
    tiled_charges,
    water,
)
from fmm_openmm.oracle import ewald_sum
from tests.bench.cases import COPIES, potential_energy


@pytest.mark.slow
def test_tiles_have_the_energy_of_so_many_boxes(base):
    many = tiled(base.sample, COPIES)
    assert many.system.getNumParticles() == 2 * base.sample.system.getNumParticles()
    assert many.system.getNumConstraints() == 2 * base.sample.system.getNumConstraints()
    for system in (base.sample.system, many.system):
        nonbonded(system).setEwaldErrorTolerance(1e-6)
    one = potential_energy(base.sample.system, base.sample.positions)
    assert potential_energy(many.system, many.positions) == pytest.approx(2 * one, rel=2e-5)


def test_tiles_repeat_every_term():
    sample = with_every_term()
    assert {type(force) for force in sample.system.getForces()} == TERMS.keys() - {
        openmm.MonteCarloMembraneBarostat
    }
    many = tiled(sample, (1, 2, 2))
    one = potential_energy(sample.system, sample.positions)
    assert potential_energy(many.system, many.positions) == pytest.approx(4 * one, rel=1e-5)


def with_every_term():
    """Particles with a term of every kind that can be repeated, and with parameters."""
    rng = np.random.default_rng(3)
    edge, map_size = 2.5, 4
    positions = (
        edge / 2
        + 0.25 * np.stack(np.unravel_index(np.arange(8), (2, 2, 2)), axis=1)
        + rng.uniform(0, 0.05, (8, 3))
    )
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*edge * np.eye(3))
    for _ in range(8):
        system.addParticle(10.0)
    forces = {
        kind.__name__: kind()
        for kind in TERMS
        if not kind.__name__.startswith(("Custom", "MonteCarlo"))
    }
    for name in ("Bond", "Angle", "Torsion"):
        kind = f"Custom{name}Force"
        forces[kind] = getattr(openmm, kind)(
            {"Bond": "k*r^2", "Angle": "k*theta^2", "Torsion": "k*cos(theta)"}[name]
        )
        getattr(forces[kind], f"addPer{name}Parameter")("k")
    pairs = forces["CustomNonbondedForce"] = openmm.CustomNonbondedForce("a1*a2/r^6")
    pairs.addPerParticleParameter("a")
    pairs.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    forces["MonteCarloBarostat"] = openmm.MonteCarloBarostat(1.0, 300.0)
    forces["NonbondedForce"].setNonbondedMethod(openmm.NonbondedForce.PME)
    forces["NonbondedForce"].setEwaldErrorTolerance(1e-6)
    forces["HarmonicBondForce"].addBond(0, 1, 0.1, 1000.0)
    forces["HarmonicAngleForce"].addAngle(1, 2, 3, 1.0, 100.0)
    forces["PeriodicTorsionForce"].addTorsion(0, 1, 2, 3, 3, 0.5, 10.0)
    forces["RBTorsionForce"].addTorsion(1, 2, 3, 4, *rng.normal(size=6))
    forces["CMAPTorsionForce"].addMap(map_size, rng.normal(size=map_size**2))
    forces["CMAPTorsionForce"].addTorsion(0, 0, 1, 2, 3, 4, 5, 6, 7)
    forces["CustomBondForce"].addBond(5, 6, [20.0])
    forces["CustomAngleForce"].addAngle(5, 6, 7, [30.0])
    forces["CustomTorsionForce"].addTorsion(4, 5, 6, 7, [40.0])
    for k in range(8):
        forces["NonbondedForce"].addParticle((-1) ** k * 0.4, 0.2, 0.5)
        pairs.addParticle([1e-3 * k])
    for i, j in ((0, 1), (2, 3)):
        forces["NonbondedForce"].addException(i, j, 0.1 * i, 0.2, 0.3)
        pairs.addExclusion(i, j)
    for force in forces.values():
        system.addForce(force)
    return Sample(system, positions, np.zeros((8, 3)))


def test_what_cannot_be_tiled_is_refused():
    def refusal(change):
        sample = with_every_term()
        change(sample.system, nonbonded(sample.system))
        with pytest.raises(ValueError) as error:
            tiled(sample, COPIES)
        return str(error.value)

    def add_offset(_, force):
        force.addGlobalParameter("scale", 1.0)
        force.addParticleParameterOffset("scale", 0, 0.1, 0.0, 0.0)

    site = openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5)
    assert (
        refusal(lambda system, _: system.setVirtualSite(7, site))
        == "cannot repeat a System with virtual sites"
    )
    assert (
        refusal(lambda system, _: system.addForce(openmm.GBSAOBCForce()))
        == "cannot repeat a System with a GBSAOBCForce"
    )
    assert refusal(add_offset) == "cannot repeat a NonbondedForce with a ParticleParameterOffset"


@pytest.mark.slow
def test_tiled_charges_have_the_forces_of_the_box(base):
    charges = tiled_charges(base.charges, COPIES)
    found = ewald_sum(
        charges.positions, charges.charges, charges.box_vectors, charges.exclusions
    ).forces
    assert relative_error(found, base.exact) < 1e-9
    assert np.array_equal(charges.positions, tiled(base.sample, COPIES).positions)
    sheared = water(2.6, "dodecahedron")
    charges = tiled_charges(sheared.charges, (1, 1, 2))
    found = ewald_sum(
        charges.positions, charges.charges, charges.box_vectors, charges.exclusions
    ).forces
    assert relative_error(found, sheared.exact) < 1e-9


def test_scaled():
    """Exceptions are scaled too, exclusions are not, and everything is restored."""
    force = openmm.NonbondedForce()
    for parameters in ((0.5, 0.3, 0.7), (-0.25, 0.2, 0.1), (0.1, 0.4, 0.0)):
        force.addParticle(*parameters)
    for pair in ((0, 1, 0.0, 1.0, 0.0), (0, 2, -0.2, 0.3, 0.4)):
        force.addException(*pair)
    before = openmm.XmlSerializer.serialize(force)
    with scaled(force, charge=0.0):
        assert [value._value for value in force.getParticleParameters(1)] == [0.0, 0.2, 0.1]
        assert force.getExceptionParameters(1)[2]._value == -0.2
    with scaled(force, epsilon=0.0, exceptions=0.0):
        assert [value._value for value in force.getParticleParameters(0)] == [0.5, 0.3, 0.0]
        assert [value._value for value in force.getExceptionParameters(1)[2:]] == [0.0, 0.3, 0.0]
    assert openmm.XmlSerializer.serialize(force) == before


def test_sizes():
    assert Size.parse("6") == Size(6.0)
    assert Size.parse("4.5:1x2x3") == Size(4.5, (1, 2, 3))
    assert str(Size(4.5, (1, 2, 3))) == "4.5:1x2x3"


@pytest.mark.slow
def test_the_smallest_system_of_scaling():
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(
        app.ForceField("amber14/tip3p.xml"),
        boxSize=openmm.Vec3(*3 * [scaling.EDGE]) * unit.nanometer,
    )
    assert modeller.topology.getNumAtoms() == scaling.ATOMS


@pytest.mark.slow
def test_a_droplet_is_a_ball(monkeypatch):
    """Its radius follows from its volume at the density of water."""
    monkeypatch.setattr(free_space, "EDGE", 2.0)
    oxygens = free_space.droplet(6000).positions[:: systems.SITES]
    radius = np.linalg.norm(oxygens - oxygens.mean(0), axis=1).max()
    assert radius == pytest.approx(np.cbrt(3 * 6000 / (4 * np.pi * systems.DENSITY)), rel=0.03)
