"""Refusal of Contexts that do not give an FMMForce with a dipole term the positions it needs.

The term depends on which periodic image of an ion the positions are of. On the Reference and CPU
platforms a PythonForce receives positions as they were set and integrated. On the others OpenMM
wraps molecules into the box when it reorders particles, and a periodic PythonForce receives the
wrapped positions; the native bridge unwraps them.
"""

import openmm

from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.force import find_fmm
from fmm_openmm.integration.native.callbacks import status

PLATFORMS = ("Reference", "CPU")
"""Platforms whose positions are not wrapped."""


def check_images(context: openmm.Context) -> None:
    """Check a new Context, and let its FMMForces with a dipole term compute.

    Raises:
        UnsupportedError: the platform wraps positions.
    """
    platform = context.getPlatform().getName()
    for force in find_fmm(context.getSystem()):
        definition = force._definition
        term = definition.options.dipole_term(definition.boundary)
        if term is None:
            continue
        if platform in PLATFORMS:
            force._bridge.keeps_images = True
            continue
        session, reason = status(force._bridge, context)
        if session is None:
            raise UnsupportedError(
                f"FMMForce {force.getName()!r} with `{term}` needs the Reference or CPU platform, "
                f"or the native bridge ({reason}): on the {platform} platform it receives wrapped "
                "positions; take `boundary='slab'` for a slab"
            )
        session.knows_images = True
