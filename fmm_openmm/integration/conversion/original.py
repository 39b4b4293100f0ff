"""From PME or NoCutoff to FMM and back: what changes in the NonbondedForce,
and how it is undone exactly."""

from dataclasses import dataclass

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import set_particle_parameters
from fmm_openmm.integration.table import Table

METHODS = ("NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "Ewald", "PME", "LJPME")
"""Names of the methods of a NonbondedForce; a method is its place here."""

PERIODIC = range(2, 6)
"""The methods that are periodic."""

ANY = ""
"""Stands for the signature of any force."""


@dataclass(frozen=True)
class Original:
    """What of a NonbondedForce a conversion changes.

    Attributes:
        method: its nonbonded method.
        charges: shape (n,), e.
        charge_scales: of its particle parameter offsets, shape (k,).
        zeroed: signatures of the forces that :func:`fmm_openmm.integration.guard.zeroed.zeroed`
            finds in the System before the conversion.
        exceptions: how many exceptions the force had.
        place: of the force among the NonbondedForces of the System.
    """

    method: int
    charges: np.ndarray
    charge_scales: np.ndarray
    zeroed: tuple[str, ...] = ()
    exceptions: int = 0
    place: int = 0

    @classmethod
    def of(cls, force: openmm.NonbondedForce, charges: np.ndarray) -> "Original":
        """Read it from a force with these charges, shape (n,), e."""
        scales = [
            force.getParticleParameterOffset(index)[2]
            for index in range(force.getNumParticleParameterOffsets())
        ]
        return cls(force.getNonbondedMethod(), charges, np.array(scales, np.float64))

    def without_coulomb(self) -> "Original":
        """The same with charges 0, and no Ewald sum that would run for nothing."""
        return Original(
            self.method_without_coulomb,
            np.zeros_like(self.charges),
            np.zeros_like(self.charge_scales),
        )

    @property
    def method_without_coulomb(self) -> int:
        """LJPME keeps its method, whose dispersion grid does not depend on charges. PME and Ewald
        become CutoffPeriodic: the same Lennard-Jones interaction, and exceptions are evaluated
        alike."""
        ewald = self.method in (openmm.NonbondedForce.PME, openmm.NonbondedForce.Ewald)
        return openmm.NonbondedForce.CutoffPeriodic if ewald else self.method

    def apply(self, force: openmm.NonbondedForce, parameters: np.ndarray) -> None:
        """Write it to a force; Lennard-Jones parameters and exceptions stay as they are.

        Args:
            parameters: what :func:`particle_parameters` has read from the force, shape (n, 3).
        """
        set_particle_parameters(force, np.column_stack([self.charges, parameters[:, 1:]]))
        for index, scale in enumerate(self.charge_scales.tolist()):
            name, particle, _, sigma, epsilon = force.getParticleParameterOffset(index)
            force.setParticleParameterOffset(index, name, particle, scale, sigma, epsilon)
        force.setNonbondedMethod(self.method)

    def matches(self, force: openmm.NonbondedForce) -> bool:
        """Whether the force has the particles and offsets that this was read from."""
        return (force.getNumParticles(), force.getNumParticleParameterOffsets()) == (
            len(self.charges),
            len(self.charge_scales),
        )

    @staticmethod
    def check_without_charges(force: openmm.NonbondedForce, charges: np.ndarray) -> None:
        """Refuse charges, shape (n,), that came after the conversion: OpenMM would cut them off,
        among zeros.

        Raises:
            ValueError: the force has charges, or offsets of charges.
        """
        found = Original.of(force, charges)
        if found.charges.any() or found.charge_scales.any():
            raise ValueError(
                "the NonbondedForce has charges again, which use_fmm() had moved to the FMMForce: "
                "set them to zero there, and here with setParticleParameters() or setCharges()"
            )

    def pack(self) -> dict:
        """Plain builtin objects."""
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
        """What :meth:`pack` wrote."""
        return cls(
            packed["method"],
            Table.unpack(np.float64, 1, packed["charges"]).rows[:, 0].copy(),
            Table.unpack(np.float64, 1, packed["charge_scales"]).rows[:, 0].copy(),
            # earlier files have the number of these forces, or nothing
            tuple(packed.get("zeroed", [ANY] * packed.get("charged_by_zeros", 0))),
            packed.get("exceptions", 0),
            packed.get("place", 0),
        )
