"""check_system: what is edited after use_fmm is refused where it makes energies wrong,
and only there."""

import copy
import functools
import inspect
import time
from collections import deque

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from fmm_openmm.integration.guard import contexts, edits
from fmm_openmm.integration.guard.edits import first_in_one_only
from tests.integration.boxes import Box, energy_of

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


def no_nonbonded_among_others(system):
    system.addForce(openmm.HarmonicBondForce())
    no_nonbonded(system)


def second_nonbonded(system):
    system.addForce(copy.deepcopy(nonbonded_of(system)))


def second_fmm(system):
    system.addForce(copy.deepcopy(fmm.find_fmm(system)[0]))


def method(system, name="PME"):
    nonbonded_of(system).setNonbondedMethod(getattr(openmm.NonbondedForce, name))


def charges_of(system):
    """Charges as a tool reads them that knows nothing of the conversion."""
    force = nonbonded_of(system)
    return [force.getParticleParameters(i)[0]._value for i in range(force.getNumParticles())]


def pairs_of(name, function="138.935458*{0}1*{0}2/r", change=lambda charges: None, groups=()):
    """An edit: a CustomNonbondedForce whose parameter ``name`` is the charge."""

    def edit(system):
        made = openmm.CustomNonbondedForce(function.format(name))
        made.addPerParticleParameter("epsilon")
        made.addPerParticleParameter(name)
        charges = charges_of(system)
        change(charges)
        for charge in charges:
            made.addParticle([0.25, charge])
        for group in groups:
            made.addInteractionGroup(*group)
        system.addForce(made)

    return edit


def bonds_of(names, function, edits=()):
    """An edit: a CustomBondForce of charges, or charge products, of some pairs."""

    def edit(system):
        made = openmm.CustomBondForce(function)
        for name in names:
            made.addPerBondParameter(name)
        charges = charges_of(system)
        for k in range(0, 60, 3):
            one, two = charges[k], charges[k + 7]
            made.addBond(k, k + 7, [one * two] if len(names) == 1 else [one, two])
        for index, values in edits:
            made.setBondParameters(index, *made.getBondParameters(index)[:2], values)
        system.addForce(made)

    return edit


def electric_field(system):
    made = openmm.CustomExternalForce("-strength*z_e*z")
    made.addGlobalParameter("strength", 0.0)
    made.addPerParticleParameter("z_e")
    for index, charge in enumerate(charges_of(system)):
        made.addParticle(index, [charge])
    system.addForce(made)


def generalized_born(system):
    """A CustomGBForce made by hand, with other names than those of openmm.app."""
    made = openmm.CustomGBForce()
    made.addPerParticleParameter("radius")
    made.addPerParticleParameter("z_e")
    made.addComputedValue("I", "0.01*exp(-r/radius2)", openmm.CustomGBForce.ParticlePair)
    made.addComputedValue("B", "1/(1/radius-I)", openmm.CustomGBForce.SingleParticle)
    made.addEnergyTerm("-69.4*z_e^2/B", openmm.CustomGBForce.SingleParticle)
    made.addEnergyTerm(
        "-138.9*z_e1*z_e2/sqrt(r^2+B1*B2*exp(-r^2/(4*B1*B2)))", openmm.CustomGBForce.ParticlePair
    )
    for charge in charges_of(system):
        made.addParticle([0.15, charge])
    system.addForce(made)


def one_value(charges):
    charges[5] = 0.5


def a_few_values(charges):
    charges[:3] = 0.7, 0.7, -0.7


SOFT = "lambda*138.935458*{0}1*{0}2/(r^6+0.01*(1-lambda))^(1/6)+0*epsilon1; lambda=0.25"
SHIFTED = (
    "4*epsilon*((0.3/r)^12-(0.3/r)^6)+138.9*q*(1/r+1.2*r^2-1.5); q={0}1*{0}2; epsilon=epsilon1"
)
LIGAND = [(range(3), range(3, 176))]

PAIRS = "^CustomNonbondedForce 'CustomNonbondedForce' has the charge of {} at 0, as in .*: it was"
EVERY = PAIRS.format("every particle")
BONDS = (
    "^CustomBondForce 'CustomBondForce' has the charge of {} of 20 bonds between charges at 0, as"
)
COULOMB_BOND = "138.935458*chg/r"


def soft_charges(system):
    """Softened charges read from the NonbondedForce, as by openmmtools'
    AbsoluteAlchemicalFactory."""
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
        no_nonbonded_among_others,
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
        r"as in .*: it was",
    ),
    (implicit_solvent, r"^GBSAOBCForce 'GBSAOBCForce' has the charge of every particle at 0"),
    (generalized_born, r"^CustomGBForce 'CustomGBForce' has the charge of every particle at 0"),
    (
        electric_field,
        r"^CustomExternalForce 'CustomExternalForce' has the charge of every particle",
    ),
    (second_fmm, r"^the System holds 2 FMMForces made by fmm\.use_fmm\(system\) of one NonbondedF"),
    (method, r"^NonbondedForce 'NonbondedForce' uses PME, but .* had set CutoffPeriodic\. "),
    (
        functools.partial(method, name="NoCutoff"),
        r"^NonbondedForce 'NonbondedForce' uses NoCutoff, but .* had set CutoffPeriodic\. ",
    ),
    *((pairs_of(name), EVERY) for name in ("qq", "q_i", "chg", "partial_charge")),
    (pairs_of("qq", SOFT), EVERY),
    (pairs_of("qq", SHIFTED), EVERY),
    (pairs_of("qq", "138.9*{0}1*{0}2*erfc(3.2*r)/r+0*epsilon1"), EVERY),
    (pairs_of("qq", "1.77*{0}1*{0}2*exp(-r/0.8)/r+0*epsilon1"), EVERY),
    (pairs_of("qq", "138.9*{0}1*{0}2*(1/r-1/1.2)*step(1.2-r)+0*epsilon1"), EVERY),
    (pairs_of("qq", "on*138.9*{0}1*{0}2/r+0*epsilon1; on=step(epsilon1-0.5)"), EVERY),
    (pairs_of("qq", groups=LIGAND), EVERY),
    (pairs_of("qq", change=one_value), PAIRS.format("175 of 176 charged particles")),
    (pairs_of("qq", change=a_few_values), PAIRS.format("173 of 176 charged particles")),
    (bonds_of(["chg"], COULOMB_BOND), BONDS.format(20)),
    (bonds_of(["chg"], COULOMB_BOND, [(4, [0.1])]), BONDS.format(19)),
    (bonds_of(["a", "b"], "-138.935458*a*b*erf(3*r)/r"), BONDS.format(20)),
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
        assert edit is second_fmm or caught.match(REMEDY)


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


def lennard_jones_in_a_second_force(system):
    force = copy.deepcopy(nonbonded_of(system))
    for index in range(force.getNumExceptions()):
        force.setExceptionParameters(index, *force.getExceptionParameters(index)[:2], 0, 0.2, 0.1)
    force.setName("the other")
    system.addForce(force)


def own_charges(system):
    """Charges that the user has read from the FMMForce, scaled, of a part of the particles."""
    force = fmm.find_fmm(system)[0]
    made = openmm.CustomNonbondedForce("138.935458*q1*q2/r")
    made.addPerParticleParameter("q")
    for index in range(force.getNumParticles()):
        charge = force.getParticleParameters(index)
        made.addParticle([0.7 * charge if index < 12 else 0.0])
    system.addForce(made)


def switched_charges(system):
    """Charges as they are, and a switch that is on for two particles."""
    force = fmm.find_fmm(system)[0]
    made = openmm.CustomNonbondedForce("138.935458*on1*on2*charge1*charge2/r")
    made.addPerParticleParameter("charge")
    made.addPerParticleParameter("on")
    for index in range(force.getNumParticles()):
        made.addParticle([force.getParticleParameters(index), float(index in (3, 80))])
    system.addForce(made)


def own_parameter(function):
    """An edit: a parameter ``q`` that is 0 for all and is no charge."""

    def edit(system):
        made = openmm.CustomNonbondedForce(function)
        made.addPerParticleParameter("q")
        for _ in range(system.getNumParticles()):
            made.addParticle([0.0])
        system.addForce(made)

    return edit


def restraints(function="0.5*q*(r-r0)^2"):
    """An edit: bonds that are switched off until their strengths, all 0, are set."""

    def edit(system):
        made = openmm.CustomBondForce(function)
        made.addPerBondParameter("q")
        made.addPerBondParameter("r0")
        for k in range(20):
            made.addBond(k, k + 30, [0.0, 1.0])
        system.addForce(made)

    return edit


def pulled(names, function, particles):
    """An edit: constant forces on some particles, 0 until they are set."""

    def edit(system):
        made = openmm.CustomExternalForce(function)
        for name in names:
            made.addPerParticleParameter(name)
        for index in particles:
            made.addParticle(index, [0.0] * len(names))
        system.addForce(made)

    return edit


def position_restraints(system):
    made = openmm.CustomExternalForce("q*periodicdistance(x, y, z, x0, y0, z0)^2")
    for name in ("q", "x0", "y0", "z0"):
        made.addPerParticleParameter(name)
    for index in range(system.getNumParticles()):
        made.addParticle(index, [0.0, 1.0, 1.0, 1.0])
    system.addForce(made)


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
    lennard_jones_in_a_second_force,
    own_charges,
    switched_charges,
    own_parameter("step(q1-0.5)*step(q2-0.5)*(0.3/r)^12"),  # a region
    own_parameter("(q1+q2)/r"),
    own_parameter("q1*q2*(0.3/r)^6"),  # a dispersion coefficient
    own_parameter("0*q1*q2"),
    restraints(),
    restraints("q*step(r-r0)*(r-r0)^2"),
    position_restraints,
    pulled(["q"], "-q*z", range(10)),
    pulled(["qx", "qy", "qz"], "-qx*x-qy*y-qz*z", range(176)),
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


def test_charges_sent_by_the_nonbonded_force(chains):
    """OpenMM would take them for parameters of an interaction that is cut off."""
    twin = copy.deepcopy(chains)
    force, nonbonded = fmm.use_fmm(chains.system), chains.nonbonded
    context = chains.context()
    before = energy_of(context)
    nonbonded.setParticleParameters(3, 0.5, 0.2, 0.3)
    for send in (
        lambda: nonbonded.updateParametersInContext(context),
        lambda: chains.nonbonded.updateParametersInContext(context=context),
    ):
        with pytest.raises(fmm.UnsupportedError, match=r"^NonbondedForce .* has charges again.* 3"):
            send()
        assert energy_of(context) == before
    nonbonded.setParticleParameters(3, 0.0, 0.2, 0.3)
    nonbonded.updateParametersInContext(context)
    # a NonbondedForce of the user with an FMMForce made by hand, and a force that is missing
    force = fmm.FMMForce.from_nonbonded(twin.nonbonded)
    twin.system.addForce(force)
    context = twin.context()
    twin.nonbonded.setParticleParameters(3, 0.75, 0.2, 0.3)
    twin.nonbonded.updateParametersInContext(context)
    with pytest.raises(openmm.OpenMMException, match="not present in the Context"):
        copy.deepcopy(twin.nonbonded).updateParametersInContext(chains.context())
    with pytest.raises(TypeError):
        twin.nonbonded.updateParametersInContext()


@pytest.mark.slow
def test_lennard_jones_may_be_cut_off_in_free_space(chains):
    """Coulomb stays a sum over all pairs."""
    chains.nonbonded.setNonbondedMethod(openmm.NonbondedForce.NoCutoff)
    chains.nonbonded.setForceGroup(3)
    force = fmm.use_fmm(chains.system)
    force.setForceGroup(4)
    energies = []
    for name in ("NoCutoff", "CutoffNonPeriodic", "NoCutoff"):
        method(chains.system, name)
        fmm.check_system(chains.system)
        energies.append([chains.energy_and_forces(groups={group})[0] for group in (3, 4)])
    assert energies[0] == energies[2]
    assert energies[0][0] != energies[1][0]
    assert energies[0][1] == energies[1][1]


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
