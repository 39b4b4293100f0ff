"""From PME or NoCutoff to FMM and back: what changes in the NonbondedForce,
and how it is undone exactly."""

from dataclasses import dataclass

import numpy as np
import openmm

from fmm_openmm.convert.nonbonded import set_particle_parameters
from fmm_openmm.integration.table import Table
from fmm_openmm.units import strip_units

CHARGE_NAMES = ("charge", "charges", "q")
"""What tools call the charge among the parameters of a custom force."""


@dataclass(frozen=True)
class Original:
    """What of a NonbondedForce a conversion changes.

    Attributes:
        method: its nonbonded method.
        charges: shape (n,), e.
        charge_scales: of its particle parameter offsets, shape (k,).
        charged_by_zeros: how many forces of the System had a charge of 0 for every particle then,
            as in :func:`charged_by_zeros`.
        exceptions: how many exceptions the force had.
    """

    method: int
    charges: np.ndarray
    charge_scales: np.ndarray
    charged_by_zeros: int = 0
    exceptions: int = 0

    @classmethod
    def of(cls, force: openmm.NonbondedForce, charges: np.ndarray) -> "Original":
        """Read it from a force with these charges, shape (n,), e."""
        scales = [
            force.getParticleParameterOffset(index)[2]
            for index in range(force.getNumParticleParameterOffsets())
        ]
        return cls(force.getNonbondedMethod(), charges, np.array(scales, np.float64))

    def without_coulomb(self) -> "Original":
        """The same with charges 0, and no Ewald sum that would run for nothing.

        LJPME keeps its method, whose dispersion grid does not depend on charges. PME and Ewald
        become CutoffPeriodic: the same Lennard-Jones interaction, and exceptions are evaluated
        alike.
        """
        ewald = self.method in (openmm.NonbondedForce.PME, openmm.NonbondedForce.Ewald)
        method = openmm.NonbondedForce.CutoffPeriodic if ewald else self.method
        return Original(method, np.zeros_like(self.charges), np.zeros_like(self.charge_scales))

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
            "charged_by_zeros": self.charged_by_zeros,
            "exceptions": self.exceptions,
        }

    @classmethod
    def unpack(cls, packed: dict) -> "Original":
        """What :meth:`pack` wrote."""
        return cls(
            packed["method"],
            Table.unpack(np.float64, 1, packed["charges"]).rows[:, 0].copy(),
            Table.unpack(np.float64, 1, packed["charge_scales"]).rows[:, 0].copy(),
            packed.get("charged_by_zeros", 0),  # which version 0.1 did not write
            packed.get("exceptions", 0),
        )


def charged_by_zeros(forces: list[openmm.Force]) -> list[openmm.Force]:
    """The custom pair forces and implicit solvents among ``forces`` that have a charge for each
    particle, and 0 for all.

    A tool that makes such a force of the charges of a converted NonbondedForce finds zeros there.
    """
    return [force for force in forces if _is_charged_by_zeros(force)]


def _is_charged_by_zeros(force: openmm.Force) -> bool:
    if isinstance(force, openmm.GBSAOBCForce):
        place = 0
    elif isinstance(force, openmm.CustomNonbondedForce | openmm.CustomGBForce):
        names = [
            force.getPerParticleParameterName(index).lower()
            for index in range(force.getNumPerParticleParameters())
        ]
        place = next((index for index, name in enumerate(names) if name in CHARGE_NAMES), None)
    else:
        return False
    particles = range(force.getNumParticles())
    if place is None or not particles:
        return False
    return not any(strip_units(force.getParticleParameters(index)[place]) for index in particles)
