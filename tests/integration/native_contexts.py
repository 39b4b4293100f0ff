"""What the tests of the native bridge share: Contexts, sessions, a droplet, and marks for those
that need a GPU."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import PRECISIONS, Delivery, Place
from fmm_openmm.integration.native import callbacks
from fmm_openmm.integration.native.session import Session
from tests.integration.boxes import Box, relative_difference, usable_platforms
from tests.support.free_space import droplet
from tests.support.nearly_empty import wrapped

REASON = callbacks.activate() or (
    None if "CUDA" in usable_platforms() else "the CUDA platform finds no device"
)
without_gpu = pytest.mark.skipif(REASON is not None, reason=f"no native bridge here: {REASON}")


def on_gpu(test):
    """Marks a test that needs the native bridge."""
    return pytest.mark.gpu(without_gpu(test))


DEVICES = [] if REASON else openmm.Platform.getPlatformByName("CUDA").getDevices()
with_two = pytest.mark.skipif(len(DEVICES) < 2, reason="needs two GPUs")
with_three = pytest.mark.skipif(len(DEVICES) < 3, reason="needs three GPUs")
on_devices = pytest.mark.parametrize("devices", ["0", pytest.param("0,1", marks=with_two)])
CHARGES = {Delivery.CHARGES, Delivery.FORCES}
BOXES = {Delivery.PARAMETERS, Delivery.FORCES}
A_PROGRAM = BOXES | {Delivery.PROGRAM}
"""What a session delivers."""

ROUNDING = {"single": 2e-5, "mixed": 2e-5, "double": 1e-9}


def session_of(force, particles=4, **device) -> Session:
    precision = PRECISIONS.index(device.get("precision", "mixed"))
    place = Place(precision, particles, 32, 132, 227 * 1024, 0, device.get("model", b"NVIDIA H200"))
    return Session(force._bridge, 0, 0, place)


def no_room(*_, **__):
    raise MemoryError("no room")


def droplet_in_a_cell(edge=12.0, molecules=300, at=0.0) -> Box:
    """Rigid water, 900 atoms as a sphere in a cube, or in free space for ``edge=None``; whole
    molecules, wrapped."""
    x, q, pairs = droplet(molecules)
    x += at - x.mean(0)
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME if edge else openmm.NonbondedForce.NoCutoff)
    for particle, charge in enumerate(q):
        system.addParticle(1.008 if particle % 3 else 15.999)
        force.addParticle(charge, 0.315, 0.0 if particle % 3 else 0.636)
    for first in range(0, len(q), 3):
        for pair, distance in (((0, 1), 0.09572), ((0, 2), 0.09572), ((1, 2), 0.15139)):
            system.addConstraint(first + pair[0], first + pair[1], distance)
    for pair in pairs:
        force.addException(*map(int, pair), 0.0, 1.0, 0.0)
    system.addForce(force)
    if edge:
        system.setDefaultPeriodicBoxVectors(*(edge * np.eye(3)))
        x = wrapped(x, edge * np.eye(3))
    return Box(system, x)


def context_of(box, precision="mixed", integrator=None, **properties):
    integrator = integrator or openmm.VerletIntegrator(0.001)
    properties["Precision"] = precision
    context = openmm.Context(
        box.system, integrator, openmm.Platform.getPlatformByName("CUDA"), properties
    )
    context.setPositions(box.positions)
    return context


def coulomb(context, force):
    """Energy and forces of the FMMForce alone."""
    state = context.getState(energy=True, forces=True, groups={force.getForceGroup()})
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def assert_exact(context, force, exact, tolerance, energy_tolerance=None):
    """The forces of the FMMForce, computed without and with the energy, and the energy, to relative
    tolerances."""
    assert relative_difference(forces_alone(context, force), exact.forces) <= tolerance
    energy, forces = coulomb(context, force)
    assert energy == pytest.approx(exact.energy, rel=energy_tolerance or tolerance)
    assert relative_difference(forces, exact.forces) <= tolerance


def forces_alone(context, force):
    return (
        context.getState(forces=True, groups={force.getForceGroup()}).getForces(asNumpy=True)._value
    )


def converted(box, **options):
    force = fmm.use_fmm(box.system, **options)
    force.setForceGroup(7)
    return force


def both_bridges(box, context_precision, **options):
    """Energy and forces by the native bridge and by the host's."""
    found = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(box)
        force = converted(mine, bridge=bridge, **options)
        context = context_of(mine, context_precision)
        assert force.getFMMParametersInContext(context)["bridge"] == bridge
        found.append(coulomb(context, force))
    return found
