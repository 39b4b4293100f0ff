"""The changes that a conversion makes to a NonbondedForce, and their exact reversal."""

from dataclasses import dataclass

import numpy as np
import openmm

from fmm_openmm.checks import check_integer
from fmm_openmm.convert.nonbonded import set_particle_parameters
from fmm_openmm.integration.definition import LAST, naming_damage
from fmm_openmm.integration.table import Table

METHODS = ("NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "Ewald", "PME", "LJPME")
"""Names of the methods of a NonbondedForce, indexed by method."""

REACTION_FIELD = range(1, 3)
"""Methods with a reaction field."""

PERIODIC = range(2, 6)
"""Periodic methods."""

ANY = ""
"""Wildcard for the signature of a force."""


@dataclass(frozen=True)
class Original:
    """The properties of a NonbondedForce that a conversion changes.

    Attributes:
        method: nonbonded method.
        charges: shape (n,), e.
        charge_scales: charge scales of the particle parameter offsets, shape (k,).
        zeroed: signatures of the forces that :func:`fmm_openmm.integration.guard.zeroed.zeroed`
            finds in the System before the conversion.
        exceptions: number of exceptions of the force.
        place: index of the force among the NonbondedForces of the System.
    """

    method: int
    charges: np.ndarray
    charge_scales: np.ndarray
    zeroed: tuple[str, ...] = ()
    exceptions: int = 0
    place: int = 0

    @classmethod
    def from_force(cls, force: openmm.NonbondedForce, charges: np.ndarray) -> "Original":
        """The properties of a force with the given charges, shape (n,), e."""
        scales = [
            force.getParticleParameterOffset(index)[2]
            for index in range(force.getNumParticleParameterOffsets())
        ]
        return cls(force.getNonbondedMethod(), charges, np.array(scales, np.float64))

    def without_coulomb(self) -> "Original":
        """The same with zero charges, and without an Ewald sum, which would be superfluous."""
        return Original(
            self.method_without_coulomb,
            np.zeros_like(self.charges),
            np.zeros_like(self.charge_scales),
        )

    @property
    def method_without_coulomb(self) -> int:
        """The method after a conversion. LJPME is kept for its dispersion sum. PME and Ewald become
        CutoffPeriodic, with the same Lennard-Jones interaction and the same exceptions."""
        ewald = self.method in (openmm.NonbondedForce.PME, openmm.NonbondedForce.Ewald)
        return openmm.NonbondedForce.CutoffPeriodic if ewald else self.method

    def apply(self, force: openmm.NonbondedForce, parameters: np.ndarray) -> None:
        """Apply the properties to a force; Lennard-Jones parameters and exceptions are kept.

        Args:
            parameters: :func:`particle_parameters` of the force, shape (n, 3).
        """
        set_particle_parameters(force, np.column_stack([self.charges, parameters[:, 1:]]))
        for index, scale in enumerate(self.charge_scales.tolist()):
            name, particle, _, sigma, epsilon = force.getParticleParameterOffset(index)
            force.setParticleParameterOffset(index, name, particle, scale, sigma, epsilon)
        force.setNonbondedMethod(self.method)

    def matches(self, force: openmm.NonbondedForce) -> bool:
        """Whether the force has the particles and the offsets of the original. Offsets of
        Lennard-Jones parameters may follow."""
        offsets = force.getNumParticleParameterOffsets()
        return force.getNumParticles() == len(self.charges) and offsets >= len(self.charge_scales)

    def charge_offsets(self, force: openmm.NonbondedForce) -> list[list]:
        """Parameter name, particle and charge scale of the offsets that have a charge scale."""
        found = []
        for index, scale in enumerate(self.charge_scales.tolist()):
            if scale != 0:
                name, particle, *_ = force.getParticleParameterOffset(index)
                found.append([name, particle, scale])
        return found

    @staticmethod
    def check_without_charges(force: openmm.NonbondedForce, charges: np.ndarray) -> None:
        """Refuse charges, shape (n,), that were set after the conversion.

        Raises:
            ValueError: the force has charges, or offsets of charges.
        """
        found = Original.from_force(force, charges)
        if found.charges.any() or found.charge_scales.any():
            raise ValueError(
                "the NonbondedForce has charges again, which use_fmm() had moved to the FMMForce: "
                "set them to zero there, and here with setParticleParameters() or setCharges()"
            )

    def pack(self) -> dict:
        """The properties as built-in objects."""
        return {
            "method": self.method,
            "charges": Table(np.float64, 1, self.charges).pack(),
            "charge_scales": Table(np.float64, 1, self.charge_scales).pack(),
            "zeroed": list(self.zeroed),
            "exceptions": self.exceptions,
            "place": self.place,
        }

    @classmethod
    def unpack(cls, packed: dict) -> "Original":
        """The inverse of :meth:`pack`.

        Raises:
            ValueError: the properties are damaged.
        """
        with naming_damage():
            return cls(
                check_integer(packed["method"], "method", 0, len(METHODS) - 1),
                Table.unpack(np.float64, 1, packed["charges"]).rows[:, 0].copy(),
                Table.unpack(np.float64, 1, packed["charge_scales"]).rows[:, 0].copy(),
                # earlier formats store the number of these forces, or nothing
                tuple(packed.get("zeroed", [ANY] * packed.get("charged_by_zeros", 0))),
                check_integer(packed.get("exceptions", 0), "exceptions", 0, LAST),
                check_integer(packed.get("place", 0), "place", 0, LAST),
            )
