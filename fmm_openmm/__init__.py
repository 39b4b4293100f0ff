"""Fast multipole electrostatics for OpenMM: Coulomb energies and forces to a tolerance you name."""

from importlib import import_module

from fmm_openmm.errors import UnsupportedError
from fmm_openmm.parameters import FMMParameters
from fmm_openmm.solver import CoulombResult, CoulombSolver
from fmm_openmm.sums import SumParameters
from fmm_openmm.version import VERSION

__version__ = VERSION

# what needs openmm is imported on first use, so that the solver alone starts fast
_LAZY = {
    "ChargeSystem": "fmm_openmm.convert",
    "FMMForce": "fmm_openmm.integration",
    "check_system": "fmm_openmm.integration",
    "find_fmm": "fmm_openmm.integration",
    "use_fmm": "fmm_openmm.integration",
    "restore_pme": "fmm_openmm.integration",
    "validate": "fmm_openmm.integration",
    "ValidationReport": "fmm_openmm.integration",
}

__all__ = [
    "CoulombResult",
    "CoulombSolver",
    "FMMParameters",
    "SumParameters",
    "UnsupportedError",
    *_LAZY,
]


def __getattr__(name):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_LAZY])
