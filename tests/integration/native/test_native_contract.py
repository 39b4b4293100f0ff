"""The native bridge keeps what OpenMM promises: which edits an update takes over, what remains
after an error, which devices will do."""

import copy
import os
import subprocess
import sys

import numpy as np
import openmm
import pytest

from fmm_openmm.integration.native import pair_choice
from tests.compiler import COMPILER
from tests.integration.boxes import Box
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

KINDS = [openmm.NonbondedForce, openmm.CustomNonbondedForce]


def held(system, kind):
    return next(force for force in system.getForces() if isinstance(force, kind))


def of_kind(box, kind) -> Box:
    """A prepared box with Lennard-Jones in a force of this kind."""
    return prepared(box if kind is openmm.NonbondedForce else typed(box, "product"), "sites")[0]


def exclude(force, particles, exclusion=None):
    """Another pair is left out, or an exclusion is another pair's."""
    if isinstance(force, openmm.NonbondedForce):
        arguments = *particles, 0.0, 1.0, 0.0
        if exclusion is None:
            force.addException(*arguments)
        else:
            force.setExceptionParameters(exclusion, *arguments)
    elif exclusion is None:
        force.addExclusion(*particles)
    else:
        force.setExclusionParticles(exclusion, *particles)


@on_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exclusion", [None, 4], ids=["new", "moved"])
def test_an_update_does_not_take_over_exclusions(water, kind, exclusion):
    """New exclusions would apply to the molecules that OpenMM has reordered to these places."""
    box = of_kind(water, kind)
    force, context = held(box.system, kind), context_of(box)
    before = pairs_of(context)
    exclude(force, (0, 300), exclusion)
    with pytest.raises(openmm.OpenMMException, match=r"The set of exc\w+ions has changed"):
        force.updateParametersInContext(context)
    agree(pairs_of(context), before, 1e-6)


def shorten(force):
    force.setCutoffDistance(0.6 * force.getCutoffDistance())


def switch(force):
    force.setUseSwitchingFunction(True)
    force.setSwitchingDistance(0.5 * force.getCutoffDistance())


def set_free(force):
    force.setNonbondedMethod(force.NoCutoff)


def correct(force):
    """Switch the long-range correction off."""
    if isinstance(force, openmm.NonbondedForce):
        force.setUseDispersionCorrection(False)
    else:
        force.setUseLongRangeCorrection(False)


def change_the_energy(force):
    if isinstance(force, openmm.NonbondedForce):
        force.setNonbondedMethod(force.PME)
    else:
        force.setEnergyFunction("A1*A2/r^9-C1*C2/r^5")


@on_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", [shorten, switch, set_free, correct, change_the_energy])
def test_an_update_takes_over_nothing_but_parameters(water, kind, edit):
    box = of_kind(all_sites(water), kind)
    force, context = held(box.system, kind), context_of(box)
    pairs_of(context)
    for i in range(0, 60, 3):
        force.setParticleParameters(i, *parameters_of(force, i + 1))
    expected = pairs_of(context_of(copy.deepcopy(box)))
    edit(force)
    force.updateParametersInContext(context)
    agree(pairs_of(context), expected, ROUNDING["mixed"])


def parameters_of(force, particle):
    """Parameters as ``setParticleParameters`` takes them."""
    found = force.getParticleParameters(particle)
    return found if isinstance(force, openmm.NonbondedForce) else (found,)


@on_gpu
def test_offsets_may_go_by_another_parameter(chains):
    """One that offsets went by when the Context was made, and back; no other."""
    boxes = [
        prepared(alchemical(copy.deepcopy(chains)), choice)[0] for choice in ("sites", "openmm")
    ]
    contexts = [context_of(box) for box in boxes]
    for name in ("inner", "sterics"):
        for box, context in zip(boxes, contexts, strict=True):
            for k in range(box.nonbonded.getNumParticleParameterOffsets()):
                _, *rest = box.nonbonded.getParticleParameterOffset(k)
                box.nonbonded.setParticleParameterOffset(k, name, *rest)
            box.nonbonded.updateParametersInContext(context)
            context.setParameter("sterics", 0.3)
        agree(*map(pairs_of, contexts), ROUNDING["mixed"])
    box, context = boxes[0], contexts[0]
    box.nonbonded.addGlobalParameter("other", 1.0)
    box.nonbonded.setParticleParameterOffset(0, "other", *rest)
    with pytest.raises(openmm.OpenMMException, match="parameter of a parameter offset"):
        box.nonbonded.updateParametersInContext(context)
    agree(*map(pairs_of, contexts), ROUNDING["mixed"])


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_an_update_that_ends_while_molecules_are_regrouped(chains, precision):
    """Pairs and exceptions are those of the update, both."""
    box, _ = prepared(chains, "sites")
    force, context = box.nonbonded, context_of(box, precision)
    pairs_of(context)
    lost = box.positions.copy()
    lost[-1] = np.nan
    context.setPositions(lost)
    for i in range(6):  # the first chain is of another kind from now on
        charge, *_ = force.getParticleParameters(i)
        force.setParticleParameters(i, charge, 0.25, 0.6)
    for k in range(force.getNumExceptions()):
        i, j, product, sigma, epsilon = force.getExceptionParameters(k)
        if i < 6 and epsilon._value:
            force.setExceptionParameters(k, i, j, 0.5 * product, sigma, 3 * epsilon)
    with pytest.raises(openmm.OpenMMException, match="NaN"):
        force.updateParametersInContext(context)
    context.setPositions(box.positions)
    agree(pairs_of(context), pairs_of(context_of(box, precision)), ROUNDING[precision])


def crystal(edge=40, spacing=0.31) -> Box:
    """Ions in free space, bound in pairs that are shorter than they lie; all are sites of two
    forces, of which the second has an energy that is not always finite."""
    system = openmm.System()
    force, second = openmm.NonbondedForce(), openmm.CustomNonbondedForce("1e-6*exp(-k*r)")
    second.addGlobalParameter("k", 5.0)
    places = np.stack(np.meshgrid(*3 * [np.arange(edge)], indexing="ij"), -1).reshape(-1, 3)
    for place in places:
        system.addParticle(20.0)
        force.addParticle(0.2 * (-1.0) ** place.sum(), 0.25, 0.1)
        second.addParticle([])
    for first in range(0, len(places), 2):
        system.addConstraint(first, first + 1, 0.3)
    system.addForce(force)
    system.addForce(second)
    return Box(system, spacing * places)


@on_gpu
def test_kernels_after_an_error_are_in_order_with_copies():
    """From 50,000 particles on OpenMM is not on its own stream when the second force fails, while
    pairs of the first are under way."""
    box, _ = prepared(crystal(), "sites")
    context = context_of(box, "double")
    before = pairs_of(context)
    context.getState(forces=True)
    context.applyConstraints(1e-6)  # compiles
    context.setPositions(box.positions)
    context.setParameter("k", np.inf)
    with pytest.raises(openmm.OpenMMException, match="not finite"):
        context.getState(forces=True)
    context.applyConstraints(1e-6)
    found = context.getState(positions=True).getPositions(asNumpy=True)._value
    lengths = np.linalg.norm(found[1::2] - found[::2], axis=1)
    np.testing.assert_allclose(lengths, 0.3, rtol=1e-5)
    context.setParameter("k", 5.0)
    context.setPositions(box.positions)
    agree(pairs_of(context), before, 1e-9)


@on_gpu
def test_a_buffer_that_grows_gets_its_room_at_once(monkeypatch):
    """In free space, where the density says nothing about it: sites that move far with every
    evaluation make the buffer grow at the 160th. How long the longest list is, and so whether it
    grows, depends on the order of sites in a cell, which is fixed here."""
    box = all_sites(droplet_in_a_cell(None, 2000))
    box.nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffNonPeriodic)
    box.nonbonded.setCutoffDistance(1.2)
    evaluation, made, build = 0, [], pair_choice.program

    def noted(sites, place):
        made.append((evaluation, sites.entries))
        return build(sites, place)

    monkeypatch.setattr(pair_choice, "program", noted)
    box, _ = prepared(box, "sites", allow_reaction_field=True)
    context = context_of(box, DeterministicForces="true")
    for evaluation in range(1, 201):
        context.setPositions(box.positions + 0.3 * (evaluation % 2))
        context.getState(forces=True, groups={GROUP})
    assert made[0] == (0, 0)
    assert max(entries for when, entries in made if when < 150) > 0
    (later,) = (when for when, _ in made if when >= 150)
    assert later < 170
    agree(
        pairs_of(context),
        pairs_of(context_of(box, DeterministicForces="true")),
        ROUNDING["mixed"],
    )


@on_gpu
@pytest.mark.parametrize(("size", "choice"), [(20, "sites"), (2250, "openmm")])
def test_pairs_of_interaction_groups(size, choice):
    """Many of them need the list that OpenMM would make for Lennard-Jones."""
    box = droplet_in_a_cell(6.0, 1500)
    groups = openmm.CustomNonbondedForce("1e-3/(0.1+r^6)")
    groups.setNonbondedMethod(groups.CutoffPeriodic)
    groups.setCutoffDistance(box.nonbonded.getCutoffDistance())
    for _ in box.positions:
        groups.addParticle([])
    for k in range(box.nonbonded.getNumExceptions()):
        groups.addExclusion(*box.nonbonded.getExceptionParameters(k)[:2])
    groups.addInteractionGroup(set(range(size)), set(range(size, len(box.positions))))
    box.system.addForce(groups)
    mine, _ = prepared(box, "auto")
    mine.nonbonded.setName("Lennard-Jones")
    context = context_of(mine)
    (decision,) = (
        decision
        for decision in pair_choice._decisions.values()
        if decision.context == int(context.this) and "interaction groups" not in decision.reason
    )
    assert decision.among_sites == (choice == "sites")
    agree(pairs_of(context), pairs_of(context_of(prepared(box, "openmm")[0])), ROUNDING["mixed"])


@on_gpu
def test_runs_from_a_checkpoint(water):
    """With ``DeterministicForces`` runs in new Contexts are the same bit for bit."""
    box, _ = prepared(all_sites(water), "sites")

    def context():
        integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.002)
        return context_of(box, "mixed", integrator, DeterministicForces="true")

    first, found = context(), []
    first.setVelocitiesToTemperature(300, 2)
    first.getIntegrator().step(300)
    checkpoint = first.createCheckpoint()
    for _ in range(2):
        resumed = context()
        resumed.loadCheckpoint(checkpoint)
        resumed.getIntegrator().step(600)
        found.append(resumed.getState(positions=True).getPositions(asNumpy=True)._value)
    np.testing.assert_array_equal(*found)


WITHOUT_COOPERATIVE_LAUNCH = """
#include <dlfcn.h>
extern "C" int cuDeviceGetAttribute(int* value, int attribute, int device) {
    static auto* asked = reinterpret_cast<int (*)(int*, int, int)>(
        dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuDeviceGetAttribute"));
    const int result = asked(value, attribute, device);
    if (attribute == 95) *value = 0;  // CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
    return result;
}
"""
TOLD = """
from tests.integration.native_contexts import context_of, converted, droplet_in_a_cell
box = droplet_in_a_cell(3.0)
force = converted(box)
context = context_of(box)
context.getState(energy=True)
used = force.getFMMParametersInContext(context)
print(used["bridge"], used["lennard_jones"], used["lennard_jones_reason"])
"""


@on_gpu
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_a_device_without_cooperative_launch(tmp_path):
    """Noticed when the Context is made; OpenMM lists the pairs, and the FMM goes on."""
    source, library = tmp_path / "attribute.cpp", tmp_path / "attribute.so"
    source.write_text(WITHOUT_COOPERATIVE_LAUNCH)
    command = [COMPILER, "-shared", "-fPIC", source, "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", TOLD],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("native openmm ")
    assert "the device has no cooperative launch, which list_sites needs" in done.stdout
