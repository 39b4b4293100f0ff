"""Free space in OpenMM: ``FMMForce`` and ``use_fmm`` against NoCutoff."""

import copy

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.integration.native import callbacks
from fmm_openmm.oracle import direct_sum
from tests.integration.boxes import Box, charges_and_pairs, energy_of, opened, relative_difference

PLACES = {"water": "water", "virtual sites": "tip5p", "exceptions and net charge": "chains"}


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def box(request):
    return opened(request.getfixturevalue(request.param))


@pytest.fixture
def cluster(chains):
    return opened(chains)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [5e-4, 1e-7])
def test_agrees_with_nocutoff(box, platform, tolerance):
    energy, forces = box.energy_and_forces(platform)
    coulomb = direct_sum(box.positions, *charges_and_pairs(box.nonbonded))
    fmm.use_fmm(box.system, tolerance=tolerance)
    assert not box.system.usesPeriodicBoundaryConditions()
    found, found_forces = box.energy_and_forces(platform)
    # of OpenMM's sums over pairs, and of its parameters as floats
    rounding = {"CPU": 1e-5, "CUDA": 3e-7}.get(platform, 0.0)
    assert abs(found - energy) <= (tolerance + rounding) * abs(coulomb.energy)
    assert np.linalg.norm(found_forces - forces) <= (tolerance + rounding) * np.linalg.norm(
        coulomb.forces
    )


@pytest.mark.slow
def test_box_vectors_do_not_matter(cluster, platform):
    fmm.use_fmm(cluster.system)
    context = cluster.context(platform)
    before = energy_of(context)
    context.setPeriodicBoxVectors(*(10 * np.eye(3)))
    assert energy_of(context) == before


def test_restore_is_exact(box):
    before = openmm.XmlSerializer.serialize(box.system)
    fmm.use_fmm(box.system)
    assert box.nonbonded.getNonbondedMethod() == openmm.NonbondedForce.NoCutoff
    assert openmm.XmlSerializer.serialize(box.system) != before
    fmm.restore_pme(box.system)
    assert openmm.XmlSerializer.serialize(box.system) == before


@pytest.mark.slow
def test_survives_copies_and_xml(cluster):
    fmm.use_fmm(cluster.system)
    energy = cluster.energy_and_forces()[0]
    text = openmm.XmlSerializer.serialize(cluster.system)
    for system in (copy.deepcopy(cluster.system), openmm.XmlSerializer.deserialize(text)):
        (found,) = fmm.find_fmm(system)
        assert not found.usesPeriodicBoundaryConditions()
        assert Box(system, cluster.positions).energy_and_forces()[0] == energy
    assert not copy.deepcopy(fmm.find_fmm(cluster.system)[0]).usesPeriodicBoundaryConditions()


@pytest.mark.slow
def test_the_boundary_may_be_set(cluster):
    """Before the force is added, and after; it follows the NonbondedForce that
    the charges come from."""
    cluster.nonbonded.setForceGroup(3)
    force = fmm.FMMForce.from_nonbonded(cluster.nonbonded)
    assert not force.usesPeriodicBoundaryConditions()
    force.setUsesPeriodicBoundaryConditions(True)
    assert force.usesPeriodicBoundaryConditions()
    cluster.system.addForce(force)
    assert cluster.system.usesPeriodicBoundaryConditions()
    periodic = energy_of(cluster.context(), groups={3})
    with pytest.raises(ValueError, match="must not change once a Context has used it"):
        force.setUsesPeriodicBoundaryConditions(False)
    force.setUsesPeriodicBoundaryConditions(True)
    assert energy_of(cluster.context(), groups={3}) == periodic
    cluster.system = copy.deepcopy(cluster.system)
    (force,) = fmm.find_fmm(cluster.system)
    force.setUsesPeriodicBoundaryConditions(False)
    assert not cluster.system.usesPeriodicBoundaryConditions()
    open_energy = energy_of(cluster.context(), groups={3})
    exact = direct_sum(cluster.positions, *charges_and_pairs(cluster.nonbonded)).energy
    cluster.system.removeForce(1)
    assert open_energy - energy_of(cluster.context(), groups={3}) == pytest.approx(exact, rel=5e-4)
    assert abs(periodic - open_energy) > 1.0


@pytest.mark.slow
def test_reaction_field_on_request(cluster):
    """Coulomb is that of NoCutoff, Lennard-Jones stays cut off."""
    opened(cluster, openmm.NonbondedForce.CutoffNonPeriodic)
    plain = copy.deepcopy(cluster)
    for index in range(plain.nonbonded.getNumParticles()):
        _, *lennard_jones = plain.nonbonded.getParticleParameters(index)
        plain.nonbonded.setParticleParameters(index, 0.0, *lennard_jones)
    expected = plain.energy_and_forces()[0]
    expected += direct_sum(cluster.positions, *charges_and_pairs(cluster.nonbonded)).energy
    fmm.use_fmm(cluster.system, tolerance=1e-8, allow_reaction_field=True)
    assert cluster.nonbonded.getNonbondedMethod() == openmm.NonbondedForce.CutoffNonPeriodic
    assert cluster.energy_and_forces()[0] == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kind", [openmm.GBSAOBCForce, openmm.CustomGBForce])
def test_implicit_solvent(cluster, kind):
    """A GBSA force without a cutoff stays as it is; with a cutoff the Coulomb interaction must have
    it too."""
    solvent = kind()
    solvent.setNonbondedMethod(kind.CutoffNonPeriodic)
    cluster.system.addForce(solvent)
    with pytest.raises(
        fmm.UnsupportedError, match=f"{kind.__name__}.*implicit solvent with a cutoff"
    ):
        fmm.use_fmm(cluster.system)
    solvent.setNonbondedMethod(kind.NoCutoff)
    assert not fmm.use_fmm(cluster.system).usesPeriodicBoundaryConditions()


def test_a_grid_is_refused(cluster):
    before = openmm.XmlSerializer.serialize(cluster.system)
    with pytest.raises(ValueError, match="`grid` must be None with `boundary='open'`"):
        fmm.use_fmm(cluster.system, grid=(4, 4, 4))
    assert openmm.XmlSerializer.serialize(cluster.system) == before


def test_what_is_in_use(cluster, platform):
    force = fmm.use_fmm(cluster.system, tolerance=1e-5, order=5, near_radius=1.87)
    found = force.getFMMParametersInContext(cluster.context(platform))
    bridge = "native" if platform == "CUDA" and callbacks.activate() is None else "host"
    assert (found["order"], found["near_radius"], found["bridge"]) == (5, 1.87, bridge)


@pytest.mark.slow
def test_potentials_and_derivatives(cluster, platform):
    cluster.nonbonded.addGlobalParameter("charge", 0.5)
    cluster.nonbonded.addParticleParameterOffset("charge", 3, 2.0, 0.0, 0.0)
    charges, pairs = charges_and_pairs(cluster.nonbonded)
    charges[3] += 1.0
    exact = direct_sum(cluster.positions, charges, pairs).potentials
    force = fmm.use_fmm(cluster.system, tolerance=1e-8)
    context = cluster.context(platform)
    assert relative_difference(force.getPotentialsInContext(context), exact) <= 1e-8
    assert force.getEnergyParameterDerivativesInContext(context)["charge"] == pytest.approx(
        2.0 * exact[3], rel=1e-7
    )


@pytest.mark.slow
def test_energy_is_conserved_while_particles_leave(ions, platform):
    """Ions fly apart, far beyond the first boxes."""
    opened(ions)
    for index in range(4):
        ions.nonbonded.setParticleParameters(index, 1.0, 0.3, 0.1)
    fmm.use_fmm(ions.system, tolerance=1e-6)
    context = ions.context(platform, openmm.VerletIntegrator(0.002))
    context.setVelocities(3.0 * (ions.positions - ions.positions.mean(0)))

    def total():
        state = context.getState(energy=True)
        return (state.getPotentialEnergy() + state.getKineticEnergy())._value

    before = total()
    context.getIntegrator().step(500)
    extent = np.ptp(
        context.getState(positions=True).getPositions(asNumpy=True)._value, axis=0
    ).max()
    assert extent > 10.0
    assert total() == pytest.approx(before, abs=0.05)


def test_a_bad_coordinate_is_named(cluster, platform):
    fmm.use_fmm(cluster.system)
    cluster.positions[7, 2] = np.nan
    with pytest.raises(openmm.OpenMMException, match=r"particle 7|NaN"):
        cluster.energy_and_forces(platform)


@pytest.mark.parametrize("reference", ["direct", "nocutoff", None])
def test_validate(cluster, reference):
    before = openmm.XmlSerializer.serialize(cluster.system)
    report = fmm.validate(
        cluster.system, cluster.positions * unit.nanometer, reference=reference, tolerance=1e-5
    )
    assert openmm.XmlSerializer.serialize(cluster.system) == before
    exact = direct_sum(cluster.positions, *charges_and_pairs(cluster.nonbonded))
    assert report.reference_energy == pytest.approx(exact.energy, rel=1e-10)
    assert report.relative_rms_force_error <= 1e-5
    assert report.passed
    assert report.pme is None
    assert "FMM meets its tolerance of 1e-05." in report.summary()


def test_the_reference_must_fit_the_boundary(cluster, water):
    with pytest.raises(
        ValueError,
        match="`reference` must be 'direct' or 'nocutoff' with the open boundary of this System",
    ):
        fmm.validate(cluster.system, cluster.positions, reference="ewald")
    with pytest.raises(
        ValueError,
        match="`reference` must be 'ewald' or 'pme' with the periodic boundary of this System",
    ):
        fmm.validate(water.system, water.positions, reference="direct")
