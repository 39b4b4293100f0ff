"""use_fmm: the same energy as PME, with every platform and every kind of exception."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import Box, energy_of, relative_difference, xml

CONVERGED_PME = 1e-8
NET_CHARGED_CUBE = -65.70019
"""kJ/mol: one unit charge in a 3 nm cube with its background, -2.837297 / 2 * 138.935458 / 3
(cubic Wigner energy)."""


def coulomb_free(box: Box) -> Box:
    """A copy with all charges and charge products 0."""
    twin = copy.deepcopy(box)
    force = twin.nonbonded
    for index in range(force.getNumParticles()):
        force.setParticleParameters(index, 0.0, *force.getParticleParameters(index)[1:])
    for index in range(force.getNumExceptions()):
        first, second, _, sigma, epsilon = force.getExceptionParameters(index)
        force.setExceptionParameters(index, first, second, 0.0, sigma, epsilon)
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("name", ["water", "flexible_water", "tip4pew", "tip5p", "chains"])
def test_energy_and_forces_of_converged_pme(name, request):
    box = request.getfixturevalue(name)
    box.nonbonded.setEwaldErrorTolerance(CONVERGED_PME)
    reference, reference_forces = box.energy_and_forces("Reference")
    fmm.use_fmm(box.system, tolerance=1e-9).setForceGroup(1)
    energy, forces = box.energy_and_forces("Reference")
    coulomb = abs(box.energy_and_forces("Reference", groups={1})[0])
    assert energy == pytest.approx(reference, abs=1e-7 * coulomb)
    assert relative_difference(forces, reference_forces) < 1e-6


@pytest.mark.parametrize("method", ["PME", "Ewald", "LJPME"])
@pytest.mark.parametrize("dispersion", [True, False])
def test_lennard_jones_and_exceptions_stay(chains, platform, method, dispersion):
    """What is left in the NonbondedForce is the original without charges, with the charge
    products of exceptions."""
    chains.nonbonded.setNonbondedMethod(getattr(openmm.NonbondedForce, method))
    chains.nonbonded.setUseDispersionCorrection(dispersion)
    if method == "Ewald":  # which OpenMM refuses in triclinic cells
        chains.system.setDefaultPeriodicBoxVectors(*np.diag(np.diag(chains.cell)))
    exceptions = openmm.CustomBondForce("138.935457644382*product/r")
    exceptions.addPerBondParameter("product")
    for index in range(chains.nonbonded.getNumExceptions()):
        first, second, product, _, _ = chains.nonbonded.getExceptionParameters(index)
        exceptions.addBond(first, second, [product])
    expected = coulomb_free(chains)
    expected.system.addForce(exceptions)
    energy, forces = expected.energy_and_forces(platform)

    force = fmm.use_fmm(chains.system)
    force.setForceGroup(5)
    assert chains.nonbonded.getNonbondedMethod() == (
        openmm.NonbondedForce.LJPME if method == "LJPME" else openmm.NonbondedForce.CutoffPeriodic
    )
    left, left_forces = chains.energy_and_forces(platform, groups={0})
    assert left == pytest.approx(energy, rel=1e-6)
    assert relative_difference(left_forces, forces) < 1e-5


def test_what_use_fmm_sets(chains):
    before = copy.deepcopy(chains.nonbonded)
    before.setForceGroup(4)
    chains.nonbonded.setForceGroup(4)
    chains.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    force = fmm.use_fmm(chains.system, tolerance=1e-4)
    assert type(force) is fmm.FMMForce and force.getForceGroup() == 4
    assert int(force.this) == int(chains.system.getForce(chains.system.getNumForces() - 1).this)
    assert force.getNumParticles() == before.getNumParticles()
    assert force.getNumExclusions() == before.getNumExceptions()
    assert force.getExclusionsUsePeriodicBoundaryConditions()
    for index in range(before.getNumParticles()):
        charge, sigma, epsilon = before.getParticleParameters(index)
        assert force.getParticleParameters(index) == charge
        assert chains.nonbonded.getParticleParameters(index) == [0 * charge, sigma, epsilon]
    for index in range(before.getNumExceptions()):
        assert chains.nonbonded.getExceptionParameters(index) == before.getExceptionParameters(
            index
        )
        assert force.getExclusionParticles(index) == before.getExceptionParameters(index)[:2]


def test_exceptions_of_a_particle_with_itself(tip4pew):
    """ParmEd makes them of extra points; OpenMM computes nothing for them."""
    expected = copy.deepcopy(tip4pew)
    for index in range(3, 40, 4):
        tip4pew.nonbonded.addException(index, index, 0.0, 0.5, 0.0)
    original = xml(tip4pew.system)
    for box in tip4pew, expected:
        fmm.use_fmm(box.system)
    forces = tip4pew.energy_and_forces("Reference")[1]
    assert np.array_equal(forces, expected.energy_and_forces("Reference")[1])
    fmm.restore_pme(tip4pew.system)
    assert xml(tip4pew.system) == original


def test_net_charge_is_neutralised(platform):
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    system.addParticle(20.0)
    nonbonded = openmm.NonbondedForce()
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    nonbonded.addParticle(1.0, 0.3, 0.0)
    system.addForce(nonbonded)
    fmm.use_fmm(system, tolerance=1e-7)
    assert energy_of(Box(system, np.array([[0.1, 0.2, 0.3]])).context(platform)) == pytest.approx(
        NET_CHARGED_CUBE, abs=1e-3
    )


def test_energy_is_the_trace_of_the_virial(chains):
    """Pure periodic Coulomb of a neutral system is homogeneous of degree -1: dU/d(ln s) = -U."""
    last = chains.system.getNumParticles() - 1
    for index in (last, last - 1):
        chains.nonbonded.setParticleParameters(index, 0.0, 0.3, 0.0)
    force = fmm.FMMForce.from_nonbonded(chains.nonbonded, tolerance=1e-8)
    total = sum(
        force.getParticleParameters(index)._value for index in range(force.getNumParticles())
    )
    assert abs(total) < 1e-9
    system = openmm.System()
    for _ in range(force.getNumParticles()):
        system.addParticle(1.0)
    system.addForce(force)
    cell = chains.cell
    context = Box(system, chains.positions).context()
    energies = []
    for scale in (1.0, 0.999, 1.001):
        context.setPeriodicBoxVectors(*(scale * cell))
        context.setPositions(scale * chains.positions)
        energies.append(energy_of(context))
    assert (energies[2] - energies[1]) / 0.002 == pytest.approx(-energies[0], rel=1e-4)


# the image of an exception


@pytest.mark.parametrize("periodic", [False, True])
def test_an_exception_across_the_box_face(water, platform, periodic):
    """Full periodic Coulomb less the bare pair: at the coordinates as they are, or at the
    minimum image."""
    water.nonbonded.setExceptionsUsePeriodicBoundaryConditions(periodic)
    water.nonbonded.setForceGroup(1)
    charges = np.array(
        [water.nonbonded.getParticleParameters(i)[0]._value for i in range(len(water.positions))]
    )
    cell = water.cell
    force = fmm.use_fmm(water.system, tolerance=1e-6)
    force.setForceGroup(2)
    pairs = [force.getExclusionParticles(index) for index in range(force.getNumExclusions())]
    energies = []
    for shift in (0.0, cell[0, 0]):
        water.positions[1, 0] += shift
        energies.append(energy_of(water.context(platform), groups={2}))
        expected = ewald_sum(
            water.positions, charges, cell, pairs, exclusions_periodic=periodic
        ).energy
        assert energies[-1] == pytest.approx(expected, rel=1e-6)
    assert (abs(energies[1] - energies[0]) < 0.05) == periodic


@pytest.mark.slow
def test_periodic_exceptions_equal_those_of_pme(water):
    water.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    water.nonbonded.setEwaldErrorTolerance(CONVERGED_PME)
    water.positions[1] += [1.8, 0.0, 0.0]
    reference, reference_forces = water.energy_and_forces("Reference")
    fmm.use_fmm(water.system, tolerance=1e-9)
    energy, forces = water.energy_and_forces("Reference")
    assert energy == pytest.approx(reference, rel=1e-7)
    assert relative_difference(forces, reference_forces) < 1e-6


def test_whole_molecules_anywhere(water, platform):
    """Molecules shifted by whole box vectors, far away, have the energy they had."""
    fmm.use_fmm(water.system, tolerance=1e-6)
    energy = energy_of(water.context(platform))
    random = np.random.default_rng(2)
    molecules = random.integers(-500, 500, (len(water.positions) // 3, 3)).repeat(3, axis=0)
    water.positions += molecules @ water.cell
    assert energy_of(water.context(platform)) == pytest.approx(energy, abs=0.02)


@pytest.mark.slow
def test_reaction_field_on_request(chains):
    """The energy is then the one of PME."""
    twin = copy.deepcopy(chains)
    twin.nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    fmm.use_fmm(twin.system, allow_reaction_field=True, tolerance=1e-8)
    fmm.use_fmm(chains.system, tolerance=1e-8)
    assert twin.energy_and_forces()[0] == pytest.approx(chains.energy_and_forces()[0], rel=1e-12)
    fmm.restore_pme(twin.system)
    assert twin.nonbonded.getNonbondedMethod() == openmm.NonbondedForce.CutoffPeriodic


def test_other_forces_are_left_alone(chains):
    """NBFIX in a CustomNonbondedForce, non-periodic implicit solvent aside, keeps its energy."""
    custom = openmm.CustomNonbondedForce("eps*(0.2/r)^12; eps=eps1*eps2")
    custom.addPerParticleParameter("eps")
    custom.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    custom.setCutoffDistance(0.9)
    custom.setForceGroup(9)
    for index in range(chains.system.getNumParticles()):
        custom.addParticle([0.1 + 0.01 * (index % 5)])
    for index in range(chains.nonbonded.getNumExceptions()):
        custom.addExclusion(*chains.nonbonded.getExceptionParameters(index)[:2])
    chains.system.addForce(custom)
    before = chains.energy_and_forces(groups={9})[0]
    fmm.use_fmm(chains.system)
    assert chains.energy_and_forces(groups={9})[0] == before
