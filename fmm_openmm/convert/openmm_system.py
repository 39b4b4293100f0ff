"""Reading an ``openmm.System``: the one way into a ``ChargeSystem`` that every converter takes.

Each function returns the keyword arguments of :class:`fmm_openmm.ChargeSystem`.
"""

import os
import sys

import numpy as np
import openmm
from openmm import app

from fmm_openmm.checks import check_pairs
from fmm_openmm.convert.cells import reduced
from fmm_openmm.errors import UnsupportedError


def nonbonded_force(system) -> openmm.NonbondedForce:
    """The one NonbondedForce of ``system``.

    Raises:
        UnsupportedError: there is none, or more than one.
    """
    forces = [force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)]
    if len(forces) != 1:
        names = ", ".join(force.getName() for force in system.getForces()) or "no force at all"
        raise UnsupportedError(
            f"the System must have exactly one NonbondedForce to read charges from, it has {len(forces)}; "
            f"its forces: {names}"
        )
    return forces[0]


def particle_parameters(force: openmm.NonbondedForce) -> np.ndarray:
    """Charge, sigma and epsilon of every particle, shape (n, 3), e, nm, kJ/mol."""
    parameters = map(force.getParticleParameters, range(force.getNumParticles()))
    # their units are OpenMM's own: converting millions of quantities would take longer than all else
    return np.array([[value._value for value in values] for values in parameters], np.float64).reshape(-1, 3)


def excepted_pairs(force: openmm.NonbondedForce) -> np.ndarray:
    """The particles of every exception, shape (m, 2), int64."""
    exceptions = map(force.getExceptionParameters, range(force.getNumExceptions()))
    return np.array([values[:2] for values in exceptions], np.int64).reshape(-1, 2)


def global_defaults(force: openmm.NonbondedForce) -> dict[str, float]:
    """The default value of every global parameter, by name."""
    numbers = range(force.getNumGlobalParameters())
    return {force.getGlobalParameterName(i): force.getGlobalParameterDefaultValue(i) for i in numbers}


def charges_of_system(system, positions=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_openmm`."""
    if not isinstance(system, openmm.System):
        raise TypeError(f"`system` must be an openmm.System, got {type(system).__name__}")
    force = nonbonded_force(system)
    box = system.getDefaultPeriodicBoxVectors() if force.usesPeriodicBoundaryConditions() else None
    return {
        "charges": _charges(force, _fmm_forces(system)),
        "positions": positions,
        "box_vectors": box,
        "exclusions": excepted_pairs(force),
        "exclusions_periodic": force.getExceptionsUsePeriodicBoundaryConditions(),
    }


def _fmm_forces(system) -> list:
    """The FMMForces of a System. One can only exist once ``fmm_openmm.integration`` is loaded, so that nothing need be
    imported here, against the direction of imports."""
    integration = sys.modules.get("fmm_openmm.integration")
    return [] if integration is None else integration.find_fmm(system)


def _charges(nonbonded, fmm) -> np.ndarray:
    """The sum of the charges in a NonbondedForce and in FMMForces; ``use_fmm`` leaves zeros in the first."""
    total = particle_parameters(nonbonded)[:, 0]
    defaults = global_defaults(nonbonded)
    for i in range(nonbonded.getNumParticleParameterOffsets()):
        parameter, particle, scale = nonbonded.getParticleParameterOffset(i)[:3]
        total[particle] += defaults[parameter] * scale
    return total + sum(force._definition.default_charges for force in fmm)


def charges_of_topology(topology, forcefield, positions=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_topology`."""
    if not isinstance(topology, app.Topology):
        raise TypeError(f"`topology` must be an openmm.app.Topology, got {type(topology).__name__}")
    if isinstance(forcefield, (str, os.PathLike)):
        forcefield = [forcefield]
    if isinstance(forcefield, (list, tuple)):
        forcefield = app.ForceField(*map(os.fspath, forcefield))
    if not hasattr(forcefield, "createSystem"):
        raise TypeError(f"`forcefield` must be an openmm.app.ForceField or file names, got {type(forcefield).__name__}")
    periodic = topology.getPeriodicBoxVectors() is not None
    system = forcefield.createSystem(topology, nonbondedMethod=app.PME if periodic else app.NoCutoff)
    return charges_of_system(system, positions)


def charges_of_bonds(charges, bonds, positions, box_vectors) -> dict:
    """Charges and bonds of a package without force fields.

    Pairs within three bonds are excluded, OpenMM's ``createExceptionsFromBonds`` with both scales 0, at their nearest
    periodic image, since such packages break molecules across the box.

    Args:
        charges: shape (n,), in e.
        bonds: pairs of indices, shape (m, 2); None for none.
        positions: shape (n, 3), in nm.
        box_vectors: shape (3, 3), in nm, lower triangular with a positive diagonal; None for open space.
    """
    bonds = check_pairs(bonds, len(charges), "bonds")
    system, force = openmm.System(), openmm.NonbondedForce()
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(float(charge), 0.0, 0.0)
    force.createExceptionsFromBonds(bonds.tolist(), 0.0, 0.0)
    force.setExceptionsUsePeriodicBoundaryConditions(True)
    if box_vectors is not None:
        force.setNonbondedMethod(force.PME)
        system.setDefaultPeriodicBoxVectors(*reduced(box_vectors))
    system.addForce(force)
    return charges_of_system(system, positions)
