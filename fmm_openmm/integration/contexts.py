"""The check around ``openmm.Context``: no Context is made of a System that was edited after its
conversion.

A PythonForce never sees its System, so the check is made where Python makes a Context:
``openmm.Context(...)``, and so ``openmm.app.Simulation``, and ``context.reinitialize()``. It is
installed when ``fmm_openmm.integration`` is imported, which every FMMForce does, also one read from
XML. Contexts that OpenMM makes itself, inside a ``CustomCVForce`` or an ``ATMForce``, are not seen.
"""

import functools

import openmm

from fmm_openmm.integration.edits import check_system

_MARK = "_fmm_openmm_plain"
"""Attribute of a method that :func:`install` put in place: the method of OpenMM."""


def install() -> None:
    """Check every System that a Context is made of from now on; once is enough."""
    if not hasattr(openmm.Context.__init__, _MARK):
        openmm.Context.__init__ = _checked(
            openmm.Context.__init__, lambda context, *args: args[0] if args else None
        )
    if not hasattr(openmm.Context.reinitialize, _MARK):
        openmm.Context.reinitialize = _checked(
            openmm.Context.reinitialize, lambda context, *args, **kw: context.getSystem()
        )


def remove() -> None:
    """Undo :func:`install`."""
    for name in ("__init__", "reinitialize"):
        plain = getattr(getattr(openmm.Context, name), _MARK, None)
        if plain is not None:
            setattr(openmm.Context, name, plain)


def _checked(method, system_of):
    """``method`` of a Context after a check of the System that ``system_of``
    finds in its arguments."""

    @functools.wraps(method)
    def checked(self, *args, **keywords):
        system = system_of(self, *args, **keywords)
        if isinstance(system, openmm.System) and any(
            isinstance(force, openmm.PythonForce) for force in system.getForces()
        ):
            check_system(system)
        return method(self, *args, **keywords)

    setattr(checked, _MARK, method)
    return checked
