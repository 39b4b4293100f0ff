"""XML, copies, CustomCVForce and ATMForce clone a force through its pickle;
nothing of it may pile up."""

import copy
import gc
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration import bridge, identity
from fmm_openmm.integration.conversion.original import Original
from fmm_openmm.integration.definition import TABLES, Definition
from fmm_openmm.integration.native import callbacks, plugin
from fmm_openmm.integration.pickled import replace_pickle
from fmm_openmm.integration.table import Table
from tests.endurance import resident_kilobytes
from tests.integration.boxes import Box, energy_of

TIGHT = {"tolerance": 1e-6}
DATA = Path(__file__).parent / "data"
OPENMM = tuple(map(int, openmm.version.short_version.split(".")[:2]))


def through_xml(system):
    return openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))


def through_pickle(system):
    return pickle.loads(pickle.dumps(system))


@pytest.mark.parametrize("way", [through_xml, through_pickle, copy.deepcopy])
def test_clones_are_equal_and_independent(chains, way):
    chains.nonbonded.addGlobalParameter("a", 0.5)
    chains.nonbonded.addParticleParameterOffset("a", 1, 0.2, 0.0, 0.0)
    force = fmm.use_fmm(chains.system, order=11, **TIGHT)
    energy = energy_of(chains.context())
    twin = Box(way(chains.system), chains.positions)
    assert openmm.XmlSerializer.serialize(twin.system).count("PythonForce") == 1
    (found,) = fmm.find_fmm(twin.system)
    assert found.getNumExclusions() == force.getNumExclusions()
    assert [found.getExclusionParticles(k) for k in (0, 50, 200)] == [
        force.getExclusionParticles(k) for k in (0, 50, 200)
    ]
    assert found.getParticleParameterOffset(0) == ["a", 1, 0.2]
    context = twin.context()
    assert energy_of(context) == energy
    assert found.getFMMParametersInContext(context)["order"] == 11
    force.setParticleParameters(0, 5.0)
    assert energy_of(context) == energy
    found.setParticleParameters(0, -5.0)
    assert force.getParticleParameters(0)._value == 5.0
    found.updateParametersInContext(context)
    assert energy_of(context) != energy


def test_clones_carry_what_was_changed_in_the_system(ions):
    """Charges set after system.addForce(), and after an update of a Context,
    are in XML and copies."""
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setParticleParameters(0, 2.5)
    expected = energy_of(ions.context())
    for way in (through_xml, copy.deepcopy):
        twin = Box(way(ions.system), ions.positions)
        assert fmm.find_fmm(twin.system)[0].getParticleParameters(0)._value == 2.5
        assert energy_of(twin.context()) == expected


def test_a_force_of_no_system_carries_what_was_changed(ions):
    """Read from XML and changed through its FMMForce before a System takes it."""
    plain = openmm.XmlSerializer.clone(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    force = fmm.FMMForce.from_force(plain)
    assert fmm.FMMForce.from_force(force) is force
    force.setParticleParameters(0, 2.5)
    with pytest.raises(
        ValueError, match="before the force is added to a System, read from XML or copied"
    ):
        force.addGlobalParameter("a", 1.0)
    ions.system.addForce(plain)
    force.setParticleParameters(1, -2.5)
    for system in (ions.system, through_xml(ions.system)):
        (found,) = fmm.find_fmm(system)
        assert [found.getParticleParameters(index)._value for index in range(4)] == [
            2.5,
            -2.5,
            1.0,
            -1.0,
        ]


def test_an_earlier_xml_is_not_touched_by_later_changes(ions):
    force = fmm.use_fmm(ions.system, **TIGHT)
    text = openmm.XmlSerializer.serialize(ions.system)
    force.setParticleParameters(0, 2.5)
    assert (
        fmm.find_fmm(openmm.XmlSerializer.deserialize(text))[0].getParticleParameters(0)._value
        == 1.0
    )


@pytest.mark.slow
def test_the_xml_stays_small(water):
    before = len(openmm.XmlSerializer.serialize(water.system))
    fmm.use_fmm(water.system)
    assert len(openmm.XmlSerializer.serialize(water.system)) < 1.05 * before


@pytest.mark.slow
def test_xml_in_a_process_that_never_saw_the_system(ions, tmp_path):
    force = fmm.use_fmm(ions.system, **TIGHT)
    path = tmp_path / "system.xml"
    path.write_text(openmm.XmlSerializer.serialize(ions.system))
    script = (
        "import json, sys, openmm, numpy, fmm_openmm\n"
        "system = openmm.XmlSerializer.deserialize(open(sys.argv[1]).read())\n"
        "context = openmm.Context(system, openmm.VerletIntegrator(0.001), "
        "openmm.Platform.getPlatform('Reference'))\n"
        "context.setPositions(numpy.array(json.loads(sys.argv[2])))\n"
        "energy = context.getState(energy=True).getPotentialEnergy()._value\n"
        "before = fmm_openmm.find_fmm(system)[0].getNumParticles()\n"
        "fmm_openmm.restore_pme(system)\n"
        "print(json.dumps([energy, before, system.getNumForces()]))\n"
    )
    arguments = [sys.executable, "-c", script, str(path), json.dumps(ions.positions.tolist())]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(fmm.__file__))}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    energy, particles, forces = json.loads(done.stdout)
    assert energy == pytest.approx(energy_of(ions.context()), rel=1e-12)
    assert (particles, forces) == (force.getNumParticles(), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, r"format 99 by another version .* reads formats up to 2"),
        (
            {"options": {"tolerance": 1e-3, "colour": "red"}},
            r"newer version of fmm_openmm: unknown option 'colour'",
        ),
    ],
)
def test_a_file_of_a_newer_version_is_named_when_used(ions, change, message):
    force = fmm.use_fmm(ions.system)
    packed = json.dumps({**json.loads(force._definition.pack()), **change})
    stranger = bridge.HostBridge(packed)
    assert pickle.loads(pickle.dumps(stranger))._definition == packed
    system = openmm.System()
    for _ in range(4):
        system.addParticle(1.0)
    plain = openmm.PythonForce(stranger)
    plain.setUsesPeriodicBoundaryConditions(True)
    system.addForce(plain)
    box = Box(through_xml(system), ions.positions)
    with pytest.raises(ValueError, match=message):
        box.context()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: "[1]",
        lambda text: text.replace('"options": {', '"options": [{').replace(
            '"bridge": "auto"}', '"bridge": "auto"}]'
        ),
        lambda text: text.replace('"charges"', '"changes"'),
        lambda text: text.replace('"charges": "eA', '"charges": "AA'),
        lambda text: text.replace('"tolerance": 0.0005', '"tolerance": "much"'),
        lambda text: text.replace('"order": null', '"order": 1e999'),
        lambda text: text.replace('"global_parameters": []', '"global_parameters": [1]'),
    ],
    ids=[
        "cut",
        "no dictionary",
        "options",
        "no charges",
        "charges",
        "tolerance",
        "order",
        "global parameters",
    ],
)
def test_damage_is_named(ions, damage):
    text = fmm.FMMForce.from_nonbonded(ions.nonbonded, tolerance=5e-4)._definition.pack()
    assert damage(text) != text
    with pytest.raises(ValueError, match=r"^this FMMForce is damaged: "):
        Definition.unpack(damage(text))


ORIGINAL = {"method": 4, "charges": "", "charge_scales": ""}
TARGETS, SCALES = "offset_targets", "offset_scales"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("charges", [1, np.nan], "the charge of particle 1 of the FMMForce must be finite, got n"),
        (SCALES, [np.inf], "the scale of parameter offset 0 of .* must be finite, got inf"),
        (TARGETS, [[0, -1]], "offset 0 of the FMMForce names particle -1, but it has 2 particles"),
        (TARGETS, [[0, 2]], "offset 0 of the FMMForce names particle 2, but it has 2 particles"),
        (TARGETS, [[-1, 1]], "offset 0 .* names global parameter -1, but it has 1 global"),
        (TARGETS, [[1, 1]], "offset 0 .* names global parameter 1, but it has 1 global"),
        (TARGETS, [[0, 1], [0, 0]], "has 2 parameter offsets and 1 scales of them"),
        ("exclusions", [[-1, 1]], r"must hold indices from 0 to 1, got \[-1, 1\]"),
        ("global_parameters", [["a", np.inf]], "default value of global parameter 0 of .* finite"),
        ("global_parameters", [["a", 0.5]] * 2, "has a global parameter twice: a, a"),
        ("exclusions_periodic", "no", "damaged: TypeError: a flag must be true or false, got 'no'"),
        ("options", {"grid": [10**6] * 3}, "must make at most 16777216 boxes, got 10{18} with"),
        ("original", ORIGINAL | {"method": 9}, "damaged: .*`method` must lie between 0 and 5"),
        ("original", ORIGINAL | {"place": -1}, "damaged: .*`place` must lie between 0 and"),
        ("original", [1], "this FMMForce is damaged: TypeError"),
    ],
)
def test_hostile_values_are_refused_by_name(name, value, message):
    """What the methods of an FMMForce refuse is refused in a file, too."""
    force = fmm.FMMForce(tolerance=5e-4)
    for charge in (1.0, -1.0):
        force.addParticle(charge)
    force.addGlobalParameter("a", 0.5)
    force.addParticleParameterOffset("a", 1, 0.25)
    content = json.loads(force._definition.pack())
    content[name] = Table(*TABLES[name], value).pack() if name in TABLES else value
    with pytest.raises(ValueError, match=message):
        read = Definition.unpack(json.dumps(content))
        assert read.parameters and read.structure
        Original.unpack(read.original)


def text_in(system) -> str:
    """Text of the FMMForce in the XML of a System."""
    root = ElementTree.fromstring(openmm.XmlSerializer.serialize(system))
    (element,) = [each for each in root.iter() if each.get("function")]
    return bytes.fromhex(element.get("function")).decode(errors="replace")


def test_the_definition_is_text(chains):
    """Options, parameters and their names can be read; of this package only the loader's
    function is named."""
    chains.nonbonded.addGlobalParameter("coupling", 0.5)
    chains.nonbonded.addParticleParameterOffset("coupling", 1, 0.2, 0.0, 0.0)
    fmm.use_fmm(chains.system, tolerance=2e-5, near_radius=2.64)
    text = text_in(chains.system)
    assert (
        '"format": 2, "options": {"tolerance": 2e-05, "order": null, "grid": null, '
        '"near_radius": 2.64,' in text
    )
    assert '"global_parameters": [["coupling", 0.5]]' in text
    assert set(re.findall(r"fmm_openmm\.[\w.]+", text)) == {"fmm_openmm.integration.bridge"}


def from_elsewhere(system, **options) -> openmm.System:
    """The System as a computer that has these options would have written it."""
    (force,) = fmm.find_fmm(system)
    definition = Definition.unpack(force._definition.pack())
    definition.options = replace(definition.options, **options)
    replace_pickle(force, pickle.dumps(bridge.HostBridge(definition)))
    return through_xml(system)


@pytest.mark.parametrize(
    "options", [{"bridge": "native"}, {"backend": "cuda"}], ids=["native", "cuda"]
)
def test_what_only_another_computer_has(ions, options, monkeypatch):
    """Files with options that only another computer supports are read, validated and restored; an
    evaluation says what is missing."""

    def refuse(*_, **__):
        raise fmm.UnsupportedError("there is no GPU")

    pme = openmm.XmlSerializer.serialize(ions.system)
    fmm.use_fmm(ions.system)
    monkeypatch.setattr(plugin, "find", lambda: "there is no GPU")
    for module in ("fmm_openmm.integration.options", "fmm_openmm.evaluation"):
        monkeypatch.setattr(f"{module}.backend_class", refuse)
    with pytest.raises(fmm.UnsupportedError, match="there is no GPU"):
        fmm.FMMForce(**options)
    system = from_elsewhere(ions.system, **options)
    assert fmm.find_fmm(system)[0].getNumParticles() == 4
    assert fmm.ChargeSystem.from_openmm(system, ions.positions).charges.tolist() == [
        1.0,
        -1.0,
        1.0,
        -1.0,
    ]
    with pytest.raises(openmm.OpenMMException, match=r"FMMForce: .*there is no GPU"):
        energy_of(Box(system, ions.positions).context())
    monkeypatch.undo()
    assert (
        fmm.validate(system, ions.positions, backend="reference").fmm.relative_energy_error < 1e-3
    )
    fmm.restore_pme(system)
    assert openmm.XmlSerializer.serialize(system) == pme


def test_the_native_bridge_alone_needs_a_context_on_cuda(ions, monkeypatch):
    """There may be other Contexts: OpenMM's minimiser makes one on the CPU where forces are too
    large for a GPU."""
    fmm.use_fmm(ions.system)
    expected = energy_of(ions.context())
    monkeypatch.setattr(plugin, "load", lambda: SimpleNamespace(fmm_changed=lambda: None))
    system = from_elsewhere(ions.system, bridge="native")
    context = Box(system, ions.positions).context()
    with pytest.raises(
        openmm.OpenMMException,
        match="FMMForce: `bridge='native'` needs a Context on the CUDA platform",
    ):
        energy_of(context)
    (found,) = fmm.find_fmm(system)
    wrong = Box(copy.deepcopy(system), ions.positions)
    fmm.find_fmm(wrong.system)[0].addExclusion(0, 9)
    with pytest.raises(openmm.OpenMMException, match=r"FMMForce: .*exclusions of the FMMForce"):
        energy_of(wrong.context())
    monkeypatch.setitem(callbacks._sessions, 0, SimpleNamespace(bridge=found._bridge, context=0))
    assert energy_of(context) == expected


def test_options_of_numpy_are_written(ions):
    options = {"tolerance": np.float32(1e-3), "order": np.int64(7), "grid": np.array([4, 4, 4])}
    fmm.use_fmm(ions.system, **options)
    (found,) = fmm.find_fmm(through_xml(ions.system))
    assert (found._definition.options.order, found._definition.options.grid) == (7, [4, 4, 4])


@pytest.mark.skipif(
    OPENMM < (8, 6), reason="the file is OpenMM 8.6's, which older ones do not read"
)
def test_files_of_version_1_are_read(ions):
    """Format 1 held a dictionary with compressed bytes."""
    system = openmm.XmlSerializer.deserialize((DATA / "format_1.xml").read_text())
    ions.nonbonded.addException(0, 1, 0.0, 0.3, 0.0)
    ions.nonbonded.addGlobalParameter("a", 0.5)
    ions.nonbonded.addParticleParameterOffset("a", 2, 0.25, 0.0, 0.0)
    pme = openmm.XmlSerializer.serialize(ions.system)
    fmm.use_fmm(ions.system, tolerance=1e-6, order=9)
    expected = energy_of(ions.context())
    for read in (system, through_xml(system), copy.deepcopy(system)):
        (force,) = fmm.find_fmm(read)
        assert (force.getName(), force.getForceGroup(), force.getNumExclusions()) == ("old", 3, 1)
        assert energy_of(Box(read, ions.positions).context()) == expected
    fmm.find_fmm(system)[0].setParticleParameters(0, 1.0)
    assert '"format": 2' in text_in(system)
    fmm.restore_pme(system)
    assert openmm.XmlSerializer.serialize(system) == pme


def test_xml_where_the_package_is_missing(ions, tmp_path):
    """The System can be read, and the error comes when the force is needed."""
    fmm.use_fmm(ions.system)
    path = tmp_path / "system.xml"
    path.write_text(openmm.XmlSerializer.serialize(ions.system))
    script = (
        "import sys, numpy, openmm\n"
        "sys.modules['fmm_openmm'] = None\n"
        "system = openmm.XmlSerializer.deserialize(open(sys.argv[1]).read())\n"
        "context = openmm.Context(system, openmm.VerletIntegrator(0.001), "
        "openmm.Platform.getPlatform('Reference'))\n"
        "context.setPositions(numpy.random.rand(4, 3))\n"
        "context.getState(energy=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "OpenMMException: the System holds an FMMForce, but fmm_openmm cannot be loaded here"
        in done.stderr
    )


# forces inside forces


@pytest.mark.slow
def test_custom_cv_force(chains, platform):
    """Energy and forces scale with the expression, and parameter offsets are reached through the
    outer Context."""
    chains.nonbonded.addGlobalParameter("a", 0.0)
    chains.nonbonded.addParticleParameterOffset("a", 3, 0.2, 0.0, 0.0)
    force = fmm.FMMForce.from_nonbonded(chains.nonbonded, **TIGHT)
    plain = Box(openmm.System(), chains.positions)
    plain.system.setDefaultPeriodicBoxVectors(*chains.cell)
    for _ in range(chains.system.getNumParticles()):
        plain.system.addParticle(1.0)
    twin = copy.deepcopy(plain)
    plain.system.addForce(copy.copy(force))
    outer = openmm.CustomCVForce("0.5*coulomb")
    outer.addCollectiveVariable("coulomb", force)
    twin.system.addForce(outer)
    assert not force.thisown
    expected, context = plain.context(platform), twin.context(platform)
    for value in (0.0, 1.0):
        for each in (expected, context):
            each.setParameter("a", value)
        states = [each.getState(energy=True, forces=True) for each in (expected, context)]
        assert states[1].getPotentialEnergy()._value == pytest.approx(
            0.5 * states[0].getPotentialEnergy()._value, rel=1e-6
        )
        forces = [state.getForces(asNumpy=True)._value for state in states]
        assert np.abs(forces[1] - 0.5 * forces[0]).max() < 1e-4 * np.abs(forces[0]).max()


def test_update_inside_a_custom_cv_force(ions):
    """OpenMM evaluates a clone; its handle is found in the inner Context."""
    outer = openmm.CustomCVForce("coulomb")
    outer.addCollectiveVariable("coulomb", fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT))
    ions.system.removeForce(0)
    ions.system.addForce(outer)
    context = ions.context()
    energy = energy_of(context)
    inner = outer.getInnerContext(context)
    (clone,) = fmm.find_fmm(inner.getSystem())
    clone.setParticleParameters(0, 2.0)
    clone.updateParametersInContext(inner)
    assert abs(energy_of(context) - energy) > 1


def test_atm_force(ions, platform):
    """Half way between the molecule here and there: the mean of both energies."""
    displacement = np.array([0.2, -0.1, 0.3])
    plain = copy.deepcopy(ions)
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded, **TIGHT)
    ions.system.removeForce(0)
    outer = openmm.ATMForce("0.5*(u0 + u1)")
    for index in range(4):
        outer.addParticle(openmm.Vec3(*(displacement if index == 0 else np.zeros(3))))
    outer.addForce(force)
    ions.system.addForce(outer)
    plain.system.removeForce(0)
    plain.system.addForce(copy.copy(force))
    energies = []
    for shift in (np.zeros(3), displacement):
        plain.positions[0] += shift
        energies.append(energy_of(plain.context(platform)))
    assert energy_of(ions.context(platform)) == pytest.approx(np.mean(energies), abs=1e-3)


# nothing piles up


needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="reads memory use from /proc"
)


@pytest.mark.slow
@needs_proc
def test_memory_is_flat_over_evaluations(ions):
    """A reference count wrong by one in 5000 results of 4 particles would be a megabyte,
    or a crash."""
    fmm.use_fmm(ions.system, order=4, grid=(4, 4, 4))
    context = ions.context()
    integrator = context.getIntegrator()
    integrator.step(1000)
    before = resident_kilobytes()
    integrator.step(5000)
    assert resident_kilobytes() - before < 500


@pytest.mark.slow
@needs_proc
def test_memory_is_flat_over_contexts_and_clones(water):
    """Callables that OpenMM unpickles and never frees shrink to their packed definition."""
    fmm.use_fmm(water.system, tolerance=1e-3)

    def cycle():
        twin = Box(copy.deepcopy(water.system), water.positions)
        energy_of(twin.context())

    for _ in range(5):
        cycle()
    before = resident_kilobytes()
    for _ in range(30):
        cycle()
    assert resident_kilobytes() - before < 30 * 60
    copy.deepcopy(water.system)
    full = [each for each in identity.live.values() if each._solver is not None]
    assert len(full) <= 2


def test_a_clone_in_use_is_never_shrunk(ions):
    fmm.use_fmm(ions.system)
    kept = Box(copy.deepcopy(ions.system), ions.positions)
    context = kept.context()
    energy = energy_of(context)
    (view,) = fmm.find_fmm(kept.system)
    view.setParticleParameters(0, 2.0)
    view.updateParametersInContext(context)
    changed = energy_of(context)
    del view
    for _ in range(3):
        copy.deepcopy(ions.system)
    gc.collect()
    assert energy_of(context) == changed != energy
    assert fmm.find_fmm(kept.system)[0]._bridge._solver is not None


@pytest.mark.filterwarnings("ignore:an FMMForce was given other particles")
@pytest.mark.parametrize("way", [through_xml, through_pickle, copy.deepcopy])
def test_a_force_that_nothing_in_python_holds_is_never_shrunk(ions, way):
    fmm.use_fmm(ions.system)
    context = ions.context()
    energy = energy_of(context)
    fmm.find_fmm(ions.system)[0].addExclusion(0, 1)
    gc.collect()
    for _ in range(2):
        way(ions.system)
    assert fmm.find_fmm(ions.system)[0]._bridge._solver is not None
    assert energy_of(context) == energy
