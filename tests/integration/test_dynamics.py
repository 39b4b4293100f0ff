"""FMMForce in simulations: barostats, integrators, force groups, virtual sites,
minimiser, checkpoints."""

import copy

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from tests.integration.boxes import Box, energy_of, relative_difference
from tests.integration.vacuum import in_vacuum

TEMPERATURE = 300 * unit.kelvin


def langevin(step=0.002):
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 1.0, step)
    integrator.setRandomNumberSeed(11)
    integrator.setConstraintTolerance(1e-8)
    return integrator


def state_of(context):
    return context.getState(
        energy=True, forces=True, positions=True, velocities=True, parameters=True
    )


@pytest.fixture(params=["periodic", pytest.param("slab", marks=pytest.mark.slow)])
def use(request):
    """Like ``use_fmm`` of a box, to which it adds vacuum if that becomes a slab."""

    def converted(box: Box, **options):
        if request.param == "slab":
            in_vacuum(box, "slab")
        return fmm.use_fmm(box.system, boundary=request.param, **options)

    return converted


def barostats():
    cell = (1.0, 1.0, 1.0)
    membrane = openmm.MonteCarloMembraneBarostat
    return {
        "isotropic": openmm.MonteCarloBarostat(1.0, TEMPERATURE, 2),
        "anisotropic": openmm.MonteCarloAnisotropicBarostat(cell, TEMPERATURE, True, True, True, 2),
        "membrane": membrane(1.0, 0.0, TEMPERATURE, membrane.XYIsotropic, membrane.ZFree, 2),
        "flexible": openmm.MonteCarloFlexibleBarostat(1.0, TEMPERATURE, 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["isotropic", "anisotropic", "membrane", "flexible"])
def test_barostats_leave_the_energy_of_a_fresh_context(water, platform, kind):
    """After trial moves, accepted or not, nothing of an earlier box is left."""
    fmm.use_fmm(water.system, tolerance=1e-5)
    barostat = barostats()[kind]
    barostat.setRandomNumberSeed(3)
    water.system.addForce(barostat)
    context = water.context(platform, langevin())
    volumes, shapes = set(), set()
    for _ in range(2):
        context.getIntegrator().step(20)
        state = state_of(context)
        cell = state.getPeriodicBoxVectors(asNumpy=True)._value
        volumes.add(round(float(np.linalg.det(cell)), 9))
        shapes.add(round(float(cell[1, 0]), 9))
        fresh = copy.deepcopy(water)
        fresh.system.setDefaultPeriodicBoxVectors(*cell)
        fresh.positions = state.getPositions(asNumpy=True)._value
        energy, forces = fresh.energy_and_forces(platform)
        kinetic_scale = 0.01 * len(water.positions) ** 0.5
        assert state.getPotentialEnergy()._value == pytest.approx(energy, abs=kinetic_scale)
        assert relative_difference(state.getForces(asNumpy=True)._value, forces) < 1e-4
    assert len(volumes) > 1
    assert (len(shapes) > 1) == (kind == "flexible")


@pytest.mark.slow
def test_box_of_a_context_can_change_and_return(water, platform):
    """Of the FMM alone: OpenMM's CPU platform gets Lennard-Jones wrong where a rectangular box
    has become a triclinic one."""
    fmm.use_fmm(water.system, tolerance=1e-6).setForceGroup(1)

    def coulomb(context):
        return context.getState(energy=True, groups={1}).getPotentialEnergy()._value

    context = water.context(platform)
    before = coulomb(context)
    cells = [0.98 * water.cell, 1.05 * water.cell]
    # the others refuse to turn a rectangular box into a triclinic one
    if platform in ("Reference", "CPU"):
        # gaps: no atoms overlap
        cells.append(water.cell + np.array([[0, 0, 0], [0.4, 0.3, 0], [-0.3, 0.5, 0.3]]))
    for cell in cells:
        context.setPeriodicBoxVectors(*cell)
        fresh = copy.deepcopy(water)
        fresh.system.setDefaultPeriodicBoxVectors(*cell)
        assert coulomb(context) == pytest.approx(coulomb(fresh.context(platform)), rel=1e-5)
        context.setPeriodicBoxVectors(*water.cell)
        assert coulomb(context) == pytest.approx(before, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name, sites", [("tip4pew", 1), ("tip5p", 2)])
def test_virtual_sites_pass_their_force_on(name, sites, platform, request):
    """Forces are those of PME, and nothing is lost on the way to the parents."""
    box = request.getfixturevalue(name)
    pme = copy.deepcopy(box)
    pme.nonbonded.setEwaldErrorTolerance(1e-7)
    reference = pme.energy_and_forces("Reference")[1]
    fmm.use_fmm(box.system, tolerance=1e-7)
    forces = box.energy_and_forces(platform)[1]
    assert relative_difference(forces, reference) < 1e-4
    virtual = [
        index for index in range(box.system.getNumParticles()) if box.system.isVirtualSite(index)
    ]
    assert len(virtual) == sites * len(box.positions) // (3 + sites)
    assert (
        np.abs(np.delete(forces, virtual, axis=0).sum(axis=0)).max() < 1e-3 * np.abs(forces).max()
    )
    context = box.context(platform, langevin(0.001))
    context.getIntegrator().step(5)
    assert np.isfinite(energy_of(context))


def test_massless_particles_act_and_stay(ions, use, platform):
    ions.system.setParticleMass(2, 0.0)
    force = use(ions, tolerance=1e-6)
    context = ions.context(platform)
    assert np.abs(context.getState(forces=True).getForces(asNumpy=True)._value[2]).max() > 1
    context.getIntegrator().step(20)
    positions = context.getState(positions=True).getPositions(asNumpy=True)._value
    assert np.allclose(positions[2], ions.positions[2], atol=1e-7)
    assert np.abs(positions[0] - ions.positions[0]).max() > 1e-6
    assert force.getNumParticles() == 4


def test_force_groups_add_up(water, use, platform):
    water.nonbonded.setForceGroup(2)
    force = use(water)
    assert force.getForceGroup() == 2
    force.setForceGroup(3)
    context = water.context(platform)
    parts = [context.getState(energy=True, forces=True, groups={group}) for group in (2, 3)]
    whole = context.getState(energy=True, forces=True)
    total = sum(part.getPotentialEnergy()._value for part in parts)
    assert whole.getPotentialEnergy()._value == pytest.approx(total, rel=1e-6)
    forces = sum(part.getForces(asNumpy=True)._value for part in parts)
    assert relative_difference(whole.getForces(asNumpy=True)._value, forces) < 1e-5
    assert energy_of(context, groups={0}) == 0


@pytest.mark.slow
def test_multiple_time_steps(flexible_water, use, platform):
    """The slow group holds the FMM; the trajectory stays that of the single
    time step for a while."""
    use(flexible_water, tolerance=1e-5).setForceGroup(1)
    integrators = [
        openmm.MTSIntegrator(0.0005, [(1, 2), (0, 4)]),
        openmm.MTSLangevinIntegrator(TEMPERATURE, 1.0, 0.0005, [(1, 1), (0, 2)]),
    ]
    for integrator in integrators:
        context = flexible_water.context(platform, integrator)
        context.setVelocitiesToTemperature(TEMPERATURE, 5)
        state = state_of(context)
        start = (state.getPotentialEnergy() + state.getKineticEnergy())._value
        integrator.step(20)
        state = state_of(context)
        end = (state.getPotentialEnergy() + state.getKineticEnergy())._value
        assert np.isfinite(end)
        if integrator is integrators[0]:
            assert end == pytest.approx(start, abs=0.02 * state.getKineticEnergy()._value)


@pytest.mark.slow
def test_energy_is_conserved(flexible_water):
    fmm.use_fmm(flexible_water.system, tolerance=1e-5)
    context = flexible_water.context("Reference", openmm.VerletIntegrator(0.0002))
    context.setVelocitiesToTemperature(TEMPERATURE, 5)
    totals = []
    for _ in range(10):
        context.getIntegrator().step(5)
        state = state_of(context)
        totals.append((state.getPotentialEnergy() + state.getKineticEnergy())._value)
    assert np.ptp(totals[1:]) < 0.02 * state.getKineticEnergy()._value


@pytest.mark.slow
def test_minimiser(water, use, platform):
    random = np.random.default_rng(4)
    molecules = random.normal(0, 0.01, (len(water.positions) // 3, 3)).repeat(3, axis=0)
    water.positions += molecules
    use(water, tolerance=1e-4)
    context = water.context(platform)
    before = energy_of(context)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=15)
    assert energy_of(context) < before - 10


def test_minimiser_with_a_reporter(ions):
    """On the Reference platform the thread that evaluates calls the reporter."""
    fmm.use_fmm(ions.system)

    class Reporter(openmm.MinimizationReporter):
        calls = 0

        def report(self, iteration, x, grad, args):
            self.calls += 1
            return False

    reporter, context = Reporter(), ions.context()
    before = energy_of(context)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=5, reporter=reporter)
    assert reporter.calls > 0 and energy_of(context) < before


def test_checkpoints(water, use, platform):
    """The same trajectory from a checkpoint, in the same and in a new Context, also after the
    box has changed."""
    use(water)
    contexts = [water.context(platform, langevin()) for _ in range(2)]
    contexts[0].setPeriodicBoxVectors(*(1.02 * water.cell))
    contexts[0].getIntegrator().step(3)
    checkpoint = contexts[0].createCheckpoint()
    states = []
    for context in (contexts[0], contexts[0], contexts[1]):
        context.loadCheckpoint(checkpoint)
        context.getIntegrator().step(3)
        states.append(state_of(context))
    for state in states[1:]:
        assert np.allclose(
            state.getPositions(asNumpy=True)._value,
            states[0].getPositions(asNumpy=True)._value,
            atol=1e-5,
        )
        assert state.getPotentialEnergy()._value == pytest.approx(
            states[0].getPotentialEnergy()._value, abs=0.05
        )


def test_a_saved_state_keeps_updated_charges(ions, use, platform):
    force = use(ions)
    context = ions.context(platform)
    for index in (0, 1):
        force.setParticleParameters(index, 2 * force.getParticleParameters(index))
    force.updateParametersInContext(context)
    energy = energy_of(context)
    saved = openmm.XmlSerializer.serialize(state_of(context))
    fresh = ions.context(platform)
    fresh.setState(openmm.XmlSerializer.deserialize(saved))
    assert energy_of(fresh) == pytest.approx(energy, rel=1e-9)


def test_reinitialize(water, use, platform):
    use(water, tolerance=1e-5)
    context = water.context(platform, langevin())
    context.getIntegrator().step(5)
    before = energy_of(context)
    context.reinitialize(preserveState=True)
    assert energy_of(context) == pytest.approx(before, rel=1e-6)


def test_conversion_under_a_context_takes_effect_by_reinitialize(water):
    context = water.context()
    before = energy_of(context)
    fmm.use_fmm(water.system, tolerance=1e-7)
    context.reinitialize(preserveState=True)
    fmm_energy = energy_of(context)
    fmm.restore_pme(water.system)
    context.reinitialize(preserveState=True)
    assert energy_of(context) == pytest.approx(before, rel=1e-12)
    assert fmm_energy == pytest.approx(before, rel=1e-3)


def test_repeated_evaluations_are_identical(water, use, platform):
    """Evaluations are identical in one Context, and in a second one of the same force."""
    use(water)
    states = []
    contexts = [water.context(platform), water.context(platform)]
    for context in (*contexts, contexts[0]):
        context.setPositions(water.positions)
        states.append(context.getState(energy=True, forces=True, groups={0}))
    energies = [state.getPotentialEnergy()._value for state in states]
    assert (
        energies[0] == pytest.approx(energies[1], rel=1e-7) == pytest.approx(energies[2], rel=1e-7)
    )


@pytest.mark.slow
def test_the_fmm_itself_is_bitwise_repeatable(water):
    force = fmm.use_fmm(water.system)
    force.setForceGroup(1)
    results = [
        context.getState(energy=True, forces=True, groups={1})
        for context in (
            water.context(),
            water.context(),
            Box(copy.deepcopy(water.system), water.positions).context(),
        )
    ]
    for result in results[1:]:
        assert result.getPotentialEnergy() == results[0].getPotentialEnergy()
        assert np.array_equal(
            result.getForces(asNumpy=True)._value, results[0].getForces(asNumpy=True)._value
        )


def test_energy_alone_equals_energy_with_forces(water, use, platform):
    use(water).setForceGroup(1)
    context = water.context(platform)
    alone = energy_of(context, groups={1})
    both = context.getState(energy=True, forces=True, groups={1})
    assert alone == both.getPotentialEnergy()._value
    only = context.getState(forces=True, groups={1})
    assert np.array_equal(only.getForces(asNumpy=True)._value, both.getForces(asNumpy=True)._value)
