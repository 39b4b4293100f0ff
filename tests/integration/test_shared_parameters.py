"""Global parameters that a converted NonbondedForce shares with other forces."""

import copy
import warnings

import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import Box, energy_of, from_xml, with_offsets, xml


def with_shared_parameter(box: Box, default: float) -> Box:
    """Charges and a bond depend on one global parameter, as in an alchemical System."""
    with_offsets(box)
    bond = openmm.CustomBondForce("alchemical*(r-0.3)^2")
    bond.addGlobalParameter("alchemical", 0.3)
    bond.addBond(0, 40)
    box.system.addForce(bond)
    set_default(box.system, default)
    return box


def set_default(system, value: float) -> None:
    """Set the state of an alchemical System as openmmtools does, in every force that has it."""
    for force in system.getForces():
        if isinstance(force, openmm.NonbondedForce | openmm.CustomBondForce):
            force.setGlobalParameterDefaultValue(0, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [lambda system: system, copy.deepcopy, lambda system: from_xml(xml(system))]
)
def test_a_shared_default_set_after_the_conversion(chains, platform, way):
    expected, late = copy.deepcopy(chains), with_shared_parameter(chains, 0.3)
    before = fmm.use_fmm(with_shared_parameter(expected, 0.8).system, tolerance=1e-6)
    force = fmm.use_fmm(late.system, tolerance=1e-6)
    set_default(late.system, 0.8)
    late = Box(way(late.system), late.positions)
    context, other = late.context(platform), expected.context(platform)
    assert energy_of(context) == pytest.approx(energy_of(other), abs=1e-3)
    assert context.getParameter("alchemical") == 0.8
    context.setParameter("alchemical", 0.1)
    assert abs(energy_of(context) - energy_of(other)) > 1
    other.setParameter("alchemical", 0.1)
    assert energy_of(context) == pytest.approx(energy_of(other), abs=1e-3)
    (force,) = fmm.find_fmm(late.system)
    derivative = force.getEnergyParameterDerivativesInContext(context)["alchemical"]
    assert derivative == pytest.approx(
        before.getEnergyParameterDerivativesInContext(other)["alchemical"], abs=1e-3
    )
    assert (
        fmm.ChargeSystem.from_openmm(late.system).charges.tolist()
        == fmm.ChargeSystem.from_openmm(expected.system).charges.tolist()
    )
    fmm.restore_pme(late.system)
    fmm.restore_pme(expected.system)
    assert xml(late.system) == xml(expected.system)


@pytest.mark.slow
def test_validation_at_a_default_set_after_the_conversion(chains):
    late = with_shared_parameter(chains, 0.3)
    fmm.use_fmm(late.system)
    energies = [fmm.validate(late.system, late.positions).reference_energy]
    set_default(late.system, 0.8)
    energies.append(fmm.validate(late.system, late.positions).reference_energy)
    fmm.restore_pme(late.system)
    energies.append(fmm.validate(late.system, late.positions).reference_energy)
    assert energies[1] == pytest.approx(energies[2], rel=1e-9)
    assert abs(energies[1] - energies[0]) > 0.1


@pytest.mark.slow
def test_the_fmm_alone_has_the_parameters_of_the_conversion(chains):
    """Nothing else declares them in the System of a decomposition; a copy of the force does."""
    late = with_shared_parameter(chains, 0.3)
    force = fmm.use_fmm(late.system)
    force.setForceGroup(7)
    whole = energy_of(late.context(), groups={7})
    for way in (copy.deepcopy, lambda system: from_xml(xml(system))):
        system = way(late.system)
        for index in (1, 0):
            system.removeForce(index)
        with pytest.warns(
            UserWarning, match="'alchemical', which no other force beside it"
        ) as all_:
            context = Box(system, late.positions).context()
            assert energy_of(context) == pytest.approx(whole, rel=1e-9)
            energy_of(context)
        assert len(all_) == 1
    system.removeForce(0)
    system.addForce(copy.copy(force))
    context = Box(system, late.positions).context()
    assert energy_of(context) == pytest.approx(whole, rel=1e-9)
    context.setParameter("alchemical", 0.9)
    assert abs(energy_of(context) - whole) > 0.1


@pytest.mark.parametrize("follows", [False, True])
def test_the_fmm_alone_in_a_custom_cv_force(chains, follows):
    """A copy of what ``system.getForce()`` returns does not follow the parameter, although the
    NonbondedForce outside declares it: a warning says so, and names the copy that does."""
    force = fmm.use_fmm(with_shared_parameter(chains, 0.3).system, tolerance=1e-3)
    copied = copy.copy(force) if follows else copy.deepcopy(chains.system.getForce(2))
    chains.system.removeForce(2)
    electrostatics = openmm.CustomCVForce("energy")
    electrostatics.addCollectiveVariable("energy", copied)
    electrostatics.setForceGroup(5)
    system = copy.deepcopy(chains.system)
    system.addForce(electrostatics)
    context, energies = Box(system, chains.positions).context(), []
    for value in (0.3, 0.9):
        context.setParameter("alchemical", value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            energies.append(energy_of(context, groups={5}))
        assert len(caught) == (not follows and value == 0.3)
        assert all("keeps its value at the conversion, 0.3" in str(one.message) for one in caught)
    assert (abs(energies[1] - energies[0]) > 0.1) == follows


def test_a_parameter_that_is_called_otherwise_afterwards(chains):
    fmm.use_fmm(with_offsets(chains).system)
    chains.nonbonded.setGlobalParameterName(0, "lambda")
    with pytest.raises(fmm.UnsupportedError, match="has no global parameter 'alchemical' any more"):
        fmm.check_system(chains.system)


def test_exact_alchemy_of_openmmtools(water):
    """The charges of three atoms are scaled by lambda_electrostatics, whose default is set before
    or after the conversion."""
    alchemy = pytest.importorskip("openmmtools.alchemy")
    factory = alchemy.AbsoluteAlchemicalFactory(alchemical_pme_treatment="exact")
    system = factory.create_alchemical_system(water.system, alchemy.AlchemicalRegion(range(3)))
    pme = copy.deepcopy(system)
    fmm.use_fmm(system, tolerance=1e-6)
    for force in pme.getForces():
        if isinstance(force, openmm.NonbondedForce):
            force.setEwaldErrorTolerance(1e-6)
    for value in (1.0, 0.4):
        for each in (system, pme):
            state = alchemy.AlchemicalState.from_system(each)
            state.lambda_electrostatics = value
            state.apply_to_system(each)
        contexts = [Box(each, water.positions).context() for each in (system, pme)]
        state.lambda_electrostatics = 0.7
        for late in (False, True):
            if late:
                for context in contexts:
                    state.apply_to_context(context)
            energy, reference = map(energy_of, contexts)
            assert energy == pytest.approx(reference, abs=0.05)


@pytest.mark.parametrize("method", ["PME", "NoCutoff"])
def test_a_system_without_particles(method):
    """An empty System is converted and restored; OpenMM refuses the Context."""
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(getattr(force, method))
    system.addForce(force)
    pme = openmm.XmlSerializer.serialize(system)
    fmm.use_fmm(system)
    clone = copy.deepcopy(system)
    assert fmm.find_fmm(clone)[0].getNumParticles() == 0
    fmm.check_system(clone)
    with pytest.raises(openmm.OpenMMException, match="System with no particles"):
        openmm.Context(clone, openmm.VerletIntegrator(0.001))
    fmm.restore_pme(clone)
    assert openmm.XmlSerializer.serialize(clone) == pme
