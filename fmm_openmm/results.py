"""``CoulombResult``: what an evaluation gives, in kJ/mol and nm."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.units import COULOMB_CONSTANT

MAX_POTENTIAL = 2e8
"""Potential in units of the largest charge per box width that only particles at
the same place have."""


@dataclass(frozen=True, eq=False, repr=False)
class CoulombResult:
    """Result of one evaluation, float64.

    Attributes:
        energy: kJ/mol.
        forces: shape (n, 3), kJ/mol/nm.
        potentials: at each particle, of all others and, with a periodic boundary, of every image
            and of the background; shape (n,), kJ/mol/e. The derivative of the energy with respect
            to the particle's charge.
        fields: shape (n, 3), kJ/mol/nm/e, with ``forces = charges * fields``.

    At an uncharged particle that lies on a charge from which it is not excluded, potential and
    field are NaN and the force is zero.
    """

    energy: float
    forces: np.ndarray
    potentials: np.ndarray
    fields: np.ndarray

    def __repr__(self) -> str:
        if not isinstance(self.energy, float):  # on the device, which is not waited for
            return f"CoulombResult({len(self.forces)} particles, on the GPU)"
        rms = np.sqrt((self.forces**2).sum(1).mean())
        return (
            f"CoulombResult({len(self.forces)} particles, energy {self.energy:.6f} kJ/mol, "
            f"RMS force {rms:.4g} kJ/mol/nm)"
        )

    @classmethod
    def from_boxes(
        cls,
        charges: np.ndarray,
        potentials,
        fields,
        width: float,
        max_potential: float = MAX_POTENTIAL,
    ) -> "CoulombResult":
        """Make a result of potentials (n,) and fields (n, 3) on the host, in units of the box
        width; both arrays are overwritten.

        Args:
            max_potential: potential of particles at the same place, in units of the largest charge.
        """
        undefined = ~(
            (np.abs(potentials) <= max_potential * np.abs(charges).max())
            & np.isfinite(fields).all(1)
        )
        potentials[undefined] = fields[undefined] = 0.0
        potentials *= COULOMB_CONSTANT / width
        fields *= COULOMB_CONSTANT / width**2
        energy, forces = 0.5 * float(charges @ potentials), charges[:, None] * fields
        potentials[undefined] = fields[undefined] = np.nan
        return cls(energy, forces, potentials, fields)


def name_coincidence(
    particle: int,
    positions: np.ndarray,
    cell: np.ndarray | None,
    charges: np.ndarray,
    exclusions: np.ndarray,
    minimum_image: bool,
) -> str:
    """Which particle lies where a charged one does; arguments as of a solver."""
    delta = positions - positions[particle]
    boundary = Boundary.from_cell(cell)
    vectors = boundary.vectors(cell)
    images = boundary.images(delta @ np.linalg.inv(vectors))
    delta -= images @ vectors
    # among equals, charged ones first
    distance = np.linalg.norm(delta, axis=1) + 1e-6 * (charges == 0.0)
    partners = exclusions[(exclusions == particle).any(1)]
    if not minimum_image:
        # of others another image is excluded
        partners = partners[~images[partners].any((1, 2))]
    distance[partners] = distance[particle] = np.inf
    return (
        f"`positions`: particles {particle} and {int(distance.argmin())} "
        "coincide and are not excluded"
    )
