"""Charges, positions, box and exclusions from OpenMM and other packages, in one container.

Every converter ends in :func:`fmm_openmm.convert.openmm_system.charges_of_system`: the system of
another package is first converted to an ``openmm.System``, by its force field or from charges and
bonds, so that one rule determines exclusions.
"""

from fmm_openmm.convert.charge_system import ChargeSystem

__all__ = ["ChargeSystem"]
