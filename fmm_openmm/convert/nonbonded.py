"""The parameters of a NonbondedForce as arrays, in OpenMM's units: e, nm, kJ/mol.

The methods of ``openmm.NonbondedForce`` attach a unit to every number they return and look for one in every argument, which
takes seconds for a million particles. The functions of OpenMM's extension module that these methods call take and return plain
numbers, and check types and indices alike, in a tenth of the time.
"""

from collections import deque
from itertools import chain, repeat

import numpy as np
import openmm

from fmm_openmm.units import strip_units


def particle_parameters(force: openmm.NonbondedForce) -> np.ndarray:
    """Charge, sigma and epsilon of every particle, shape (n, 3), e, nm, kJ/mol."""
    return _read(force, "getParticleParameters", force.getNumParticles(), 3)


def set_particle_parameters(force: openmm.NonbondedForce, parameters: np.ndarray) -> None:
    """Write what :func:`particle_parameters` reads.

    An interrupt waits until all are written: no line of Python runs between two particles.

    Raises:
        ValueError: not one row for each particle of the force. Nothing has changed then.
    """
    count = force.getNumParticles()
    if parameters.shape != (count, 3):
        raise ValueError(f"`parameters` must have shape (n, 3) with n = {count} (from `force`), got {parameters.shape}")
    deque(_calls(force, "setParticleParameters", count, *parameters.T.tolist()), maxlen=0)


def excepted_pairs(force: openmm.NonbondedForce) -> np.ndarray:
    """The particles of every exception, shape (m, 2), int64."""
    # float64 holds every index exactly
    return _read(force, "getExceptionParameters", force.getNumExceptions(), 5)[:, :2].astype(np.int64)


def _read(force: openmm.NonbondedForce, name: str, count: int, width: int) -> np.ndarray:
    """What the method ``name`` returns for each index below ``count``, shape (count, width), float64."""
    # row by row: a list of millions of lists would be gone through by the garbage collector again and again
    return np.fromiter(chain.from_iterable(_calls(force, name, count)), np.float64).reshape(count, width)


def _calls(force: openmm.NonbondedForce, name: str, count: int, *columns: list):
    """Call the method ``name`` for each index below ``count`` and its entries of ``columns``; an iterator over the results."""
    function = getattr(getattr(openmm, "_openmm", None), f"NonbondedForce_{name}", None)
    if function is None:  # an OpenMM whose extension module is another
        method = getattr(force, name)
        return map(lambda *arguments: strip_units(method(*arguments)), range(count), *columns)
    return map(function, repeat(force.this), range(count), *columns)
