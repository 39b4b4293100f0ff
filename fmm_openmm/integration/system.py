"""``use_fmm`` and ``restore_pme``: FMM in place of PME or NoCutoff in a System, and back."""

import warnings

import openmm

from fmm_openmm.convert.nonbonded import particle_parameters
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.conversion import Original
from fmm_openmm.integration.force import FMMForce, find_fmm

_REACTION_FIELD = (openmm.NonbondedForce.CutoffPeriodic, openmm.NonbondedForce.CutoffNonPeriodic)
_METHODS = ("NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "Ewald", "PME", "LJPME")
_OTHER_ELECTROSTATICS = (
    "AmoebaMultipoleForce",
    "AmoebaGeneralizedKirkwoodForce",
    "HippoNonbondedForce",
    "ConstantPotentialForce",
)


def use_fmm(system: openmm.System, *, allow_reaction_field: bool = False, **options) -> FMMForce:
    """Replace PME, or the sum over all pairs of NoCutoff, by the fast multipole method, in place.

    The charges of the System's NonbondedForce and the charge part of its particle parameter offsets move to a new
    :class:`FMMForce` of the same force group. Lennard-Jones and exceptions, with their charge products and offsets,
    stay where they are; PME and Ewald become CutoffPeriodic, LJPME stays for its dispersion, and NoCutoff for its
    Lennard-Jones interaction. A Context made before sees the change after ``context.reinitialize()``.

    Args:
        system: with one NonbondedForce that uses PME, LJPME, Ewald or NoCutoff.
        allow_reaction_field: also accept CutoffPeriodic and CutoffNonPeriodic, whose reaction field is replaced by the full
            Coulomb interaction, periodic or in empty space: another physics. Lennard-Jones stays cut off.
        options: those of :class:`FMMForce`, such as ``tolerance=5e-4``.

    Returns:
        The force that was added.

    Raises:
        UnsupportedError: the System cannot be converted; the message names the force and what to do.
        ValueError, TypeError: a bad option, or an FMMForce is there already.
        Nothing has changed then.

    Warns:
        UserWarning: the NonbondedForce has its reciprocal space in a force group of its own.
    """
    nonbonded = _convertible_force(system, allow_reaction_field)
    force = FMMForce(**options)
    parameters = particle_parameters(nonbonded)
    force._fill(nonbonded, parameters[:, 0])
    original = Original.of(nonbonded, force._definition.parameters.base)
    force._definition.original = original.pack()
    forces = system.getNumForces()
    try:
        original.without_coulomb().apply(nonbonded, parameters)
        system.addForce(force)
    except BaseException:
        if system.getNumForces() > forces:
            system.removeForce(forces)
        original.apply(nonbonded, parameters)
        raise
    if nonbonded.getReciprocalSpaceForceGroup() not in (-1, force.getForceGroup()):
        warnings.warn(
            "an FMM has no reciprocal space, which the NonbondedForce has in force group "
            f"{nonbonded.getReciprocalSpaceForceGroup()}: all of the FMMForce is in group {force.getForceGroup()}; "
            "force.setForceGroup() sets another",
            stacklevel=2,
        )
    return force


def restore_pme(system: openmm.System) -> None:
    """Undo :func:`use_fmm`: original charges, parameter offsets and method, exactly, and without the FMMForce.

    Works on the System that was converted, its copies and what was read from its XML. Then reinitialize every Context of
    the System, or do not use it again: OpenMM would call the force that is gone, and the process would crash.

    Raises:
        ValueError: the System holds no FMMForce made by :func:`use_fmm`, or its NonbondedForce has other particles or
            offsets by now, or charges. Nothing has changed then.
    """
    converted = [force for force in find_fmm(system) if force._definition.original is not None]
    if not converted:
        raise ValueError("`system` holds no FMMForce made by use_fmm(), so there is nothing to restore")
    force = converted[0]
    original = Original.unpack(force._definition.original)
    targets = [other for other in system.getForces() if isinstance(other, openmm.NonbondedForce)]
    targets = [target for target in targets if original.matches(target)]
    if len(targets) != 1:
        raise ValueError(
            "`system` must hold the NonbondedForce that use_fmm() converted, with "
            f"{len(original.charges)} particles and {len(original.charge_scales)} parameter offsets; "
            f"{len(targets)} forces fit"
        )
    parameters = particle_parameters(targets[0])
    original.check_without_charges(targets[0], parameters[:, 0])
    handle = int(force.this)
    index = next(index for index, other in enumerate(system.getForces()) if int(other.this) == handle)
    present, forces = Original.of(targets[0], parameters[:, 0]), system.getNumForces()
    try:
        original.apply(targets[0], parameters)
        force._removed(system, index)
    except BaseException:
        if system.getNumForces() == forces:
            present.apply(targets[0], parameters)
        raise


def _convertible_force(system: openmm.System, allow_reaction_field: bool) -> openmm.NonbondedForce:
    """The NonbondedForce to convert, or the error that says why not."""
    if find_fmm(system):
        raise ValueError("`system` holds an FMMForce already: call restore_pme(system) first to change its options")
    found = []
    for force in system.getForces():
        kind = type(force).__name__
        if kind in _OTHER_ELECTROSTATICS:
            raise UnsupportedError(
                f"{kind} {force.getName()!r} has electrostatics of its own, which fmm_openmm does not replace: keep PME"
            )
        if kind in ("GBSAOBCForce", "CustomGBForce") and force.getNonbondedMethod() != force.NoCutoff:
            raise UnsupportedError(
                f"{kind} {force.getName()!r} is an implicit solvent with a cutoff, and the Coulomb interaction must be cut off "
                "like its own: keep the NonbondedForce, set both to NoCutoff, or remove the implicit solvent"
            )
        if isinstance(force, openmm.NonbondedForce):
            found.append(force)
    if not found:
        raise UnsupportedError(
            "`system` holds no NonbondedForce to convert: for charges inside an ATMForce, a CustomCVForce or a force "
            "of your own, add FMMForce.from_nonbonded(...) yourself"
        )
    if len(found) > 1:
        raise UnsupportedError(
            f"`system` holds {len(found)} NonbondedForces ({', '.join(repr(force.getName()) for force in found)}): add "
            "FMMForce.from_nonbonded(...) yourself for the one that has the charges"
        )
    _check_nonbonded(found[0], system, allow_reaction_field)
    return found[0]


def _check_nonbonded(force: openmm.NonbondedForce, system: openmm.System, allow_reaction_field: bool) -> None:
    method = force.getNonbondedMethod()
    name = f"NonbondedForce {force.getName()!r}"
    if method in _REACTION_FIELD and not allow_reaction_field:
        full = "PME" if force.usesPeriodicBoundaryConditions() else "NoCutoff"
        raise UnsupportedError(
            f"{name} uses {_METHODS[method]}, whose reaction field is another physics than the full Coulomb interaction: set "
            f"its method to {full}, or pass allow_reaction_field=True to replace it"
        )
    if not force.getIncludeDirectSpace():
        raise UnsupportedError(
            f"{name} leaves out its direct space, which an FMM does not separate: call setIncludeDirectSpace(True)"
        )
    if force.getNumParticles() != system.getNumParticles():
        raise ValueError(
            f"{name} must have one particle for each of the System's {system.getNumParticles()}, got {force.getNumParticles()}"
        )
