"""The check around ``openmm.Context``: no Context is made of a System that was edited after its
conversion.

A PythonForce never sees its System, so the check is made where Python makes a Context:
``openmm.Context(...)``, and so ``openmm.app.Simulation``, and ``context.reinitialize()``; and where
a NonbondedForce sends its charges, ``force.updateParametersInContext(context)``. It is
installed when ``fmm_openmm.integration`` is imported, which every FMMForce does, also one read from
XML. Contexts that OpenMM makes itself, inside a ``CustomCVForce`` or an ``ATMForce``, are not seen.
"""

import functools

import openmm

from fmm_openmm.integration.guard.edits import check_sent, check_system, may_be_converted
from fmm_openmm.integration.guard.wrapping import wrap

_MARK = "_fmm_openmm_plain"
"""Attribute of a method that :func:`install` put in place: the method of OpenMM."""


def install() -> None:
    """Check every System that a Context is made of from now on; once is enough."""
    for owner, name, check in _CHECKS:
        wrap(owner, name, functools.partial(_checked, check), _MARK)


def remove() -> None:
    """Undo :func:`install`."""
    for owner, name, _ in _CHECKS:
        setattr(owner, name, getattr(getattr(owner, name), _MARK, getattr(owner, name)))


def _checked(check, method):
    """``method`` after a check that is given the same arguments, be they right or wrong."""

    def checked(self, *args, **keywords):
        check(self, *args, **keywords)
        return method(self, *args, **keywords)

    return checked


def _check_made(context, *args, **_) -> None:
    _check(args[0] if args else None)


def _check_reinitialized(context, *_, **__) -> None:
    _check(context.getSystem())


def _check_sent(force, *args, **keywords) -> None:
    context = args[0] if args else keywords.get("context")
    if isinstance(context, openmm.Context):
        check_sent(force, context)


def _check(system) -> None:
    if isinstance(system, openmm.System) and may_be_converted(system):
        check_system(system)


_CHECKS = (
    (openmm.Context, "__init__", _check_made),
    (openmm.Context, "reinitialize", _check_reinitialized),
    (openmm.NonbondedForce, "updateParametersInContext", _check_sent),
)
"""Class, method, and what is checked before it."""
