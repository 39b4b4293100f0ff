"""Equal Systems have equal texts, files of earlier versions are read, and States pass between
Contexts with PME and with an FMM."""

import copy
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration import xml
from fmm_openmm.integration.snapshots import REVISION
from tests.integration.boxes import Box, energy_of

DATA = Path(__file__).parent / "data"
OPENMM = tuple(map(int, openmm.version.short_version.split(".")[:2]))
of_openmm_8_6 = pytest.mark.skipif(
    OPENMM < (8, 6), reason="the file is OpenMM 8.6's, which older ones do not read"
)
text_of = openmm.XmlSerializer.serialize


def through_xml(system):
    return openmm.XmlSerializer.deserialize(text_of(system))


def through_pickle(system):
    return pickle.loads(pickle.dumps(system))


def copied(system):
    """Copy by the method that OpenMM's documentation names in addition to ``copy``."""
    return openmm.XmlSerializer.clone(system)


WAYS = [through_xml, through_pickle, copy.deepcopy, copied]


@pytest.mark.parametrize("way", WAYS)
def test_clones_have_the_same_text(chains, way):
    """Clones have the same text, also after an edit of either and where the force is inside
    another."""
    chains.nonbonded.addGlobalParameter("a", 0.5)
    chains.nonbonded.addParticleParameterOffset("a", 1, 0.2, 0.0, 0.0)
    force = fmm.use_fmm(chains.system, tolerance=2e-5)
    outer = openmm.CustomCVForce("coulomb")
    outer.addCollectiveVariable("coulomb", copy.copy(force))
    chains.system.addForce(outer)
    text, clone = text_of(chains.system), way(chains.system)
    assert (
        text == text_of(clone) == text_of(way(clone)) == openmm.XmlSerializer.serializeSystem(clone)
    )
    assert text_of(force) == text_of(fmm.find_fmm(clone)[0])
    force.setParticleParameters(0, 0.25)
    assert text_of(chains.system) != text
    fmm.find_fmm(clone)[0].setParticleParameters(0, 0.25)
    assert text_of(chains.system) == text_of(clone)


@pytest.mark.slow
def test_another_process_writes_the_same_text(tmp_path):
    script = (
        "import sys, openmm, fmm_openmm\n"
        "system, force = openmm.System(), openmm.NonbondedForce()\n"
        "force.setNonbondedMethod(force.PME)\n"
        "for charge in (1.0, -0.3, 0.2):\n"
        "    system.addParticle(1.0)\n"
        "    force.addParticle(charge, 0.3, 0.1)\n"
        "force.addException(0, 1, 0.0, 0.3, 0.0)\n"
        "system.addForce(force)\n"
        "fmm_openmm.use_fmm(system, tolerance=1e-5)\n"
        "text = openmm.XmlSerializer.serialize(system)\n"
        "open(sys.argv[1], 'w').write(text)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(fmm.__file__).parents[1])}
    for name in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / name)],
            check=True,
            env={**environment, "PYTHONHASHSEED": name},
        )
    text = (tmp_path / "1").read_text()
    assert text == (tmp_path / "2").read_text() == text_of(openmm.XmlSerializer.deserialize(text))


def none_of_ours(state):
    """A PythonForce's callable of another package."""
    return 0.0, np.zeros((4, 3))


def test_texts_of_others_stay_as_they_are(ions):
    ions.system.addForce(openmm.PythonForce(none_of_ours))
    plain = inspect.unwrap(openmm.XmlSerializer.serializeSystem)
    assert text_of(ions.system) == plain(ions.system)
    fmm.use_fmm(ions.system)
    assert text_of(ions.system) != plain(ions.system)


def test_wrapped_once_and_as_openmm_has_it():
    names = ("serializeSystem", "_serializeForce", "_serializeState")
    before = [getattr(openmm.XmlSerializer, name) for name in names] + [openmm.Context.setState]
    xml.install()
    after = [getattr(openmm.XmlSerializer, name) for name in names] + [openmm.Context.setState]
    assert before == after
    for wrapped in after:
        plain = inspect.unwrap(wrapped)
        assert plain is not wrapped is not inspect.unwrap(plain)
        assert inspect.signature(wrapped) == inspect.signature(plain)
        assert wrapped.__doc__ == plain.__doc__


# files of earlier versions


@of_openmm_8_6
@pytest.mark.parametrize("way", [lambda system: system, *WAYS])
def test_files_of_format_2_are_read(ions, way):
    """Files of format 2 hold the identity of a callable, by now another's, and an option for
    Lennard-Jones."""
    system = way(openmm.XmlSerializer.deserialize((DATA / "format_2.xml").read_text()))
    ions.nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    ions.nonbonded.addGlobalParameter("a", 0.5)
    ions.nonbonded.addParticleParameterOffset("a", 2, 0.25, 0.0, 0.0)
    pme = text_of(ions.system)
    fmm.use_fmm(ions.system, tolerance=1e-6, order=9, lennard_jones="openmm")
    fmm.find_fmm(ions.system)[0].setParticleParameters(0, 1.5)
    (force,) = fmm.find_fmm(system)
    assert (force.getName(), force.getForceGroup(), force.getNumExclusions()) == ("second", 3, 1)
    assert force._definition.options.lennard_jones == "openmm"
    contexts = [Box(each, ions.positions).context() for each in (system, ions.system)]
    energies = []
    for context in contexts:
        context.setParameter("a", 0.75)
        energies.append(energy_of(context))
    # -202.51675165382628 kJ/mol is what the version printed that wrote the file
    assert energies == pytest.approx([-202.51675165382628] * 2, rel=1e-12)
    fmm.restore_pme(system)
    assert text_of(system) == pme


@of_openmm_8_6
def test_states_of_format_2_are_read(ions):
    """The charges had been updated: they are those of the System written at the same time."""
    state = openmm.XmlSerializer.deserialize((DATA / "format_2_state.xml").read_text())
    assert REVISION in dict(state.getParameters())
    system = openmm.XmlSerializer.deserialize((DATA / "format_2.xml").read_text())
    context = Box(system, np.zeros((4, 3))).context()
    context.setState(state)
    assert energy_of(context) == pytest.approx(state.getPotentialEnergy()._value, rel=1e-12)


# States


def custom_integrator() -> openmm.CustomIntegrator:
    """An integrator with a value of its own in a State."""
    integrator = openmm.CustomIntegrator(0.001)
    integrator.addGlobalVariable("kept", 1.0)
    return integrator


def full_state(context, in_memory: bool) -> openmm.State:
    state = context.getState(
        positions=True, velocities=True, parameters=True, integratorParameters=True
    )
    return state if in_memory else through_xml(state)


def assert_loads(state, context, source):
    """All of a State arrives in a Context but the charges."""
    context.setState(state)
    assert context.getIntegrator().getGlobalVariable(0) == 2.5
    assert context.getParameter("a") == 0.75
    assert context.getStepCount() == 7 and context.getTime()._value == 3.0
    made, given = full_state(context, True), full_state(source, True)
    for name in ("getPositions", "getVelocities", "getPeriodicBoxVectors"):
        values = [np.array(getattr(each, name)()._value) for each in (made, given)]
        assert np.array_equal(*values)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("updated", [False, True])
def test_states_load_in_contexts_with_pme_and_with_fmm(ions, platform, in_memory, updated):
    ions.nonbonded.addGlobalParameter("a", 0.5)
    ions.nonbonded.addParticleParameterOffset("a", 2, 0.25, 0.0, 0.0)
    pme = Box(copy.deepcopy(ions.system), ions.positions)
    force = fmm.use_fmm(ions.system, tolerance=1e-5)
    for source, target in ((ions, pme), (pme, ions)):
        context = source.context(platform, custom_integrator())
        context.getIntegrator().setGlobalVariable(0, 2.5)
        context.setParameter("a", 0.75)
        context.setVelocitiesToTemperature(300, 1)
        context.setPeriodicBoxVectors(*(3.1 * np.eye(3)))
        context.setStepCount(7)
        context.setTime(3.0)
        if updated and source is ions:
            force.setParticleParameters(0, 2.0)
            force.updateParametersInContext(context)
        before = target.context(platform, custom_integrator())
        before.setPositions(np.zeros((4, 3)))
        assert_loads(full_state(context, in_memory), before, context)
        expected = target.context(platform)
        expected.setPeriodicBoxVectors(*(3.1 * np.eye(3)))
        expected.setParameter("a", 0.75)
        assert energy_of(before) == pytest.approx(energy_of(expected), rel=1e-6)


def test_a_state_file_is_one_of_pme_unless_charges_were_updated(ions):
    """OpenMM alone loads it."""
    states = [text_of(ions.context().getState(parameters=True))]
    force = fmm.use_fmm(ions.system)
    context = ions.context()
    states.append(text_of(context.getState(parameters=True)))
    force.updateParametersInContext(context)
    states.append(text_of(context.getState(parameters=True)))
    assert states[0] == states[1] != states[2]
    assert REVISION in states[2]


def test_a_state_whose_charges_another_process_has(ions):
    """A copy of the System knows none of the charges of its original, as another process."""
    force = fmm.use_fmm(ions.system, tolerance=1e-6)
    context, old = ions.context(), copy.deepcopy(ions.system)
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(context)
    state, expected = full_state(context, in_memory=False), energy_of(context)
    loaded = Box(copy.deepcopy(ions.system), np.zeros((4, 3))).context()
    loaded.setState(state)
    assert energy_of(loaded) == pytest.approx(expected, rel=1e-12)
    loaded = Box(old, np.zeros((4, 3))).context()
    loaded.setState(state)
    with pytest.warns(UserWarning, match="of other charges than those of this FMMForce"):
        assert energy_of(loaded) != pytest.approx(expected, rel=1e-3)
    (force,) = fmm.find_fmm(old)
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(loaded)
    assert energy_of(loaded) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_state_that_names_no_charges_leaves_them(ions, in_memory):
    force = fmm.use_fmm(ions.system, tolerance=1e-6)
    context = ions.context()
    state = full_state(context, in_memory)
    force.setParticleParameters(0, 2.0)
    force.updateParametersInContext(context)
    updated = energy_of(context)
    force.setParticleParameters(0, 3.0)
    context.setState(state)
    assert energy_of(context) == updated


def test_other_unknown_parameters_are_refused_as_before(ions):
    other = Box(copy.deepcopy(ions.system), ions.positions)
    other.nonbonded.addGlobalParameter("b", 0.5)
    for box in (other, ions):
        fmm.use_fmm(box.system)
    with pytest.raises(openmm.OpenMMException, match="invalid parameter name: b"):
        ions.context().setState(other.context().getState(parameters=True))
