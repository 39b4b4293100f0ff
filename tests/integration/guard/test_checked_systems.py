"""check_system: which Systems are checked, when, and which zeros are found."""

import copy
import inspect
import time
from collections import deque

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from fmm_openmm.integration.guard import contexts, edits
from tests.integration.boxes import Box, energy_of
from tests.integration.guard.edited_systems import (
    COULOMB_BOND,
    EVERY,
    REMEDY,
    WAYS,
    bonds_of,
    charge,
    charges_of,
    new_context,
    pairs_of,
    second_fmm,
)


@pytest.mark.parametrize("others", [False, True])
def test_a_removed_fmm_force(chains, others):
    if others:
        chains.system.addForce(openmm.CMMotionRemover())
    fmm.use_fmm(chains.system)
    context = chains.context()
    chains.system.removeForce(chains.system.getNumForces() - 1)
    text = (
        r"^the FMMForce was removed from the System, and NonbondedForce 'NonbondedForce' has no "
        r"ch.*"
        r"call fmm\.restore_pme\(system\) in place of system\.removeForce\(\)\."
    )
    for refuses in (fmm.check_system, new_context, lambda _: context.reinitialize()):
        with pytest.raises(fmm.UnsupportedError, match=text):
            refuses(chains.system)
    charge(chains.system)
    new_context(chains.system)


def test_a_force_before_the_converted_one_was_removed(chains):
    lennard_jones_only = openmm.NonbondedForce()
    for _ in range(chains.system.getNumParticles()):
        lennard_jones_only.addParticle(0.0, 0.3, 0.0)
    coulomb = copy.deepcopy(chains.nonbonded)
    chains.system.removeForce(0)
    for force in lennard_jones_only, coulomb:
        chains.system.addForce(force)
    fmm.use_fmm(chains.system)
    chains.system.removeForce(chains.system.getNumForces() - 3)
    text = r"^the System holds 1 NonbondedForce \('Nonb.*, but had 2 or more when .*\. Call fmm"
    with pytest.raises(fmm.UnsupportedError, match=text):
        fmm.check_system(chains.system)


@pytest.mark.parametrize("kind", ["CustomCVForce", "ATMForce"])
def test_an_fmm_force_that_was_moved_into_another(chains, kind):
    force = fmm.use_fmm(chains.system)
    energy = chains.energy_and_forces()[0]
    if kind == "CustomCVForce":
        outer = openmm.CustomCVForce("coulomb")
        outer.addCollectiveVariable("coulomb", copy.copy(force))
    else:
        outer = openmm.ATMForce("u0")
        outer.addForce(copy.copy(force))
        for _ in range(chains.system.getNumParticles()):
            outer.addParticle()
    chains.system.removeForce(chains.system.getNumForces() - 1)
    chains.system.addForce(outer)
    fmm.check_system(chains.system)
    assert chains.energy_and_forces()[0] == pytest.approx(energy, rel=1e-9)


def test_charges_removed_from_a_restored_system(chains):
    fmm.use_fmm(chains.system)
    fmm.restore_pme(chains.system)
    for index in range(chains.nonbonded.getNumParticles()):
        chains.nonbonded.setParticleParameters(index, 0.0, 0.2, 0.3)
    new_context(chains.system)


def test_a_system_at_the_address_of_one_that_is_gone(chains):
    """A new System at the address of a converted one is not taken for it."""
    fmm.use_fmm(chains.system)
    address = int(chains.system.this)
    lennard_jones_only = copy.deepcopy(chains.system)
    lennard_jones_only.removeForce(1)
    text = openmm.XmlSerializer.serialize(lennard_jones_only)
    assert address in edits._converted
    del chains.system
    assert address not in edits._converted
    for _ in range(50):
        new_context(openmm.XmlSerializer.deserialize(text))


def test_restoring_one_that_is_there_twice(chains):
    """One would be left, with all charges."""
    before = openmm.XmlSerializer.serialize(chains.system)
    fmm.use_fmm(chains.system)
    second_fmm(chains.system)
    with pytest.raises(ValueError, match="holds 2 FMMForces made by use_fmm"):
        fmm.restore_pme(chains.system)
    chains.system.removeForce(2)
    fmm.restore_pme(chains.system)
    assert openmm.XmlSerializer.serialize(chains.system) == before


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_system_for_every_force(chains, way, fresh):
    """The energies of a decomposition add up, whichever way its Systems are made."""
    chains.system.addForce(openmm.CMMotionRemover())
    fmm.use_fmm(chains.system)
    total, parts = energy_of(chains.context()), []
    for index in range(chains.system.getNumForces()):
        system = copy.deepcopy(chains.system)
        if fresh:
            part = copy.deepcopy(system.getForce(index))
            system = copy.deepcopy(chains.system)
        for other in reversed(range(system.getNumForces())):
            if fresh or other != index:
                system.removeForce(other)
        if fresh:
            system.addForce(part)
        system = WAYS[way](system)
        fmm.check_system(system)
        parts.append(energy_of(Box(system, chains.positions).context()))
    assert sum(parts) == pytest.approx(total, rel=1e-9)
    assert sum(map(abs, parts)) > abs(total)


@pytest.mark.parametrize("first", [False, True])
def test_lennard_jones_in_a_second_force(chains, first):
    """The force with the charges is recognised, and it alone is converted and restored."""
    other = openmm.NonbondedForce()
    other.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    for _ in range(176):
        other.addParticle(0.0, 0.2, 0.1)
    for index in range(chains.nonbonded.getNumExceptions()):
        pair = chains.nonbonded.getExceptionParameters(index)[:2]
        other.addException(*pair, 0.0, 0.2, 0.0)
    if first:
        plain = copy.deepcopy(chains.nonbonded)
        chains.system.removeForce(0)
        chains.system.addForce(other)
        chains.system.addForce(plain)
    else:
        chains.system.addForce(other)
    chains.system.getForce(first).setEwaldErrorTolerance(1e-6)
    before, energy = openmm.XmlSerializer.serialize(chains.system), energy_of(chains.context())
    fmm.use_fmm(chains.system, tolerance=1e-7)
    assert energy_of(chains.context()) == pytest.approx(energy, abs=0.1)
    for way in WAYS.values():
        fmm.check_system(way(chains.system))
    fmm.restore_pme(chains.system)
    assert openmm.XmlSerializer.serialize(chains.system) == before


def test_new_zeros_are_distinguished_from_earlier_ones_by_the_force(chains):
    """One force of zeros was there; another one that replaces it was not."""
    pairs_of("a", change=lambda charges: charges.__setitem__(slice(None), [0.0] * 176))(
        chains.system
    )
    fmm.use_fmm(chains.system)
    fmm.check_system(chains.system)
    chains.system.getForce(1).setParticleParameters(3, [0.5, 0.0])
    for way in WAYS.values():
        fmm.check_system(way(chains.system))
    chains.system.removeForce(1)
    pairs_of("b")(chains.system)
    with pytest.raises(fmm.UnsupportedError, match=EVERY):
        fmm.check_system(chains.system)


def test_a_file_with_a_number_of_forces_of_zeros(chains):
    """Files of earlier versions, which did not identify the forces."""
    pairs_of("q", change=lambda charges: charges.__setitem__(slice(None), [0.0] * 176))(
        chains.system
    )
    force = fmm.use_fmm(chains.system)
    old = {k: v for k, v in force._definition.original.items() if k not in ("zeroed", "place")}
    force._definition.original = old | {"charged_by_zeros": 1}
    fmm.check_system(chains.system)
    pairs_of("b")(chains.system)
    with pytest.raises(fmm.UnsupportedError, match=EVERY):
        fmm.check_system(chains.system)


def test_a_force_with_other_particles_is_left_to_openmm(chains):
    fmm.use_fmm(chains.system)
    pairs_of("qq", change=lambda charges: charges.append(0.0))(chains.system)
    bonds_of(["chg"], COULOMB_BOND)(chains.system)
    chains.system.getForce(3).addBond(0, 200, [0.0])
    fmm.check_system(chains.system)
    with pytest.raises(openmm.OpenMMException, match="exactly as many particles"):
        new_context(chains.system)


def test_charges_that_are_offsets_alone(chains):
    """An alchemical factory that edits the NonbondedForce itself leaves such charges."""
    charges, force = charges_of(chains.system), chains.nonbonded
    force.addGlobalParameter("lambda", 0.0)
    for index, value in enumerate(charges):
        force.setParticleParameters(index, 0.0, 0.2, 0.3)
        force.addParticleParameterOffset("lambda", index, value, 0.0, 0.0)
    fmm.use_fmm(chains.system)
    pairs_of("qq")(chains.system)
    with pytest.raises(fmm.UnsupportedError, match=EVERY):
        fmm.check_system(chains.system)


@pytest.mark.slow
def test_a_check_takes_less_than_half_the_time_of_reading_the_parameters():
    """Two thirds of the particles are water, each has an exception, and a custom force has
    charges. Once through the methods of OpenMM is the yardstick, since machines and their load
    differ: 0.3 s here, where a check takes 0.1 s."""
    system, particles = openmm.System(), 100_000
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    system.setDefaultPeriodicBoxVectors(*(10.0 * np.eye(3)))
    soft = openmm.CustomNonbondedForce("138.9*q1*q2/r")
    soft.addPerParticleParameter("q")
    for index in range(particles):
        system.addParticle(1.0)
        charge = (-0.834, 0.417, 0.417)[index % 3] + (index > 66_000) * 0.001 * (index % 97)
        force.addParticle(charge, 0.3, 0.1)
        soft.addParticle([charge])
    for index in range(0, particles - 2, 3):
        for pair in ((index, index + 1), (index, index + 2), (index + 1, index + 2)):
            force.addException(*pair, 0.0, 1.0, 0.0)
    system.addForce(force)
    system.addForce(soft)
    fmm.use_fmm(system)
    reads, checks = [], []
    for _ in range(3):
        start = time.process_time()
        for each in (force, soft):
            deque(map(each.getParticleParameters, range(particles)), maxlen=0)
        middle = time.process_time()
        fmm.check_system(system)
        reads.append(middle - start)
        checks.append(time.process_time() - middle)
    assert min(checks) < 0.5 * min(reads)


def test_zeros_that_were_there_before(chains):
    """A force whose charges were all zero when the System was converted stays legal."""
    soft = openmm.CustomNonbondedForce("q1*q2/r")
    soft.addPerParticleParameter("q")
    for _ in range(chains.system.getNumParticles()):
        soft.addParticle([0.0])
    chains.system.addForce(soft)
    fmm.use_fmm(chains.system)
    for way in WAYS.values():
        fmm.check_system(way(chains.system))


def test_a_force_made_by_hand(ions):
    """The user decides on an FMMForce next to a NonbondedForce with charges."""
    ions.system.addForce(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    fmm.check_system(ions.system)
    ions.system.addForce(fmm.FMMForce())
    with pytest.raises(
        fmm.UnsupportedError,
        match=r"one particle for each of the System's 4, got 0\. Call its addParticle\(\)",
    ):
        fmm.check_system(ions.system)


def test_systems_without_an_fmm_force(ions):
    fmm.check_system(ions.system)
    fmm.check_system(openmm.System())
    with pytest.raises(TypeError, match=r"`system` must be an openmm.System, got Box"):
        fmm.check_system(ions)


def test_reinitialize_is_checked_and_leaves_the_context(chains):
    fmm.use_fmm(chains.system)
    context = chains.context()
    energy = energy_of(context)
    charge(chains.system)
    for keywords in ({}, {"preserveState": True}):
        with pytest.raises(fmm.UnsupportedError, match="has charges again"):
            context.reinitialize(**keywords)
    assert energy_of(context) == energy


def test_a_simulation_is_checked(ions):
    fmm.use_fmm(ions.system)
    ions.nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    with pytest.raises(fmm.UnsupportedError, match="exception for particles 0 and 1"):
        app.Simulation(app.Topology(), ions.system, openmm.VerletIntegrator(0.001))


def test_the_check_can_be_removed(ions):
    """And nothing else with it: a change of groups after a Context was made is noticed."""
    fmm.use_fmm(ions.system)
    ions.nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    contexts.remove()
    try:
        context = new_context(ions.system)
        context.reinitialize()
    finally:
        contexts.install()
    ions.nonbonded.setForceGroup(3)
    with pytest.raises(ValueError, match="other forces or force groups"):
        fmm.state_energies(context, [{}])
    with pytest.raises(fmm.UnsupportedError, match="exception for particles 0 and 1"):
        new_context(ions.system)


def test_the_check_is_installed_once_and_looks_like_openmm():
    once = openmm.Context.__init__, openmm.Context.reinitialize
    contexts.install()
    assert (openmm.Context.__init__, openmm.Context.reinitialize) == once
    for wrapped in once:
        original = inspect.unwrap(wrapped)
        assert original is not wrapped and not hasattr(original, "__wrapped__")
        assert wrapped.__doc__ == original.__doc__ and wrapped.__name__ == original.__name__
        assert inspect.signature(wrapped) == inspect.signature(original)
    with pytest.raises(TypeError):
        openmm.Context()
    for keywords in ({"platform": "CPU"}, {"system": openmm.System()}):
        with pytest.raises(TypeError, match=r"^Context\.__init__\(\) got an unexpected keyword"):
            openmm.Context(openmm.System(), openmm.VerletIntegrator(0.001), **keywords)


def test_systems_of_others_are_not_read(ions, monkeypatch):
    calls = []
    monkeypatch.setattr(contexts, "check_system", calls.append)
    new_context(ions.system).reinitialize()
    assert calls == []
    ions.nonbonded.updateParametersInContext(ions.context())
    ions.system.addForce(openmm.PythonForce(energy_of))
    new_context(ions.system).reinitialize()
    assert len(calls) == 2


@pytest.mark.slow
@pytest.mark.parametrize("treatment", ["exact", "direct-space", "coulomb"])
def test_an_alchemical_factory_after_the_conversion(water, treatment):
    alchemy = pytest.importorskip("openmmtools.alchemy")
    factory, region = (
        alchemy.AbsoluteAlchemicalFactory(alchemical_pme_treatment=treatment),
        alchemy.AlchemicalRegion(range(3)),
    )
    fmm.use_fmm(water.system)
    with pytest.raises(fmm.UnsupportedError, match=REMEDY):
        new_context(factory.create_alchemical_system(water.system, region))
    fmm.restore_pme(water.system)
    edited = factory.create_alchemical_system(water.system, region)
    if treatment != "coulomb":
        fmm.use_fmm(edited)
        new_context(edited)
