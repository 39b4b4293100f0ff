"""Refusal of Contexts for Systems that were edited after their conversion.

A PythonForce has no access to its System. The check is therefore made where Python creates a
Context, in ``openmm.Context(...)``, hence also in ``openmm.app.Simulation``, and in
``context.reinitialize()``; and where a NonbondedForce copies its charges to one, in
``force.updateParametersInContext(context)``. It is installed by the import of
``fmm_openmm.integration``, which every FMMForce causes, even one read from XML. Contexts that
OpenMM creates itself, inside a ``CustomCVForce`` or an ``ATMForce``, are not checked. The same
places warn about forces that a slab or wire does not suit, and refuse platforms that a dipole term
does not suit."""

import functools

import openmm

from fmm_openmm.integration.guard.edits import check_sent, check_system, may_be_converted
from fmm_openmm.integration.guard.images import check_images
from fmm_openmm.integration.guard.vacuum import warn_about_vacuum
from fmm_openmm.integration.guard.wrapping import wrap

_MARK = "_fmm_openmm_plain"
"""Attribute of a wrapper that holds OpenMM's method."""

_installed = False


def install() -> None:
    """Check the System of every new Context from now on. Further calls have no effect."""
    global _installed
    _installed = True
    for owner, name, check, check_after in _CHECKS:
        wrap(owner, name, functools.partial(_checked, check, check_after), _MARK)


def remove() -> None:
    """Undo :func:`install`; other wrappers of the same methods stay."""
    global _installed
    _installed = False


def _checked(check, check_after, method):
    """``method`` preceded by a check with the same arguments, valid or not, and followed by one of
    the object."""

    def checked(self, *args, **keywords):
        if not _installed:
            return method(self, *args, **keywords)
        check(self, *args, **keywords)
        result = method(self, *args, **keywords)
        check_after(self)
        return result

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
        warn_about_vacuum(system)


def _check_context(context) -> None:
    if may_be_converted(context.getSystem()):
        check_images(context)


_CHECKS = (
    (openmm.Context, "__init__", _check_made, _check_context),
    (openmm.Context, "reinitialize", _check_reinitialized, _check_context),
    (openmm.NonbondedForce, "updateParametersInContext", _check_sent, lambda _: None),
)
"""Class, method, and the checks that precede and follow it."""
