"""The solver inside OpenMM: :class:`FMMForce`, :func:`use_fmm`, :func:`restore_pme`,
:func:`validate`, :func:`analyse`, :func:`potential_map`, :func:`state_energies`,
:func:`pressure_tensor`."""

import openmm

# earlier ones lack PythonForce, or crash with it under the minimiser (openmm#5277)
_REQUIRED = (8, 5, 2)

if tuple(map(int, openmm.version.short_version.split(".")[:3])) < _REQUIRED:
    raise ImportError(
        f"fmm_openmm needs OpenMM 8.5.2 or newer, found {openmm.version.short_version}"
    )

from fmm_openmm.integration import xml  # noqa: E402
from fmm_openmm.integration.analysis import analyse  # noqa: E402
from fmm_openmm.integration.conversion.system import restore_pme, use_fmm  # noqa: E402
from fmm_openmm.integration.force import FMMForce, find_fmm  # noqa: E402
from fmm_openmm.integration.guard import contexts, groups  # noqa: E402
from fmm_openmm.integration.guard.edits import check_system  # noqa: E402
from fmm_openmm.integration.potential_map import PotentialMap, potential_map  # noqa: E402
from fmm_openmm.integration.pressure import pressure_tensor  # noqa: E402
from fmm_openmm.integration.reporter import FMMReporter  # noqa: E402
from fmm_openmm.integration.states import state_energies  # noqa: E402
from fmm_openmm.integration.validation import ValidationReport, validate  # noqa: E402

__all__ = [
    "FMMForce",
    "FMMReporter",
    "PotentialMap",
    "ValidationReport",
    "analyse",
    "check_system",
    "find_fmm",
    "potential_map",
    "pressure_tensor",
    "restore_pme",
    "state_energies",
    "use_fmm",
    "validate",
]

contexts.install()
groups.install()
xml.install()
