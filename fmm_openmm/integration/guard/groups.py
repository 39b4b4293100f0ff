"""The force groups of a Context.

OpenMM reads the group of a force when a Context is created or reinitialized, and ignores later
changes. Forces and groups are recorded then, so that a change is an error instead of a wrong sum.
"""

import weakref

import openmm

from fmm_openmm.integration.force import find_fmm
from fmm_openmm.integration.guard.wrapping import wrap

_MARK = "_fmm_openmm_groups"
"""Attribute of a wrapper that holds OpenMM's method."""

_records: weakref.WeakKeyDictionary[openmm.Context, "_Record"] = weakref.WeakKeyDictionary()


def install() -> None:
    """Record the forces of every new Context from now on. Further calls have no effect."""
    for name in ("__init__", "reinitialize"):
        wrap(openmm.Context, name, _recording, _MARK)


def _recording(method):
    """Wrapper that makes a record after the method."""

    def recording(self, *args, **keywords):
        method(self, *args, **keywords)
        _records[self] = _Record(self.getSystem())

    return recording


class _Record:
    """The forces of a System, and their groups.

    Attributes:
        forces: address and groups of each force.
        members: forces by group; None until they are needed, since :func:`find_fmm` takes a tenth
            of a second for 100,000 particles.
    """

    def __init__(self, system: openmm.System):
        self.forces = _describe(system)
        self.members: dict[int, list[openmm.Force]] | None = None


def _describe(system: openmm.System) -> list[tuple[int, set[int]]]:
    return [(int(force.this), groups_of(force)) for force in system.getForces()]


def groups_of(force: openmm.Force) -> set[int]:
    """Groups in which a force has an energy: two if the reciprocal space of an Ewald sum has its
    own."""
    groups = {force.getForceGroup()}
    if isinstance(force, openmm.NonbondedForce) and force.getNonbondedMethod() in (
        force.Ewald,
        force.PME,
        force.LJPME,
    ):
        reciprocal = force.getReciprocalSpaceForceGroup()
        groups.add(force.getForceGroup() if reciprocal < 0 else reciprocal)
    return groups


def force_groups(context: openmm.Context) -> dict[int, list[openmm.Force]]:
    """The forces of a Context by group; its FMMForces are instances of :class:`FMMForce`.

    Raises:
        ValueError: the System has other forces or groups than when the Context was made.
        TypeError: ``context`` is not a Context.
    """
    if not isinstance(context, openmm.Context):
        raise TypeError(f"`context` must be an openmm.Context, got {type(context).__name__}")
    system = context.getSystem()
    record = _records.setdefault(context, _Record(system))
    if record.forces != _describe(system):
        raise ValueError(
            "the System has other forces or force groups than when the Context was made: call "
            "context.reinitialize(preserveState=True)"
        )
    if record.members is None:
        fmms = {int(force.this): force for force in find_fmm(system)}
        record.members = {}
        for force, (address, groups) in zip(system.getForces(), record.forces, strict=True):
            for group in sorted(groups):
                record.members.setdefault(group, []).append(fmms.get(address, force))
    return record.members
