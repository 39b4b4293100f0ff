"""Energies of many states of the global parameters, against OpenMM state by state."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import Box, energy_of

STATES = [
    {},
    {"lambda": 0.0, "mu": 0.0},
    {"lambda": 1.0},
    {"lambda": 0.3, "mu": -1.2, "stiffness": 2.0},
    {"stiffness": 0.5},
    {"lambda": 0.3, "mu": 2.0},
    {"lambda": 1.0},
]
GROUPS = {"shared": (0, 0, 0), "apart": (1, 0, 0), "each": (1, 2, 3)}
"""Force groups of FMMForce, NonbondedForce and CustomBondForce."""


def add_offsets(box: Box) -> Box:
    """Offsets of charges, sigma, epsilon and exceptions by two parameters, which change the net
    charge; and a bond with a parameter of its own."""
    force = box.nonbonded
    force.addGlobalParameter("lambda", 0.4)
    force.addGlobalParameter("mu", 0.5)
    for particle in range(6):
        force.addParticleParameterOffset("lambda", particle, -0.3 + 0.1 * particle, 0.0, 0.0)
    force.addParticleParameterOffset("lambda", 170, -1.0, 0.02, 0.1)
    force.addParticleParameterOffset("mu", 0, 0.25, 0.0, 0.0)
    force.addParticleParameterOffset("mu", 171, 0.0, 0.0, 0.05)
    force.addExceptionParameterOffset("lambda", 2, 0.07, 0.0, 0.0)
    bond = openmm.CustomBondForce("stiffness * 500 * (r - 0.15)^2")
    bond.addGlobalParameter("stiffness", 1.0)
    bond.addBond(0, 1)
    box.system.addForce(bond)
    return box


@pytest.fixture
def alchemical(chains) -> Box:
    return add_offsets(chains)


def one_by_one(context, states) -> np.ndarray:
    """Energies from setParameter and getState; the parameters are restored."""
    present, energies = dict(context.getParameters()), []
    for state in states:
        for name, value in {**present, **state}.items():
            context.setParameter(name, value)
        energies.append(energy_of(context))
    for name, value in present.items():
        context.setParameter(name, value)
    return np.array(energies)


def set_groups(box: Box, groups) -> None:
    force, nonbonded, bond = groups
    fmm.find_fmm(box.system)[0].setForceGroup(force)
    box.nonbonded.setForceGroup(nonbonded)
    box.system.getForce(1).setForceGroup(bond)


@pytest.fixture
def evaluations(monkeypatch):
    """Counts evaluations of an FMMForce."""
    calls, evaluate = [], fmm.integration.bridge.HostBridge.evaluate
    monkeypatch.setattr(
        fmm.integration.bridge.HostBridge,
        "evaluate",
        lambda *args, **keywords: calls.append(1) or evaluate(*args, **keywords),
    )
    return calls


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_states_are_those_of_the_context(alchemical, platform, groups):
    fmm.use_fmm(alchemical.system, tolerance=1e-8)
    set_groups(alchemical, groups)
    context = alchemical.context(platform)
    context.setParameter("mu", 0.7)
    expected = one_by_one(context, STATES)
    before = dict(context.getParameters())
    energies = fmm.state_energies(context, STATES)
    assert np.ptp(expected) > 1.0
    rounding = 1e-6 if platform in ("Reference", "CUDA") else 1e-5
    np.testing.assert_allclose(energies, expected, atol=rounding * abs(expected).max())
    assert dict(context.getParameters()) == before


@pytest.mark.parametrize(
    ("groups", "names", "count"),
    [
        ("each", ("lambda", "mu", "stiffness"), 1),  # all sets of charges at once
        ("each", ("stiffness",), 1),  # of which the force does not depend: OpenMM evaluates it
        ("apart", ("lambda", "mu"), 1),
        ("shared", ("stiffness",), 3),
        ("shared", ("lambda",), 3),
    ],
)
def test_the_fmm_is_evaluated_as_rarely_as_possible(alchemical, evaluations, groups, names, count):
    fmm.use_fmm(alchemical.system, tolerance=1e-3)
    set_groups(alchemical, GROUPS[groups])
    context = alchemical.context()
    states = [dict.fromkeys(names, value) for value in (0.1, 0.5, 0.9, 0.5)]
    fmm.state_energies(context, states)
    assert len(evaluations) == count


def test_charging_with_everything_in_one_group(ions, evaluations):
    """The usual case: no offset but of charges, nothing set up for it."""
    ions.nonbonded.addGlobalParameter("charging", 0.25)
    ions.nonbonded.addParticleParameterOffset("charging", 0, 1.0, 0.0, 0.0)
    fmm.use_fmm(ions.system, tolerance=1e-8)
    context = ions.context()
    states = [{"charging": value} for value in np.linspace(0, 1, 11)]
    expected = one_by_one(context, states)
    evaluations.clear()
    np.testing.assert_allclose(fmm.state_energies(context, states), expected, rtol=1e-7)
    assert len(evaluations) == 2


@pytest.mark.slow
def test_this_forces_part_and_its_derivatives(alchemical, platform):
    force = fmm.use_fmm(alchemical.system, tolerance=1e-8)
    force.setForceGroup(1)
    context = alchemical.context(platform)
    energies, derivatives = force.getStateEnergiesInContext(context, STATES, derivatives=True)
    assert list(derivatives) == ["lambda", "mu"]
    np.testing.assert_allclose(force.getStateEnergiesInContext(context, STATES), energies)
    for index, state in enumerate(STATES):
        for name, value in {"lambda": 0.4, "mu": 0.5, **state}.items():
            context.setParameter(name, value)
        assert energies[index] == pytest.approx(energy_of(context, groups={1}), rel=1e-6)
        expected = force.getEnergyParameterDerivativesInContext(context)
        for name, values in derivatives.items():
            assert values[index] == pytest.approx(expected[name], rel=1e-5)


def test_charges_of_the_last_update_count(ions):
    """The base charges are those of the Context, not those set since."""
    ions.nonbonded.addGlobalParameter("charging", 0.25)
    ions.nonbonded.addParticleParameterOffset("charging", 0, 1.0, 0.0, 0.0)
    force = fmm.use_fmm(ions.system, tolerance=1e-8)
    context = ions.context()
    force.setParticleParameters(1, -2.0)
    force.updateParametersInContext(context)
    force.setParticleParameters(1, 5.0)
    states = [{"charging": value} for value in (0.0, 0.6)]
    np.testing.assert_allclose(
        fmm.state_energies(context, states), one_by_one(context, states), rtol=1e-7
    )


def test_forces_that_hide_their_parameters(ions):
    """A CustomCVForce holds another force, whose parameter it does not declare."""
    fmm.use_fmm(ions.system, tolerance=1e-8).setForceGroup(1)
    inner = openmm.CustomBondForce("hidden * r")
    inner.addGlobalParameter("hidden", 2.0)
    inner.addBond(0, 1)
    outer = openmm.CustomCVForce("length^2")
    outer.addCollectiveVariable("length", inner)
    ions.system.addForce(outer)
    context = ions.context()
    states = [{"hidden": value} for value in (0.0, 3.0)]
    expected = one_by_one(context, states)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(fmm.state_energies(context, states), expected, rtol=1e-9)


@pytest.mark.parametrize("scales", [(0.5, 0, 0), (0, 0.05, 0), (0, 0, 0.2)], ids=str)
@pytest.mark.parametrize("kind", ["particle", "exception"])
def test_every_offset_counts(chains, kind, scales):
    """Whatever it changes: charge or charge product, sigma or epsilon."""
    force = chains.nonbonded
    force.addGlobalParameter("lambda", 0.0)
    if kind == "particle":
        force.addParticleParameterOffset("lambda", 4, *scales)
    else:
        wells = [force.getExceptionParameters(i)[4]._value for i in range(20)]
        force.addExceptionParameterOffset("lambda", int(np.argmax(wells)), *scales)
    fmm.use_fmm(chains.system, tolerance=1e-7).setForceGroup(1)
    context = chains.context()
    states = [{"lambda": value} for value in (0.0, 1.0)]
    expected = one_by_one(context, states)
    assert abs(np.diff(expected)) > 1e-3
    difference = np.diff(fmm.state_energies(context, states))
    assert difference == pytest.approx(np.diff(expected), rel=1e-3)


def test_a_reciprocal_space_in_a_group_of_its_own(alchemical):
    """A System with PME, whose charge offsets act in both groups."""
    alchemical.nonbonded.setReciprocalSpaceForceGroup(3)
    context = alchemical.context()
    np.testing.assert_allclose(
        fmm.state_energies(context, STATES), one_by_one(context, STATES), rtol=1e-9
    )


def test_no_state(alchemical):
    force = fmm.use_fmm(alchemical.system)
    context = alchemical.context()
    assert fmm.state_energies(context, []).shape == (0,)
    energies, derivatives = force.getStateEnergiesInContext(context, [], derivatives=True)
    assert energies.shape == derivatives["mu"].shape == (0,)


def test_parameters_are_restored_after_an_error(ions):
    """The energy of the CustomCVForce's table ends the evaluation of the second state."""
    fmm.use_fmm(ions.system).setForceGroup(1)

    def raise_if_negative(state):
        if state.getParameters()["sign"] < 0:
            raise RuntimeError("negative")
        return 0.0, np.zeros((4, 3))

    ions.system.addForce(openmm.PythonForce(raise_if_negative, {"sign": 1.0}))
    context = ions.context()
    with pytest.raises(openmm.OpenMMException, match="negative"):
        fmm.state_energies(context, [{"sign": 2.0}, {"sign": -1.0}])
    assert context.getParameter("sign") == 1.0


@pytest.mark.parametrize(
    ("states", "kind", "message"),
    [
        ([{}, {"lambada": 1.0}], ValueError, r"`states\[1\]` names 'lambada', which is no global"),
        ([{"fmm_revision": 1.0}], ValueError, "must not change 'fmm_revision', which identifies"),
        ([{"mu": np.nan}], ValueError, r"`states\[0\]\['mu'\]` must be finite, got nan"),
        ([{"mu": "one"}], TypeError, r"`states\[0\]\['mu'\]` must be a number, got 'one'"),
        ([0.5], TypeError, r"`states\[0\]` must be {parameter: value}, got 0.5"),
        ({"mu": 1.0}, TypeError, "`states` must be a sequence of {parameter: value}, got dict"),
    ],
)
def test_bad_states(alchemical, states, kind, message):
    force = fmm.use_fmm(alchemical.system)
    context = alchemical.context()
    for function in (fmm.state_energies, force.getStateEnergiesInContext):
        with pytest.raises(kind, match=message):
            function(context, states)


def test_bad_contexts(alchemical):
    force = fmm.use_fmm(alchemical.system)
    with pytest.raises(TypeError, match=r"`context` must be an openmm.Context, got System"):
        fmm.state_energies(alchemical.system, STATES)
    twin = Box(copy.deepcopy(alchemical.system), alchemical.positions).context()
    with pytest.raises(ValueError, match="getStateEnergiesInContext: this FMMForce is not part of"):
        force.getStateEnergiesInContext(twin, STATES)


@pytest.mark.slow
def test_groups_that_change_after_the_context(alchemical):
    """OpenMM would evaluate the old ones."""
    force = fmm.use_fmm(alchemical.system, tolerance=1e-3)
    context = alchemical.context()
    force.setForceGroup(1)
    with pytest.raises(ValueError, match="other forces or force groups than when the Context was"):
        fmm.state_energies(context, STATES)
    context.reinitialize(preserveState=True)
    assert fmm.state_energies(context, STATES).shape == (len(STATES),)


def test_a_force_that_is_added_after_the_context(alchemical):
    """The FMMForce found for the Context is not the one that a later conversion makes."""
    context = alchemical.context()
    assert fmm.state_energies(context, [{}]) == pytest.approx(energy_of(context))
    fmm.use_fmm(alchemical.system, tolerance=1e-6)
    with pytest.raises(ValueError, match="other forces or force groups"):
        fmm.state_energies(context, [{}])
    context.reinitialize(preserveState=True)
    assert fmm.state_energies(context, STATES[:4]) == pytest.approx(
        one_by_one(context, STATES[:4]), rel=1e-6
    )
