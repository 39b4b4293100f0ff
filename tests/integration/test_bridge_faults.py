"""Faults: the error names what is wrong, and the Context works again with good input."""

import gc
import threading
import warnings
import weakref

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import Box, energy_of

TIGHT = {"tolerance": 1e-6}


def fmm_box(positions, charges, cell, **options) -> Box:
    """Only an FMMForce."""
    force = fmm.FMMForce(**{**TIGHT, **options})
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*np.asarray(cell, float))
    for charge in charges:
        system.addParticle(10.0)
        force.addParticle(charge)
    system.addForce(force)
    return Box(system, np.asarray(positions, float))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_a_bad_coordinate_names_its_particle(ions, platform, value):
    if platform == "CPU" and not np.isnan(value):
        pytest.skip(
            "OpenMM's CPU platform overflows its own neighbour list on infinite coordinates"
        )
    force = fmm.use_fmm(ions.system, **TIGHT)
    force.setForceGroup(1)
    context = ions.context(platform)
    before = energy_of(context, groups={1})
    bad = ions.positions.copy()
    bad[2, 1] = value
    context.setPositions(bad)
    with pytest.raises(
        openmm.OpenMMException,
        match=r"`positions` must be finite .* for particle 2|coordinate is NaN",
    ):
        energy_of(context, groups={1})
    context.setPositions(ions.positions)
    assert energy_of(context, groups={1}) == before


def test_an_error_inside_a_step(ions, platform):
    box = fmm_box(ions.positions, [1.0, -1.0, 1.0, -1.0], ions.cell)
    context = box.context(platform)
    before = energy_of(context)
    bad = box.positions.copy()
    bad[1] = np.nan
    context.setPositions(bad)
    for _ in range(3):
        with pytest.raises(openmm.OpenMMException, match=r"for particle 1|coordinate is NaN"):
            context.getIntegrator().step(1)
            energy_of(context)  # where the GPU does all of a step, only energies are looked at
    context.setPositions(box.positions)
    assert energy_of(context) == before


def test_a_bad_box_is_an_error(ions, platform):
    box = fmm_box(ions.positions, [1.0, -1.0, 1.0, -1.0], ions.cell)
    context = box.context(platform)
    before = energy_of(context)
    context.setPeriodicBoxVectors(*np.diag([3.0, np.nan, 3.0]))
    with pytest.raises(openmm.OpenMMException, match=r"FMMForce: .*box_vectors"):
        energy_of(context)
    for cell in (np.zeros((3, 3)), np.diag([3.0, 3.0, -3.0])):
        with pytest.raises(openmm.OpenMMException):
            context.setPeriodicBoxVectors(*cell)
            energy_of(context)
    with pytest.raises(openmm.OpenMMException, match=r"reduced form"):
        context.setPeriodicBoxVectors(*np.array([[3.0, 0, 0], [2.9, 3.0, 0], [0, 0, 3.0]]))
    context.setPeriodicBoxVectors(*box.cell)
    assert energy_of(context) == before


def test_bad_charges_are_refused_and_the_context_keeps_its_own(ions, platform):
    force = fmm.use_fmm(ions.system, **TIGHT)
    context = ions.context(platform)
    before = energy_of(context)
    for charge in (np.nan, -np.inf):
        with pytest.raises(ValueError, match=r"`charge` must be finite, got .* for particle 3"):
            force.setParticleParameters(3, charge)
    force.updateParametersInContext(context)
    assert energy_of(context) == before


def test_a_parameter_that_makes_charges_infinite(ions, platform):
    ions.nonbonded.addGlobalParameter("a", 0.0)
    ions.nonbonded.addParticleParameterOffset("a", 2, 1.0, 0.0, 0.0)
    fmm.use_fmm(ions.system, **TIGHT)
    context = ions.context(platform)
    before = energy_of(context)
    context.setParameter("a", np.nan)
    with pytest.raises(openmm.OpenMMException, match=r"FMMForce: .*finite, got nan for particle 2"):
        energy_of(context)
    context.setParameter("a", 0.0)
    assert energy_of(context) == before


def test_coinciding_particles(ions, platform):
    charges = [1.0, -1.0, 1.0, -1.0]
    box = fmm_box(ions.positions, charges, ions.cell)
    context = box.context(platform)
    before = energy_of(context)
    merged = box.positions.copy()
    merged[1] = merged[0]
    context.setPositions(merged)
    with pytest.raises(
        openmm.OpenMMException, match=r"particles 0 and 1 coincide|particles 1 and 0 coincide"
    ):
        energy_of(context)
    context.setPositions(box.positions)
    assert energy_of(context) == before

    excluded = fmm_box(merged, charges, ions.cell)
    fmm.find_fmm(excluded.system)[0].addExclusion(0, 1)
    expected = ewald_sum(merged, charges, ions.cell, [(0, 1)])
    energy, forces = excluded.energy_and_forces(platform)
    assert energy == pytest.approx(expected.energy, abs=1e-3)
    assert np.abs(forces - expected.forces).max() < 1e-2


def test_uncharged_particles_feel_exactly_nothing(platform):
    random = np.random.default_rng(8)
    positions = random.uniform(0, 2, (60, 3))
    charges = np.where(np.arange(60) % 2, 0.0, np.where(np.arange(60) % 4, 0.5, -0.5))
    forces = fmm_box(positions, charges, 2.0 * np.eye(3)).energy_and_forces(platform)[1]
    assert not forces[charges == 0].any() and forces[charges != 0].all()


@pytest.mark.parametrize("count", [1, 2, 3, 33])
def test_few_particles(count, platform):
    random = np.random.default_rng(count)
    positions, charges = random.uniform(0, 2, (count, 3)), random.normal(size=count)
    cell = np.array([[2.0, 0, 0], [1.0, 2.2, 0], [-0.9, 1.1, 2.5]])
    energy, forces = fmm_box(positions, charges, cell).energy_and_forces(platform)
    expected = ewald_sum(positions, charges, cell)
    assert energy == pytest.approx(expected.energy, rel=1e-5)
    assert np.linalg.norm(forces - expected.forces) < 1e-5 * max(
        1.0, np.linalg.norm(expected.forces)
    )


def test_no_particles(platform):
    with pytest.raises(openmm.OpenMMException, match=r"no particles"):
        energy_of(fmm_box(np.zeros((0, 3)), [], np.eye(3)).context(platform))


CELLS = {  # and the part of each axis that holds the particles
    "rod": (np.diag([100.0, 2, 2]), 1.0),
    "slab": (np.diag([40.0, 40, 1.5]), 1.0),
    "tiny": (0.1 * np.eye(3), 1.0),
    "huge": (1e4 * np.eye(3), 1.0),
    "tilts of a half": (np.array([[3.0, 0, 0], [1.5, 3.0, 0], [-1.5, 1.5, 3.0]]), 1.0),
    "nearly empty": (3.0 * np.eye(3), 0.04),
}


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "spread"), CELLS.values(), ids=CELLS)
def test_cells_of_any_size_and_shape(cell, spread, platform):
    """Some particles are a thousand cells away."""
    random = np.random.default_rng(4)
    charges = random.normal(size=40)
    near = random.uniform(0, spread, (40, 3)) @ cell
    far = near + 1000 * random.integers(-1, 2, (40, 3)) @ cell
    expected = ewald_sum(near, charges, cell)
    for positions in (near, far):
        energy, forces = fmm_box(positions, charges, cell).energy_and_forces(platform)
        assert energy == pytest.approx(expected.energy, rel=2e-6)
        assert np.linalg.norm(forces - expected.forces) < 2e-6 * np.linalg.norm(expected.forces)


@pytest.mark.parametrize("value", [-1e-17, 0.0, 2.0, np.nextafter(2.0, 0)])
def test_particles_on_box_faces(value, platform):
    positions = np.array(
        [[value, value, value], [1.0, 0.9, 1.3], [value, 0.5, value], [0.4, value, 1.6]]
    )
    charges = [1.0, -1.0, 0.5, -0.5]
    energy = fmm_box(positions, charges, 2.0 * np.eye(3)).energy_and_forces(platform)[0]
    assert energy == pytest.approx(ewald_sum(positions, charges, 2.0 * np.eye(3)).energy, rel=1e-5)


def test_a_clash_is_finite_and_minimised(platform):
    """Forces far beyond 2^31 kJ/mol/nm, which OpenMM keeps in fixed point on some platforms."""
    positions = np.array(
        [[1.0, 1.0, 1.0], [1.0 + 1e-7, 1.0, 1.0], [0.3, 0.4, 0.5], [1.6, 1.6, 0.4]]
    )
    box = fmm_box(positions, [1.0, 1.0, -1.0, -1.0], 2.0 * np.eye(3))
    context = box.context(platform)
    assert energy_of(context) > 1e8
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=20)
    assert energy_of(context) < 1e8


def test_an_interrupt_is_an_error_that_keeps_nothing_alive(ions, monkeypatch):
    box = fmm_box(ions.positions, [1.0, -1.0, 1.0, -1.0], ions.cell)
    context = box.context()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fmm.CoulombSolver, "compute", interrupted)
        with pytest.raises(openmm.OpenMMException, match="FMMForce: interrupted"):
            energy_of(context)
    assert np.isfinite(energy_of(context))
    (found,) = fmm.find_fmm(box.system)
    watched = weakref.ref(found._bridge)
    del context, box, found
    gc.collect()
    assert watched() is None


# several Contexts, several threads


@pytest.mark.slow
def test_threads_and_contexts_are_independent(water, ions, platform):
    """One force in two Contexts with different charges, and another System,
    evaluated at the same time."""
    shared = fmm.use_fmm(water.system)
    fmm.use_fmm(ions.system)
    contexts = [water.context(platform), water.context(platform), ions.context(platform)]
    shared.setParticleParameters(0, -0.5)
    shared.updateParametersInContext(contexts[0])
    shared.setParticleParameters(0, -0.834)
    expected = [energy_of(context) for context in contexts]
    assert abs(expected[0] - expected[1]) > 1
    failures = []

    def work(context, energy):
        for _ in range(10):
            context.setPositions(context.getState(positions=True).getPositions())
            if energy_of(context) != pytest.approx(energy, rel=1e-6):
                failures.append(energy)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(contexts, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_an_error_keeps_nothing_alive(ions, platform):
    """OpenMM never frees the exception it was given."""
    box = fmm_box(ions.positions, [1.0, -1.0, 1.0, -1.0], ions.cell)
    context = box.context(platform)
    context.setPositions(np.full((4, 3), np.nan))
    with pytest.raises(openmm.OpenMMException):
        context.getState(energy=True)
    (found,) = fmm.find_fmm(box.system)
    watched = [weakref.ref(each) for each in (context, box.system, found._bridge)]
    del context, box, found
    gc.collect()
    assert [each() for each in watched] == [None, None, None]


def test_an_error_in_one_context_leaves_the_others(ions, platform):
    box = fmm_box(ions.positions, [1.0, -1.0, 1.0, -1.0], ions.cell)
    good, bad = box.context(platform), box.context(platform)
    before = energy_of(good)
    bad.setPositions(np.full((4, 3), np.nan))
    with pytest.raises(openmm.OpenMMException):
        energy_of(bad)
    assert energy_of(good) == before


def test_a_warning_does_not_end_a_run(water, caplog):
    """Even where warnings are errors: it is logged then."""
    fmm.use_fmm(water.system, order=2, bridge="host")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        energy_of(water.context("Reference"))
    assert "is out of reach for this cell with the `order` given" in caplog.text
