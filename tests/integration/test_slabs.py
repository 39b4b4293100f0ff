"""Slabs and wires in OpenMM: ``FMMForce`` and ``use_fmm`` against the solver and exact sums,
wherever OpenMM has wrapped the particles."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.bench import nve
from fmm_openmm.bench.systems import equilibrated
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import unwrap
from fmm_openmm.oracle import partial_ewald_sum
from tests.integration.boxes import Box, charges_and_pairs, energy_of, relative_difference
from tests.integration.vacuum import first_of_molecules, in_vacuum

COULOMB = 7
"""Force group of the FMMForce."""

TOLERANCE = 1e-6

NAMES = ["slab", "wire", "ac", "b"]


def neutral(box: Box) -> Box:
    """The chains without their net charge."""
    last = box.nonbonded.getNumParticles() - 1
    for index in (last, last - 1):
        box.nonbonded.setParticleParameters(index, 0.0, 0.25, 0.2)
    return box


def converted(box: Box, name: str, **options) -> fmm.FMMForce:
    force = fmm.use_fmm(
        box.system, boundary=name, backend="cpu", **{"tolerance": TOLERANCE, **options}
    )
    force.setForceGroup(COULOMB)
    return force


def coulomb(box: Box):
    return box.energy_and_forces(groups={COULOMB})


@pytest.fixture(params=["water", "chains"])
def box(request):
    box = request.getfixturevalue(request.param)
    return neutral(box) if request.param == "chains" else box


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_solver_and_exact_sum(box, name):
    in_vacuum(box, name)
    charges, pairs = charges_and_pairs(box.nonbonded)
    cell = Boundary.from_name(name).cell(box.cell)
    exact = partial_ewald_sum(box.positions, charges, cell, pairs)
    solver = fmm.CoulombSolver(
        charges, box.cell, pairs, TOLERANCE, name, backend="cpu", positions=box.positions
    ).compute(box.positions)
    force = converted(box, name)
    assert box.system.usesPeriodicBoundaryConditions()
    energy, forces = coulomb(box)
    assert energy == pytest.approx(solver.energy, rel=1e-9)
    assert relative_difference(forces, solver.forces) <= 1e-7  # of boxes at other places
    assert energy == pytest.approx(exact.energy, rel=TOLERANCE)
    assert relative_difference(forces, exact.forces) <= TOLERANCE
    potentials = force.getPotentialsInContext(box.context())
    assert relative_difference(potentials, exact.potentials) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_images_do_not_matter(box, name, platform):
    """Particles about 0, about the face of the box, and drifting across it, wrapped by molecules
    as OpenMM does, or each for itself along the vectors without images."""
    in_vacuum(box, name)
    starts, free = first_of_molecules(box), np.array(Boundary.from_name(name).free)
    converted(box, name)
    energy, forces = coulomb(box)
    x, cell, inverse = box.positions, box.cell, np.linalg.inv(box.cell)
    extent, torn = np.ptp(x @ inverse, axis=0), 0
    context = box.context(platform)
    for shift in (0.03, 0.5, 7.6):
        moved = x + shift * free @ cell
        by_molecule = moved - np.floor(moved[starts] @ inverse) @ cell
        by_particle = moved - (np.floor(moved @ inverse) * free) @ cell
        torn += not np.allclose(np.ptp(by_particle @ inverse, axis=0), extent)
        for positions in (moved, by_molecule, by_particle):
            context.setPositions(positions)
            state = context.getState(energy=True, forces=True, groups={COULOMB})
            found_forces = state.getForces(asNumpy=True)._value
            assert state.getPotentialEnergy()._value == pytest.approx(energy, rel=TOLERANCE)
            assert relative_difference(found_forces, forces) <= 2 * TOLERANCE  # both have errors
    assert torn


def test_lennard_jones_and_exceptions_are_those_of_pme(box):
    """PME's energy minus its Coulomb part is the energy of the other groups."""
    in_vacuum(box, "slab")
    plain = copy.deepcopy(box)
    charges, _ = charges_and_pairs(box.nonbonded)
    for index in range(len(charges)):
        _, *lennard_jones = plain.nonbonded.getParticleParameters(index)
        plain.nonbonded.setParticleParameters(index, 0.0, *lennard_jones)
    converted(box, "slab")
    rest = box.energy_and_forces(groups=~(1 << COULOMB))[0]
    assert rest == pytest.approx(plain.energy_and_forces()[0], rel=1e-9)


@pytest.mark.slow
def test_energy_is_conserved_as_in_the_bulk(water):
    """At constant energy, with the same steps and tolerance, the total energy of a slab changes by
    no more than that of the bulk scatters about its drift. Without a switching function it would
    change as pairs of the relaxing layer cross the cutoff."""
    water.nonbonded.setUseSwitchingFunction(True)
    water.nonbonded.setSwitchingDistance(0.8 * water.nonbonded.getCutoffDistance())
    slab = in_vacuum(copy.deepcopy(water), "slab")
    changes, residuals = {}, {}
    for name, box in {"periodic": water, "slab": slab}.items():
        start = equilibrated(box.system, box.positions, 2.0)
        converted(box, name, tolerance=1e-4)
        length, platform = 1.0, openmm.Platform.getPlatform("CPU")  # ps
        energies = nve.total_energies(start, box.system, length, platform)
        energies = energies[len(energies) // 5 :]
        slope, offset = np.polyfit(np.arange(len(energies)), energies, 1)
        changes[name] = slope * len(energies)
        residuals[name] = np.std(energies - slope * np.arange(len(energies)) - offset)
    limit = abs(changes["periodic"]) + 3 * residuals["periodic"]
    assert abs(changes["slab"]) < limit, (changes, residuals)
    assert residuals["slab"] < 1.5 * residuals["periodic"], (changes, residuals)


@pytest.mark.slow
def test_restart_from_wrapped_output(water):
    """A slab that drifts across the face, and a run that continues from positions that OpenMM has
    wrapped."""
    in_vacuum(water, "slab")
    kinds = [type(force) for force in water.system.getForces()]
    water.system.removeForce(kinds.index(openmm.CMMotionRemover))
    converted(water, "slab")
    height = water.cell[2, 2]
    water.positions[:, 2] += height - 1.0
    context = water.context()
    context.setVelocities(np.tile([0.0, 0.0, 40.0], (len(water.positions), 1)))
    context.getIntegrator().step(25)  # of 0.04 nm each
    plain = context.getState(positions=True, energy=True)
    wrapped = context.getState(positions=True, enforcePeriodicBox=True)
    water.positions = wrapped.getPositions(asNumpy=True)._value
    drifted = plain.getPositions(asNumpy=True)._value
    assert drifted[:, 2].max() > height
    assert np.abs(water.positions - drifted).max() > 1.0
    assert energy_of(water.context()) == pytest.approx(
        plain.getPotentialEnergy()._value, rel=TOLERANCE
    )


@pytest.mark.slow
def test_survives_copies_xml_and_restoring(water):
    in_vacuum(water, "slab")
    before = openmm.XmlSerializer.serialize(water.system)
    force = converted(water, "slab")
    energy = coulomb(water)[0]
    assert "slab" in repr(force)
    text = openmm.XmlSerializer.serialize(water.system)
    for system in (copy.deepcopy(water.system), openmm.XmlSerializer.deserialize(text)):
        (found,) = fmm.find_fmm(system)
        assert "slab" in repr(found) and found.usesPeriodicBoundaryConditions()
        assert coulomb(Box(system, water.positions))[0] == energy
    assert "slab" in repr(copy.deepcopy(force))
    fmm.restore_pme(water.system)
    assert openmm.XmlSerializer.serialize(water.system) == before


def test_periodic_means_periodic_where_there_are_images(water):
    in_vacuum(water, "slab")
    force = fmm.FMMForce.from_nonbonded(water.nonbonded, boundary="slab")
    force.setUsesPeriodicBoundaryConditions(True)
    assert "slab" in repr(force)
    force.setUsesPeriodicBoundaryConditions(False)
    assert "open" in repr(force)
    force.setUsesPeriodicBoundaryConditions(True)
    assert "periodic" in repr(force)
    assert "wire" in repr(fmm.FMMForce(boundary="wire"))


def test_virial_and_charge_states(ions):
    """Whatever evaluates the force in a Context takes the same images."""
    in_vacuum(ions, "slab")
    force = converted(ions, "slab", tolerance=1e-3)
    energy, virial = coulomb(ions)[0], force.getVirialInContext(ions.context())
    ions.positions[:2] += 2 * ions.cell[2]
    context = ions.context()
    assert relative_difference(force.getVirialInContext(context), virial) <= 1e-3
    assert force.getStateEnergiesInContext(context, [{}])[0] == pytest.approx(energy, rel=1e-3)
    assert force.getFMMParametersInContext(context)["bridge"] == "host"


def test_states_with_a_net_charge(ions):
    """They are refused as by the Context, not given the finite part that sets of charges have."""
    ions.nonbonded.setUseDispersionCorrection(False)
    for particle, name in enumerate(("first", "second")):
        charge, *_ = ions.nonbonded.getParticleParameters(particle)
        ions.nonbonded.setParticleParameters(particle, 0.0, 0.3, 0.0)
        ions.nonbonded.addGlobalParameter(name, 1.0)
        ions.nonbonded.addParticleParameterOffset(name, particle, charge, 0.0, 0.0)
    in_vacuum(ions, "slab")
    force, context = converted(ions, "slab", tolerance=1e-3), ions.context()
    both, one = {"first": 0.5, "second": 0.5}, {"first": 0.5}
    for function in (fmm.state_energies, force.getStateEnergiesInContext):
        (energy,) = function(context, [both])
        for name, value in both.items():
            context.setParameter(name, value)
        assert energy == pytest.approx(energy_of(context), rel=1e-3)
        context.setParameter("second", 1.0)
        with pytest.raises(openmm.OpenMMException, match="got a net charge of"):
            energy_of(context)
        context.setParameter("first", 1.0)
        with pytest.raises(fmm.UnsupportedError, match="must be neutral in total"):
            function(context, [both, one])


def test_without_vacuum(water):
    fmm.use_fmm(water.system, boundary="slab", backend="cpu")
    water.nonbonded.setUseDispersionCorrection(False)
    with pytest.raises(openmm.OpenMMException, match="needs vacuum along box vector c"):
        water.energy_and_forces()


def test_ambiguous_images(ions):
    """A molecule halfway between the faces of a slab belongs to neither."""
    ions.nonbonded.setUseDispersionCorrection(False)
    converted(ions, "slab")
    ions.positions[:, 2] = [0.0, 0.1, 0.2, 1.0]
    before = coulomb(ions)[0]
    ions.positions[3, 2] = 1.59
    with pytest.raises(openmm.OpenMMException, match="next one"):
        coulomb(ions)
    ions.positions[3, 2] = 1.0 - 6.0
    assert coulomb(ions)[0] == pytest.approx(before, rel=TOLERANCE)


def test_a_single_layer_is_not_ambiguous():
    x = np.zeros((4, 3))
    x[:, 2] = [0.0, 3.0, -6.0, 9.0]
    moved = unwrap(x, 3.0 * np.eye(3), Boundary.from_name("slab"))
    np.testing.assert_array_equal(moved[:, 2], np.full(4, moved[0, 2]))


def test_a_net_charge_is_refused(chains):
    before = openmm.XmlSerializer.serialize(chains.system)
    with pytest.raises(fmm.UnsupportedError, match="must be neutral in total"):
        fmm.use_fmm(chains.system, boundary="slab")
    assert openmm.XmlSerializer.serialize(chains.system) == before
    force = fmm.FMMForce(boundary="slab", backend="cpu")
    for _ in range(chains.system.getNumParticles()):
        force.addParticle(1.0)
    in_vacuum(chains, "slab").system.addForce(force)
    with pytest.raises(openmm.OpenMMException, match="must be neutral in total"):
        chains.energy_and_forces()


@pytest.mark.parametrize(
    ("method", "name", "remedy"),
    [
        ("PME", "open", "periodic: set its method to NoCutoff"),
        ("NoCutoff", "slab", "not periodic: set its method to PME"),
    ],
)
def test_a_boundary_that_does_not_fit(water, method, name, remedy):
    water.nonbonded.setNonbondedMethod(getattr(openmm.NonbondedForce, method))
    with pytest.raises(ValueError, match=f"`boundary='{name}'` does not fit .* which is {remedy}"):
        fmm.use_fmm(water.system, boundary=name)
    with pytest.raises(ValueError, match="`boundary` must be one of"):
        fmm.use_fmm(water.system, boundary="slabs")
    with pytest.raises(ValueError, match="`grid` must be None with `boundary='slab'`"):
        fmm.FMMForce(boundary="slab", grid=(4, 4, 4))


ZFIXED = openmm.MonteCarloMembraneBarostat.ZFixed
BAROSTATS = {
    "isotropic": (lambda: openmm.MonteCarloBarostat(1.0, 300.0), "scales box vector c"),
    "membrane": (lambda: membrane(openmm.MonteCarloMembraneBarostat.ZFree), "scales box vector c"),
    "constant volume": (
        lambda: membrane(openmm.MonteCarloMembraneBarostat.ConstantVolume),
        "scales box vector c",
    ),
    "fixed height": (lambda: membrane(ZFIXED), None),
    "anisotropic": (
        lambda: openmm.MonteCarloAnisotropicBarostat(
            openmm.Vec3(1, 1, 1), 300.0, True, True, False
        ),
        None,
    ),
    "flexible": (lambda: openmm.MonteCarloFlexibleBarostat(1.0, 300.0), "scales box vector c"),
}


def membrane(mode):
    kind = openmm.MonteCarloMembraneBarostat
    return kind(1.0, 0.0, 300.0, kind.XYIsotropic, mode)


@pytest.mark.parametrize("kind", BAROSTATS)
def test_barostats(water, kind, recwarn):
    make, text = BAROSTATS[kind]
    in_vacuum(water, "slab")
    converted(water, "slab")
    water.system.addForce(make())
    water.context()
    found = [str(each.message) for each in recwarn if "box vector" in str(each.message)]
    assert ([text in each for each in found] == [True]) if text else not found


def test_long_range_corrections(water):
    water.nonbonded.setUseDispersionCorrection(True)
    custom = openmm.CustomNonbondedForce("0*r")
    for _ in range(water.system.getNumParticles()):
        custom.addParticle()
    custom.setCutoffDistance(0.5)
    custom.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    custom.setUseLongRangeCorrection(True)
    water.system.addForce(custom)
    fmm.use_fmm(water.system, boundary="slab", backend="cpu")
    with pytest.warns(UserWarning) as found:
        water.context()
    texts = [str(each.message) for each in found]
    assert any("setUseDispersionCorrection(False)" in text for text in texts)
    assert any("setUseLongRangeCorrection(False)" in text for text in texts)
