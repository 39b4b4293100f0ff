"""Conversion of an ``openmm.System``, through which every converter makes a ``ChargeSystem``.

Each function returns the keyword arguments of :class:`fmm_openmm.ChargeSystem`.
"""

import os
import sys
from dataclasses import dataclass

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm.boundary import Boundary
from fmm_openmm.box import unwrap
from fmm_openmm.checks import check_pairs, check_positions
from fmm_openmm.convert.cells import is_no_cell, reduced
from fmm_openmm.convert.nonbonded import (
    charged_places,
    excepted_pairs,
    nonbonded_forces,
    particle_parameters,
)
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.neutralization import Neutralization


@dataclass(frozen=True, eq=False)
class Source:
    """Electrostatics of one force.

    Attributes:
        name: type and name of the force.
        charges: shape (n,), with parameter offsets at the parameters' defaults, e.
        exclusions: shape (m, 2).
        exclusions_periodic: whether exclusions apply to nearest images.
        boundary: along which box vectors there are images.
        neutralization: what neutralises a slab or wire; None if nothing does.
    """

    name: str
    charges: np.ndarray
    exclusions: np.ndarray
    exclusions_periodic: bool
    boundary: Boundary
    neutralization: Neutralization | None = None

    @classmethod
    def from_nonbonded(cls, force: openmm.NonbondedForce) -> "Source":
        """The source of a NonbondedForce, whose exceptions are all exclusions."""
        return cls(
            _name(force),
            nonbonded_charges(force),
            excepted_pairs(force),
            force.getExceptionsUsePeriodicBoundaryConditions(),
            Boundary((force.usesPeriodicBoundaryConditions(),) * 3),
        )

    @classmethod
    def from_fmm(cls, force, defaults: dict[str, float]) -> "Source":
        """The source of an ``FMMForce``, with the given defaults of global parameters."""
        definition = force._definition
        term = definition.options.term(definition.boundary)
        if term is not None:
            warn(
                f"{_name(force)} has a term that charges alone do not have: give `{term}` to the "
                "solver"
            )
        charges, structure = definition.parameters.charges(defaults), definition.structure
        return cls(
            _name(force),
            charges,
            structure.exclusions,
            structure.periodic,
            structure.boundary,
            definition.options.neutralizer(structure.boundary),
        )

    def structure(self) -> tuple:
        """Everything but the charges, for comparison."""
        pairs = np.unique(np.sort(self.exclusions, axis=1), axis=0)
        return (
            len(self.charges),
            pairs.tolist(),
            self.exclusions_periodic,
            self.boundary,
            str(self.neutralization),
        )


def _name(force) -> str:
    return f"{type(force).__name__} {force.getName()!r}"


def nonbonded_force(system) -> openmm.NonbondedForce:
    """The NonbondedForce of a System that has its charges, or the only one.

    Raises:
        UnsupportedError: the System has no such force, or several.
    """
    forces, places = nonbonded_forces(system), charged_places(system)
    if len(places) != 1:
        names = ", ".join(force.getName() for force in system.getForces()) or "no force at all"
        raise UnsupportedError(
            "the System must have exactly one NonbondedForce with charges to read from, "
            f"it has {len(places)}; its forces: {names}"
        )
    return forces[places[0]]


def nonbonded_charges(force: openmm.NonbondedForce) -> np.ndarray:
    """Charges with parameter offsets at the parameters' defaults, shape (n,), e."""
    charges, defaults = particle_parameters(force)[:, 0], global_defaults(force)
    for i in range(force.getNumParticleParameterOffsets()):
        parameter, particle, scale = force.getParticleParameterOffset(i)[:3]
        charges[particle] += defaults[parameter] * scale
    return charges


def global_defaults(force: openmm.NonbondedForce) -> dict[str, float]:
    """The default value of every global parameter, by name."""
    numbers = range(force.getNumGlobalParameters())
    return {
        force.getGlobalParameterName(i): force.getGlobalParameterDefaultValue(i) for i in numbers
    }


def defaults_in(system) -> dict[str, float]:
    """Default values of the global parameters of all NonbondedForces of a System. They take
    precedence over those of an FMMForce, since they may have been set after the conversion."""
    return {
        name: value
        for force in nonbonded_forces(system)
        for name, value in global_defaults(force).items()
    }


def default_box(system: openmm.System) -> np.ndarray:
    """The default box vectors of a System, shape (3, 3), nm."""
    return np.array([vector._value for vector in system.getDefaultPeriodicBoxVectors()])


def charges_of_system(system, positions=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_openmm`."""
    if not isinstance(system, openmm.System):
        raise TypeError(f"`system` must be an openmm.System, got {type(system).__name__}")
    first, *others = _sources(system)
    for other in others:
        if other.structure() != first.structure():
            raise UnsupportedError(
                f"the charges of {first.name} and {other.name} do not add up: the forces differ in "
                "particles, exclusions, boundary or neutralization"
            )
    boundary, box_vectors = first.boundary, default_box(system)
    if boundary.is_partial and positions is not None:
        positions = unwrap(check_positions(positions, len(first.charges)), box_vectors, boundary)
        if first.neutralization is not None:
            positions = first.neutralization.place(positions, box_vectors)
    return {
        "charges": sum((other.charges for other in others), first.charges),
        "positions": positions,
        "box_vectors": None if boundary.is_open else box_vectors,
        "exclusions": first.exclusions,
        "exclusions_periodic": first.exclusions_periodic,
        "boundary": boundary.name,
    }


def _sources(system) -> list[Source]:
    """All FMMForces and the NonbondedForces that still have charges, which are zero after
    ``use_fmm``; without an FMMForce the NonbondedForce with the charges."""
    # an FMMForce exists only if its module has been imported; an import here would be circular
    integration = sys.modules.get("fmm_openmm.integration")
    forces, defaults = integration.find_fmm(system) if integration else [], defaults_in(system)
    sources = [Source.from_fmm(force, defaults) for force in forces]
    if not sources:
        return [Source.from_nonbonded(nonbonded_force(system))]
    return sources + [
        Source.from_nonbonded(force)
        for force in nonbonded_forces(system)
        if nonbonded_charges(force).any()
    ]


def charges_of_topology(topology, forcefield, positions=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_topology`."""
    if not isinstance(topology, app.Topology):
        raise TypeError(f"`topology` must be an openmm.app.Topology, got {type(topology).__name__}")
    if isinstance(forcefield, (str, os.PathLike)):
        forcefield = [forcefield]
    if isinstance(forcefield, (list, tuple)):
        forcefield = app.ForceField(*map(os.fspath, forcefield))
    if not hasattr(forcefield, "createSystem"):
        raise TypeError(
            "`forcefield` must be an openmm.app.ForceField or file names, "
            f"got {type(forcefield).__name__}"
        )
    box = topology.getPeriodicBoxVectors()
    no_cell = is_no_cell(None if box is None else box.value_in_unit(unit.nanometer))
    system = forcefield.createSystem(topology, nonbondedMethod=app.NoCutoff if no_cell else app.PME)
    return charges_of_system(system, positions)


def system_of_charges(
    charges, exclusions, exclusions_periodic: bool, box_vectors=None, mass: float = 1.0
) -> tuple[openmm.System, openmm.NonbondedForce]:
    """A System of charges without any other interaction, and its force: with PME in a periodic
    cell, with NoCutoff in free space.

    Args:
        charges: shape (n,), e.
        exclusions: excluded pairs, shape (m, 2).
        exclusions_periodic: whether exclusions apply to nearest images.
        box_vectors: shape (3, 3), nm; None in free space.
        mass: mass of each particle, dalton.
    """
    system, force = openmm.System(), openmm.NonbondedForce()
    for charge in charges:
        system.addParticle(mass)
        force.addParticle(float(charge), 1.0, 0.0)
    for first, second in exclusions.tolist():
        force.addException(first, second, 0.0, 1.0, 0.0)
    force.setExceptionsUsePeriodicBoundaryConditions(exclusions_periodic)
    force.setUseDispersionCorrection(False)
    if box_vectors is not None:
        system.setDefaultPeriodicBoxVectors(*box_vectors)
        force.setNonbondedMethod(force.PME)
    system.addForce(force)
    return system, force


def charges_of_bonds(charges, bonds, positions, box_vectors, others: int = 0) -> dict:
    """Arguments from charges and bonds, for packages without force fields.

    Pairs within three bonds are excluded at their nearest periodic image, since such packages break
    molecules across the box (OpenMM's ``createExceptionsFromBonds`` with both scales 0).

    Args:
        charges: shape (n,), in e.
        bonds: pairs of indices, shape (m, 2); None for none.
        positions: shape (n, 3), in nm.
        box_vectors: shape (3, 3), in nm, lower triangular with a positive diagonal; None for free
            space.
        others: number of particles that are left out but may have bonds, with indices from n on.
    """
    particles = len(charges)
    bonds = check_pairs(bonds, particles + others, "bonds")
    none = np.empty((0, 2), np.int64)
    box = None if box_vectors is None else reduced(box_vectors)
    system, force = system_of_charges([*charges, *[0.0] * others], none, True, box)
    force.createExceptionsFromBonds(bonds.tolist(), 0.0, 0.0)
    found = charges_of_system(system)
    pairs = found["exclusions"]
    return found | {
        "charges": found["charges"][:particles],
        "positions": positions,
        "box_vectors": box_vectors,
        "exclusions": pairs[(pairs < particles).all(1)],
    }
