"""Units: plain numbers are OpenMM's (nm, e, kJ/mol, ps); an ``openmm.unit.Quantity`` is converted
to them.

The Coulomb constant has its one home here. Inside the solver lengths are measured in box widths and
the constant is applied once, to the finished potentials.
"""

import sys

# OpenMM's own factors (SimTKOpenMMRealType.h): 1 / (4 pi epsilon_0) with AVOGADRO, E_CHARGE and
# EPSILON0 as given there.
AVOGADRO = 6.02214076e23
E_CHARGE = 1.602176634e-19
EPSILON0 = 1e-6 * 8.8541878128e-12 / (E_CHARGE * E_CHARGE * AVOGADRO)
PI = 3.14159265358979323846

COULOMB_CONSTANT = 1.0 / (4.0 * PI * EPSILON0)
"""1 / (4 pi epsilon_0) in kJ nm / (mol e^2), equal to OpenMM's ONE_4PI_EPS0."""

BOHR = 0.0529177210903
"""Atomic unit of length in nm (CODATA 2018)."""

HARTREE = COULOMB_CONSTANT / BOHR
"""Atomic unit of energy in kJ/mol; of the potential in kJ/mol/e."""

AKMA_TIME = 0.04888821
"""CHARMM's unit of time, which DCD files have, in ps."""

VOLT = 1e-3 * E_CHARGE * AVOGADRO
"""1 V in kJ/mol/e."""

GAS_CONSTANT = 1e-3 * 1.380649e-23 * AVOGADRO
"""Boltzmann's constant in kJ/mol/K."""


def strip_units(value, dimension: str | None = None, name: str = "value"):
    """``value`` as a plain number or array in OpenMM units.

    A ``Quantity`` can only exist once ``openmm.unit`` is loaded, so nothing is imported here. Lists
    and tuples that hold quantities (``[1*nanometer, ...]``) are converted element by element.

    Args:
        dimension: a unit of ``openmm.unit`` that a ``Quantity`` must be compatible with, such as
            "nanometer"; None for any.
        name: name of the argument, for the error.

    Raises:
        ValueError: a ``Quantity`` of another dimension.
    """
    unit = sys.modules.get("openmm.unit")
    if unit is None:
        return value
    if isinstance(value, unit.Quantity):
        if dimension and not value.unit.is_compatible(getattr(unit, dimension)):
            raise ValueError(
                f"`{name}` must be in units of {getattr(unit, dimension)}, got {value.unit}"
            )
        return value.value_in_unit_system(unit.md_unit_system)
    if isinstance(value, (list, tuple)) and any(
        isinstance(entry, (unit.Quantity, list, tuple)) for entry in value
    ):
        return [strip_units(entry, dimension, name) for entry in value]
    return value
