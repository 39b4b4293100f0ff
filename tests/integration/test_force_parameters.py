"""Charges that change: parameter offsets, updateParametersInContext, potentials and derivatives."""

import copy
import gc

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration.snapshots import KEPT, REVISION
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import Box, energy_of

TIGHT = {"tolerance": 1e-6}


def ewald(box, charges, pairs=None):
    return ewald_sum(box.positions, charges, box.cell, pairs)


def charges_in(force):
    return np.array(
        [force.getParticleParameters(index)[0]._value for index in range(force.getNumParticles())]
    )


def pairs_in(force):
    return [force.getExceptionParameters(index)[:2] for index in range(force.getNumExceptions())]


@pytest.fixture
def alchemical(chains) -> Box:
    """Charges driven by two parameters: several offsets a particle, and offsets of exceptions."""
    force = chains.nonbonded
    force.addGlobalParameter("lambda", 0.0)
    force.addGlobalParameter("mu", 0.5)
    for particle in range(6):
        force.addParticleParameterOffset("lambda", particle, -0.3 + 0.1 * particle, 0.0, 0.0)
    force.addParticleParameterOffset("mu", 0, 0.25, 0.0, 0.0)
    force.addParticleParameterOffset("mu", 170, -1.0, 0.0, 0.0)
    force.addExceptionParameterOffset("lambda", 2, 0.07, 0.0, 0.0)
    return chains


@pytest.mark.slow
def test_offsets_follow_the_context_like_those_of_pme(alchemical, platform):
    reference = copy.deepcopy(alchemical)
    close = 5e-4 if platform == "Reference" else 0.05
    reference.nonbonded.setEwaldErrorTolerance(2e-5 * close)
    fmm.use_fmm(alchemical.system, tolerance=1e-8)
    contexts = reference.context("Reference"), alchemical.context(platform)

    def energy(context, values):
        context.setParameter("lambda", values[0])
        context.setParameter("mu", values[1])
        return energy_of(context)

    first, *others = (0.0, 0.5), (1.0, 0.5), (0.25, -1.0)
    expected = energy(contexts[0], first)
    assert energy(contexts[1], first) == pytest.approx(expected, abs=close)
    for values in others:
        found = energy(contexts[1], values)
        assert found == pytest.approx(energy(contexts[0], values), abs=close)
    assert energy(contexts[1], first) == pytest.approx(expected, abs=close)


def test_net_charge_through_offsets(ions, platform):
    """The neutralising background follows."""
    force = ions.nonbonded
    force.addGlobalParameter("charging", 0.0)
    force.addParticleParameterOffset("charging", 0, 1.0, 0.0, 0.0)
    fmm.use_fmm(ions.system, **TIGHT).setForceGroup(1)
    context = ions.context(platform)
    for value in (0.0, 1.5):
        context.setParameter("charging", value)
        expected = ewald(ions, [1.0 + value, -1.0, 1.0, -1.0]).energy
        assert energy_of(context, groups={1}) == pytest.approx(expected, abs=1e-3)


def test_default_values_of_offsets(alchemical):
    force = fmm.use_fmm(alchemical.system)
    assert [force.getGlobalParameterName(index) for index in range(2)] == ["lambda", "mu"]
    assert force.getGlobalParameterDefaultValue(1) == 0.5
    assert force.getNumParticleParameterOffsets() == 8
    assert force.getParticleParameterOffset(7) == ["mu", 170, -1.0]


@pytest.mark.slow
def test_potentials_and_derivatives(alchemical, platform):
    nonbonded = alchemical.nonbonded
    charges, pairs = charges_in(nonbonded), pairs_in(nonbonded)
    force = fmm.use_fmm(alchemical.system, tolerance=1e-7)
    force.setForceGroup(1)
    context = alchemical.context(platform)
    context.setParameter("lambda", 0.5)
    charges[:6] += 0.5 * (-0.3 + 0.1 * np.arange(6))
    charges[[0, 170]] += [0.125, -0.5]
    potentials = force.getPotentialsInContext(context)
    expected = ewald(alchemical, charges, pairs).potentials
    assert np.abs(potentials - expected).max() < 1e-4 * np.abs(expected).max()

    derivatives = force.getEnergyParameterDerivativesInContext(context)
    assert list(derivatives) == ["lambda", "mu"]
    for name, value in (("lambda", 0.5), ("mu", 0.5)):
        energies = []
        for step in (-0.01, 0.01):
            context.setParameter(name, value + step)
            energies.append(energy_of(context, groups={1}))
        context.setParameter(name, value)
        assert derivatives[name] == pytest.approx((energies[1] - energies[0]) / 0.02, rel=1e-5)


def test_all_charges_zero_then_set(ions, platform):
    charges = charges_in(ions.nonbonded)
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    for index in range(4):
        force.setParticleParameters(index, 0.0)
    context = ions.context(platform)
    state = context.getState(energy=True, forces=True, groups={1})
    assert state.getPotentialEnergy()._value == 0
    assert not state.getForces(asNumpy=True)._value.any()
    for index, charge in enumerate(charges):
        force.setParticleParameters(index, charge)
    force.updateParametersInContext(context)
    assert energy_of(context, groups={1}) == pytest.approx(ewald(ions, charges).energy, abs=1e-3)


# updateParametersInContext


def test_update_reaches_only_its_context(ions, platform):
    force = fmm.use_fmm(ions.system, **TIGHT)
    first, second = ions.context(platform), ions.context(platform)
    neutral = energy_of(first)
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(first)
    force.setParticleParameters(0, 3.0)
    force.updateParametersInContext(second)
    energies = energy_of(first), energy_of(second)
    force.setParticleParameters(0, 1.0)
    assert (energy_of(first), energy_of(second)) == energies  # set, but not sent
    assert energy_of(ions.context(platform)) == pytest.approx(neutral, rel=1e-9)
    force.updateParametersInContext(second)
    assert energy_of(first) == energies[0]
    assert energy_of(second) == pytest.approx(neutral, rel=1e-9)


def test_new_contexts_see_new_charges(ions):
    force = fmm.use_fmm(ions.system, **TIGHT)
    energy_of(ions.context())
    force.setParticleParameters(0, 2.0)
    force.setForceGroup(1)
    expected = ewald(ions, [2.0, -1.0, 1.0, -1.0]).energy
    assert energy_of(ions.context(), groups={1}) == pytest.approx(expected, abs=1e-3)


def test_all_charges_at_once(ions):
    """Charges set in one call reach Contexts and XML as those that are set one by one do."""
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    charges = np.array([0.5, -2.0, 1.5, 0.25])
    force.setCharges(charges * openmm.unit.elementary_charge)
    assert [force.getParticleParameters(index)._value for index in range(4)] == charges.tolist()
    (loaded,) = fmm.find_fmm(openmm.XmlSerializer.clone(ions.system))
    assert [loaded.getParticleParameters(index)._value for index in range(4)] == charges.tolist()
    context = ions.context()
    assert energy_of(context, groups={1}) == pytest.approx(ewald(ions, charges).energy, abs=1e-3)
    force.setCharges(-2 * charges)
    force.updateParametersInContext(context)
    assert energy_of(context, groups={1}) == pytest.approx(
        4 * ewald(ions, charges).energy, abs=4e-3
    )


def test_update_of_offsets(ions):
    ions.nonbonded.addGlobalParameter("a", 1.0)
    ions.nonbonded.addParticleParameterOffset("a", 1, 0.5, 0.0, 0.0)
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    context = ions.context()
    energy_of(context)
    force.setParticleParameterOffset(0, "a", 2, -0.25)
    force.updateParametersInContext(context)
    assert energy_of(context, groups={1}) == pytest.approx(
        ewald(ions, [1.0, -1.0, 0.75, -1.0]).energy, abs=1e-3
    )


def test_two_forces_updated_in_one_context(ions):
    """Both forces share the parameter that carries the revision."""
    first = fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT)
    second = fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT)
    ions.system.removeForce(0)
    for group, force in enumerate((first, second)):
        force.setForceGroup(group)
        ions.system.addForce(force)
    context = ions.context()
    first.setParticleParameters(0, 2.0)
    first.updateParametersInContext(context)
    expected = energy_of(context, groups={0})
    first.setParticleParameters(0, 7.0)
    second.setParticleParameters(0, 3.0)
    second.updateParametersInContext(context)
    assert energy_of(context, groups={0}) == expected
    assert energy_of(context, groups={1}) == pytest.approx(
        ewald(ions, [3.0, -1.0, 1.0, -1.0]).energy, abs=1e-3
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda force: force.addParticle(0.5),
        lambda force: force.addExclusion(2, 3),
        lambda force: force.setExclusionsUsePeriodicBoundaryConditions(True),
    ],
)
def test_structure_is_fixed_once_used(ions, change):
    force = fmm.use_fmm(ions.system, **TIGHT)
    context = ions.context()
    energy = energy_of(context)
    with pytest.warns(UserWarning, match="an FMMForce was given other particles") as warned:
        change(force)
    assert warned[0].filename == __file__  # the line of the user, not one of the package
    with pytest.raises(ValueError, match=r"updateParametersInContext: .* must not change"):
        force.updateParametersInContext(context)
    assert energy_of(context) == energy
    if force.getNumParticles() != 4:
        with pytest.raises(
            fmm.UnsupportedError,
            match="FMMForce 'FMMForce' must have one particle for each of the System's 4, got 5",
        ):
            context.reinitialize(preserveState=True)
    else:
        context.reinitialize(preserveState=True)
    assert energy_of(context) == energy


@pytest.mark.filterwarnings("ignore:an FMMForce was given other particles")
def test_charges_change_after_a_late_exclusion(ions):
    """Contexts that keep the old structure get the new charges, new Contexts included."""
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    context = ions.context()
    energy_of(context)
    force.addExclusion(0, 1)
    force.setParticleParameters(0, 2.0)
    expected = pytest.approx(ewald(ions, [2.0, -1.0, 1.0, -1.0]).energy, abs=1e-3)
    assert energy_of(ions.context(), groups={1}) == energy_of(context, groups={1}) == expected


@pytest.mark.filterwarnings("ignore:an FMMForce was given other particles")
def test_late_particles_need_a_copy(ions):
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT)
    ions.system.removeForce(0)
    ions.system.addForce(force)
    energy_of(ions.context())
    ions.system.addParticle(1.0)
    ions.positions = np.vstack([ions.positions, [0.1, 0.2, 0.3]])
    with pytest.raises(
        fmm.UnsupportedError,
        match=r"one particle for each of the System's 5, got 4\. Call its addParticle\(\)",
    ):
        ions.context()
    force.addParticle(0.5)
    with pytest.raises(
        openmm.OpenMMException,
        match=r"particles .* were changed after .* create a Context of copy.deepcopy\(system\)",
    ):
        energy_of(ions.context())
    expected = ewald(ions, [1.0, -1.0, 1.0, -1.0, 0.5]).energy
    assert energy_of(Box(copy.deepcopy(ions.system), ions.positions).context()) == pytest.approx(
        expected, abs=1e-3
    )


def test_a_late_change_of_structure_warns_and_reaches_copies(ions):
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    energy_of(ions.context())
    with pytest.warns(UserWarning, match=r"make a Context of copy.deepcopy\(system\)"):
        force.addExclusion(0, 1)
    twin = Box(copy.deepcopy(ions.system), ions.positions)
    expected = ewald(ions, [1.0, -1.0, 1.0, -1.0], [(0, 1)]).energy
    assert energy_of(twin.context(), groups={1}) == pytest.approx(expected, abs=1e-3)


def test_count_changed_before_the_first_evaluation(ions):
    force = fmm.use_fmm(ions.system)
    context = ions.context()
    force.addParticle(1.0)
    with pytest.raises(
        ValueError, match=r"one particle for each of the System's 4, got 5; the Context keeps"
    ):
        force.updateParametersInContext(context)


def methods_of_a_context(force):
    return (
        force.updateParametersInContext,
        force.getFMMParametersInContext,
        force.getPotentialsInContext,
        force.getEnergyParameterDerivativesInContext,
    )


def test_context_of_another_system(ions):
    force = fmm.use_fmm(ions.system)
    twin = Box(copy.deepcopy(ions.system), ions.positions)
    context = twin.context()
    for method in methods_of_a_context(force):
        with pytest.raises(
            ValueError,
            match=f"{method.__name__}: this FMMForce is not part of the Context's System",
        ):
            method(context)
    assert fmm.find_fmm(twin.system)[0].getPotentialsInContext(context).shape == (4,)


def test_a_context_made_before_the_force(ions):
    context = ions.context()
    force = fmm.use_fmm(ions.system)
    for method in methods_of_a_context(force):
        with pytest.raises(
            ValueError,
            match=rf"{method.__name__}: .* call context.reinitialize\(preserveState=True\)",
        ):
            method(context)
    context.reinitialize(preserveState=True)
    assert force.getPotentialsInContext(context).shape == (4,)


def test_what_is_no_context(ions):
    force = fmm.use_fmm(ions.system)
    with pytest.raises(TypeError, match=r"`context` must be an openmm.Context, got System"):
        force.getPotentialsInContext(ions.system)


def test_a_reinitialised_context_is_updated_again(ions):
    """The State of the Context brings back the charges of the last update."""
    force = fmm.use_fmm(ions.system, **TIGHT)
    context = ions.context()
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(context)
    updated = energy_of(context)
    force.setParticleParameters(0, 3.0)
    context.reinitialize(preserveState=True)
    assert energy_of(context) == updated
    force.updateParametersInContext(context)
    assert energy_of(context) == pytest.approx(energy_of(ions.context()), rel=1e-9)


def test_snapshots_are_bounded_and_live_ones_kept(ions):
    force = fmm.use_fmm(ions.system, **TIGHT)
    first, second = ions.context(), ions.context()
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(first)
    kept = energy_of(first)
    for step in range(3 * KEPT):
        force.setParticleParameters(0, 1.0 + 0.01 * step)
        force.updateParametersInContext(second)
    assert len(force._bridge.snapshots) <= KEPT + 2
    assert energy_of(first) == kept
    assert energy_of(second) == pytest.approx(energy_of(ions.context()), rel=1e-9)
    del first
    gc.collect()
    force.updateParametersInContext(second)
    assert len(force._bridge.snapshots) <= KEPT + 1


def restored(box, context):
    """Another Context with the State of this one; it has not been updated itself."""
    made = box.context()
    made.setState(context.getState(positions=True, parameters=True))
    return made


def test_a_restored_state_has_its_charges_as_long_as_it_is_used(ions):
    force = fmm.use_fmm(ions.system, order=4, grid=(4, 4, 4))
    first, second = ions.context(), ions.context()
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(first)
    kept, third = energy_of(first), restored(ions, first)
    force.setParticleParameters(0, 3.0)
    force.updateParametersInContext(first)
    for step in range(3 * KEPT):
        assert energy_of(third) == kept
        force.setParticleParameters(0, 1.0 + 0.01 * step)
        force.updateParametersInContext(second)
    assert len(force._bridge.snapshots) <= KEPT + 2


def test_charges_that_are_no_longer_kept_are_an_error(ions):
    """Until every force of the Context is updated."""
    forces = [
        fmm.FMMForce.from_nonbonded(ions.nonbonded, order=4, grid=(4, 4, 4)) for _ in range(2)
    ]
    ions.system.removeForce(0)
    for group, force in enumerate(forces):
        force.setForceGroup(group)
        ions.system.addForce(force)
    first, second = ions.context(), ions.context()
    forces[0].updateParametersInContext(first)
    third = restored(ions, first)
    for step in range(3 * KEPT):
        forces[0].setParticleParameters(0, 2.0 + 0.01 * step)
        forces[0].updateParametersInContext(first)
    expected = [energy_of(first, groups={group}) for group in (0, 1)]
    for group, force in enumerate(forces):
        for other in range(group, 2):
            with pytest.raises(
                openmm.OpenMMException, match=r"no longer kept: call updateParametersInContext\(\)"
            ):
                energy_of(third, groups={other})
        force.updateParametersInContext(third)
        assert energy_of(third, groups={group}) == expected[group]
    assert [energy_of(third, groups={group}) for group in (0, 1)] == expected
    assert energy_of(second, groups={0}) == expected[0]


def test_equal_charges_have_equal_revisions(ions):
    """Revisions agree between processes, so that a checkpoint names the charges it was written
    with."""
    revisions = []
    for system in (ions.system, copy.deepcopy(ions.system)):
        force = fmm.use_fmm(system)
        context = Box(system, ions.positions).context()
        assert context.getParameter(REVISION) == 0
        force.setParticleParameters(0, 2.0)
        force.updateParametersInContext(context)
        revisions.append(context.getParameter(REVISION))
    assert revisions[0] == revisions[1] > 0


@pytest.mark.parametrize("method", ["getFMMParametersInContext", "getPotentialsInContext"])
def test_questions_to_a_context_without_positions(water, platform, method):
    force = fmm.use_fmm(water.system)
    context = openmm.Context(
        water.system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatform(platform)
    )
    with pytest.raises(openmm.OpenMMException, match=r"[Pp]ositions have not been set"):
        getattr(force, method)(context)


def test_settings_in_use(water, platform):
    force = fmm.use_fmm(water.system, tolerance=1e-4, order=9, grid=(4, 5, 4), smoothing=0.2)
    settings = force.getFMMParametersInContext(water.context(platform))
    assert settings["order"] == 9 and settings["smoothing"] == 0.2 and settings["levels"] == 0
    assert np.array_equal(settings["grid"], np.diag([4, 5, 4]))
    if settings["bridge"] == "native":  # in a Context of double precision, see Box.context
        assert (settings["precision"], settings["backend"], platform) == ("double", "cuda", "CUDA")
    else:
        assert settings["precision"] == "single" and settings["backend"] in (
            "cpu",
            "cuda",
            "reference",
        )
    assert settings["near_radius"] > 1
    fmm.restore_pme(water.system)
    force = fmm.use_fmm(water.system, tolerance=1e-8)
    assert force.getFMMParametersInContext(water.context(platform))["precision"] == "double"
    assert isinstance(force, openmm.PythonForce)
