"""use_fmm: refusals and failures that change nothing."""

import warnings
from collections import Counter

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import with_offsets, xml


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
    (
        second_nonbonded,
        fmm.UnsupportedError,
        "holds 2 NonbondedForces .*'the other'.* set its charges to 0$",
    ),
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
        "holds no NonbondedForce.*from_nonbonded.* set the charges there to 0$",
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
