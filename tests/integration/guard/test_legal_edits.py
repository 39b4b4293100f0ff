"""check_system: edits after use_fmm that leave energies right are accepted."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import energy_of
from tests.integration.guard.edited_systems import (
    WAYS,
    both,
    images_of_both,
    images_of_exclusions,
    method,
    new_context,
    nonbonded_of,
)


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
    images_of_exclusions,
    images_of_both,
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


def test_zero_charges_sent_to_a_context_made_before_the_conversion(chains):
    """It has no FMMForce, and would lose its Coulomb interaction."""
    lennard_jones_only = openmm.NonbondedForce()
    for _ in range(chains.system.getNumParticles()):
        lennard_jones_only.addParticle(0.0, 0.3, 0.0)
    chains.system.addForce(lennard_jones_only)
    context = chains.context()
    before = energy_of(context)
    fmm.use_fmm(chains.system)
    with pytest.raises(fmm.UnsupportedError, match=r"Context was made before: call .*reinitialize"):
        chains.nonbonded.updateParametersInContext(context)
    lennard_jones_only.updateParametersInContext(context)
    assert energy_of(context) == before
    context.reinitialize(preserveState=True)
    chains.nonbonded.updateParametersInContext(context)
    assert energy_of(context) == pytest.approx(chains.energy_and_forces()[0], rel=1e-9)


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
