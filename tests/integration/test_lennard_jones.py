"""Lennard-Jones pairs among their sites, on the native bridge: what OpenMM's own kernels give,
whatever the System holds."""

import copy
import ctypes
from functools import cache
from types import SimpleNamespace

import numpy as np
import openmm
import pytest
from openmm import app, unit

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import Pairs, Place, Sites
from fmm_openmm.integration.bridge import HostBridge
from fmm_openmm.integration.definition import Definition
from fmm_openmm.integration.native import pair_choice
from fmm_openmm.integration.options import Options
from tests.integration.boxes import Box, energy_of, relative_difference
from tests.integration.lennard_jones_systems import (
    GROUP,
    ROUNDING,
    agree,
    alchemical,
    all_sites,
    pairs_of,
    prepared,
    typed,
)
from tests.integration.native_contexts import context_of, droplet_in_a_cell, on_gpu
from tests.lennard_jones import FORCE_SWITCH


def both(box, precision, **options):
    """Energies and forces by the plugin and by OpenMM."""
    found = []
    for choice in ("sites", "openmm"):
        mine, force = prepared(box, choice, **options)
        context = context_of(mine, precision)
        parameters = force.getFMMParametersInContext(context)
        assert parameters["lennard_jones"] == choice, parameters["lennard_jones_reason"]
        found.append(pairs_of(context))
    return found


def reference(box, **options):
    """Energy and forces by OpenMM's Reference platform."""
    mine, _ = prepared(box, "auto", **options)
    return pairs_of(mine.context("Reference"))


def representable(box) -> Box:
    """Parameters that OpenMM's CUDA platform holds exactly in double precision: as floats, sigma
    / 2 and 2 sqrt(epsilon)."""
    for i in range(len(box.positions)):
        charge, sigma, epsilon = (value._value for value in box.nonbonded.getParticleParameters(i))
        root = round(2 * epsilon**0.5 * 256) / 256
        box.nonbonded.setParticleParameters(i, charge, round(sigma * 4096) / 4096, (root / 2) ** 2)
    return box


def switched(box) -> Box:
    box.nonbonded.setUseSwitchingFunction(True)
    box.nonbonded.setSwitchingDistance(0.8 * box.nonbonded.getCutoffDistance())
    return box


@cache
def _electrolyte() -> tuple[str, np.ndarray]:
    forcefield = app.ForceField("charmm36.xml", "charmm36/water.xml")
    modeller = app.Modeller(app.Topology(), [])
    modeller.addSolvent(
        forcefield, boxSize=openmm.Vec3(2.6, 2.6, 2.6), ionicStrength=2 * unit.molar
    )
    system = forcefield.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=1.2,
        switchDistance=1.0,
        rigidWater=False,
    )
    return openmm.XmlSerializer.serialize(system), np.array(
        modeller.positions.value_in_unit(unit.nanometer)
    )


@pytest.fixture
def electrolyte() -> Box:
    """Sodium chloride, 2 mol/l, in flexible water with CHARMM36, where every atom is a site; at
    first not relaxed."""
    text, positions = _electrolyte()
    return Box(openmm.XmlSerializer.deserialize(text), positions.copy())


SYSTEMS = ["water", "water, all sites", "water, switched", "chains", "tip4pew", "flexible_water"]


@pytest.fixture(params=SYSTEMS)
def box(request):
    name, *change = request.param.split(", ")
    made = request.getfixturevalue(name)
    return {"all sites": all_sites, "switched": switched}[change[0]](made) if change else made


@on_gpu
@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_equals_openmm_as_far_as_rounding_goes(box, precision):
    """Both have positions in single precision, and are equally far from what is exact."""
    found, openmms = both(box, precision)
    agree(found, openmms, ROUNDING[precision])
    exact = reference(box)
    assert (
        relative_difference(found[1], exact[1])
        < 1.5 * relative_difference(openmms[1], exact[1]) + 1e-7
    )


@on_gpu
def test_equals_openmm_in_double_precision(box):
    exact, (found, openmms) = reference(box), both(box, "double")
    assert (
        relative_difference(found[1], exact[1]) <= relative_difference(openmms[1], exact[1]) + 1e-12
    )
    assert abs(found[0] - exact[0]) <= abs(openmms[0] - exact[0]) + 1e-9 * abs(exact[0])


@on_gpu
@pytest.mark.parametrize("change", [all_sites, switched])
def test_equals_openmm_in_double_precision_with_its_parameters(water, change):
    agree(*both(representable(change(water)), "double"), ROUNDING["double"])


@on_gpu
@pytest.mark.parametrize("method", ["NoCutoff", "CutoffNonPeriodic"])
@pytest.mark.parametrize("precision", ROUNDING)
def test_free_space(method, precision):
    box = all_sites(droplet_in_a_cell(None, 400))
    box.nonbonded.setNonbondedMethod(getattr(openmm.NonbondedForce, method))
    box.nonbonded.setCutoffDistance(0.9)
    box.positions[-3:] += 3000.0 if method == "NoCutoff" else 1e5
    options = {"allow_reaction_field": True} if method == "CutoffNonPeriodic" else {}
    found, openmms = both(representable(box), precision, **options)
    agree(found, openmms, ROUNDING[precision])


@on_gpu
@pytest.mark.parametrize("scale", [2.0002, 2.05, 2.4])
def test_small_cells(scale, chains):
    """Down to twice the cutoff, where a site and another have several images
    within the list's radius."""
    smallest = min(chains.cell[i, i] for i in range(3))
    chains.nonbonded.setUseSwitchingFunction(False)
    chains.nonbonded.setCutoffDistance(smallest / scale)
    agree(*both(representable(chains), "mixed"), ROUNDING["mixed"])


@on_gpu
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_offsets(chains, precision):
    """Results follow parameters that change and return."""
    contexts = []
    for choice in ("sites", "openmm"):
        mine, force = prepared(alchemical(copy.deepcopy(chains)), choice)
        contexts.append(context_of(mine, precision))
        assert force.getFMMParametersInContext(contexts[-1])["lennard_jones"] == choice
    seen = []
    for sterics, inner in ((1.0, 0.5), (0.3, 0.5), (0.3, -1.0), (0.0, 2.0), (1.0, 0.5)):
        for context in contexts:
            context.setParameter("sterics", sterics)
            context.setParameter("inner", inner)
        found, openmms = map(pairs_of, contexts)
        agree(found, openmms, 3e-5 if precision == "mixed" else 1e-6)
        seen.append(found[0])
    assert seen[0] == pytest.approx(seen[-1], rel=1e-9)
    assert len({round(energy, 3) for energy in seen}) == 4


@on_gpu
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_parameters_are_updated(water, precision):
    """Particles become sites, all cease to be sites, and some become sites again."""
    box, _ = prepared(water, "sites")
    force, context = box.nonbonded, context_of(box, precision)
    fresh = lambda: pairs_of(context_of(box, precision))  # noqa: E731
    agree(pairs_of(context), fresh(), ROUNDING[precision])
    for change in ("larger", "another site", "none", "all"):
        for i in range(len(box.positions)):
            charge, sigma, epsilon = force.getParticleParameters(i)
            if change == "larger" and i % 6 == 0:
                force.setParticleParameters(i, charge, 1.1 * sigma, 0.8 * epsilon)
            if change == "another site" and i == 4:
                force.setParticleParameters(i, charge, 0.05, 0.5)
            if change in ("none", "all"):
                force.setParticleParameters(i, charge, 0.1, 0.0 if change == "none" else 0.3)
        force.updateParametersInContext(context)
        agree(pairs_of(context), fresh(), ROUNDING[precision])


@on_gpu
def test_what_may_not_be_updated(chains):
    """An error, and the Context goes on as it was."""
    box, _ = prepared(chains, "sites")
    force, context = box.nonbonded, context_of(box)
    before = pairs_of(context)[0]
    particle = force.getParticleParameters(3)
    force.setParticleParameters(3, 0.5, *particle[1:])
    with pytest.raises(fmm.UnsupportedError, match=r"has charges again.*0\.5 e for particle 3"):
        force.updateParametersInContext(context)
    force.setParticleParameters(3, *particle)
    k = next(
        k for k in range(force.getNumExceptions()) if force.getExceptionParameters(k)[2]._value == 0
    )
    i, j, *_ = force.getExceptionParameters(k)
    force.setExceptionParameters(k, i, j, 0.3, 0.2, 0.1)
    with pytest.raises(openmm.OpenMMException, match="set of non-excluded exceptions"):
        force.updateParametersInContext(context)
    assert pairs_of(context)[0] == pytest.approx(before, rel=1e-9)


@on_gpu
def test_parts_of_an_evaluation(water):
    box, _ = prepared(all_sites(water), "sites")
    context = context_of(box)
    energy, forces = pairs_of(context)
    assert energy_of(context, groups={GROUP}) == pytest.approx(energy, rel=1e-6)
    alone = context.getState(forces=True, groups={GROUP}).getForces(asNumpy=True)._value
    assert relative_difference(alone, forces) < 1e-6
    assert energy_of(context, groups={3}) == 0
    total = energy_of(context)
    assert total == pytest.approx(energy + energy_of(context, groups={7}), rel=1e-6)


@on_gpu
@pytest.mark.parametrize("kind", ["steps", "barostat", "flexible barostat", "jumps"])
@pytest.mark.parametrize("name", ["water", "tip4pew"])
def test_lists_serve_moving_sites(request, name, kind):
    """Again and again the forces are those of a Context whose list is new, as all of its sites
    were half a cell away."""
    box, _ = prepared(request.getfixturevalue(name), "sites")
    box.nonbonded.setCutoffDistance(0.7)
    barostats = {
        "barostat": openmm.MonteCarloBarostat,
        "flexible barostat": openmm.MonteCarloFlexibleBarostat,
    }
    if kind in barostats:
        box.system.addForce(barostats[kind](1.0, 300, 3))
    integrator = openmm.LangevinMiddleIntegrator(400, 1, 0.001)
    context = context_of(box, "mixed", integrator)
    fresh = context_of(Box(copy.deepcopy(box.system), box.positions))
    random = np.random.default_rng(1)
    for _ in range(12):
        if kind == "jumps":
            x = context.getState(positions=True).getPositions(asNumpy=True)._value
            context.setPositions(x + random.integers(-1, 2, 3) @ box.cell)
        integrator.step(97)
        state = context.getState(positions=True)
        x, cell = (
            read(asNumpy=True)._value for read in (state.getPositions, state.getPeriodicBoxVectors)
        )
        fresh.setPeriodicBoxVectors(*cell)
        for shift in (0.5, 0.0):
            fresh.setPositions(x + shift * cell.sum(axis=0))
            expected = pairs_of(fresh)
        agree(pairs_of(context), expected, ROUNDING["mixed"])


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_ions_with_parameters_of_their_own(electrolyte, precision):
    """NBFIX: sodium and chloride do not follow the rule that sites of other types do. OpenMM's
    CUDA platform rounds tables of coefficients to floats, and integrates the long-range
    correction to 1e-5."""
    (energy, forces), (openmms, openmms_forces) = both(electrolyte, precision)
    exact, exact_forces = reference(electrolyte)
    assert relative_difference(forces, exact_forces) < ROUNDING[precision]
    assert relative_difference(openmms_forces, exact_forces) < ROUNDING["mixed"]
    assert energy == pytest.approx(exact, rel=2e-5) and energy == pytest.approx(openmms, rel=3e-5)


@on_gpu
@pytest.mark.parametrize(("precision", "accuracy"), [("mixed", 2e-6), ("double", 1e-10)])
def test_bonded_forces_beside_many_pairs(electrolyte, precision, accuracy):
    """OpenMM computes them on another stream than pairs, but not where energies are asked for: the
    same Context has the same forces.

    Those of a Context with OpenMM's pairs are compared in double precision, where they differ by
    coefficients that OpenMM keeps as floats, 6e-8 each. In mixed precision OpenMM's bonded forces
    are those of float32 positions: 1.1e-5 of all forces off here, and 3.8e-5 between Contexts that
    hold the molecules in different periodic images.
    """
    integrator = openmm.LangevinMiddleIntegrator(300, 10, 0.0005)
    context = context_of(prepared(electrolyte, "sites")[0], precision, integrator)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=100)
    other = context_of(prepared(electrolyte, "openmm")[0], precision)
    for _ in range(10):
        integrator.step(50)
        state = context.getState(positions=True, forces=True)
        found = state.getForces(asNumpy=True)._value
        after = context.getState(forces=True, energy=True).getForces(asNumpy=True)._value
        assert relative_difference(found, after) < accuracy
        if precision == "double":
            other.setPositions(state.getPositions())
            expected = other.getState(forces=True).getForces(asNumpy=True)._value
            assert relative_difference(found, expected) < 1e-6


@on_gpu
@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_deterministic_forces(water, precision):
    """Two runs of a Context with this property, bit for bit."""
    found = []
    for _ in range(2):
        box, _ = prepared(all_sites(copy.deepcopy(water)), "sites")
        integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.002)
        integrator.setRandomNumberSeed(5)
        context = context_of(box, precision, integrator, DeterministicForces="true")
        context.setVelocitiesToTemperature(300, 2)
        integrator.step(700)
        found.append(context.getState(positions=True).getPositions(asNumpy=True)._value)
    np.testing.assert_array_equal(*found)


@on_gpu
def test_inside_other_forces(chains):
    """A NonbondedForce and an FMMForce in a CustomCVForce, and in an ATMForce, whose inner
    Contexts have both."""
    box, _ = prepared(chains, "sites")
    expected = energy_of(context_of(box))
    forces = [copy.deepcopy(force) for force in box.system.getForces()]
    for kind in ("cv", "atm"):
        mine = copy.deepcopy(chains)
        while mine.system.getNumForces():
            mine.system.removeForce(0)
        if kind == "cv":
            outer = openmm.CustomCVForce("a + b")
            for name, force in zip("ab", forces, strict=True):
                outer.addCollectiveVariable(name, copy.deepcopy(force))
        else:
            outer = openmm.ATMForce(0.5, 0.5, 0, 0, 0, 0, 0, 0, 1)
            for force in forces:
                outer.addForce(copy.deepcopy(force))
            for _ in mine.positions:
                outer.addParticle(openmm.Vec3(0, 0, 0))
        mine.system.addForce(outer)
        integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.001)
        context = context_of(mine, "mixed", integrator)
        assert energy_of(context) == pytest.approx(expected, rel=1e-4)
        integrator.step(50)
        moved = context.getState(positions=True).getPositions()
        other = context_of(box)
        other.setPositions(moved)
        assert energy_of(context) == pytest.approx(energy_of(other), rel=1e-4)


@on_gpu
def test_path_integrals_and_the_minimiser(flexible_water):
    box, _ = prepared(flexible_water, "sites")
    integrator = openmm.RPMDIntegrator(4, 300, 1, 0.0005)
    context = context_of(box, "mixed", integrator)
    for copy_number in range(4):
        integrator.setPositions(copy_number, box.positions + 0.002 * copy_number)
    context.getIntegrator().step(20)
    state = integrator.getState(2, getPositions=True, getEnergy=True)
    other = context_of(prepared(flexible_water, "openmm")[0])
    other.setPositions(state.getPositions())
    assert state.getPotentialEnergy()._value == pytest.approx(energy_of(other), rel=1e-4)
    plain = context_of(box)
    openmm.LocalEnergyMinimizer.minimize(plain, maxIterations=20)
    assert energy_of(plain) < energy_of(context_of(box))


@on_gpu
@pytest.mark.parametrize(("kind", "apart"), [("sites", 1e-3), ("charges", 1e-5)])
def test_the_minimiser_sees_an_overflow(water, kind, apart, monkeypatch):
    """It then takes forces of the CPU, whose Context uses the host bridge, from the start on. Else
    it does so after steps that are too long only."""
    if kind == "charges":
        for i in range(len(water.positions)):
            charge, sigma, _ = water.nonbonded.getParticleParameters(i)
            water.nonbonded.setParticleParameters(i, charge, sigma, 0.0)
    box, _ = prepared(water, "sites")
    context, found = context_of(box), []
    compute = fmm.CoulombSolver.compute

    def noted(solver, positions, *arguments, **options):
        found.append(np.array(positions))
        return compute(solver, positions, *arguments, **options)

    monkeypatch.setattr(fmm.CoulombSolver, "compute", noted)

    def moved_before_the_cpu_was_asked(positions):
        found.clear()
        context.setPositions(positions)
        context.applyConstraints(1e-6)
        start = context.getState(positions=True).getPositions(asNumpy=True)._value
        openmm.LocalEnergyMinimizer.minimize(context, maxIterations=1)
        return np.abs(found[0] - start).max() if found else np.inf

    assert moved_before_the_cpu_was_asked(box.positions) > 1e-3
    close = box.positions.copy()
    close[3:6] += close[0] + [apart, 0.0, 0.0] - close[3]  # an oxygen on that of another molecule
    assert moved_before_the_cpu_was_asked(close) < 1e-5


@on_gpu
@pytest.mark.parametrize("form", ["table", "root", "product"])
@pytest.mark.parametrize("name", ["chains", "water"])
def test_tables_of_types(request, name, form):
    """OpenMM integrates the long-range correction numerically, to 1e-5."""
    box = typed(request.getfixturevalue(name), form)
    (energy, forces), (openmms, openmms_forces) = both(box, "mixed")
    assert relative_difference(forces, openmms_forces) < ROUNDING["mixed"]
    assert energy == pytest.approx(openmms, rel=2e-5, abs=0.02)
    other, _ = prepared(box, "sites")
    force = next(
        force
        for force in other.system.getForces()
        if isinstance(force, openmm.CustomNonbondedForce)
    )
    context = context_of(other)
    pairs_of(context)
    for i in range(0, 20, 2):
        force.setParticleParameters(i, force.getParticleParameters(i + 1))
    force.updateParametersInContext(context)
    agree(pairs_of(context), pairs_of(context_of(other)), ROUNDING["mixed"])


@on_gpu
def test_what_is_left_to_openmm(chains, water):
    """Forces that OpenMM computes, and the reason; ``lennard_jones="sites"`` is an error for
    them."""
    cases = {
        "it takes more than two functions of the distance": typed(copy.deepcopy(chains), "12-6-4"),
        "its dispersion is LJPME's": copy.deepcopy(chains),
    }
    cases["its dispersion is LJPME's"].nonbonded.setNonbondedMethod(openmm.NonbondedForce.LJPME)
    cases["its switching function begins at 0"] = from_zero = switched(copy.deepcopy(chains))
    from_zero.nonbonded.setSwitchingDistance(0.0)
    cases["its sites are of more than 2048 types"] = many = copy.deepcopy(water)
    for i in range(2100):
        many.system.addParticle(1.0)
        many.nonbonded.addParticle(0.0, 0.1 + 1e-5 * i, 1e-6)
    many.positions = np.concatenate(
        [water.positions, np.random.default_rng(1).uniform(size=(2100, 3)) @ water.cell]
    )
    for reason, box in cases.items():
        mine, force = prepared(box, "auto")
        parameters = force.getFMMParametersInContext(context_of(mine))
        assert parameters["lennard_jones"] == "openmm"
        assert reason in parameters["lennard_jones_reason"]
        with pytest.raises(openmm.OpenMMException, match="`lennard_jones='sites'` is not possible"):
            context_of(prepared(box, "sites")[0])
    alike(water, "1e-3*bump(r)")
    mine, force = prepared(water, "auto")
    context = context_of(mine)
    parameters = force.getFMMParametersInContext(context)
    assert parameters["lennard_jones"] == "openmm"
    companion = "CustomNonbondedForce has OpenMM list the pairs of all particles anyway"
    assert companion in parameters["lennard_jones_reason"]
    openmms = context_of(prepared(water, "openmm")[0])
    agree(pairs_of(context), pairs_of(openmms), ROUNDING["mixed"])


def alike(box, energy, corrected=False) -> Box:
    """Every particle interacts with every other that it does not exclude, by this energy;
    it may be tabulated."""
    force = openmm.CustomNonbondedForce(energy)
    force.addTabulatedFunction("bump", openmm.Continuous1DFunction([0, 1, 1, 0], 0.34, 0.7))
    for _ in box.positions:
        force.addParticle([])
    for k in range(box.nonbonded.getNumExceptions()):
        force.addExclusion(*box.nonbonded.getExceptionParameters(k)[:2])
    force.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(box.nonbonded.getCutoffDistance())
    force.setUseLongRangeCorrection(corrected)
    box.system.addForce(force)
    return box


@on_gpu
@pytest.mark.parametrize(
    "change",
    [
        "+ 5*exp(-((r-0.5)/0.03)^2)",
        "* (1 - step(r-0.5)*step(0.6-r))",
        "* step(r-0.25)",
        "+ min(0, 0.4-r)",
        "+ 1e-7*r^2",
    ],
)
def test_energies_that_differ_between_distances(water, change):
    """Each is, or may be, A/r^12 - B/r^6 at any few distances."""
    agree(*both(alike(water, f"(1e-6/r^12 - 1e-3/r^6) {change}"), "mixed"), ROUNDING["mixed"])


@on_gpu
def test_long_range_corrections_of_other_energies_are_left_to_openmm(water):
    mine, added = prepared(alike(water, "1e-6/r^12 - 1e-3/r^6 - 1e-3/r^5", corrected=True), "auto")
    parameters = added.getFMMParametersInContext(context_of(mine))
    assert parameters["lennard_jones"] == "openmm"
    assert (
        "it has a long-range correction, and its energy is not A/r^12 - B/r^6"
        in parameters["lennard_jones_reason"]
    )


@on_gpu
def test_tabulated_energies_are_left_to_openmm(water):
    mine, added = prepared(alike(water, "1e-6/r^12 - 1e-3/r^6 + bump(r)"), "auto")
    parameters = added.getFMMParametersInContext(context_of(mine))
    assert parameters["lennard_jones"] == "openmm"
    assert (
        "its energy is not A f(r) - B g(r): `bump` takes the distance"
        in parameters["lennard_jones_reason"]
    )


def force_switched(box, form="") -> Box:
    """Lennard-Jones moved into a CustomNonbondedForce as CHARMM-GUI does it; limits may be
    global parameters."""
    source = box.nonbonded
    off = source.getCutoffDistance()._value
    energy = (
        FORCE_SWITCH + "a = 4*epsilon*sigma^12; b = 4*epsilon*sigma^6; "
        "sigma = sigma1+sigma2; epsilon = epsilon1*epsilon2;"
    )
    force = openmm.CustomNonbondedForce(
        energy + ("" if form == "global" else f"on = {0.8 * off}; off = {off}")
    )
    if form == "global":
        force.addGlobalParameter("on", 0.8 * off)
        force.addGlobalParameter("off", off)
    for name in ("sigma", "epsilon"):
        force.addPerParticleParameter(name)
    for i in range(len(box.positions)):
        charge, sigma, epsilon = source.getParticleParameters(i)
        force.addParticle([0.5 * sigma._value, epsilon._value**0.5])
        source.setParticleParameters(i, charge, 0.0, 0.0)
    for k in range(source.getNumExceptions()):
        i, j, product, *_ = source.getExceptionParameters(k)
        force.addExclusion(i, j)
        source.setExceptionParameters(k, i, j, product, 0.0, 0.0)
    force.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(off)
    if form == "switched":
        force.setUseSwitchingFunction(True)
        force.setSwitchingDistance(0.9 * off)
    box.system.addForce(force)
    return box


@on_gpu
@pytest.mark.parametrize("form", ["", "global", "switched"])
@pytest.mark.parametrize("name", ["chains", "water", "tip4pew"])
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_force_switch(request, name, form, precision):
    """OpenMM holds parameters of particles as floats in double precision as well."""
    box = force_switched(request.getfixturevalue(name), form)
    found, openmms = both(box, precision)
    agree(found, openmms, 3e-5 if precision == "mixed" else 2e-6)
    exact = reference(box)
    assert (
        relative_difference(found[1], exact[1])
        < 1.5 * relative_difference(openmms[1], exact[1]) + 1e-7
    )
    # the Reference platform misses pairs in this skewed cell, by 5e-8
    if precision == "double" and name != "chains":
        assert relative_difference(found[1], exact[1]) < 1e-10


@on_gpu
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_force_switch_follows_parameters(chains, precision):
    """Global ones as they change and return, and those of particles when they are updated."""
    off = chains.nonbonded.getCutoffDistance()._value
    contexts, boxes = [], []
    for choice in ("sites", "openmm"):
        boxes.append(prepared(force_switched(copy.deepcopy(chains), "global"), choice)[0])
        contexts.append(context_of(boxes[-1], precision))
    seen = []
    for on, end in ((0.8, 1.0), (0.5, 1.0), (0.5, 0.9), (0.8, 1.0)):
        for context in contexts:
            context.setParameter("on", on * off)
            context.setParameter("off", end * off)
        found, openmms = map(pairs_of, contexts)
        agree(found, openmms, 3e-5)
        seen.append(found[0])
    assert seen[0] == pytest.approx(seen[-1], rel=1e-9)
    assert len({round(energy, 3) for energy in seen}) == 3
    for box, context in zip(boxes, contexts, strict=True):
        force = next(
            force
            for force in box.system.getForces()
            if isinstance(force, openmm.CustomNonbondedForce)
        )
        for i in range(0, 20, 2):
            force.setParticleParameters(i, [0.14 + 0.001 * i, 0.5])
        force.updateParametersInContext(context)
    found, openmms = map(pairs_of, contexts)
    agree(found, openmms, 3e-5)
    assert found[0] != pytest.approx(seen[-1], rel=1e-4)


@on_gpu
def test_a_scaled_energy_is_compiled_once(water):
    """A global parameter that scales Lennard-Jones changes the table of types alone."""
    box = alike(water, "0.3*scale*(1e-6/r^12 - 1e-3/r^6)")
    force = box.system.getForce(box.system.getNumForces() - 1)
    force.addGlobalParameter("scale", 1.0)
    contexts = [context_of(prepared(box, choice)[0]) for choice in ("sites", "openmm")]
    for scale in (1.0, 0.25, 0.0, -1.0):
        for context in contexts:
            context.setParameter("scale", scale)
        agree(*map(pairs_of, contexts), ROUNDING["mixed"])


@on_gpu
def test_an_exception_that_vanishes(chains):
    """An exception may vanish and return; only new ones are refused."""
    box, _ = prepared(chains, "sites")
    force, context = box.nonbonded, context_of(box)
    before = pairs_of(context)[0]
    k = next(
        k for k in range(force.getNumExceptions()) if force.getExceptionParameters(k)[4]._value != 0
    )
    kept = force.getExceptionParameters(k)
    for values in ((*kept[:2], 0.0, 0.2, 0.0), kept):
        force.setExceptionParameters(k, *values)
        force.updateParametersInContext(context)
        agree(pairs_of(context), pairs_of(context_of(box)), ROUNDING["mixed"])
    assert pairs_of(context)[0] == pytest.approx(before, rel=1e-6)


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("particles", [3, slice(None)], ids=["one", "all"])
def test_coordinates_that_are_no_numbers(water, particles, precision):
    """Never a finite energy; and the Context goes on with good ones, whatever the order and the
    images in which OpenMM keeps the particles since."""
    box, _ = prepared(all_sites(water), "sites")
    context = context_of(box, precision)
    before = pairs_of(context)
    lost = box.positions.copy()
    lost[particles] = np.nan
    context.setPositions(lost)
    assert np.isnan(energy_of(context, groups={GROUP}))
    context.setPositions(box.positions)
    agree(pairs_of(context), before, ROUNDING[precision])


@on_gpu
def test_a_program_that_could_not_be_made_is_made_later(water, monkeypatch):
    box, _ = prepared(all_sites(water), "sites")
    context = context_of(box)
    before = pairs_of(context)[0]
    build = pair_choice.program

    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(pair_choice, "program", fails)
    context.setPeriodicBoxVectors(*(1.4 * box.cell))
    with pytest.raises(openmm.OpenMMException, match="no room"):
        pairs_of(context)
    monkeypatch.setattr(pair_choice, "program", build)
    larger = pairs_of(context)[0]
    assert larger != pytest.approx(before, rel=1e-3)
    context.setPeriodicBoxVectors(*box.cell)
    assert pairs_of(context)[0] == pytest.approx(before, rel=1e-6)


@on_gpu
def test_openmm_reorders_now_and_then(water):
    """Reordering detects a particle at NaN that nothing else would report."""
    water.system.addParticle(1.0)
    water.nonbonded.addParticle(0.0, 1.0, 0.0)
    water.positions = np.vstack([water.positions, [0.0] * 3])
    box, _ = prepared(water, "sites")
    context = context_of(box, "mixed", openmm.LangevinMiddleIntegrator(300, 1, 0.001))
    context.getIntegrator().step(1)
    box.positions[-1] = np.nan
    context.setPositions(box.positions)
    with pytest.raises(openmm.OpenMMException, match="NaN"):
        context.getIntegrator().step(12_000)


@on_gpu
def test_other_contexts_are_untouched(water):
    """Contexts with PME made after one with an FMMForce keep OpenMM's kernels."""
    plain = copy.deepcopy(water)
    before = energy_of(context_of(plain, "double"))
    context_of(prepared(water, "sites")[0])
    assert energy_of(context_of(plain, "double")) == pytest.approx(before, rel=1e-12)
    context = context_of(plain)
    assert plain.nonbonded.getPMEParametersInContext(context)[0] > 0


@on_gpu
def test_no_sites(water):
    for i in range(len(water.positions)):
        charge, sigma, _ = water.nonbonded.getParticleParameters(i)
        water.nonbonded.setParticleParameters(i, charge, sigma, 0.0)
    found, openmms = both(water, "mixed")
    assert found[0] == openmms[0] == 0
    assert not found[1].any()


# without a GPU


def pairs_with(**changes):
    """The plugin's report on a Context."""
    values = {
        "particles": 900,
        "sites": 300,
        "limited": 1,
        "obstacle": b"",
        "companion": b"",
        "force": b"LJ",
    }
    return Pairs(**values | changes)


@pytest.mark.parametrize(
    ("choice", "facts", "among_sites", "reason"),
    [
        ("auto", {}, True, "300 of 900 particles are sites"),
        ("openmm", {}, False, "it was asked for"),
        ("auto", {"obstacle": b"it holds charges"}, False, "LJ: it holds charges"),
        (
            "auto",
            {"companion": b"Born"},
            False,
            "Born has OpenMM list the pairs of all particles anyway",
        ),
        ("sites", {"companion": b"Born"}, True, "300 of 900 particles are sites"),
        ("auto", {"companion": b"Born", "sites": 0}, True, "0 of 900 particles are sites"),
        ("auto", {"limited": 0}, True, "300 of 900 particles are sites"),
        (
            "auto",
            {"limited": 0, "sites": 800},
            False,
            "without a cutoff, too many of its particles are sites",
        ),
        ("sites", {"limited": 0, "sites": 800}, True, "800 of 900 particles are sites"),
    ],
)
def test_decisions(choice, facts, among_sites, reason):
    bridge = HostBridge(Definition(Options(lennard_jones="auto" if choice == "sites" else choice)))
    pairs = pairs_with(**facts)
    found = pair_choice.decide(choice, pairs)
    assert found[0] == among_sites
    assert reason in found[1]
    if choice != "sites":
        assert pair_choice.claim(17, pairs, bridge) == among_sites
        pair_choice.close(17)


def test_a_choice_that_is_not_possible_is_an_error():
    bridge = HostBridge(Definition(Options(lennard_jones="sites")))
    with pytest.raises(
        ValueError, match="`lennard_jones='sites'` is not possible: LJ: it holds charges"
    ):
        pair_choice.claim(18, pairs_with(obstacle=b"it holds charges"), bridge)
    pair_choice.close(18)
    assert not pair_choice.claim(19, pairs_with(), None)
    pair_choice.close(19)


def test_a_context_at_the_address_of_one_whose_creation_failed():
    refused, served = (
        HostBridge(Definition(Options(lennard_jones=choice))) for choice in ("sites", "auto")
    )
    with pytest.raises(ValueError, match="it holds charges"):
        pair_choice.claim(20, pairs_with(context=4096, obstacle=b"it holds charges"), refused)
    pair_choice.claim(21, pairs_with(context=4096), served)
    cuda = SimpleNamespace(getName=lambda: "CUDA")
    context = SimpleNamespace(this=4096, getPlatform=lambda: cuda)
    assert pair_choice.status(context) == ("sites", "300 of 900 particles are sites")
    for kernel in (20, 21):
        pair_choice.close(kernel)


def test_options():
    with pytest.raises(ValueError, match="`lennard_jones` must be"):
        fmm.FMMForce(lennard_jones="all")
    for option in ({"bridge": "host"}, {"backend": "cpu"}):
        with pytest.raises(ValueError, match="`lennard_jones='sites'` needs the native bridge"):
            fmm.FMMForce(lennard_jones="sites", **option)
    force = copy.deepcopy(fmm.FMMForce(lennard_jones="openmm"))
    assert force._definition.options.lennard_jones == "openmm"


def test_elsewhere_openmm_computes_the_pairs(ions):
    force = fmm.use_fmm(ions.system)
    parameters = force.getFMMParametersInContext(ions.context("Reference"))
    assert parameters["lennard_jones"] == "openmm"
    assert parameters["lennard_jones_reason"] == "the Context is on the Reference platform"


def test_a_system_of_charmm_gui_is_converted(ions):
    """The NonbondedForce of such a System holds charges alone, with sigma and epsilon zero."""
    box = force_switched(ions)
    before = energy_of(box.context())
    fmm.use_fmm(box.system)
    assert energy_of(box.context()) == pytest.approx(before, rel=1e-3)


def test_programs_are_made_of_what_the_plugin_tells():
    sites = Sites(
        100, 2, 4, 0, 0, 0, 0, 0.9, 0.8, 1.0, (ctypes.c_double * 9)(3, 0, 0, 0, 3, 0, 0, 0, 3)
    )
    place = Place(1, 300, 320, 132, 227 * 1024, 0, b"GPU", 1, 0, 64)
    assert pair_choice.program(sites, place).startswith(b"FMMprog")
