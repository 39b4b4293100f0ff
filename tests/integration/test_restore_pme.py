"""restore_pme: the exact way back."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration.conversion.system import convert_again
from tests.integration.boxes import Box, energy_of, from_xml, with_offsets, xml


@pytest.mark.parametrize("method", ["PME", "Ewald", "LJPME"])
@pytest.mark.parametrize(
    "way", [lambda system: system, copy.deepcopy, lambda system: from_xml(xml(system))]
)
def test_restored_exactly(chains, method, way):
    with_offsets(chains)
    chains.nonbonded.setNonbondedMethod(getattr(openmm.NonbondedForce, method))
    for index in range(chains.nonbonded.getNumParticles()):  # charges with all their bits in use
        charge, sigma, epsilon = chains.nonbonded.getParticleParameters(index)
        chains.nonbonded.setParticleParameters(index, charge / 3, sigma, epsilon)
    chains.system.addForce(openmm.CMMotionRemover())
    before = xml(chains.system)
    fmm.use_fmm(chains.system)
    chains.system.addForce(openmm.HarmonicBondForce())
    assert xml(chains.system) != before
    system = way(chains.system)
    system.removeForce(system.getNumForces() - 1)
    fmm.restore_pme(system)
    assert xml(system) == before
    fmm.use_fmm(system, tolerance=1e-3)
    fmm.restore_pme(system)
    assert xml(system) == before


@pytest.mark.parametrize("offset", [False, True])
def test_restore_after_charges_were_changed(chains, offset):
    """They are lost, which is no error: a user may want the original back."""
    before = xml(with_offsets(chains).system)
    force = fmm.use_fmm(chains.system)
    if offset:
        force.setParticleParameterOffset(0, "alchemical", 2, 0.5)
    else:
        force.setParticleParameters(0, 9.0)
    with pytest.warns(UserWarning, match=r"^the charges of the FMMForce had changed since use_fmm"):
        fmm.restore_pme(chains.system)
    assert xml(chains.system) == before


def test_lennard_jones_offsets_that_were_added_stay(chains):
    twin = copy.deepcopy(with_offsets(chains))
    fmm.use_fmm(chains.system)
    for box in chains, twin:
        box.nonbonded.addParticleParameterOffset("size", 5, 0.0, 0.01, 0.1)
    fmm.check_system(chains.system)
    fmm.restore_pme(chains.system)
    assert xml(chains.system) == xml(twin.system)


def test_other_options_keep_what_was_set_on_the_force(chains):
    force = fmm.use_fmm(with_offsets(chains).system, tolerance=1e-3)
    force.setParticleParameters(0, 0.75)
    force.setParticleParameterOffset(0, "alchemical", 2, 0.5)
    force.addParticleParameterOffset("alchemical", 4, -0.25)
    force.addExclusion(0, 100)
    expected = chains.energy_and_forces()[0]
    system = from_xml(xml(chains.system))
    again = convert_again(system, tolerance=1e-6)
    assert "tolerance 1e-06" in repr(fmm.find_fmm(system)[0])
    for box in Box(system, chains.positions), Box(from_xml(xml(system)), chains.positions):
        assert box.energy_and_forces()[0] == pytest.approx(expected, rel=1e-3)
    assert again.getExclusionParticles(again.getNumExclusions() - 1) == [0, 100]
    assert again.getParticleParameterOffset(2) == ["alchemical", 4, -0.25]
    assert again.getParticleParameters(0)._value == 0.75


def test_other_options_of_a_force_made_by_hand(chains):
    force = fmm.FMMForce.from_nonbonded(with_offsets(chains).nonbonded, tolerance=1e-3)
    force.setForceGroup(5)
    chains.system.addForce(force)
    force.setParticleParameters(0, 0.75)
    expected = chains.energy_and_forces(groups={5})[0]
    made = convert_again(chains.system, tolerance=1e-6)
    assert [repr(one) for one in fmm.find_fmm(chains.system)] == [repr(made)]
    for system in chains.system, from_xml(xml(chains.system)):
        energy = Box(system, chains.positions).energy_and_forces(groups={5})[0]
        assert energy == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_removed_force_can_be_used_again(chains):
    """The C++ object of a removed force is gone; a handle that still pointed there would corrupt
    memory."""
    force = fmm.use_fmm(chains.system, tolerance=1e-6)
    energy = chains.energy_and_forces()[0]
    views = [force, *fmm.find_fmm(chains.system)]
    fmm.restore_pme(chains.system)
    for view in views:
        assert view.getNumParticles() == 176 and view.getName() == "FMMForce"
        view.setParticleParameters(0, 0.1)
    force.setParticleParameters(0, 0.39)
    chains.system.removeForce(0)
    chains.system.addForce(force)
    context = chains.context()
    assert np.isfinite(energy_of(context)) and energy_of(context) != energy
    force.updateParametersInContext(context)


def test_nothing_to_restore(chains):
    before = xml(chains.system)
    with pytest.raises(ValueError, match=r"holds no FMMForce made by use_fmm"):
        fmm.restore_pme(chains.system)
    assert xml(chains.system) == before
    chains.system.addForce(fmm.FMMForce.from_nonbonded(chains.nonbonded))
    with pytest.raises(ValueError, match=r"holds no FMMForce made by use_fmm"):
        fmm.restore_pme(chains.system)


def test_restore_needs_the_converted_force(chains):
    fmm.use_fmm(chains.system)
    chains.nonbonded.addParticle(1.0, 0.3, 0.0)
    before = xml(chains.system)
    with pytest.raises(
        ValueError,
        match=r"must hold the NonbondedForce .* with 176 particles and 0 parameter offsets",
    ):
        fmm.restore_pme(chains.system)
    assert xml(chains.system) == before


@pytest.mark.parametrize("offset", [False, True])
def test_charges_that_came_back_are_refused(chains, offset):
    """OpenMM would cut them off, among zeros."""
    if offset:
        with_offsets(chains)
    fmm.use_fmm(chains.system)
    if offset:
        name, particle, _, *rest = chains.nonbonded.getParticleParameterOffset(0)
        chains.nonbonded.setParticleParameterOffset(0, name, particle, 0.5, *rest)
    else:
        chains.nonbonded.setParticleParameters(3, 0.5, 0.3, 0.0)
    before = xml(chains.system)
    with pytest.raises(ValueError, match=r"^the NonbondedForce has charges again"):
        fmm.restore_pme(chains.system)
    with pytest.raises(
        fmm.UnsupportedError, match=r"^NonbondedForce 'NonbondedForce' has charges again"
    ):
        fmm.validate(chains.system, chains.positions)
    assert xml(chains.system) == before
