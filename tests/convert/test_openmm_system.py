"""From an openmm.System and from a topology with a force field."""

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.convert.openmm_system import nonbonded_force


def test_from_openmm(water, assert_water):
    positions = [openmm.Vec3(*x) for x in 10 * water.positions] * unit.angstrom
    assert_water(fmm.ChargeSystem.from_openmm(water.system, positions))
    assert_water(fmm.ChargeSystem.from_openmm(water.system, water.positions))
    assert fmm.ChargeSystem.from_openmm(water.system).positions is None


def test_from_topology(water, assert_water):
    files = "amber14/tip3p.xml"
    for field in (files, [files], app.ForceField(files)):
        assert_water(fmm.ChargeSystem.from_topology(water.topology, field, water.positions))


@pytest.mark.parametrize(
    "box", [None, 0.1 * np.eye(3) * unit.nanometer], ids=["none", "of one Angstrom"]
)
def test_from_topology_without_box(water, box):
    topology = app.PDBFile(water.pdb).topology
    topology.setPeriodicBoxVectors(box)
    assert fmm.ChargeSystem.from_topology(topology, "amber14/tip3p.xml").box_vectors is None


def small_system(count=4):
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(force.PME)
    for i in range(count):
        system.addParticle(1.0)
        force.addParticle(0.5 - i, 0.1, 0.0)
    system.addForce(force)
    return system, force


def test_offsets_count_at_their_defaults():
    system, force = small_system()
    force.addGlobalParameter("lambda", 0.25)
    force.addGlobalParameter("mu", 2.0)
    force.addParticleParameterOffset("lambda", 1, 0.8, 0, 0)
    force.addParticleParameterOffset("mu", 1, 0.1, 0, 0)
    force.addParticleParameterOffset("mu", 3, -1.0, 0, 0)
    assert fmm.ChargeSystem.from_openmm(system).charges == pytest.approx(
        [0.5, -0.5 + 0.2 + 0.2, -1.5, -2.5 - 2.0]
    )


def test_every_exception_is_an_exclusion():
    system, force = small_system()
    force.addException(3, 1, 0.0, 0.1, 0.0)
    force.addException(0, 1, 0.4, 0.1, 0.0)
    force.setExceptionsUsePeriodicBoundaryConditions(True)
    found = fmm.ChargeSystem.from_openmm(system)
    assert found.exclusions.tolist() == [[0, 1], [1, 3]]
    assert found.exclusions_periodic is True


def test_the_systems_box_and_none_for_an_open_force():
    system, force = small_system()
    system.setDefaultPeriodicBoxVectors([3, 0, 0], [1, 3, 0], [0, -1, 3])
    assert fmm.ChargeSystem.from_openmm(system).box_vectors.tolist() == [
        [3, 0, 0],
        [1, 3, 0],
        [0, -1, 3],
    ]
    force.setNonbondedMethod(force.NoCutoff)
    assert fmm.ChargeSystem.from_openmm(system).box_vectors is None


@pytest.mark.slow
def test_the_energy_is_that_of_pme(water):
    """The container holds all that PME knows of electrostatics: TIP3P has no scaled exceptions."""
    system = openmm.XmlSerializer.clone(water.system)
    for i in reversed(range(system.getNumForces())):
        if not isinstance(system.getForce(i), openmm.NonbondedForce):
            system.removeForce(i)
    force = system.getForce(0)
    force.setEwaldErrorTolerance(1e-6)
    for i in range(force.getNumParticles()):
        force.setParticleParameters(i, force.getParticleParameters(i)[0], 0.1, 0.0)
    force.setUseDispersionCorrection(False)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(water.positions)
    pme = context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    found = fmm.ChargeSystem.from_openmm(water.system, water.positions)
    energy = (
        found.solver(tolerance=1e-6, precision="double", backend="reference")
        .compute(found.positions)
        .energy
    )
    assert energy == pytest.approx(pme, rel=1e-5)


def test_refuses_what_has_no_nonbonded_force():
    system = openmm.System()
    system.addForce(openmm.AmoebaMultipoleForce())
    with pytest.raises(fmm.UnsupportedError, match="it has 0; its forces: AmoebaMultipoleForce"):
        fmm.ChargeSystem.from_openmm(system)
    with pytest.raises(fmm.UnsupportedError, match="its forces: no force at all"):
        fmm.ChargeSystem.from_openmm(openmm.System())


def test_refuses_two_nonbonded_forces():
    system, _ = small_system()
    system.addForce(openmm.NonbondedForce())
    with pytest.raises(fmm.UnsupportedError, match="it has 2"):
        fmm.ChargeSystem.from_openmm(system)


def test_refuses_no_particles():
    system, _ = small_system(count=0)
    with pytest.raises(ValueError, match="no particles"):
        fmm.ChargeSystem.from_openmm(system)


def test_refuses_other_counts_and_units(water):
    with pytest.raises(ValueError, match="`positions` must have shape"):
        fmm.ChargeSystem.from_openmm(water.system, water.positions[1:])
    with pytest.raises(ValueError, match="`positions` must be in units of nanometer, got kelvin"):
        fmm.ChargeSystem.from_openmm(
            water.system, [openmm.Vec3(*x) for x in water.positions] * unit.kelvin
        )
    with pytest.raises(
        ValueError, match="`positions` must be in units of nanometer, got elementary charge"
    ):
        fmm.ChargeSystem.from_openmm(
            water.system, [x * unit.elementary_charge for x in water.positions]
        )


def test_refuses_other_types(water):
    with pytest.raises(TypeError, match=r"`system` must be an openmm\.System, got Topology"):
        fmm.ChargeSystem.from_openmm(water.topology)
    with pytest.raises(
        TypeError, match=r"`forcefield` must be an openmm\.app\.ForceField or file names, got float"
    ):
        fmm.ChargeSystem.from_topology(water.topology, 3.0)
    with pytest.raises(
        TypeError, match=r"`topology` must be an openmm\.app\.Topology, got NoneType"
    ):
        fmm.ChargeSystem.from_topology(None, "amber14/tip3p.xml")


def test_a_force_field_that_does_not_fit(water):
    with pytest.raises(ValueError, match="No template found"):
        fmm.ChargeSystem.from_topology(water.topology, "tip5p.xml", np.array(water.positions))


def test_a_system_converted_by_use_fmm(water, assert_water):
    system = openmm.XmlSerializer.clone(water.system)
    fmm.use_fmm(system)
    assert_water(fmm.ChargeSystem.from_openmm(system, water.positions))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    assert_water(fmm.ChargeSystem.from_openmm(again, water.positions))


def test_offsets_of_a_system_converted_by_use_fmm():
    system, force = small_system()
    force.addGlobalParameter("lambda", 0.25)
    force.addParticleParameterOffset("lambda", 1, 0.8, 0, 0)
    force.addParticleParameterOffset("lambda", 2, 0.0, 0.1, 0)
    before = fmm.ChargeSystem.from_openmm(system)
    fmm.use_fmm(system)
    assert np.array_equal(fmm.ChargeSystem.from_openmm(system).charges, before.charges)


def test_what_the_fmm_force_excludes_counts(water):
    """Not the exceptions: what use_fmm() took from them may have been changed since."""
    system = openmm.XmlSerializer.clone(water.system)
    force = fmm.use_fmm(system)
    force.addExclusion(3, 0)
    force.setExclusionsUsePeriodicBoundaryConditions(True)
    for each in (system, openmm.XmlSerializer.clone(system)):
        found = fmm.ChargeSystem.from_openmm(each)
        assert {*map(tuple, found.exclusions)} == {*map(tuple, water.exclusions), (0, 3)}
        assert found.exclusions_periodic is True
        assert found.box_vectors is not None
    force.setUsesPeriodicBoundaryConditions(False)
    assert fmm.ChargeSystem.from_openmm(system).box_vectors is None
    fmm.restore_pme(system)
    before, after = map(fmm.ChargeSystem.from_openmm, (water.system, system))
    for name in ("charges", "box_vectors", "exclusions", "exclusions_periodic"):
        assert np.array_equal(getattr(after, name), getattr(before, name))


def fmm_system(water, *changes):
    """A System of the water's charges in FMMForces alone, one for each change of the force."""
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*water.box)
    for _ in range(len(water.charges)):
        system.addParticle(1.0)
    for k, change in enumerate(changes):
        force = fmm.FMMForce.from_nonbonded(nonbonded_force(water.system))
        change(force)
        force.setName(f"number {k}")
        system.addForce(force)
    return system


def test_a_system_with_an_fmm_force_alone(water, assert_water):
    system = fmm_system(water, lambda _: None)
    assert_water(fmm.ChargeSystem.from_openmm(system, water.positions))
    assert_water(fmm.ChargeSystem.from_openmm(openmm.XmlSerializer.clone(system), water.positions))


def test_charges_of_several_forces_add_up(water):
    twice = fmm.ChargeSystem.from_openmm(fmm_system(water, lambda _: None, lambda _: None))
    assert np.array_equal(twice.charges, 2 * water.charges)
    system = openmm.XmlSerializer.clone(water.system)
    system.addForce(fmm.FMMForce.from_nonbonded(nonbonded_force(system)))
    found = fmm.ChargeSystem.from_openmm(system)
    assert np.array_equal(found.charges, 2 * water.charges)
    assert np.array_equal(found.exclusions, water.exclusions)


@pytest.mark.parametrize(
    "change",
    [
        lambda force: force.addExclusion(0, 3),
        lambda force: force.addParticle(0.0),
        lambda force: force.setExclusionsUsePeriodicBoundaryConditions(True),
        lambda force: force.setUsesPeriodicBoundaryConditions(False),
    ],
    ids=["exclusions", "particles", "periodic exclusions", "boundary"],
)
def test_refuses_forces_whose_charges_do_not_add_up(water, change):
    system = fmm_system(water, lambda _: None, change)
    with pytest.raises(
        fmm.UnsupportedError, match="of FMMForce 'number 0' and FMMForce 'number 1' do not add up"
    ):
        fmm.ChargeSystem.from_openmm(system)
