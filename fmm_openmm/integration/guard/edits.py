"""``check_system``: detects edits of a System after :func:`fmm_openmm.use_fmm` that would silently
give wrong energies.

Code that edits a NonbondedForce after the conversion finds zero charges in it, and the FMMForce
does not notice the edit.
"""

import weakref
from collections import Counter
from collections.abc import Iterable

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import (
    excepted_pairs,
    first_charged,
    has_electrostatics,
    nonbonded_forces,
)
from fmm_openmm.convert.openmm_system import global_defaults
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.conversion.original import ANY, METHODS, PERIODIC, Original
from fmm_openmm.integration.force import FMMForce, find_fmm
from fmm_openmm.integration.guard.zeroed import signature, zeroed
from fmm_openmm.integration.identity import bridge_of
from fmm_openmm.integration.snapshots import REVISION

REMEDY = (
    "Call fmm.restore_pme(system) before the edit and fmm.use_fmm(system) after it: convert last."
)


_converted: dict[int, weakref.ref] = {}
"""Systems converted by :func:`fmm_openmm.use_fmm`, by the address of the C++ object."""


def remember(system: openmm.System) -> None:
    """Record that a System was converted, which it does not show once its FMMForce is removed."""
    address = int(system.this)
    _converted[address] = weakref.ref(system, lambda _: _converted.pop(address, None))


def forget(system: openmm.System) -> None:
    """Undo :func:`remember`."""
    _converted.pop(int(system.this), None)


def may_be_converted(system: openmm.System) -> bool:
    """Whether :func:`check_system` has anything to check."""
    return int(system.this) in _converted or any(
        isinstance(force, openmm.PythonForce) for force in system.getForces()
    )


def check_system(system: openmm.System) -> None:
    """Raise an error if a System was edited after :func:`fmm_openmm.use_fmm` in a way that makes
    its energies wrong.

    The number of particles, and the method, charges, charge offsets, exceptions and their images of
    the NonbondedForce, are compared with those at the conversion. The check refuses a second
    FMMForce of the same NonbondedForce, and an FMMForce removed from the converted System. It also
    refuses a custom force for pairs, bonds or an external field, or an implicit solvent, that was
    added since and has zeros in place of charges, which it may have read from the NonbondedForce.

    Everything else may be edited: Lennard-Jones parameters, also in a separate NonbondedForce,
    charge products of exceptions, other forces, and charges and exclusions of the FMMForce. An
    FMMForce without any other force is accepted as the Coulomb part of a decomposition. For an
    FMMForce not made by :func:`fmm_openmm.use_fmm` only the number of particles is checked. A
    System that was not converted passes. The check runs whenever Python creates or reinitializes an
    ``openmm.Context``.

    Args:
        system: a System, converted or not, a copy, or one read from XML.

    Raises:
        UnsupportedError: the System was edited; the message names the force, the first particle or
            exception that differs, and the remedy.
        TypeError: ``system`` is not a System.
    """
    forces = find_fmm(system)
    for force in forces:
        _check_particles(force, system)
    made = [force for force in forces if force._definition.original is not None]
    if len(made) > 1:
        raise UnsupportedError(
            f"the System holds {len(made)} FMMForces made by fmm.use_fmm(system) of one "
            "NonbondedForce: remove all but one with system.removeForce()"
        )
    is_first = int(system.this) in _converted  # not a copy, which may lack forces
    if made and (system.getNumForces() > 1 or is_first):
        _check_converted(made[0], system)
    if not forces and is_first and not any(map(_contains_fmm, system.getForces())):
        _check_without_fmm(system)


def check_sent(force: openmm.NonbondedForce, context: openmm.Context) -> None:
    """Raise an error if a NonbondedForce of a converted System would copy charges to a Context, or
    its zero charges to one that was made before the conversion."""
    system = context.getSystem()
    has_fmm = REVISION in context.getParameters()
    if has_fmm and first_charge(force) is None:
        return
    address = int(force.this)
    if not any(address == int(other.this) for other in system.getForces()):
        return
    originals = [one._definition.original for one in find_fmm(system)]
    made = next((packed for packed in originals if packed is not None), None)
    if made is not None:
        _check_charges(force)
        converted = converted_force(system, Original.unpack(made))
        if not has_fmm and converted is not None and address == int(converted.this):
            raise UnsupportedError(
                f"{_named(force)} has no charges since fmm.use_fmm(system), and this Context was "
                "made before: call context.reinitialize(preserveState=True)"
            )


def converted_force(system: openmm.System, original: Original) -> openmm.NonbondedForce | None:
    """The NonbondedForce that was converted."""
    found = nonbonded_forces(system)
    return found[original.place] if original.place < len(found) else None


def expected_charges(definition, original: Original) -> np.ndarray:
    """Charges before the conversion, shape (n,), e; where a charge is 0, the scale of its parameter
    offset."""
    charges = np.zeros(len(definition.charges))
    charges[: len(original.charges)] = original.charges
    particles = definition.offset_targets.rows[:, 1]
    offset = charges[particles] == 0
    charges[particles[offset]] = definition.offset_scales.rows[offset, 0]
    return charges


def _check_converted(force: FMMForce, system: openmm.System) -> None:
    definition = force._definition
    assert definition.original is not None, "the force was made by hand"
    original = Original.unpack(definition.original)
    found, place = nonbonded_forces(system), original.place
    others = found[:place] + found[place + 1 :]
    if place >= len(found) or any(map(has_electrostatics, others)):
        names = f" ({', '.join(repr(other.getName()) for other in found)})" if found else ""
        held = (
            f"the System holds {len(found)} NonbondedForce{'' if len(found) == 1 else 's'}{names}"
        )
        if 0 < len(found) <= place:
            before = f"had {place + 1} or more when fmm.use_fmm(system) converted it"
            raise UnsupportedError(f"{held}, but {before}. {REMEDY}")
        raise UnsupportedError(f"{held}, and {_named(force)} was made of one. {REMEDY}")
    nonbonded = found[place]
    name = _named(nonbonded)
    _check_particles(nonbonded, system)
    _check_charges(nonbonded)
    _check_settings(nonbonded, name, definition, original.method_without_coulomb)
    _check_exceptions(nonbonded, name, definition.exclusions.rows, original.exceptions)
    _check_in_use(force, nonbonded, name)
    known = Counter(original.zeroed)
    for other, zeros, total in zeroed(system.getForces(), expected_charges(definition, original)):
        key = next((key for key in (signature(other), ANY) if known[key]), None)
        if key is None:
            which = "every particle" if zeros == total else f"{zeros} of {total} charged particles"
            if isinstance(other, openmm.CustomBondForce):
                which = f"{zeros} of {total} bonds between charges"
            raise UnsupportedError(
                f"{_named(other)} has the charge of {which} at 0, as in the "
                f"converted {name}: it was made after fmm.use_fmm(system). {REMEDY}"
            )
        known[key] -= 1


def _contains_fmm(force: openmm.Force) -> bool:
    """Whether a CustomCVForce or ATMForce holds an FMMForce, to which a user may have moved it."""
    inner: Iterable[openmm.Force] = ()
    if isinstance(force, openmm.CustomCVForce):
        inner = map(force.getCollectiveVariable, range(force.getNumCollectiveVariables()))
    elif isinstance(force, openmm.ATMForce):
        inner = map(force.getForce, range(force.getNumForces()))
    kinds = openmm.PythonForce, openmm.Force  # an ATMForce returns forces without their type
    return any(type(each) in kinds and bridge_of(each) is not None for each in inner)


def _check_without_fmm(system: openmm.System) -> None:
    found = nonbonded_forces(system)
    if found and all(first_charge(force) is None for force in found):
        raise UnsupportedError(
            f"the FMMForce was removed from the System, and {_named(found[0])} "
            "has no charges since fmm.use_fmm(system). Create the System again, and call "
            "fmm.restore_pme(system) in place of system.removeForce()."
        )


def _check_settings(nonbonded, name: str, definition, method: int) -> None:
    """Compare method, direct space, images of exceptions and names of global parameters. The cutoff
    of the Lennard-Jones interaction may change, but not its periodicity, and Ewald sums would have
    no charges. Exclusions may apply to minimum images where no other force binds their pairs."""
    now = nonbonded.getNonbondedMethod()
    sums_nothing = now != method and now in (openmm.NonbondedForce.PME, openmm.NonbondedForce.Ewald)
    if sums_nothing or (now in PERIODIC) != (method in PERIODIC):
        raise UnsupportedError(
            f"{name} uses {METHODS[now]}, but fmm.use_fmm(system) had set {METHODS[method]}. "
            f"{REMEDY}"
        )
    check_direct_space(nonbonded)
    at_minimum_image = nonbonded.getExceptionsUsePeriodicBoundaryConditions()
    if now in PERIODIC and at_minimum_image and not definition.exclusions_periodic:
        raise UnsupportedError(
            f"{name} evaluates its exceptions at the minimum image, but the FMMForce does not "
            f"exclude that image. {REMEDY} For this setting alone, call "
            "setExclusionsUsePeriodicBoundaryConditions(True) of the FMMForce as well."
        )
    names = global_defaults(nonbonded)
    for parameter, _ in definition.global_parameters:
        if parameter not in names:
            raise UnsupportedError(
                f"{name} has no global parameter {parameter!r} any more, on which charges of the "
                f"FMMForce depend. {REMEDY}"
            )


def check_direct_space(nonbonded: openmm.NonbondedForce) -> None:
    """Refuse a NonbondedForce that evaluates its reciprocal space alone."""
    if not nonbonded.getIncludeDirectSpace():
        raise UnsupportedError(
            f"{_named(nonbonded)} leaves out its direct space, which an FMM does not separate: "
            "call setIncludeDirectSpace(True)"
        )


def _check_charges(nonbonded: openmm.NonbondedForce) -> None:
    text = first_charge(nonbonded)
    if text is not None:
        raise UnsupportedError(
            f"{_named(nonbonded)} has charges again, which fmm.use_fmm(system) had moved to the "
            f"FMMForce: {text}. {REMEDY} To change charges alone, call setParticleParameters() or "
            "setCharges() of the FMMForce."
        )


def first_charge(nonbonded: openmm.NonbondedForce) -> str | None:
    """Description of the first nonzero charge or charge scale of a parameter offset; None if there
    is none."""
    particle = first_charged(nonbonded)
    if particle is not None:
        charge = nonbonded.getParticleParameters(particle)[0]._value
        return f"{charge:g} e for particle {particle}"
    for index in range(nonbonded.getNumParticleParameterOffsets()):
        parameter, particle, scale, _, _ = nonbonded.getParticleParameterOffset(index)
        if scale != 0:
            return (
                f"parameter offset {index}, {scale:g} e times {parameter!r} for particle {particle}"
            )
    return None


def _check_exceptions(
    nonbonded: openmm.NonbondedForce, name: str, exclusions: np.ndarray, converted: int
) -> None:
    """Compare exceptions with exclusions, shape (m, 2), the first ``converted`` of which were
    exceptions; later ones were added by the user."""
    exceptions = excepted_pairs(nonbonded)
    added = first_in_one_only(exceptions, exclusions)
    if added is not None:
        raise UnsupportedError(
            f"{name} has an exception for particles {added[0]} and {added[1]}, which the FMMForce "
            f"does not exclude. {REMEDY} For an exception alone, "
            "call addExclusion() of the FMMForce as well."
        )
    removed = first_in_one_only(exclusions[:converted], exceptions)
    if removed is not None:
        raise UnsupportedError(
            f"{name} has no exception for particles {removed[0]} and {removed[1]}, "
            f"which the FMMForce excludes. {REMEDY}"
        )


def _check_in_use(force: FMMForce, nonbonded: openmm.NonbondedForce, name: str) -> None:
    """Compare exceptions and their images with what the Contexts of the force exclude, which does
    not change once one has used it."""
    if force._bridge.is_current:
        return
    used = force._bridge.fix_structure()
    added = first_in_one_only(excepted_pairs(nonbonded), used.exclusions)
    if added is not None:
        edit = f"has an exception for particles {added[0]} and {added[1]}"
    elif nonbonded.getExceptionsUsePeriodicBoundaryConditions() and not used.periodic:
        edit = "evaluates its exceptions at the minimum image"
    else:
        return
    raise UnsupportedError(
        f"{name} {edit}, which the FMMForce excludes only since a Context has used it: make a "
        "Context of copy.deepcopy(system)"
    )


def first_in_one_only(pairs: np.ndarray, others: np.ndarray) -> tuple[int, int] | None:
    """The first of ``pairs``, shape (k, 2), that is not among ``others``, shape (m, 2), in either
    order; None if there is none.

    The smaller number of the pair comes first.
    """
    if np.array_equal(pairs, others):
        return None
    pairs, others = (np.sort(np.asarray(one, np.int64), axis=1) for one in (pairs, others))
    missing = ~np.isin(pairs[:, 0] << 32 | pairs[:, 1], others[:, 0] << 32 | others[:, 1])
    return tuple(pairs[np.argmax(missing)].tolist()) if missing.any() else None


def _check_particles(force: FMMForce | openmm.NonbondedForce, system: openmm.System) -> None:
    count = force.getNumParticles()
    if count != system.getNumParticles():
        by_hand = isinstance(force, FMMForce) and force._definition.original is None
        remedy = (
            "Call its addParticle() for each particle of the System before a Context is made."
            if by_hand
            else REMEDY
        )
        raise UnsupportedError(
            f"{_named(force)} must have one particle for each of the System's "
            f"{system.getNumParticles()}, got {count}. " + remedy
        )


def _named(force: openmm.Force) -> str:
    return f"{type(force).__name__} {force.getName()!r}"
