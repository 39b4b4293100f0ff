"""restore_pme: the exact way back."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import energy_of, from_xml, with_offsets, xml


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


def test_restore_after_charges_were_changed(chains):
    before = xml(chains.system)
    fmm.use_fmm(chains.system).setParticleParameters(0, 9.0)
    fmm.restore_pme(chains.system)
    assert xml(chains.system) == before


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
