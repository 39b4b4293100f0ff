"""Fast multipole electrostatics for OpenMM: Coulomb energies and forces to a tolerance you name."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # editors and type checkers do not follow imports on first use
    # ruff: noqa: F401
    from fmm_openmm.convert import ChargeSystem
    from fmm_openmm.errors import AnalysisError, UnsupportedError
    from fmm_openmm.integration import (
        FMMForce,
        FMMReporter,
        PotentialMap,
        ValidationReport,
        analyse,
        check_system,
        find_fmm,
        potential_map,
        pressure_tensor,
        restore_pme,
        state_energies,
        use_fmm,
        validate,
    )
    from fmm_openmm.planning.request import FMMParameters
    from fmm_openmm.results import ChargeSetsResult, CoulombResult, MeasuredErrors
    from fmm_openmm.solver import CoulombSolver
    from fmm_openmm.sums import SumParameters
    from fmm_openmm.version import __version__

# imported on first use, so that the solver alone starts fast, and that nothing has to be loaded
# before the command line can tell how to end at Ctrl-C
_LAZY = {
    "__version__": "fmm_openmm.version",
    "ChargeSetsResult": "fmm_openmm.results",
    "CoulombResult": "fmm_openmm.results",
    "CoulombSolver": "fmm_openmm.solver",
    "FMMParameters": "fmm_openmm.planning.request",
    "MeasuredErrors": "fmm_openmm.results",
    "SumParameters": "fmm_openmm.sums",
    "AnalysisError": "fmm_openmm.errors",
    "UnsupportedError": "fmm_openmm.errors",
    "ChargeSystem": "fmm_openmm.convert",
    "FMMForce": "fmm_openmm.integration",
    "FMMReporter": "fmm_openmm.integration",
    "analyse": "fmm_openmm.integration",
    "check_system": "fmm_openmm.integration",
    "find_fmm": "fmm_openmm.integration",
    "use_fmm": "fmm_openmm.integration",
    "PotentialMap": "fmm_openmm.integration",
    "potential_map": "fmm_openmm.integration",
    "pressure_tensor": "fmm_openmm.integration",
    "restore_pme": "fmm_openmm.integration",
    "state_energies": "fmm_openmm.integration",
    "validate": "fmm_openmm.integration",
    "ValidationReport": "fmm_openmm.integration",
}

__all__ = [name for name in _LAZY if name != "__version__"]


if not TYPE_CHECKING:  # to which every name would be there

    def __getattr__(name):
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(_LAZY)
