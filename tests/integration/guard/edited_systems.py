"""Edited Systems: an edit takes a System after use_fmm, and messages say what refuses it."""

import copy

import openmm

import fmm_openmm as fmm

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


def images_of_exceptions(system):
    nonbonded_of(system).setExceptionsUsePeriodicBoundaryConditions(True)


def both(system):
    exception(system)
    fmm.find_fmm(system)[0].addExclusion(4, 170)


def images_of_exclusions(system):
    fmm.find_fmm(system)[0].setExclusionsUsePeriodicBoundaryConditions(True)


def images_of_both(system):
    images_of_exclusions(system)
    images_of_exceptions(system)


def direct_space(system):
    nonbonded_of(system).setIncludeDirectSpace(False)


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
