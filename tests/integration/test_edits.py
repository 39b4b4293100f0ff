"""check_system: what is edited after use_fmm is refused where it makes energies wrong,
and only there."""

import copy
import inspect

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from fmm_openmm.integration import contexts
from fmm_openmm.integration.edits import first_in_one_only
from tests.integration.boxes import energy_of

REMEDY = (
    r"Call fmm\.restore_pme\(system\) before the edit and fmm\.use_fmm\(system\) after it: "
    r"convert last\."
)


def from_xml(system):
    return openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))


WAYS = {"as it is": lambda system: system, "copy": copy.deepcopy, "XML": from_xml}


def nonbonded_of(system):
    return next(force for force in system.getForces() if isinstance(force, openmm.NonbondedForce))


def new_context(system):
    return openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )


def charge(system):
    nonbonded_of(system).setParticleParameters(3, 0.5, 0.3, 0.0)


def charge_offset(system):
    force = nonbonded_of(system)
    force.addGlobalParameter("alchemical", 0.0)
    force.addParticleParameterOffset("alchemical", 7, 0.5, 0.0, 0.0)


def exception(system):
    """openmm-ml's createMixedSystem adds one for every pair of the region that it takes over."""
    nonbonded_of(system).addException(170, 4, 0.0, 0.1, 0.0)


def exception_of_another_pair(system):
    force = nonbonded_of(system)
    force.setExceptionParameters(0, 0, 100, *force.getExceptionParameters(0)[2:])


def particle_of_nonbonded(system):
    nonbonded_of(system).addParticle(0.0, 0.3, 0.0)


def particle_of_system(system):
    system.addParticle(1.0)


def particle_everywhere(system):
    particle_of_system(system)
    particle_of_nonbonded(system)


def no_nonbonded(system):
    index = next(
        i for i, force in enumerate(system.getForces()) if isinstance(force, openmm.NonbondedForce)
    )
    system.removeForce(index)


def second_nonbonded(system):
    system.addForce(copy.deepcopy(nonbonded_of(system)))


def soft_charges(system):
    """What openmmtools' AbsoluteAlchemicalFactory does: softened charges,
    read from the NonbondedForce."""
    soft = openmm.CustomNonbondedForce("lambda*charge1*charge2/(r+1)")
    soft.addGlobalParameter("lambda", 1.0)
    soft.addPerParticleParameter("sigma")
    soft.addPerParticleParameter("charge")
    force = nonbonded_of(system)
    for index in range(force.getNumParticles()):
        soft.addParticle([0.3, force.getParticleParameters(index)[0]])
    system.addForce(soft)


def implicit_solvent(system):
    solvent, force = openmm.GBSAOBCForce(), nonbonded_of(system)
    for index in range(force.getNumParticles()):
        solvent.addParticle(force.getParticleParameters(index)[0], 0.15, 1.0)
    system.addForce(solvent)


EDITS = [
    (charge, r"^NonbondedForce 'NonbondedForce' has charges again, .* 0\.5 e for particle 3\. "),
    (
        charge_offset,
        r"^NonbondedForce 'NonbondedForce' has .*: parameter offset 0, "
        r"0\.5 e times 'alchemical' for particle 7\. ",
    ),
    (
        exception,
        r"^NonbondedForce 'NonbondedForce' has an exception for particles 4 and 170, "
        r"which the FMMForce does not exclude\. ",
    ),
    (
        exception_of_another_pair,
        r"has an exception for particles 0 and 100, which the FMMForce does not exclude\. ",
    ),
    (
        particle_of_nonbonded,
        r"^NonbondedForce 'NonbondedForce' must have one particle for each of the "
        r"System's 176, got 177\. ",
    ),
    (
        particle_of_system,
        r"^FMMForce 'FMMForce' must have one particle for each of the System's 177, got 176\. ",
    ),
    (
        particle_everywhere,
        r"^FMMForce 'FMMForce' must have one particle for each of the System's 177, got 176\. ",
    ),
    (
        no_nonbonded,
        r"^the System holds 0 NonbondedForces, and FMMForce 'FMMForce' was made of one\. ",
    ),
    (
        second_nonbonded,
        r"^the System holds 2 NonbondedForces \('NonbondedForce', 'NonbondedForce'\), "
        r"and FMMForce 'FMMForce'",
    ),
    (
        soft_charges,
        r"^CustomNonbondedForce 'CustomNonbondedForce' has the charge of every particle at 0, "
        r"as they read in .*: it was",
    ),
    (implicit_solvent, r"^GBSAOBCForce 'GBSAOBCForce' has the charge of every particle at 0"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("edit", "text"), EDITS, ids=lambda one: getattr(one, "__name__", ""))
def test_an_edited_system_makes_no_context(chains, edit, text, way):
    fmm.use_fmm(chains.system)
    fmm.check_system(chains.system)
    edit(chains.system)
    system = WAYS[way](chains.system)
    for refuses in (fmm.check_system, new_context):
        with pytest.raises(fmm.UnsupportedError, match=text) as caught:
            refuses(system)
        assert caught.match(REMEDY)


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_of_a_copy_is_found(chains, way):
    fmm.use_fmm(chains.system)
    system = WAYS[way](chains.system)
    exception(system)
    with pytest.raises(fmm.UnsupportedError, match="exception for particles 4 and 170"):
        new_context(system)


def test_an_exception_that_became_another(chains):
    """The FMM excludes both pairs now, and the NonbondedForce one of them."""
    force = fmm.use_fmm(chains.system)
    first, second = force.getExclusionParticles(0)
    exception_of_another_pair(chains.system)
    force.addExclusion(0, 100)
    with pytest.raises(
        fmm.UnsupportedError,
        match=f"has no exception for particles {first} and {second}, which the FMMForce excl",
    ):
        fmm.check_system(chains.system)


def test_pairs_in_either_order_are_the_same():
    pairs = np.array([[3, 1], [2**31 - 1, 0], [5, 6]], np.int32)
    assert first_in_one_only(pairs, pairs) is None
    assert first_in_one_only(pairs, pairs[::-1, ::-1].astype(np.int64)) is None
    assert first_in_one_only(pairs, pairs[[0, 2]]) == (0, 2**31 - 1)
    assert first_in_one_only(pairs[[0, 2]], pairs) is None
    assert first_in_one_only(pairs, np.empty((0, 2), np.int32)) == (1, 3)
    assert first_in_one_only(np.empty((0, 2), np.int32), pairs) is None


def test_the_remedy_works(chains):
    fmm.use_fmm(chains.system)
    fmm.restore_pme(chains.system)
    for edit in (charge, exception, particle_everywhere, soft_charges, charge_offset):
        edit(chains.system)
    fmm.use_fmm(chains.system)
    new_context(chains.system)


def lennard_jones(system):
    nonbonded_of(system).setParticleParameters(0, 0.0, 0.4, 0.5)
    nonbonded_of(system).addGlobalParameter("size", 1.0)
    nonbonded_of(system).addParticleParameterOffset("size", 2, 0.0, 0.1, 0.2)


def exception_parameters(system):
    force = nonbonded_of(system)
    first, second, *_ = force.getExceptionParameters(1)
    force.setExceptionParameters(1, second, first, 0.125, 0.25, 0.5)
    force.addGlobalParameter("scale", 1.0)
    force.addExceptionParameterOffset("scale", 1, 0.25, 0.0, 0.0)


def charges_of_the_fmm(system):
    fmm.find_fmm(system)[0].setParticleParameters(0, 0.75)


def exclusion_of_the_fmm(system):
    fmm.find_fmm(system)[0].addExclusion(0, 100)


def both(system):
    exception(system)
    fmm.find_fmm(system)[0].addExclusion(4, 170)


def other_forces(system):
    system.addForce(openmm.CMMotionRemover())
    nbfix = openmm.CustomNonbondedForce("epsilon1*epsilon2/r^12")
    nbfix.addPerParticleParameter("epsilon")
    for _ in range(system.getNumParticles()):
        nbfix.addParticle([0.0])
    system.addForce(nbfix)


def cell_and_cutoff(system):
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    nonbonded_of(system).setCutoffDistance(1.1)


LEGAL = [
    lennard_jones,
    exception_parameters,
    charges_of_the_fmm,
    exclusion_of_the_fmm,
    both,
    other_forces,
    cell_and_cutoff,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("edit", LEGAL)
def test_legal_edits_pass(chains, edit, way):
    fmm.use_fmm(chains.system)
    edit(chains.system)
    system = WAYS[way](chains.system)
    fmm.check_system(system)
    new_context(system)


def test_parameters_sent_to_a_context(chains):
    force = fmm.use_fmm(chains.system)
    context = chains.context()
    charges_of_the_fmm(chains.system)
    force.updateParametersInContext(context)
    lennard_jones_only = chains.nonbonded
    lennard_jones_only.setParticleParameters(5, 0.0, 0.35, 0.25)
    lennard_jones_only.updateParametersInContext(context)
    before = energy_of(context)
    context.reinitialize(preserveState=True)
    assert energy_of(context) == pytest.approx(before, rel=1e-9)


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
    """Beside a NonbondedForce with charges it is the user's business."""
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


@pytest.fixture
def plain():
    """OpenMM's own methods of a Context, without the check; it is there again afterwards."""
    contexts.remove()
    yield openmm.Context.__init__, openmm.Context.reinitialize
    contexts.install()


def test_the_check_can_be_removed(plain, ions):
    fmm.use_fmm(ions.system)
    ions.nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    new_context(ions.system).reinitialize()
    contexts.remove()
    assert (openmm.Context.__init__, openmm.Context.reinitialize) == plain


def test_the_check_is_installed_once_and_looks_like_openmm(plain):
    contexts.install()
    once = openmm.Context.__init__, openmm.Context.reinitialize
    contexts.install()
    assert (openmm.Context.__init__, openmm.Context.reinitialize) == once
    for wrapped, original in zip(once, plain, strict=True):
        assert wrapped.__doc__ == original.__doc__ and wrapped.__name__ == original.__name__
        assert inspect.signature(wrapped) == inspect.signature(original)
    with pytest.raises(TypeError):
        openmm.Context()


def test_systems_of_others_are_not_read(ions, monkeypatch):
    calls = []
    monkeypatch.setattr(contexts, "check_system", calls.append)
    new_context(ions.system).reinitialize()
    assert calls == []
    ions.system.addForce(openmm.PythonForce(energy_of))
    new_context(ions.system).reinitialize()
    assert len(calls) == 2


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
