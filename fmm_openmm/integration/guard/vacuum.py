"""Warnings about forces that act on the vacuum of a slab or wire."""

import numpy as np
import openmm

from fmm_openmm.boundary import Boundary
from fmm_openmm.errors import warn
from fmm_openmm.integration.force import find_fmm

_ALL = (True, True, True)


def warn_about_vacuum(system: openmm.System) -> None:
    """Warn about barostats that scale a box vector along which the images of an FMMForce end, and
    about corrections that assume that particles fill the box.

    Warns:
        UserWarning: for each of these forces.
    """
    boundaries = {force._definition.boundary for force in find_fmm(system)}
    for boundary in filter(lambda each: each.is_partial, boundaries):
        for force in system.getForces():
            _warn_about(force, boundary)


def _warn_about(force: openmm.Force, boundary: Boundary) -> None:
    name = f"{type(force).__name__} {force.getName()!r}"
    where = f"with `boundary={boundary.name!r}`"
    scaled = np.array(_scaled_axes(force)) & boundary.free
    if scaled.any():
        vectors = " and ".join("abc"[axis] for axis in np.flatnonzero(scaled))
        warn(
            f"{name} scales box vector {vectors}, along which there is vacuum {where}: use a "
            "barostat that does not, for a slab MonteCarloMembraneBarostat with ZFixed"
        )
    setter = _long_range_correction(force)
    if setter:
        warn(
            f"{name} has a long-range correction for particles that fill the box, whose vacuum "
            f"{where} is arbitrary: call {setter}(False)"
        )


def _scaled_axes(force: openmm.Force) -> tuple[bool, bool, bool]:
    """The box vectors that a barostat scales; none for any other force."""
    if isinstance(force, openmm.MonteCarloMembraneBarostat):
        return True, True, force.getZMode() != openmm.MonteCarloMembraneBarostat.ZFixed
    if isinstance(force, openmm.MonteCarloAnisotropicBarostat):
        return force.getScaleX(), force.getScaleY(), force.getScaleZ()
    return _ALL if "Barostat" in type(force).__name__ else (False, False, False)


def _long_range_correction(force: openmm.Force) -> str | None:
    """The method that disables a force's long-range correction of its cutoff, where it has one."""
    if isinstance(force, openmm.NonbondedForce):
        cut = force.getNonbondedMethod() == openmm.NonbondedForce.CutoffPeriodic
        return "setUseDispersionCorrection" if cut and force.getUseDispersionCorrection() else None
    if isinstance(force, openmm.CustomNonbondedForce):
        cut = force.getNonbondedMethod() == openmm.CustomNonbondedForce.CutoffPeriodic
        return "setUseLongRangeCorrection" if cut and force.getUseLongRangeCorrection() else None
    return None
