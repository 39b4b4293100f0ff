"""Systems with Lennard-Jones forces of several kinds."""

import copy

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.integration.boxes import Box
from tests.integration.native_contexts import converted

GROUP = 5
"""Force group of what has Lennard-Jones pairs."""


ROUNDING = {"single": 3e-5, "mixed": 3e-5, "double": 1e-10}


def pairs_of(context):
    """Energy and forces of the group."""
    state = context.getState(energy=True, forces=True, groups={GROUP})
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def prepared(box, choice, **options) -> tuple[Box, fmm.FMMForce]:
    """A converted copy whose other forces are in the group."""
    mine = copy.deepcopy(box)
    for force in mine.system.getForces():
        if isinstance(force, openmm.NonbondedForce | openmm.CustomNonbondedForce):
            force.setForceGroup(GROUP)
    return mine, converted(mine, lennard_jones=choice, **options)


def agree(found, expected, accuracy):
    """Energies are sums of many terms."""
    (energy, forces), (exact, exact_forces) = found, expected
    assert np.linalg.norm(forces - exact_forces) <= accuracy * np.linalg.norm(exact_forces)
    assert energy == pytest.approx(exact, abs=accuracy * (abs(exact) + np.abs(forces).sum() / 100))


def all_sites(box) -> Box:
    """Hydrogens are sites as well."""
    for i in range(len(box.positions)):
        charge, _, epsilon = box.nonbonded.getParticleParameters(i)
        if epsilon._value == 0:
            box.nonbonded.setParticleParameters(i, charge, 0.04, 0.192)
    return box


def alchemical(box) -> Box:
    """Sterics of ten chains scaled by one parameter, exceptions by another, and a particle that
    is none without it."""
    force = box.nonbonded
    force.addGlobalParameter("sterics", 1.0)
    force.addGlobalParameter("inner", 0.5)
    for i in range(60):
        charge, sigma, epsilon = force.getParticleParameters(i)
        force.setParticleParameters(i, charge, sigma, 0.0 if i == 7 else epsilon)
        force.addParticleParameterOffset("sterics", i, 0.0, 0.01 * (i % 3), 0.2)
    for k in range(0, force.getNumExceptions(), 3):
        force.addExceptionParameterOffset("inner", k, 0.1, 0.02, 0.05)
    return box


def typed(box, form) -> Box:
    """Lennard-Jones moved into a CustomNonbondedForce, as openmm.app writes it for NBFIX
    and for other rules."""
    source = box.nonbonded
    parameters = [
        tuple(value._value for value in source.getParticleParameters(i))
        for i in range(len(box.positions))
    ]
    types = sorted({values[1:] for values in parameters})
    sigma, epsilon = (np.array(column) for column in zip(*types, strict=True))
    sixth, depth = (
        (0.5 * np.add.outer(sigma, sigma)) ** 6,
        4 * np.sqrt(np.multiply.outer(epsilon, epsilon)),
    )
    depth[0, -1] = depth[-1, 0] = 0.7  # a pair with parameters of its own
    a, b = depth * sixth**2, depth * sixth
    if form == "table":
        force = openmm.CustomNonbondedForce("acoef(type1, type2)/r^12 - bcoef(type1, type2)/r^6;")
    elif form == "root":
        force = openmm.CustomNonbondedForce(
            "(a/r6)^2-b/r6; r6=r^6;a=acoef(type1, type2);b=bcoef(type1, type2)"
        )
        a = np.sqrt(a)
    else:
        force = openmm.CustomNonbondedForce(
            "A1*A2/r^12-C1*C2/r^6" + ("+1/r^4" if form == "12-6-4" else "")
        )
    if form in ("table", "root"):
        for name, table in (("acoef", a), ("bcoef", b)):
            function = openmm.Discrete2DFunction(len(types), len(types), table.ravel().tolist())
            force.addTabulatedFunction(name, function)
        force.addPerParticleParameter("type")
        for values in parameters:
            force.addParticle([types.index(values[1:])])
    else:
        for name in "CA":
            force.addPerParticleParameter(name)
        for _, s, e in parameters:
            force.addParticle([2 * np.sqrt(e * s**6), 2 * np.sqrt(e * s**12)])
    for k in range(source.getNumExceptions()):
        i, j, product, s, _ = source.getExceptionParameters(k)
        force.addExclusion(i, j)
        source.setExceptionParameters(k, i, j, product, s, 0.0)
    for i, (charge, s, _) in enumerate(parameters):
        source.setParticleParameters(i, charge, s, 0.0)
    force.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(source.getCutoffDistance())
    force.setUseLongRangeCorrection(True)
    force.setUseSwitchingFunction(source.getUseSwitchingFunction())
    force.setSwitchingDistance(source.getSwitchingDistance())
    box.system.addForce(force)
    return box
