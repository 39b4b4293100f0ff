"""The pressure tensor against OpenMM's computeStressTensor, and the identities that it obeys."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration.pressure import BAR
from tests.integration.boxes import Box, energy_of, opened

UPPER = (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)
"""The elements that OpenMM computes, in its order."""

TIGHT = {"tolerance": 1e-7, "precision": "double"}


@pytest.fixture
def bonded_chains(chains) -> Box:
    """With a switched cutoff, bonds and angles, some of which apply to nearest images, and a field:
    forces of every kind."""
    bonds, angles = openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    bonds.setUsesPeriodicBoundaryConditions(True)
    field = openmm.CustomExternalForce("0.3 * x * y + 2 * z")
    for start in range(0, 27 * 6, 6):
        for atom in range(5):
            bonds.addBond(start + atom, start + atom + 1, 0.12, 1e4)
        for atom in range(4):
            angles.addAngle(start + atom, start + atom + 1, start + atom + 2, 2.0, 300.0)
        field.addParticle(start)
    for force in (bonds, angles, field):
        chains.system.addForce(force)
    return chains


def with_barostat(box: Box, scale: str) -> openmm.MonteCarloFlexibleBarostat:
    """A barostat that makes no move, for its computeStressTensor."""
    barostat = openmm.MonteCarloFlexibleBarostat(1, 300, 0, scale == "molecules")
    if not hasattr(barostat, "computeStressTensor"):
        pytest.skip("OpenMM has computeStressTensor since 8.6")
    box.system.addForce(barostat)
    return barostat


def moving(box: Box, platform="Reference") -> openmm.Context:
    """A Context with velocities, and with all molecules in the cell: computeStressTensor displaces
    others on GPUs, by the strain of the box vector that brings them there."""
    context = box.context(platform)
    inside = context.getState(positions=True, enforcePeriodicBox=True)
    context.setPositions(inside.getPositions())
    context.setVelocitiesToTemperature(300, 1)
    return context


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scale", "kinetic"),
    [
        ("water", "molecules", True),
        ("flexible_water", "molecules", True),
        ("flexible_water", "molecules", False),
        ("flexible_water", "atoms", True),
        ("flexible_water", "atoms", False),
        ("tip4pew", "molecules", True),
        ("tip5p", "molecules", True),
        ("bonded_chains", "molecules", True),
        ("bonded_chains", "atoms", True),
    ],
)
def test_it_is_minus_the_stress_of_openmm(request, platform, name, scale, kinetic):
    """To the error of the differences, which OpenMM takes of the FMM as well. With momenta their
    part and that of the forces are both right, as it is a sum; without, that of the forces alone.
    """
    box = request.getfixturevalue(name)
    barostat = with_barostat(box, scale)
    fmm.use_fmm(box.system, **TIGHT).setForceGroup(1)
    context = moving(box, platform)
    stress = np.array(barostat.computeStressTensor(context, kinetic)._value)
    pressure = fmm.pressure_tensor(context, scale, kinetic)
    largest = 0.1 if platform in ("Reference", "CUDA") else 10.0
    assert pressure.shape == (3, 3) and np.abs(stress).max() > 500
    np.testing.assert_allclose(pressure[UPPER], -stress, rtol=1e-5, atol=largest)


@pytest.mark.slow
def test_a_rectangular_box_without_flexible_barostat(platform, water):
    """For which OpenMM's kernels on GPUs take no skewed box."""
    fmm.use_fmm(water.system, **TIGHT).setForceGroup(1)
    context = moving(water, platform)
    reference = moving(water)
    state = context.getState(positions=True, velocities=True)
    reference.setState(state)
    expected = fmm.pressure_tensor(reference)
    largest = 0.1 if platform in ("Reference", "CUDA") else 10.0
    for _ in range(2):
        np.testing.assert_allclose(fmm.pressure_tensor(context), expected, rtol=1e-5, atol=largest)


@pytest.fixture
def rectangular_only(monkeypatch) -> list[openmm.Context]:
    """The Contexts made from now on. They refuse skewed boxes if the default box is rectangular, as
    those on GPUs do."""
    made, set_box, make = [], openmm.Context.setPeriodicBoxVectors, openmm.Context.__init__

    def is_skewed(vectors) -> bool:
        return np.tril([openmm.unit.Quantity(vector)._value for vector in vectors], -1).any()

    def set_rectangular(self, *vectors):
        if is_skewed(vectors) and not is_skewed(self.getSystem().getDefaultPeriodicBoxVectors()):
            raise openmm.OpenMMException("The box shape has changed from rectangular to triclinic")
        set_box(self, *vectors)

    def initialize(self, *arguments):
        made.append(self)
        make(self, *arguments)

    monkeypatch.setattr(openmm.Context, "setPeriodicBoxVectors", set_rectangular)
    monkeypatch.setattr(openmm.Context, "__init__", initialize)
    return made


@pytest.fixture
def attracted(ions) -> Box:
    """Ions near enough for Lennard-Jones, which depends on a global parameter."""
    ions.positions *= 0.4
    ions.nonbonded.addGlobalParameter("more", 0.0)
    ions.nonbonded.addParticleParameterOffset("more", 1, 0.0, 0.01, 5.0)
    fmm.use_fmm(ions.system, **TIGHT).setForceGroup(1)
    return ions


def test_a_second_context_for_skewed_boxes(attracted, request):
    """It is kept, and follows parameters; it is made anew for those of particles."""

    def tensors(box):
        context = box.context()
        found = [fmm.pressure_tensor(context) for _ in range(2)]
        context.setParameter("more", 2.0)
        found.append(fmm.pressure_tensor(context))
        box.nonbonded.setParticleParameters(2, 0.0, 0.35, 30.0)
        box.nonbonded.updateParametersInContext(context)
        return [*found, fmm.pressure_tensor(context)]

    expected = tensors(copy.deepcopy(attracted))
    assert np.abs(np.diff(expected[1:], axis=0)).max((1, 2)).min() > 1.0
    contexts = request.getfixturevalue("rectangular_only")
    np.testing.assert_allclose(tensors(attracted), expected, rtol=1e-9, atol=1e-6)
    assert len(contexts) == 3


def test_parameters_that_the_context_does_not_have(attracted, rectangular_only):
    context = attracted.context()
    attracted.nonbonded.setParticleParameters(2, 0.0, 0.35, 30.0)
    with pytest.raises(ValueError, match="other parameters than those of the Context: call update"):
        fmm.pressure_tensor(context)
    attracted.nonbonded.updateParametersInContext(context)
    fmm.pressure_tensor(context)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["molecules", "atoms"])
def test_groups_do_not_matter(bonded_chains, scale):
    """Whether the FMM, bonds and Lennard-Jones are evaluated together or not."""
    found = []
    for groups in ((0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 1, 1, 1), (1, 0, 2, 1, 2)):
        box = copy.deepcopy(bonded_chains)
        forces = [fmm.use_fmm(box.system, **TIGHT), *box.system.getForces()[:4]]
        for force, group in zip(forces, groups, strict=True):
            force.setForceGroup(group)
        found.append(fmm.pressure_tensor(moving(box), scale))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4, atol=0.2)


@pytest.mark.slow
def test_pme_and_fmm_have_the_same_pressure(water):
    """At tight tolerances; PME's reciprocal space has a group of its own."""
    water.nonbonded.setEwaldErrorTolerance(1e-7)
    water.nonbonded.setReciprocalSpaceForceGroup(2)
    expected = fmm.pressure_tensor(moving(water))
    with pytest.warns(UserWarning, match="no reciprocal space"):
        fmm.use_fmm(water.system, **TIGHT)
    np.testing.assert_allclose(fmm.pressure_tensor(moving(water)), expected, atol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["molecules", "atoms"])
def test_elements_below_the_diagonal(flexible_water, scale):
    """They are those above it once the axes are exchanged, where no pair crosses a cutoff."""
    flexible_water.nonbonded.setUseSwitchingFunction(True)
    flexible_water.nonbonded.setSwitchingDistance(0.6)
    fmm.use_fmm(flexible_water.system, **TIGHT).setForceGroup(1)
    mirrored = Box(flexible_water.system, flexible_water.positions[:, ::-1].copy())
    pressure, other = (
        fmm.pressure_tensor(box.context(), scale, kinetic=False)
        for box in (flexible_water, mirrored)
    )
    np.testing.assert_allclose(other, pressure[::-1, ::-1], rtol=1e-5, atol=0.1)
    difference = np.abs(pressure - pressure.T).max()
    assert difference > 50 if scale == "molecules" else difference < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("charge", [1.0, 2.5])
def test_the_trace_of_the_virial_is_the_energy(ions, charge):
    """Charges alone, also with a background: the energy is homogeneous in the lengths, of degree
    -1."""
    ions.nonbonded.setParticleParameters(0, charge, 0.3, 0.1)
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT)
    ions.system.removeForce(0)
    ions.system.addForce(force)
    context = ions.context()
    virial, energy = force.getVirialInContext(context), energy_of(context)
    np.testing.assert_array_equal(virial, virial.T)
    assert np.trace(virial) == pytest.approx(energy, rel=1e-6)
    volume = np.linalg.det(ions.cell)
    np.testing.assert_allclose(
        fmm.pressure_tensor(context, "atoms", kinetic=False) * BAR * volume, virial, rtol=1e-12
    )


@pytest.mark.slow
def test_the_virial_is_minus_the_derivative_of_the_energy(chains):
    force = fmm.use_fmm(chains.system, **TIGHT)
    force.setForceGroup(1)
    context, step = chains.context(), 1e-4
    virial = force.getVirialInContext(context)
    for i, j in zip(*UPPER, strict=True):
        energies = []
        for size in (-step, step):
            change = np.eye(3)
            change[j, i] += size
            context.setPeriodicBoxVectors(*(chains.cell @ change))
            context.setPositions(chains.positions @ change)
            energies.append(energy_of(context, groups={1}))
        expected = (energies[0] - energies[1]) / (2 * step)
        assert virial[i, j] == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(virial).max())


def test_an_ideal_gas(ions):
    """Only the momenta count."""
    ions.nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    for index in range(4):
        ions.nonbonded.setParticleParameters(index, 0.0, 1.0, 0.0)
    context = moving(ions)
    velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
    expected = 20.0 * velocities.T @ velocities / np.linalg.det(ions.cell) / BAR
    for scale in ("molecules", "atoms"):
        np.testing.assert_allclose(fmm.pressure_tensor(context, scale), expected, rtol=1e-10)


def test_a_bar():
    """1e5 Pa, in J/m^3 for one mole."""
    quantity = openmm.unit.Quantity(1.0, openmm.unit.bar) * openmm.unit.AVOGADRO_CONSTANT_NA
    unit = openmm.unit.kilojoules_per_mole / openmm.unit.nanometers**3
    assert pytest.approx(quantity.value_in_unit(unit), rel=1e-8) == BAR


def test_the_context_is_the_same_afterwards(bonded_chains):
    """To the last bit, and the next step as well."""
    fmm.use_fmm(bonded_chains.system, tolerance=1e-3, backend="cpu")
    states = []
    for evaluate in (lambda context: None, fmm.pressure_tensor):
        integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.001)
        integrator.setRandomNumberSeed(3)
        context = bonded_chains.context(integrator=integrator)
        context.setVelocitiesToTemperature(300, 1)
        integrator.step(2)
        evaluate(context)
        integrator.step(2)
        state = context.getState(positions=True, velocities=True, parameters=True)
        states.append(openmm.XmlSerializer.serialize(state))
    assert states[0] == states[1]


def test_forces_that_are_not_integrated(water):
    """As in OpenMM's barostats."""
    barostat = with_barostat(water, "molecules")
    fmm.use_fmm(water.system, tolerance=1e-3).setForceGroup(1)
    context = moving(water)
    context.getIntegrator().setIntegrationForceGroups({0})
    stress = np.array(barostat.computeStressTensor(context, True)._value)
    np.testing.assert_allclose(fmm.pressure_tensor(context)[UPPER], -stress, atol=0.1)


def test_constraints_have_no_pressure_of_atoms(water):
    fmm.use_fmm(water.system)
    with pytest.raises(
        fmm.UnsupportedError, match=r"forces of the System's 555 constraints, .* use 'molecules'"
    ):
        fmm.pressure_tensor(water.context(), "atoms")


@pytest.mark.slow
def test_sites_that_a_strain_would_deform(tip5p):
    for index in reversed(range(tip5p.system.getNumConstraints())):
        tip5p.system.removeConstraint(index)
    with pytest.raises(fmm.UnsupportedError, match="would deform the OutOfPlaneSite of particle 3"):
        fmm.pressure_tensor(tip5p.context(), "atoms")


@pytest.mark.slow
def test_molecules_that_are_not_whole(flexible_water):
    """They have no centre; the pressure of their atoms is that of whole molecules."""
    for force in flexible_water.system.getForces():
        if hasattr(force, "setUsesPeriodicBoundaryConditions"):
            force.setUsesPeriodicBoundaryConditions(True)
    flexible_water.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    flexible_water.nonbonded.setUseSwitchingFunction(True)
    flexible_water.nonbonded.setSwitchingDistance(0.6)
    fmm.use_fmm(flexible_water.system, **TIGHT)
    whole = fmm.pressure_tensor(moving(flexible_water), "atoms")
    flexible_water.positions %= np.diag(flexible_water.cell)
    context = moving(flexible_water)
    with pytest.raises(
        ValueError, match=r"whole molecules, but particles \d+ and \d+, which are excluded"
    ):
        fmm.pressure_tensor(context)
    np.testing.assert_allclose(fmm.pressure_tensor(context, "atoms"), whole, atol=0.1)


def test_excluded_particles_of_different_molecules(ions):
    """They may be in different images, as two ligands of a dual topology are."""
    ions.nonbonded.addException(0, 1, 0.0, 1.0, 0.0)
    ions.nonbonded.setExceptionsUsePeriodicBoundaryConditions(True)
    fmm.use_fmm(ions.system, **TIGHT).setForceGroup(1)
    together = fmm.pressure_tensor(ions.context())
    ions.positions[0] += ions.cell[0]
    np.testing.assert_allclose(fmm.pressure_tensor(ions.context()), together, rtol=1e-6, atol=1e-3)


def test_what_has_no_pressure(ions):
    with pytest.raises(ValueError, match=r"`scale` must be one of 'molecules', 'atoms', got 'all'"):
        fmm.pressure_tensor(ions.context(), "all")
    with pytest.raises(TypeError, match=r"`context` must be an openmm.Context, got System"):
        fmm.pressure_tensor(ions.system)
    force = fmm.use_fmm(opened(ions).system)
    context = ions.context()
    with pytest.raises(ValueError, match="no force of the System has periodic boundary conditions"):
        fmm.pressure_tensor(context)
    with pytest.raises(ValueError, match="getVirialInContext: the FMMForce has no periodic"):
        force.getVirialInContext(context)
