"""Units: OpenMM's constant, and quantities to plain numbers."""

import sys

import numpy as np
import openmm
import pytest
from openmm import unit

from fmm_openmm.units import COULOMB_CONSTANT, strip_units


def test_coulomb_constant_is_openmms():
    """138.93545764438198 is ONE_4PI_EPS0 of OpenMM 8 (SimTKOpenMMRealType.h)."""
    assert COULOMB_CONSTANT == pytest.approx(138.93545764438198, rel=1e-15)
    system, force = openmm.System(), openmm.NonbondedForce()
    for _ in range(2):
        system.addParticle(1.0)
        force.addParticle(1.0, 1.0, 0.0)
    system.addForce(force)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatform("Reference")
    )
    context.setPositions([[0, 0, 0], [1, 0, 0]])
    assert context.getState(energy=True).getPotentialEnergy()._value == pytest.approx(
        COULOMB_CONSTANT, rel=1e-14
    )


@pytest.mark.parametrize(
    "quantity, expected",
    [
        (3.0 * unit.angstrom, 0.3),
        (1.0 * unit.kilocalorie_per_mole, 4.184),
        (-1.0 * unit.elementary_charge, -1.0),
        (np.array([1.0, 2.0]) * unit.angstrom, [0.1, 0.2]),
        ([1.0, -2.0] * unit.elementary_charge, [1.0, -2.0]),
        ([1.0 * unit.nanometer, 20.0 * unit.angstrom], [1.0, 2.0]),
        ((1.0 * unit.nanometer, 2.0), [1.0, 2.0]),
        ([openmm.Vec3(1, 2, 3)] * unit.angstrom, [[0.1, 0.2, 0.3]]),
        ([openmm.Vec3(1, 2, 3) * unit.angstrom], [[0.1, 0.2, 0.3]]),
    ],
    ids=str,
)
def test_quantities_become_numbers(quantity, expected):
    np.testing.assert_allclose(np.array(strip_units(quantity), float), expected, rtol=1e-15)


@pytest.mark.parametrize("value", [1.0, None, "water", [1.0, 2.0], (1, 2), np.eye(3), {}], ids=repr)
def test_plain_values_pass_untouched(value):
    assert strip_units(value) is value


def test_openmm_need_not_be_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "openmm.unit")
    value = [1.0, 2.0]
    assert strip_units(value) is value
