"""The parameters of a NonbondedForce as arrays, in OpenMM's units: e, nm, kJ/mol.

The methods of ``openmm.NonbondedForce`` attach a unit to every number they return and look for one
in every argument, which takes seconds for a million particles. The functions of OpenMM's extension
module that these methods call take and return plain numbers, and check types and indices alike, in
a tenth of the time.
"""

from collections import deque
from itertools import chain, compress, count, repeat
from operator import itemgetter

import numpy as np
import openmm

from fmm_openmm.units import strip_units


def nonbonded_forces(system: openmm.System) -> list[openmm.NonbondedForce]:
    """The NonbondedForces of a System, in order; the System must outlive them."""
    return [force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)]


def charged_places(system: openmm.System) -> list[int]:
    """Indices, among the NonbondedForces of a System, of those that may have its charges: the only
    force, or those with electrostatics or another number of particles than the System."""
    forces, particles = nonbonded_forces(system), system.getNumParticles()
    return [
        place
        for place, force in enumerate(forces)
        if len(forces) == 1 or force.getNumParticles() != particles or has_electrostatics(force)
    ]


def particle_parameters(force: openmm.NonbondedForce) -> np.ndarray:
    """Charge, sigma and epsilon of every particle, shape (n, 3), e, nm, kJ/mol."""
    rows = calls(force, "getParticleParameters", force.getNumParticles())
    # an iterator, since the garbage collector would repeatedly traverse a list of millions of lists
    return np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, 3)


def set_particle_parameters(force: openmm.NonbondedForce, parameters: np.ndarray) -> None:
    """Set charge, sigma and epsilon of every particle, shape (n, 3), e, nm, kJ/mol.

    An interrupt is handled only after all are set: no Python code runs between two particles.

    Raises:
        ValueError: the number of rows differs from the number of particles; the force is unchanged.
    """
    particles = force.getNumParticles()
    if parameters.shape != (particles, 3):
        raise ValueError(
            f"`parameters` must have shape (n, 3) with n = {particles} (from `force`), "
            f"got {parameters.shape}"
        )
    deque(calls(force, "setParticleParameters", particles, *parameters.T.tolist()), maxlen=0)


def excepted_pairs(force: openmm.NonbondedForce) -> np.ndarray:
    """The particles of every exception, shape (m, 2), int64, without the pairs of a particle with
    itself that ParmEd adds for extra points, which exclude nothing."""
    rows = map(itemgetter(0, 1), calls(force, "getExceptionParameters", force.getNumExceptions()))
    pairs = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 2)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def first_charged(force: openmm.NonbondedForce) -> int | None:
    """Index of the first charged particle, without parameter offsets; None if there is none."""
    charges = map(itemgetter(0), calls(force, "getParticleParameters", force.getNumParticles()))
    return next(compress(count(), charges), None)


def has_electrostatics(force: openmm.NonbondedForce) -> bool:
    """Whether any charge, charge product, or parameter offset of these is nonzero."""
    offsets = map(force.getParticleParameterOffset, range(force.getNumParticleParameterOffsets()))
    scales = map(force.getExceptionParameterOffset, range(force.getNumExceptionParameterOffsets()))
    exceptions = calls(force, "getExceptionParameters", force.getNumExceptions())
    return (
        first_charged(force) is not None
        or any(row[2] for row in offsets)
        or any(row[2] for row in scales)
        or any(row[2] for row in exceptions)
    )


def calls(force: openmm.Force, name: str, number: int, *columns: list):
    """Iterate over the results of a force's method ``name``, called with each index below
    ``number`` and the entries of ``columns`` at that index."""
    module = getattr(openmm, "_openmm", None)
    names = (f"{kind.__name__}_{name}" for kind in type(force).__mro__)
    function = next((getattr(module, each) for each in names if hasattr(module, each)), None)
    if function is None:  # an OpenMM whose extension module is another
        method = getattr(force, name)
        return map(lambda *arguments: strip_units(method(*arguments)), range(number), *columns)
    return map(function, repeat(force.this), range(number), *columns)
