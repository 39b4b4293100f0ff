"""FMMForce as an object: adding, reading, errors, and the C++ object behind it."""

import copy
import gc
import pickle
import weakref

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.integration import pickled
from fmm_openmm.integration.guard import contexts
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import Box, energy_of

PAIR = np.array([[0.2, 0.3, 0.4], [1.2, 0.3, 0.4]])
EWALD = ewald_sum(PAIR, [1.0, -1.0], 3.0 * np.eye(3))
PAIR_ENERGY = pytest.approx(EWALD.energy, abs=1e-3)


def pair_force(**options):
    force = fmm.FMMForce(tolerance=1e-6, **options)
    force.addParticle(1.0)
    force.addParticle(-1.0)
    return force


def pair_box(*forces) -> Box:
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*(3.0 * np.eye(3)))
    for _ in range(2):
        system.addParticle(10.0)
    for force in forces:
        system.addForce(force)
    return Box(system, PAIR)


def test_what_is_added_can_be_read():
    force = fmm.FMMForce()
    assert [force.addParticle(charge) for charge in (0.5, -0.5 * unit.elementary_charge, 0.25)] == [
        0,
        1,
        2,
    ]
    assert force.getNumParticles() == 3
    assert force.getParticleParameters(1) == -0.5 * unit.elementary_charge
    force.setParticleParameters(1, -0.75)
    assert force.getParticleParameters(1)._value == -0.75

    assert force.addExclusion(0, 1) == 0 and force.addExclusion(2, 0) == 1
    assert force.getNumExclusions() == 2
    assert force.getExclusionParticles(1) == [2, 0]

    assert force.addGlobalParameter("lambda", 0.5) == 0 and force.addGlobalParameter("mu", 1) == 1
    assert force.getNumGlobalParameters() == 2
    assert (force.getGlobalParameterName(1), force.getGlobalParameterDefaultValue(1)) == ("mu", 1.0)
    assert force.addParticleParameterOffset("mu", 2, -0.1) == 0
    assert force.getNumParticleParameterOffsets() == 1
    assert force.getParticleParameterOffset(0) == ["mu", 2, -0.1]
    force.setParticleParameterOffset(0, "lambda", 1, 0.2)
    assert force.getParticleParameterOffset(0) == ["lambda", 1, 0.2]

    assert force.getExclusionsUsePeriodicBoundaryConditions() is False
    force.setExclusionsUsePeriodicBoundaryConditions(True)
    assert force.getExclusionsUsePeriodicBoundaryConditions() is True
    assert force.usesPeriodicBoundaryConditions()
    assert isinstance(force, openmm.Force)


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda force: force.addParticle(float("nan")),
            "`charge` must be finite, got nan for particle 2",
        ),
        (
            lambda force: force.setParticleParameters(1, np.inf),
            "`charge` must be finite, got inf for particle 1",
        ),
        (
            lambda force: force.setParticleParameters(2, 0.0),
            "below 2, the number of particles, got 2",
        ),
        (lambda force: force.getParticleParameters(-1), "got -1"),
        (lambda force: force.addExclusion(0, 0), r"must name two particles, got \(0, 0\)"),
        (lambda force: force.addExclusion(1, 0), "already an exclusion of particles 1 and 0"),
        (lambda force: force.addExclusion(-1, 0), r"from 0 to 2147483647, got \(-1, 0\)"),
        (lambda force: force.getExclusionParticles(1), "below 1, the number of exclusions, got 1"),
        (lambda force: force.addGlobalParameter("a", 1.0), "already a global parameter 'a'"),
        (lambda force: force.addGlobalParameter("fmm_revision", 1.0), "must not be 'fmm_revision'"),
        (lambda force: force.addParticleParameterOffset("b", 0, 1.0), "no global parameter 'b'"),
        (
            lambda force: force.addParticleParameterOffset("a", -2, 1.0),
            "between 0 and 2147483647, got -2",
        ),
        (lambda force: force.addParticleParameterOffset("a", 1, np.nan), "`scale` must be finite"),
        (
            lambda force: force.getParticleParameterOffset(0),
            "below 0, the number of parameter offsets, got 0",
        ),
        (
            lambda force: force.getGlobalParameterName(1),
            "below 1, the number of global parameters, got 1",
        ),
        (
            lambda force: force.setCharges([1.0, np.nan]),
            "`charges` must be finite, got nan for particle 1",
        ),
        (
            lambda force: force.setCharges([1.0]),
            r"`charges` must have shape \(2,\), one for each particle, got \(1,\)",
        ),
        (lambda force: force.addParticle("one"), "`charge` must be a number, got 'one'"),
        (lambda force: force.addParticle("1"), "`charge` must be a number, got '1'"),
        (lambda force: force.setParticleParameters(0, None), "`charge` must be a number, got None"),
        (
            lambda force: force.setParticleParameters(0.5, 1.0),
            "`index` must be an integer, got 0.5",
        ),
        (lambda force: force.addExclusion(0.5, 1), "`particle1` must be an integer, got 0.5"),
        (
            lambda force: force.addParticleParameterOffset("a", "x", 1.0),
            "`particleIndex` must be an integer, got 'x'",
        ),
        (
            lambda force: force.addExclusion(0, 2**31),
            r"from 0 to 2147483647, got \(0, 2147483648\)",
        ),
        (lambda force: force.addExclusion(0, 2**32 + 5), "from 0 to 2147483647"),
        (
            lambda force: force.addParticleParameterOffset("a", 2**31, 1.0),
            "between 0 and 2147483647, got 2147483648",
        ),
        (
            lambda force: force.addParticle(1.0 * unit.nanometer),
            "`charge` must be in units of elementary charge",
        ),
        (
            lambda force: force.setCharges([1.0, -1.0] * unit.nanometer),
            "`charges` must be in units of elementary charge",
        ),
        (lambda force: fmm.FMMForce.from_force(3), "`force` must be an openmm.Force, got int"),
        (
            lambda force: fmm.FMMForce.from_nonbonded(force),
            "`nonbonded_force` must be an openmm.NonbondedForce, got FMMForce",
        ),
    ],
)
def test_bad_values_are_named_and_change_nothing(call, text):
    force = pair_force()
    force.addExclusion(0, 1)
    force.addGlobalParameter("a", 1.0)
    before = force._definition.pack()
    with pytest.raises((ValueError, TypeError), match=text):
        call(force)
    assert force._definition.pack() == before
    assert force.getNumParticles() == 2 and force.getNumExclusions() == 1


def test_a_bad_row_leaves_the_others_as_they_are():
    force = pair_force()
    force.addGlobalParameter("a", 1.0)
    force.addGlobalParameter("b", 1.0)
    force.addParticleParameterOffset("a", 0, 0.5)
    for index in (0, 1):
        with pytest.raises(ValueError):
            force.setParticleParameterOffset(0, "b", 2**31, 1.0)
        with pytest.raises(ValueError, match="`scale` must be finite"):
            force.addParticleParameterOffset("a", index, np.nan)
    assert force.addParticleParameterOffset("b", 1, 0.25) == 1
    assert [force.getParticleParameterOffset(index) for index in (0, 1)] == [
        ["a", 0, 0.5],
        ["b", 1, 0.25],
    ]


@pytest.mark.parametrize(
    "pair, text",
    [
        ((1, 0), r"lists the pair \[0, 1\] twice"),
        ((1, 3), "from 0 to 2"),
    ],
)
def test_bad_exceptions_of_a_nonbonded_force_are_named(pair, text):
    nonbonded = openmm.NonbondedForce()
    for charge in (1.0, -1.0, 0.0):
        nonbonded.addParticle(charge, 0.3, 0.1)
    nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    nonbonded.addException(1, 2, 0.0, 0.3, 0.0)
    nonbonded.setExceptionParameters(1, *pair, 0.0, 0.3, 0.0)
    with pytest.raises(ValueError, match=text):
        fmm.FMMForce.from_nonbonded(nonbonded)


def test_a_bad_charge_of_a_nonbonded_force_is_named():
    nonbonded = openmm.NonbondedForce()
    for charge in (1.0, np.nan):
        nonbonded.addParticle(charge, 0.3, 0.1)
    with pytest.raises(ValueError, match="`charges` must be finite, got nan for particle 1"):
        fmm.FMMForce.from_nonbonded(nonbonded)


def test_a_native_bridge_where_there_is_none(monkeypatch):
    monkeypatch.setattr("fmm_openmm.integration.native.plugin.find", lambda: "no compiler")
    with pytest.raises(
        fmm.UnsupportedError, match="`bridge='native'` is not available: no compiler"
    ):
        fmm.FMMForce(bridge="native")


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"tolerance": 0}, ValueError, "`tolerance` must lie between"),
        ({"tolerance": -1e-3}, ValueError, "`tolerance`"),
        ({"tolerance": "tight"}, TypeError, "`tolerance` must be a number"),
        ({"order": 0}, ValueError, "`order`"),
        ({"grid": 0}, ValueError, "`grid`"),
        ({"near_radius": 0.1}, ValueError, "`near_radius`"),
        ({"smoothing": 0.9}, ValueError, "`smoothing`"),
        ({"precision": "half"}, ValueError, "`precision`"),
        (
            {"precision": "single", "tolerance": 1e-9},
            ValueError,
            "`tolerance` must be at least 5e-06 in single",
        ),
        ({"backend": "tpu"}, ValueError, "`backend`"),
        (
            {"bridge": "carrier pigeon"},
            ValueError,
            "`bridge` must be one of 'auto', 'host', 'native'",
        ),
        ({"tolerence": 1e-4}, TypeError, "tolerence"),
    ],
)
def test_bad_options_are_named(options, error, text):
    with pytest.raises(error, match=text):
        fmm.FMMForce(**options)


def test_the_gpu_backend_is_refused_where_there_is_none(ions):
    before = openmm.XmlSerializer.serialize(ions.system)
    try:
        fmm.CoulombSolver([1.0], np.eye(3), backend="cuda")
    except fmm.UnsupportedError as reason:
        with pytest.raises(fmm.UnsupportedError) as refusal:
            fmm.use_fmm(ions.system, backend="cuda")
        assert str(refusal.value) == str(reason)
        assert openmm.XmlSerializer.serialize(ions.system) == before
    else:
        assert fmm.use_fmm(ions.system, backend="cuda").getNumParticles() == 4


def test_only_all_particles():
    force = pair_force()
    with pytest.raises(fmm.UnsupportedError, match=r"charge 0"):
        force.setParticles([0])


def test_pair_energy(platform):
    energy, forces = pair_box(pair_force()).energy_and_forces(platform)
    assert energy == PAIR_ENERGY
    assert np.abs(forces - EWALD.forces).max() < 1e-3


def test_changes_rebuild_the_object_and_keep_name_and_group():
    force = fmm.FMMForce(tolerance=1e-6)
    assert force.getName() == "FMMForce" and force.getForceGroup() == 0
    force.setName("coulomb")
    force.setForceGroup(7)
    force.addParticle(1.0)
    force.addParticle(-1.0)
    assert force.getName() == "coulomb" and force.getForceGroup() == 7
    assert 'forceGroup="7"' in openmm.XmlSerializer.serialize(force)
    box = pair_box(force)
    assert box.system.getForce(0).getName() == "coulomb"
    assert box.system.usesPeriodicBoundaryConditions()
    assert energy_of(box.context(), groups={7}) == PAIR_ENERGY
    assert energy_of(box.context(), groups={0}) == 0


def test_filled_after_it_was_added():
    force = fmm.FMMForce(tolerance=1e-6)
    box = pair_box(force)
    force.addParticle(1.0)
    force.addParticle(-1.0)
    assert not force.thisown
    for system in (box.system, copy.deepcopy(box.system)):
        assert energy_of(Box(system, box.positions).context()) == PAIR_ENERGY


def test_a_change_that_cannot_reach_the_xml_warns(monkeypatch):
    force = pair_force()
    box = pair_box(force)
    monkeypatch.setattr(pickled, "_setter", lambda: None)
    with pytest.warns(UserWarning, match="XML and copies of the System will lack it"):
        force.setParticleParameters(0, 0.0)
    assert energy_of(box.context()) == pytest.approx(
        ewald_sum(PAIR, [0.0, -1.0], 3.0 * np.eye(3)).energy, abs=1e-3
    )


def test_a_force_can_be_added_once():
    force = pair_force()
    box = pair_box(force)
    with pytest.raises(Exception, match=r"does not own"):
        box.system.addForce(force)


def test_global_parameters_come_before_the_system():
    force = pair_force()
    pair_box(force)
    with pytest.raises(
        ValueError, match=r"'late' must be added to the FMMForce before the force is added"
    ):
        force.addGlobalParameter("late", 1.0)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda force: pickle.loads(pickle.dumps(force))]
)
def test_copies_are_independent(duplicate):
    force = pair_force(order=14)
    force.setName("original")
    force.setForceGroup(3)
    force.addGlobalParameter("a", 0.5)
    force.addParticleParameterOffset("a", 1, 0.125)
    force.addExclusion(0, 1)
    force.setExclusionsUsePeriodicBoundaryConditions(True)
    twin = duplicate(force)
    assert type(twin) is fmm.FMMForce and twin.getName() == "original" and twin.getForceGroup() == 3
    assert twin.getParticleParameterOffset(0) == ["a", 1, 0.125]
    assert (
        twin.getExclusionParticles(0) == [0, 1]
        and twin.getExclusionsUsePeriodicBoundaryConditions()
    )
    force.setParticleParameters(0, 5.0)
    assert twin.getParticleParameters(0)._value == 1.0
    box = pair_box(twin)
    assert twin.getFMMParametersInContext(box.context())["order"] == 14


def test_handles_of_one_force_agree():
    force = pair_force()
    box = pair_box(force)
    plain = box.system.getForce(0)
    assert type(plain) is openmm.PythonForce
    view = fmm.FMMForce.from_force(plain)
    view.setParticleParameters(0, 2.0)
    assert force.getParticleParameters(0)._value == 2.0
    assert [int(found.this) for found in fmm.find_fmm(box.system)] == [int(plain.this)]


def test_other_forces_are_not_taken_for_ours():
    other = openmm.PythonForce(energy_of)
    local = openmm.PythonForce(lambda state: (0.0, None))
    box = pair_box(other, local, openmm.HarmonicBondForce())
    assert fmm.find_fmm(box.system) == []
    for index in range(3):
        with pytest.raises(ValueError, match=r"`force` must be an FMMForce, got"):
            fmm.FMMForce.from_force(box.system.getForce(index))


def test_wrong_number_of_particles_is_named():
    force = pair_force()
    force.addParticle(0.0)
    box = pair_box(force)
    with pytest.raises(
        fmm.UnsupportedError,
        match=r"particle for each of the System's 2, got 3\. Call its addParticle\(\)",
    ):
        box.context()
    contexts.remove()  # as for a Context that OpenMM makes itself
    try:
        with pytest.raises(
            openmm.OpenMMException, match=r"FMMForce has 3 particles, but the System has 2"
        ):
            energy_of(box.context())
    finally:
        contexts.install()


def test_an_exclusion_of_nobody_is_named():
    force = pair_force()
    force.addExclusion(0, 5)
    with pytest.raises(
        openmm.OpenMMException,
        match=r"`exclusions of the FMMForce` must hold .* 0 to 1, got \[0, 5\]",
    ):
        energy_of(pair_box(force).context())


def test_two_forces_add_up(platform):
    first, second = pair_force(), pair_force()
    second.setForceGroup(1)
    second.setParticleParameters(0, 2.0)
    context = pair_box(first, second).context(platform)
    parts = [energy_of(context, groups={group}) for group in (0, 1)]
    assert parts[0] == PAIR_ENERGY and abs(parts[1] - parts[0]) > 1
    assert energy_of(context) == pytest.approx(sum(parts), rel=1e-12)


def test_forces_are_freed():
    force = pair_force()
    box = pair_box(force)
    energy_of(box.context())
    bridge = weakref.ref(force._bridge)
    del box, force
    gc.collect()
    assert bridge() is None
