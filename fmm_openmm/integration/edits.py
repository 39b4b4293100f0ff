"""``check_system``: whether a System was edited after :func:`fmm_openmm.use_fmm`, which silently
gives wrong energies.

Whatever edits a NonbondedForce after the conversion finds charges of zero in it, and the FMMForce
does not see the edit.
"""

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import excepted_pairs, first_charged
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.conversion import Original, charged_by_zeros
from fmm_openmm.integration.force import FMMForce, find_fmm

REMEDY = (
    "Call fmm.restore_pme(system) before the edit and fmm.use_fmm(system) after it: convert last."
)


def check_system(system: openmm.System) -> None:
    """Raise an error if a System was edited after :func:`fmm_openmm.use_fmm` in a way that makes
    its energies wrong.

    The numbers of particles, the charges and charge offsets of the NonbondedForce, and its
    exceptions are compared with what was converted. A pair force or an implicit solvent whose
    charges are all zero, as they read in the NonbondedForce since, is refused as well. Everything
    else may be edited: Lennard-Jones parameters, charge products of exceptions, other forces, and
    the charges and exclusions of the FMMForce. Of an FMMForce that :func:`fmm_openmm.use_fmm` did
    not make, only the number of particles is checked. A System without an FMMForce passes. Every
    System is checked so when Python makes or reinitializes an ``openmm.Context`` of it.

    Args:
        system: converted or not; also a copy, or one that was read from XML.

    Raises:
        UnsupportedError: the System was edited; the message names the force, the first particle or
            exception that differs, and the remedy.
        TypeError: not a System.
    """
    for force in find_fmm(system):
        _check_particles(force, "FMMForce", force.getNumParticles(), system)
        if force._definition.original is not None:
            _check_converted(force, system)


def _check_converted(force: FMMForce, system: openmm.System) -> None:
    forces = system.getForces()
    found = [other for other in forces if isinstance(other, openmm.NonbondedForce)]
    if len(found) != 1:
        names = f" ({', '.join(repr(other.getName()) for other in found)})" if found else ""
        raise UnsupportedError(
            f"the System holds {len(found)} NonbondedForces{names}, and "
            f"{_named(force, 'FMMForce')} was made of one. {REMEDY}"
        )
    nonbonded = found[0]
    name = _named(nonbonded, "NonbondedForce")
    _check_particles(nonbonded, "NonbondedForce", nonbonded.getNumParticles(), system)
    _check_charges(nonbonded, name)
    original = Original.unpack(force._definition.original)
    _check_exceptions(nonbonded, name, force._definition.exclusions.rows, original.exceptions)
    if original.charges.any() and len(made := charged_by_zeros(forces)) > original.charged_by_zeros:
        raise UnsupportedError(
            f"{_named(made[-1], type(made[-1]).__name__)} has the charge of every particle at 0, "
            f"as they read in the converted {name}: it was made after fmm.use_fmm(system). {REMEDY}"
        )


def _check_charges(nonbonded: openmm.NonbondedForce, name: str) -> None:
    particle = first_charged(nonbonded)
    if particle is not None:
        charge = nonbonded.getParticleParameters(particle)[0]._value
        raise UnsupportedError(
            f"{name} has charges again, which fmm.use_fmm(system) had moved to the FMMForce: "
            f"{charge:g} e for particle {particle}. {REMEDY} To change charges alone, call "
            "setParticleParameters() or setCharges() of the FMMForce."
        )
    for index in range(nonbonded.getNumParticleParameterOffsets()):
        parameter, particle, scale, _, _ = nonbonded.getParticleParameterOffset(index)
        if scale != 0:
            raise UnsupportedError(
                f"{name} has charges again, which fmm.use_fmm(system) had moved to the FMMForce: "
                f"parameter offset {index}, {scale:g} e times {parameter!r} for "
                f"particle {particle}. {REMEDY}"
            )


def _check_exceptions(
    nonbonded: openmm.NonbondedForce, name: str, exclusions: np.ndarray, converted: int
) -> None:
    """Compare with exclusions, shape (m, 2), the first ``converted`` of which were exceptions:
    others were added on purpose."""
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


def _check_particles(force: openmm.Force, kind: str, count: int, system: openmm.System) -> None:
    if count != system.getNumParticles():
        by_hand = kind == "FMMForce" and force._definition.original is None
        remedy = (
            "Call its addParticle() for each particle of the System before a Context is made."
            if by_hand
            else REMEDY
        )
        raise UnsupportedError(
            f"{_named(force, kind)} must have one particle for each of the System's "
            f"{system.getNumParticles()}, got {count}. " + remedy
        )


def _named(force: openmm.Force, kind: str) -> str:
    return f"{kind} {force.getName()!r}"
