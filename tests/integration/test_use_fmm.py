"""use_fmm and restore_pme: the same energy as PME, refusals that change nothing,
and the exact way back."""

import copy
import warnings
from collections import Counter

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import Box, energy_of, relative_difference

CONVERGED_PME = 1e-8
NET_CHARGED_CUBE = -65.70019
"""kJ/mol: one unit charge in a 3 nm cube with its background, -2.837297 / 2 * 138.935458 / 3
(cubic Wigner energy)."""


def xml(system) -> str:
    return openmm.XmlSerializer.serialize(system)


def coulomb_free(box: Box) -> Box:
    """A copy with all charges and charge products 0."""
    twin = copy.deepcopy(box)
    force = twin.nonbonded
    for index in range(force.getNumParticles()):
        force.setParticleParameters(index, 0.0, *force.getParticleParameters(index)[1:])
    for index in range(force.getNumExceptions()):
        first, second, _, sigma, epsilon = force.getExceptionParameters(index)
        force.setExceptionParameters(index, first, second, 0.0, sigma, epsilon)
    return twin


@pytest.mark.parametrize("name", ["water", "flexible_water", "tip4pew", "tip5p", "chains"])
def test_energy_and_forces_of_converged_pme(name, request):
    box = request.getfixturevalue(name)
    box.nonbonded.setEwaldErrorTolerance(CONVERGED_PME)
    reference, reference_forces = box.energy_and_forces("Reference")
    fmm.use_fmm(box.system, tolerance=1e-9).setForceGroup(1)
    energy, forces = box.energy_and_forces("Reference")
    coulomb = abs(box.energy_and_forces("Reference", groups={1})[0])
    assert energy == pytest.approx(reference, abs=1e-7 * coulomb)
    assert relative_difference(forces, reference_forces) < 1e-6


@pytest.mark.parametrize("method", ["PME", "Ewald", "LJPME"])
@pytest.mark.parametrize("dispersion", [True, False])
def test_lennard_jones_and_exceptions_stay(chains, platform, method, dispersion):
    """What is left in the NonbondedForce is the original without charges, with the charge
    products of exceptions."""
    chains.nonbonded.setNonbondedMethod(getattr(openmm.NonbondedForce, method))
    chains.nonbonded.setUseDispersionCorrection(dispersion)
    if method == "Ewald":  # which OpenMM refuses in triclinic cells
        chains.system.setDefaultPeriodicBoxVectors(*np.diag(np.diag(chains.cell)))
    exceptions = openmm.CustomBondForce("138.935457644382*product/r")
    exceptions.addPerBondParameter("product")
    for index in range(chains.nonbonded.getNumExceptions()):
        first, second, product, _, _ = chains.nonbonded.getExceptionParameters(index)
        exceptions.addBond(first, second, [product])
    expected = coulomb_free(chains)
    expected.system.addForce(exceptions)
    energy, forces = expected.energy_and_forces(platform)

    force = fmm.use_fmm(chains.system)
    force.setForceGroup(5)
    assert chains.nonbonded.getNonbondedMethod() == (
        openmm.NonbondedForce.LJPME if method == "LJPME" else openmm.NonbondedForce.CutoffPeriodic
    )
    left, left_forces = chains.energy_and_forces(platform, groups={0})
    assert left == pytest.approx(energy, rel=1e-6)
    assert relative_difference(left_forces, forces) < 1e-5


def test_what_use_fmm_sets(chains):
    before = copy.deepcopy(chains.nonbonded)
    before.setForceGroup(4)
    chains.nonbonded.setForceGroup(4)
    chains.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    force = fmm.use_fmm(chains.system, tolerance=1e-4)
    assert type(force) is fmm.FMMForce and force.getForceGroup() == 4
    assert int(force.this) == int(chains.system.getForce(chains.system.getNumForces() - 1).this)
    assert force.getNumParticles() == before.getNumParticles()
    assert force.getNumExclusions() == before.getNumExceptions()
    assert force.getExclusionsUsePeriodicBoundaryConditions()
    for index in range(before.getNumParticles()):
        charge, sigma, epsilon = before.getParticleParameters(index)
        assert force.getParticleParameters(index) == charge
        assert chains.nonbonded.getParticleParameters(index) == [0 * charge, sigma, epsilon]
    for index in range(before.getNumExceptions()):
        assert chains.nonbonded.getExceptionParameters(index) == before.getExceptionParameters(
            index
        )
        assert force.getExclusionParticles(index) == before.getExceptionParameters(index)[:2]


def test_net_charge_is_neutralised(platform):
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    system.addParticle(20.0)
    nonbonded = openmm.NonbondedForce()
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    nonbonded.addParticle(1.0, 0.3, 0.0)
    system.addForce(nonbonded)
    fmm.use_fmm(system, tolerance=1e-7)
    assert energy_of(Box(system, np.array([[0.1, 0.2, 0.3]])).context(platform)) == pytest.approx(
        NET_CHARGED_CUBE, abs=1e-3
    )


def test_energy_is_the_trace_of_the_virial(chains):
    """Pure periodic Coulomb of a neutral system is homogeneous of degree -1: dU/d(ln s) = -U."""
    last = chains.system.getNumParticles() - 1
    for index in (last, last - 1):
        chains.nonbonded.setParticleParameters(index, 0.0, 0.3, 0.0)
    force = fmm.FMMForce.from_nonbonded(chains.nonbonded, tolerance=1e-8)
    total = sum(
        force.getParticleParameters(index)._value for index in range(force.getNumParticles())
    )
    assert abs(total) < 1e-9
    system = openmm.System()
    for _ in range(force.getNumParticles()):
        system.addParticle(1.0)
    system.addForce(force)
    cell = chains.cell
    context = Box(system, chains.positions).context()
    energies = []
    for scale in (1.0, 0.999, 1.001):
        context.setPeriodicBoxVectors(*(scale * cell))
        context.setPositions(scale * chains.positions)
        energies.append(energy_of(context))
    assert (energies[2] - energies[1]) / 0.002 == pytest.approx(-energies[0], rel=1e-4)


# the image of an exception


@pytest.mark.parametrize("periodic", [False, True])
def test_an_exception_across_the_box_face(water, platform, periodic):
    """Full periodic Coulomb less the bare pair: at the coordinates as they are, or at the
    minimum image."""
    water.nonbonded.setExceptionsUsePeriodicBoundaryConditions(periodic)
    water.nonbonded.setForceGroup(1)
    charges = np.array(
        [water.nonbonded.getParticleParameters(i)[0]._value for i in range(len(water.positions))]
    )
    cell = water.cell
    force = fmm.use_fmm(water.system, tolerance=1e-6)
    force.setForceGroup(2)
    pairs = [force.getExclusionParticles(index) for index in range(force.getNumExclusions())]
    energies = []
    for shift in (0.0, cell[0, 0]):
        water.positions[1, 0] += shift
        energies.append(energy_of(water.context(platform), groups={2}))
        expected = ewald_sum(
            water.positions, charges, cell, pairs, exclusions_periodic=periodic
        ).energy
        assert energies[-1] == pytest.approx(expected, rel=1e-6)
    assert (abs(energies[1] - energies[0]) < 0.05) == periodic


@pytest.mark.slow
def test_periodic_exceptions_equal_those_of_pme(water):
    water.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    water.nonbonded.setEwaldErrorTolerance(CONVERGED_PME)
    water.positions[1] += [1.8, 0.0, 0.0]
    reference, reference_forces = water.energy_and_forces("Reference")
    fmm.use_fmm(water.system, tolerance=1e-9)
    energy, forces = water.energy_and_forces("Reference")
    assert energy == pytest.approx(reference, rel=1e-7)
    assert relative_difference(forces, reference_forces) < 1e-6


def test_whole_molecules_anywhere(water, platform):
    """Molecules shifted by whole box vectors, far away, have the energy they had."""
    fmm.use_fmm(water.system, tolerance=1e-6)
    energy = energy_of(water.context(platform))
    random = np.random.default_rng(2)
    molecules = random.integers(-500, 500, (len(water.positions) // 3, 3)).repeat(3, axis=0)
    water.positions += molecules @ water.cell
    assert energy_of(water.context(platform)) == pytest.approx(energy, abs=0.02)


# the way back


def with_offsets(box: Box) -> Box:
    box.nonbonded.addGlobalParameter("alchemical", 0.3)
    box.nonbonded.addGlobalParameter("size", 1.0)
    box.nonbonded.addParticleParameterOffset("alchemical", 2, -0.1, 0.01, 0.02)
    box.nonbonded.addParticleParameterOffset("size", 3, 0.0, 0.01, 0.0)
    box.nonbonded.addParticleParameterOffset("alchemical", 7, 1 / 3, 0.0, 0.0)
    box.nonbonded.addExceptionParameterOffset("alchemical", 1, 0.05, 0.0, 0.0)
    return box


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


def from_xml(text):
    return openmm.XmlSerializer.deserialize(text)


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


# refusals


def second_nonbonded(box):
    second = openmm.NonbondedForce()
    second.setName("the other")
    box.system.addForce(second)


def method(value):
    return lambda box: box.nonbonded.setNonbondedMethod(value)


def periodic_gb(box):
    force = openmm.GBSAOBCForce()
    force.setNonbondedMethod(openmm.GBSAOBCForce.CutoffPeriodic)
    box.system.addForce(force)


def periodic_custom_gb(box):
    force = openmm.CustomGBForce()
    force.setNonbondedMethod(openmm.CustomGBForce.CutoffPeriodic)
    box.system.addForce(force)


def constant_potential(box):
    box.system.addForce(openmm.ConstantPotentialForce())


def offset_of_nothing(box):
    box.nonbonded.addGlobalParameter("alchemical", 0.3)
    box.nonbonded.addParticleParameterOffset("alchemical", 176, 1.0, 0.0, 0.0)


REFUSALS = [
    (second_nonbonded, fmm.UnsupportedError, "holds 2 NonbondedForces .*'the other'"),
    (
        method(openmm.NonbondedForce.CutoffNonPeriodic),
        fmm.UnsupportedError,
        "uses CutoffNonPeriodic.*method to NoCutoff",
    ),
    (
        method(openmm.NonbondedForce.CutoffPeriodic),
        fmm.UnsupportedError,
        "reaction field.*to PME.*allow_reaction_field=True",
    ),
    (
        lambda box: box.system.addForce(openmm.AmoebaMultipoleForce()),
        fmm.UnsupportedError,
        "AmoebaMultipoleForce",
    ),
    (
        lambda box: box.system.addForce(openmm.HippoNonbondedForce()),
        fmm.UnsupportedError,
        "HippoNonbondedForce",
    ),
    (constant_potential, fmm.UnsupportedError, "ConstantPotentialForce.*keep PME"),
    (periodic_gb, fmm.UnsupportedError, "GBSAOBCForce.*implicit solvent"),
    (periodic_custom_gb, fmm.UnsupportedError, "CustomGBForce.*implicit solvent"),
    (
        lambda box: box.nonbonded.setIncludeDirectSpace(False),
        fmm.UnsupportedError,
        r"setIncludeDirectSpace\(True\)",
    ),
    (
        lambda box: box.system.addParticle(1.0),
        ValueError,
        "one particle for each of the System's 177, got 176",
    ),
    (lambda box: fmm.use_fmm(box.system), ValueError, "holds an FMMForce already.*restore_pme"),
    (
        lambda box: box.system.removeForce(0),
        fmm.UnsupportedError,
        "holds no NonbondedForce.*from_nonbonded",
    ),
    (
        lambda box: box.nonbonded.setParticleParameters(5, np.nan, 1, 0),
        ValueError,
        "finite, got nan for particle 5",
    ),
    (
        offset_of_nothing,
        ValueError,
        "parameter offset 0 of the FMMForce names particle 176, but it has 176 particles",
    ),
]


@pytest.mark.parametrize("change, error, text", REFUSALS)
def test_a_refused_system_is_unchanged(chains, change, error, text):
    change(chains)
    before = xml(chains.system)
    with pytest.raises(error, match=text):
        fmm.use_fmm(chains.system)
    assert xml(chains.system) == before


@pytest.mark.parametrize(
    "options",
    [{"tolerance": 0}, {"backend": "abacus"}, {"bridge": "native", "backend": "cpu"}, {"typo": 1}],
)
def test_a_bad_option_changes_nothing(chains, options):
    before = xml(chains.system)
    with pytest.raises((ValueError, TypeError, fmm.UnsupportedError), match=next(iter(options))):
        fmm.use_fmm(chains.system, **options)
    assert xml(chains.system) == before


def test_a_failure_half_way_is_rolled_back(chains, monkeypatch):
    with_offsets(chains)
    before = xml(chains.system)
    plain = openmm.NonbondedForce.setParticleParameterOffset
    calls = []

    def fail_once(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(openmm.NonbondedForce, "setParticleParameterOffset", fail_once)
    with pytest.raises(KeyboardInterrupt):
        fmm.use_fmm(chains.system)
    assert xml(chains.system) == before


@pytest.mark.parametrize("function", ["use_fmm", "restore_pme"])
def test_an_interrupt_among_the_particles_is_rolled_back(chains, monkeypatch, function):
    """A System that an interrupted restore_pme() left can still be restored."""
    original, name, calls = xml(chains.system), "NonbondedForce_setParticleParameters", []
    if function == "restore_pme":
        fmm.use_fmm(chains.system)
    before, plain = xml(chains.nonbonded), getattr(openmm._openmm, name)

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(openmm._openmm, name, fail_once)
    with pytest.raises(KeyboardInterrupt):
        getattr(fmm, function)(chains.system)
    assert xml(chains.nonbonded) == before
    assert len(fmm.find_fmm(chains.system)) == (function == "restore_pme")
    if function == "restore_pme":
        fmm.restore_pme(chains.system)
    assert xml(chains.system) == original


def test_every_particle_is_read_and_written_once_without_units(chains, monkeypatch):
    """Calls for each particle are most of the time for a large System, and with units nearly all of
    it."""
    calls, names = (
        Counter(),
        ("getParticleParameters", "setParticleParameters", "getExceptionParameters"),
    )
    plain = {name: getattr(openmm._openmm, f"NonbondedForce_{name}") for name in names}
    for name in names:

        def counted(*arguments, name=name):
            calls[name] += 1
            return plain[name](*arguments)

        monkeypatch.setattr(openmm._openmm, f"NonbondedForce_{name}", counted)
        monkeypatch.delattr(openmm.NonbondedForce, name)
    particles, exceptions = chains.nonbonded.getNumParticles(), chains.nonbonded.getNumExceptions()
    fmm.use_fmm(chains.system)
    assert calls == dict(zip(names, (particles, particles, exceptions), strict=True))
    calls.clear()
    fmm.restore_pme(chains.system)
    assert calls == dict(zip(names[:2], (particles, particles), strict=True))


@pytest.mark.parametrize("function", [fmm.use_fmm, fmm.restore_pme, fmm.find_fmm])
def test_no_system(function, chains):
    with pytest.raises(TypeError, match=r"`system` must be an openmm.System, got Box"):
        function(chains)


@pytest.mark.parametrize(("group", "warns"), [(-1, False), (2, False), (1, True)])
def test_a_force_group_of_reciprocal_space_is_warned_of(chains, group, warns):
    chains.nonbonded.setForceGroup(2)
    chains.nonbonded.setReciprocalSpaceForceGroup(group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fmm.use_fmm(chains.system).getForceGroup() == 2
    texts = [str(each.message) for each in caught]
    assert len(texts) == warns
    assert all(
        "in force group 1: the whole FMMForce is in group 2; force.setForceGroup()" in text
        for text in texts
    )


@pytest.mark.slow
def test_reaction_field_on_request(chains):
    """The energy is then the one of PME."""
    twin = copy.deepcopy(chains)
    twin.nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    fmm.use_fmm(twin.system, allow_reaction_field=True, tolerance=1e-8)
    fmm.use_fmm(chains.system, tolerance=1e-8)
    assert twin.energy_and_forces()[0] == pytest.approx(chains.energy_and_forces()[0], rel=1e-12)
    fmm.restore_pme(twin.system)
    assert twin.nonbonded.getNonbondedMethod() == openmm.NonbondedForce.CutoffPeriodic


def test_other_forces_are_left_alone(chains):
    """NBFIX in a CustomNonbondedForce, non-periodic implicit solvent aside, keeps its energy."""
    custom = openmm.CustomNonbondedForce("eps*(0.2/r)^12; eps=eps1*eps2")
    custom.addPerParticleParameter("eps")
    custom.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    custom.setCutoffDistance(0.9)
    custom.setForceGroup(9)
    for index in range(chains.system.getNumParticles()):
        custom.addParticle([0.1 + 0.01 * (index % 5)])
    for index in range(chains.nonbonded.getNumExceptions()):
        custom.addExclusion(*chains.nonbonded.getExceptionParameters(index)[:2])
    chains.system.addForce(custom)
    before = chains.energy_and_forces(groups={9})[0]
    fmm.use_fmm(chains.system)
    assert chains.energy_and_forces(groups={9})[0] == before


# parameters that forces share


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
        assert energy_of(Box(system, late.positions).context()) == pytest.approx(whole, rel=1e-9)
    system.removeForce(0)
    system.addForce(copy.copy(force))
    context = Box(system, late.positions).context()
    assert energy_of(context) == pytest.approx(whole, rel=1e-9)
    context.setParameter("alchemical", 0.9)
    assert abs(energy_of(context) - whole) > 0.1


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
