"""Charges, positions, box and exclusions from OpenMM and other packages, in one container.

Every converter ends in :func:`fmm_openmm.convert.openmm_system.charges_of_system`: what another
package holds is first made an ``openmm.System``, by its force field or from charges and bonds, so
that exclusions follow one rule.
"""

from fmm_openmm.convert.charge_system import ChargeSystem

__all__ = ["ChargeSystem"]
