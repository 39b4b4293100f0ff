"""Reference answers in float64 that share no approximation with the FMM: the Ewald sum and the
open direct sum."""

from fmm_openmm.oracle.direct import direct_sum
from fmm_openmm.oracle.ewald import EwaldResult, ewald_sum

__all__ = ["EwaldResult", "direct_sum", "ewald_sum"]
