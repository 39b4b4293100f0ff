"""``use_fmm`` and ``restore_pme``: replace PME or NoCutoff in a System by an FMM, and undo it."""

from dataclasses import replace
from typing import TYPE_CHECKING

import openmm

from fmm_openmm.convert.nonbonded import charged_places, nonbonded_forces, particle_parameters
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.integration.conversion.original import METHODS, REACTION_FIELD, Original
from fmm_openmm.integration.force import FMMForce, boundary_for, find_fmm
from fmm_openmm.integration.guard.edits import (
    check_direct_space,
    converted_force,
    expected_charges,
    forget,
    remember,
)
from fmm_openmm.integration.guard.zeroed import signature, zeroed
from fmm_openmm.integration.options import ForceKeywords, Options
from fmm_openmm.options import suggests_keywords
from fmm_openmm.planning.request import TOLERANCE

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OTHER_ELECTROSTATICS = (
    "AmoebaMultipoleForce",
    "AmoebaGeneralizedKirkwoodForce",
    "HippoNonbondedForce",
    "ConstantPotentialForce",
)

IMPLICIT_SOLVENTS = ("GBSAOBCForce", "CustomGBForce")
"""Types of forces that are implicit solvents."""


@suggests_keywords(like=Options)
def use_fmm(
    system: openmm.System,
    tolerance: float = TOLERANCE,
    *,
    boundary: str | None = None,
    allow_reaction_field: bool = False,
    **options: "Unpack[ForceKeywords]",
) -> FMMForce:
    """Replace PME, or the sum over all pairs of NoCutoff, by the fast multipole method, in place.

    The charges of the System's NonbondedForce, and the charge part of its particle parameter
    offsets, move to a new :class:`FMMForce` in the same force group. The NonbondedForce keeps
    Lennard-Jones interactions and exceptions with their charge products and offsets. Its methods
    PME and Ewald become CutoffPeriodic; LJPME is kept for its dispersion, NoCutoff for its
    Lennard-Jones interaction. Existing Contexts change after ``context.reinitialize()``.

    Call this function last. Code that reads the NonbondedForce afterwards, such as an alchemical
    factory, a machine-learning potential or a script, finds zero charges in it. If such code has
    edited the System, no Context can be created from it (:func:`fmm_openmm.check_system`). To edit
    a converted System, call :func:`restore_pme` before and this function after the edit.

    Args:
        system: System with one NonbondedForce that uses PME, LJPME, Ewald or NoCutoff. Further
            NonbondedForces may have only Lennard-Jones interactions.
        tolerance: largest relative RMS force error.
        boundary: box vectors along which the charges have images, as in :class:`FMMForce`, for
            instance "slab" or "wire". Lennard-Jones interactions keep their images along all three
            vectors. None for the boundary of the NonbondedForce.
        allow_reaction_field: also accept CutoffPeriodic and CutoffNonPeriodic. Their reaction field
            is replaced by the full Coulomb interaction, periodic or in free space, which is a
            different physical model. Lennard-Jones interactions remain cut off.
        options: other keywords of :class:`FMMForce`.

    Returns:
        The force that was added.

    Raises:
        UnsupportedError: the System cannot be converted; the message names the force and the
            remedy. The System is unchanged after this and all other errors.
        ValueError, TypeError: an option is invalid, or the System has an FMMForce already.

    Warns:
        UserWarning: the reciprocal space of the NonbondedForce has a separate force group; or,
            once in a process, OpenMM has the CUDA platform but the native plugin is not available
            (:mod:`fmm_openmm.integration.native.plugin`).
    """
    nonbonded, place = _convertible_force(system, allow_reaction_field)
    force = FMMForce(tolerance, boundary=boundary_for(nonbonded, boundary).name, **options)
    parameters = particle_parameters(nonbonded)
    force._fill(nonbonded, parameters[:, 0])
    original = Original.from_force(nonbonded, force._definition.parameters.base)
    found = zeroed(system.getForces(), expected_charges(force._definition, original))
    force._definition.original = replace(
        original,
        zeroed=tuple(signature(other) for other, *_ in found),
        exceptions=force.getNumExclusions(),
        place=place,
    ).pack()
    force._declares_parameters = False
    forces = system.getNumForces()
    try:
        original.without_coulomb().apply(nonbonded, parameters)
        system.addForce(force)
    except BaseException:
        if system.getNumForces() > forces:
            system.removeForce(forces)
        original.apply(nonbonded, parameters)
        raise
    remember(system)
    if nonbonded.getReciprocalSpaceForceGroup() not in (-1, force.getForceGroup()):
        warn(
            "an FMM has no reciprocal space, but that of the NonbondedForce is in force group "
            f"{nonbonded.getReciprocalSpaceForceGroup()}: the whole FMMForce is in group "
            f"{force.getForceGroup()}; force.setForceGroup() sets another group"
        )
    return force


def restore_pme(system: openmm.System) -> None:
    """Undo :func:`use_fmm`: remove the FMMForce and restore charges, parameter offsets and method
    exactly. Charges that the FMMForce was given since are lost.

    It works for the converted System, its copies, and Systems read from its XML. Afterwards
    reinitialize every Context of the System or do not use it any more: OpenMM would call the
    removed force, and the process would crash.

    Raises:
        ValueError: the System holds no FMMForce made by :func:`use_fmm`, or several, or its
            NonbondedForce now has charges, another number of particles or fewer offsets. The System
            is unchanged then.

    Warns:
        UserWarning: charges or parameter offsets of the FMMForce have changed.
    """
    force, original, target = _restored(system)
    offsets = map(force.getParticleParameterOffset, range(force.getNumParticleParameterOffsets()))
    charges = force._definition.parameters.base
    if (charges != original.charges).any() or list(offsets) != original.charge_offsets(target):
        warn(
            "the charges of the FMMForce had changed since use_fmm(), but restore_pme() has "
            "restored those before it: set the new ones in the NonbondedForce"
        )


def convert_again(system: openmm.System, **options) -> FMMForce:
    """Give the FMMForce of a System other options, those of :func:`use_fmm`. It keeps its charges,
    exclusions and offsets and, unless others are given, its boundary and term.

    Raises:
        UnsupportedError, ValueError, TypeError: as :func:`restore_pme` and :func:`use_fmm`.
    """
    force = find_fmm(system)[0]
    definition, name, group = force._definition, force.getName(), force.getForceGroup()
    options = {"boundary": definition.boundary.name, **definition.options.of_term, **options}
    if definition.original is None:
        made = FMMForce(**options)
        force._removed(system, _index_of(force, system))
        made._definition.take_over(definition)
        system.addForce(made)
    else:
        _restored(system)
        made = use_fmm(system, allow_reaction_field=True, **options)
        made._definition.take_over(definition)
        made._restructured()
    made.setName(name)
    made.setForceGroup(group)
    return made


def _index_of(force: openmm.Force, system: openmm.System) -> int:
    """The index of a force of a System."""
    address = int(force.this)
    return next(i for i, other in enumerate(system.getForces()) if int(other.this) == address)


def _restored(system: openmm.System) -> tuple[FMMForce, Original, openmm.NonbondedForce]:
    """The removed FMMForce, and the restored properties of the NonbondedForce: see
    :func:`restore_pme`."""
    converted = [force for force in find_fmm(system) if force._definition.original is not None]
    if not converted:
        raise ValueError(
            "`system` holds no FMMForce made by use_fmm(), so there is nothing to restore"
        )
    if len(converted) > 1:
        raise ValueError(
            f"`system` holds {len(converted)} FMMForces made by use_fmm(): "
            "remove all but one with system.removeForce()"
        )
    force = converted[0]
    original = Original.unpack(force._definition.original)  # type: ignore[arg-type]
    target = converted_force(system, original)
    if target is None or not original.matches(target):
        raise ValueError(
            "`system` must hold the NonbondedForce that use_fmm() converted, with "
            f"{len(original.charges)} particles and {len(original.charge_scales)} parameter offsets"
            " or more"
        )
    parameters = particle_parameters(target)
    original.check_without_charges(target, parameters[:, 0])
    index = _index_of(force, system)
    present, forces = Original.from_force(target, parameters[:, 0]), system.getNumForces()
    try:
        original.apply(target, parameters)
        force._removed(system, index)
    except BaseException:
        if system.getNumForces() == forces:
            present.apply(target, parameters)
        raise
    forget(system)
    return force, original, target


def _convertible_force(
    system: openmm.System, allow_reaction_field: bool
) -> tuple[openmm.NonbondedForce, int]:
    """The NonbondedForce to convert and its index among those of the System; raises an error if
    there is none."""
    if find_fmm(system):
        raise ValueError(
            "`system` holds an FMMForce already: "
            "call restore_pme(system) first to change its options"
        )
    for force in system.getForces():
        kind = type(force).__name__
        if kind in _OTHER_ELECTROSTATICS:
            raise UnsupportedError(
                f"{kind} {force.getName()!r} has electrostatics of its own, "
                "which fmm_openmm does not replace: keep PME"
            )
        if kind in IMPLICIT_SOLVENTS and force.getNonbondedMethod() != force.NoCutoff:
            raise UnsupportedError(
                f"{kind} {force.getName()!r} is an implicit solvent with a cutoff, and the Coulomb "
                "interaction must be cut off like its own: keep the NonbondedForce, set both to "
                "NoCutoff, or remove the implicit solvent"
            )
    found = nonbonded_forces(system)
    if not found:
        raise UnsupportedError(
            "`system` holds no NonbondedForce to convert: for charges inside an ATMForce, a "
            "CustomCVForce or a force of your own, add FMMForce.from_nonbonded(...) yourself, and "
            "set the charges there to 0"
        )
    places = charged_places(system)
    if len(places) != 1:
        raise UnsupportedError(
            f"`system` holds {len(found)} NonbondedForces "
            f"({', '.join(repr(force.getName()) for force in found)}): add "
            "FMMForce.from_nonbonded(...) yourself for the one that has the charges, and set its "
            "charges to 0"
        )
    _check_nonbonded(found[places[0]], system, allow_reaction_field)
    return found[places[0]], places[0]


def _check_nonbonded(
    force: openmm.NonbondedForce, system: openmm.System, allow_reaction_field: bool
) -> None:
    method = force.getNonbondedMethod()
    name = f"NonbondedForce {force.getName()!r}"
    if method in REACTION_FIELD and not allow_reaction_field:
        full = "PME" if force.usesPeriodicBoundaryConditions() else "NoCutoff"
        raise UnsupportedError(
            f"{name} uses {METHODS[method]}, whose reaction field is a different physical model "
            f"from the full Coulomb interaction: set its method to {full}, or give "
            "`allow_reaction_field=True` to replace the reaction field"
        )
    check_direct_space(force)
    if force.getNumParticles() != system.getNumParticles():
        raise ValueError(
            f"{name} must have one particle for each of the System's "
            f"{system.getNumParticles()}, got {force.getNumParticles()}"
        )
