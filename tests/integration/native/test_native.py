"""The native bridge: what the plugin computes in OpenMM's CUDA context is what the host bridge
computes.

Where there is a GPU the other tests of this folder run with it as well; these are about the bridge
itself.
"""

import copy
import threading

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.bench.systems import Sample, tiled
from fmm_openmm.integration.native.session import Session
from fmm_openmm.oracle import ewald_sum
from tests.integration.boxes import Box, energy_of, relative_difference
from tests.integration.native_contexts import (
    ROUNDING,
    both_bridges,
    context_of,
    converted,
    coulomb,
    no_room,
    on_gpu,
    with_two,
)


@on_gpu
@pytest.mark.parametrize(
    ("precision", "system", "smoothing"),
    [
        ("single", "water", 0.05),
        ("single", "chains", 0.0),
        ("mixed", "water", 0.0),
        ("mixed", "chains", 0.05),
        ("mixed", "tip5p", 0.05),
        ("double", "water", 0.05),
        ("double", "chains", 0.0),
    ],
)
def test_agrees_with_the_host_bridge(request, system, precision, smoothing):
    options = {
        "precision": "double" if precision == "double" else "single",
        "smoothing": smoothing,
        "order": 6,
    }
    options |= {"grid": (6, 6, 6), "near_radius": 2.34} if system != "chains" else {}
    (energy, forces), (host_energy, host_forces) = both_bridges(
        request.getfixturevalue(system), precision, **options
    )
    assert relative_difference(forces, host_forces) < ROUNDING[precision]
    assert energy == pytest.approx(host_energy, rel=ROUNDING[precision])


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_agrees_with_pme(water, precision):
    water.nonbonded.setEwaldErrorTolerance(1e-6)
    pme = context_of(copy.deepcopy(water), precision).getState(energy=True, forces=True)
    force = converted(water, tolerance=1e-5, bridge="native")
    context = context_of(water, precision)
    state = context.getState(energy=True, forces=True)
    assert force.getFMMParametersInContext(context)["precision"] == (
        "double" if precision == "double" else "single"
    )
    assert (
        relative_difference(
            state.getForces(asNumpy=True)._value, pme.getForces(asNumpy=True)._value
        )
        < 2e-5
    )
    assert state.getPotentialEnergy()._value == pytest.approx(
        pme.getPotentialEnergy()._value, rel=3e-5
    )


@on_gpu
def test_repeats_bit_for_bit_and_parts_agree_with_the_whole(water):
    force = converted(water, bridge="native")
    context = context_of(water)
    energy, forces = coulomb(context, force)
    again, same = coulomb(context, force)
    assert energy == again
    np.testing.assert_array_equal(forces, same)
    assert context.getState(energy=True, groups={7}).getPotentialEnergy()._value == energy
    np.testing.assert_array_equal(
        context.getState(forces=True, groups={7}).getForces(asNumpy=True)._value, forces
    )
    assert context.getState(energy=True, groups={3}).getPotentialEnergy()._value == 0


@on_gpu
def test_follows_the_reordering_of_atoms(water):
    """After many steps OpenMM's order of atoms is another; a fresh Context,
    in the user's order, must agree."""
    force = converted(water, bridge="native")
    integrator = openmm.LangevinMiddleIntegrator(400 * unit.kelvin, 5.0, 0.002)
    context = context_of(water, integrator=integrator)
    integrator.step(1500)
    moved = copy.deepcopy(water)
    moved.positions = context.getState(positions=True).getPositions(asNumpy=True)._value
    energy, forces = coulomb(context, force)
    expected_energy, expected = coulomb(context_of(moved), fmm.find_fmm(moved.system)[0])
    assert energy == pytest.approx(expected_energy, abs=0.02)
    assert relative_difference(forces, expected) < 1e-5


@on_gpu
@pytest.mark.parametrize("bridge", ["native", "host"])
def test_excluded_pairs_that_nothing_else_binds(bridge):
    """OpenMM keeps both particles of an excluded pair in one image, across the faces of the box,
    and particles of other charges may swap places in its order: the interaction left out stays
    that of the coordinates the user gave."""
    random = np.random.default_rng(2)
    cell = 3 * np.eye(3)
    sites = np.stack(np.meshgrid(*3 * [np.arange(4)], indexing="ij"), -1).reshape(-1, 1, 3) * 0.75
    positions = (sites + random.uniform(-0.12, 0.12, (64, 2, 3))).reshape(-1, 3)
    charges, pairs = random.normal(scale=0.2, size=128), np.arange(128).reshape(-1, 2)
    system, force, others = (
        openmm.System(),
        fmm.FMMForce(tolerance=1e-6, bridge=bridge),
        openmm.NonbondedForce(),
    )
    system.setDefaultPeriodicBoxVectors(*cell)
    others.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    for charge in charges:
        system.addParticle(20.0)
        force.addParticle(charge)
        others.addParticle(0.0, 0.1, 0.1)
    for pair in pairs:
        force.addExclusion(*map(int, pair))
    force.setForceGroup(7)
    system.addForce(force)
    system.addForce(others)
    integrator = openmm.LangevinMiddleIntegrator(100.0, 1.0, 0.001)
    context = context_of(Box(system, positions), "double", integrator)
    for steps in (0, 600):
        integrator.step(steps)
        now = context.getState(positions=True).getPositions(asNumpy=True)._value
        expected = ewald_sum(now, charges, cell, pairs)
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(expected.energy, abs=1e-4)
        assert relative_difference(forces, expected.forces) < 2e-6


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_potentials_without_the_host(chains, precision):
    """Potentials of an evaluation on the device equal those of the host bridge."""
    chains.nonbonded.addGlobalParameter("a", 0.5)
    chains.nonbonded.addParticleParameterOffset("a", 3, 0.2, 0.0, 0.0)
    found = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(chains)
        force = converted(
            mine, bridge=bridge, precision="double" if precision == "double" else "single"
        )
        context = context_of(mine, precision)
        force.setForceGroup(3)  # without effect on the Context
        context.setParameter("a", -1.0)
        found.append(
            (
                force.getPotentialsInContext(context),
                force.getEnergyParameterDerivativesInContext(context)["a"],
            )
        )
        assert (force._bridge._solver is None) == (bridge == "native")
    (potentials, derivative), (expected, host_derivative) = found
    assert relative_difference(potentials, expected) < ROUNDING[precision]
    assert derivative == pytest.approx(host_derivative, rel=10 * ROUNDING[precision])
    assert derivative == pytest.approx(0.2 * potentials[3], rel=1e-12)


@on_gpu
def test_levels(water):
    options = {
        "precision": "single",
        "order": 6,
        "grid": (3, 3, 3),
        "levels": 1,
        "near_radius": 2.34,
    }
    (energy, forces), (host_energy, host_forces) = both_bridges(water, "mixed", **options)
    assert relative_difference(forces, host_forces) < ROUNDING["mixed"]
    assert energy == pytest.approx(host_energy, rel=ROUNDING["mixed"])


@on_gpu
@pytest.mark.parametrize("levels", [0, 1])
def test_box_changes(water, levels):
    """Isotropic ones change a parameter block, others the lattice operator too. What is restored
    gives the same energy, but for rounding: OpenMM moves molecules into the box."""
    force = converted(water, bridge="native", tolerance=1e-5, levels=levels)
    context = context_of(water, "double")
    before, _ = coulomb(context, force)
    for factors in ((1.02, 1.02, 1.02), (0.99, 1.03, 1.0), (1.0, 1.0, 1.01), (0.97, 0.97, 0.97)):
        cell = np.diag(factors) @ water.cell
        context.setPeriodicBoxVectors(*cell)
        fresh = copy.deepcopy(water)
        fresh.system.setDefaultPeriodicBoxVectors(*cell)
        expected, _ = coulomb(context_of(fresh, "double"), fmm.find_fmm(fresh.system)[0])
        assert coulomb(context, force)[0] == pytest.approx(expected, rel=1e-5)
        context.setPeriodicBoxVectors(*water.cell)
        assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-12)


@on_gpu
def test_charges_change(water):
    """Charges change by the definition, by updateParametersInContext and by a global parameter."""
    force = converted(water, bridge="native")
    context = context_of(water)
    before, _ = coulomb(context, force)
    for particle in range(force.getNumParticles()):
        force.setParticleParameters(particle, 2 * force.getParticleParameters(particle))
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-6)
    force.updateParametersInContext(context)
    for particle in range(force.getNumParticles()):
        force.setParticleParameters(particle, 0.5 * force.getParticleParameters(particle))
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-6), (
        "an updated Context keeps its charges"
    )
    force.updateParametersInContext(context)
    assert coulomb(context, force)[0] == before


@on_gpu
def test_a_global_parameter_that_another_force_declares(ions):
    """The FMMForce of a converted System has none of its own."""
    force = ions.nonbonded
    force.addGlobalParameter("scale", 1.0)
    for particle in range(4):
        force.setParticleParameters(particle, 0.0, 0.3, 0.0)
        force.addParticleParameterOffset("scale", particle, (-1.0) ** particle, 0.0, 0.0)
    fmm.use_fmm(ions.system, bridge="native", tolerance=1e-6)
    ions.nonbonded.setGlobalParameterDefaultValue(0, 0.5)
    context = context_of(ions, "double")
    energy = energy_of(context)
    assert energy != 0
    context.setParameter("scale", 1.0)
    assert energy_of(context) == pytest.approx(4 * energy, rel=1e-9)


@on_gpu
def test_global_parameters(ions, monkeypatch):
    force = fmm.FMMForce(bridge="native", tolerance=1e-6)
    force.addGlobalParameter("scale", 1.0)
    for particle in range(4):
        force.addParticle(0.0)
        force.addParticleParameterOffset("scale", particle, (-1.0) ** particle)
    ions.system.removeForce(0)
    ions.system.addForce(force)
    context = context_of(ions, "double")
    energy = energy_of(context)
    context.setParameter("scale", 0.5)
    assert energy_of(context) == pytest.approx(0.25 * energy, rel=1e-9)
    context.setParameter("scale", np.inf)
    for _ in range(2):
        with pytest.raises(openmm.OpenMMException, match="finite"):
            energy_of(context)
    context.setParameter("scale", 0.0)
    assert energy_of(context) == 0
    context.setParameter("scale", 1.0)
    assert energy_of(context) == energy
    with monkeypatch.context() as patch:
        patch.setattr(Session, "program", no_room)
        context.setParameter("scale", 0.5)
        context.setPeriodicBoxVectors(*(np.diag([1.3, 1.0, 1.0]) @ ions.cell))
        with pytest.raises(openmm.OpenMMException, match="no room"):
            energy_of(context)
    context.setPeriodicBoxVectors(*ions.cell)
    assert energy_of(context) == pytest.approx(0.25 * energy, rel=1e-9)


@on_gpu
def test_charges_change_while_openmm_computes():
    """Forces that are added after those of OpenMM, which take longer,
    keep the charges of their own step."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(8)], indexing="ij"), -1).reshape(-1, 3)
    system, force = openmm.System(), fmm.FMMForce(bridge="native", precision="single")
    system.setDefaultPeriodicBoxVectors(*(3.2 * np.eye(3)))
    force.addGlobalParameter("scale", 1.0)
    slow = openmm.CustomNonbondedForce("+".join(f"exp(-{k}*r)" for k in range(1, 201)))
    for particle, site in enumerate(sites):
        system.addParticle(20.0)
        force.addParticle(0.0)
        force.addParticleParameterOffset("scale", particle, (-1.0) ** site.sum())
        slow.addParticle([])
    system.addForce(force)
    system.addForce(slow)
    box = Box(system, 0.4 * sites + np.random.default_rng(5).uniform(-0.05, 0.05, sites.shape))
    velocities = []
    for waits in (True, False):
        context = context_of(box, "double")
        for scale in (1.0, 0.0, 1.0, 0.0):
            context.setParameter("scale", scale)
            context.getIntegrator().step(20)
            if waits:
                context.getState(positions=True)
        velocities.append(context.getState(velocities=True).getVelocities(asNumpy=True)._value)
    assert relative_difference(velocities[1], velocities[0]) < 1e-6


@on_gpu
def test_beside_forces_that_add_at_the_same_time(water):
    """Total forces, of which OpenMM adds its own while the FMM adds these."""
    groups = openmm.CustomCentroidBondForce(2, "5*(distance(g1, g2) - 1)^2")
    chains = openmm.CustomCompoundBondForce(3, "20*distance(p1, p2)*distance(p2, p3)")
    pairs = openmm.CustomNonbondedForce("50*exp(-4*r)")
    hydrogen = openmm.CustomHbondForce("-20*exp(-3*distance(d1, a1))")
    for force in (pairs, hydrogen):
        force.setNonbondedMethod(force.CutoffPeriodic)
        force.setCutoffDistance(water.nonbonded.getCutoffDistance())
    for _ in water.positions:
        pairs.addParticle([])
    for index in range(water.nonbonded.getNumExceptions()):
        pairs.addExclusion(*water.nonbonded.getExceptionParameters(index)[:2])
    for oxygen in range(0, len(water.positions), 3):
        hydrogen.addAcceptor(oxygen, -1, -1, [])
        hydrogen.addDonor(oxygen + 1, -1, -1, [])
        hydrogen.addExclusion(oxygen // 3, oxygen // 3)
        chains.addBond([oxygen, oxygen + 1, oxygen + 2], [])
        groups.addBond([groups.addGroup([oxygen, oxygen + 1]), groups.addGroup([oxygen + 2])], [])
    for force in (groups, chains, pairs, hydrogen):
        water.system.addForce(force)
    totals = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(water)
        options = {
            "precision": "double",
            "order": 6,
            "near_radius": 2.34,
            "grid": (6, 6, 6),
            "smoothing": 0.05,
        }
        fmm.use_fmm(mine.system, bridge=bridge, lennard_jones="openmm", **options)
        context = context_of(mine, "double")
        for _ in range(5):
            totals.append(context.getState(forces=True).getForces(asNumpy=True)._value)
    for total in totals[1:]:
        assert relative_difference(total, totals[0]) < ROUNDING["double"]


@on_gpu
def test_a_large_system(water):
    """Until the FMM is finished, OpenMM works on a stream of the plugin;
    also if it gives a step up."""
    sample = tiled(Sample(water.system, water.positions, np.zeros_like(water.positions)), (5, 5, 4))
    velocities = []
    for bridge in ("native", "host"):
        box = Box(copy.deepcopy(sample.system), sample.positions)
        converted(
            box,
            bridge=bridge,
            precision="double",
            order=6,
            near_radius=1.87,
            grid=(20, 20, 16),
            smoothing=0.05,
        )
        context = context_of(box, "double")
        context.getIntegrator().step(5)
        context.setPeriodicBoxVectors(*(0.2 * box.cell))
        with pytest.raises(openmm.OpenMMException, match="less than twice the nonbonded cutoff"):
            context.getState(forces=True)
        context.setPeriodicBoxVectors(*box.cell)
        context.getIntegrator().step(5)
        velocities.append(context.getState(velocities=True).getVelocities(asNumpy=True)._value)
    assert relative_difference(*velocities) < 1e-6


@on_gpu
def test_inside_a_custom_cv_force(ions):
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded, bridge="native", tolerance=1e-6)
    ions.system.removeForce(0)
    alone = copy.deepcopy(ions)
    alone.system.addForce(copy.deepcopy(force))
    energy, forces = alone_state = coulomb_of(context_of(alone, "double"))
    variable = openmm.CustomCVForce("3*electrostatic")
    variable.addCollectiveVariable("electrostatic", force)
    ions.system.addForce(variable)
    inner_energy, inner_forces = coulomb_of(context_of(ions, "double"))
    assert inner_energy == pytest.approx(3 * energy, rel=1e-9), alone_state
    np.testing.assert_allclose(inner_forces, 3 * forces, rtol=1e-7, atol=1e-6)


def coulomb_of(context):
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


@on_gpu
def test_contexts_in_threads_are_independent(water):
    force = converted(water, bridge="native")
    contexts = [context_of(water) for _ in range(3)]
    expected = coulomb(contexts[0], force)[0]
    found = []

    def run(context):
        found.extend(coulomb(context, force)[0] for _ in range(20))

    threads = [threading.Thread(target=run, args=(context,)) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {expected}


@on_gpu
@pytest.mark.parametrize(
    "index", ["0,0", *(pytest.param(index, marks=with_two) for index in ("1", "0,1", "1,0"))]
)
def test_other_devices_and_several(water, index, caplog):
    """OpenMM shares its own work among several devices; the FMM and Lennard-Jones among sites run
    on the first that is named."""
    force = converted(water, bridge="native", lennard_jones="sites")
    whole = {"energy": True, "forces": True}
    found = []
    for device in ("0", index):
        context = context_of(water, DeviceIndex=device)
        parameters = force.getFMMParametersInContext(context)
        assert (parameters["bridge"], parameters["lennard_jones"]) == ("native", "sites")
        assert ("the Context is on 2 devices" in caplog.text) == ("," in device)
        found.append(
            (
                *coulomb(context, force),
                context.getState(**whole),
                force.getPotentialsInContext(context),
            )
        )
    (
        (energy, forces, state, potentials),
        (other_energy, other_forces, other_state, other_potentials),
    ) = found
    assert other_energy == pytest.approx(energy, rel=1e-9)
    assert relative_difference(other_forces, forces) < 1e-6
    assert relative_difference(other_potentials, potentials) < 1e-6
    assert other_state.getPotentialEnergy()._value == pytest.approx(
        state.getPotentialEnergy()._value, rel=1e-6
    )
    assert (
        relative_difference(
            other_state.getForces(asNumpy=True)._value, state.getForces(asNumpy=True)._value
        )
        < 1e-5
    )
    context.getIntegrator().step(300)
    assert np.isfinite(energy_of(context))


@on_gpu
def test_a_callable_of_somebody_else_is_left_alone(ions):
    ions.system.addForce(openmm.PythonForce(lambda state: (42.0, np.zeros((4, 3))), {}))
    ions.system.getForce(1).setForceGroup(3)
    converted(ions, bridge="native")
    assert energy_of(context_of(ions), groups={3}) == 42.0
