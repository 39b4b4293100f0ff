"""``CoulombResult``: the result of an evaluation, in kJ/mol and nm."""

import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fmm_openmm.arrays import inner, is_on_device
from fmm_openmm.boundary import Boundary
from fmm_openmm.units import COULOMB_CONSTANT

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_POTENTIAL = 2e8
"""Potential in units of the largest charge per box width that only particles at
the same place have."""


def largest_potential(width: float) -> float:
    """:data:`MAX_POTENTIAL` where boxes of the given width, nm, cover only the particles: those of
    sparse systems are wide."""
    return MAX_POTENTIAL * min(max(1.0, width), 2e3)


class _Extended:
    """Results on request: potentials and fields at points, and the stress."""

    virial: Any
    volume: float | None

    def with_points(
        self,
        at_points: tuple[np.ndarray, np.ndarray],
        charges: np.ndarray,
        width: float,
        max_potential: float = MAX_POTENTIAL,
    ) -> "Self":
        """The result with potentials (..., m) and fields (..., m, 3) at points.

        Args:
            at_points: both, in units of the box width; overwritten.
            width: box width, nm.
            charges: shape (..., n), e.
            max_potential: as in :func:`in_units`.
        """
        potentials, fields = at_points
        largest = float(np.abs(charges).max())
        undefined = in_units(potentials, fields, width, largest, max_potential)
        potentials[undefined] = fields[undefined] = np.nan
        return replace(self, point_potentials=potentials, point_fields=fields)  # type: ignore[type-var]

    @property
    def stress(self) -> np.ndarray:
        """dE/dstrain over the volume, in the shape of the virial, kJ/mol/nm^3.

        Raises:
            ValueError: the virial was not requested, or the cell has no volume.
        """
        if self.virial is None:
            raise ValueError("`stress` needs the virial: call `compute(..., virial=True)`")
        if self.volume is None:
            raise ValueError(
                "`stress` needs a volume, which a cell has only with `boundary='periodic'`: "
                "use `virial`"
            )
        return -self.virial / self.volume


@dataclass(frozen=True, eq=False, repr=False)
class CoulombResult(_Extended):
    """Result of one evaluation; float64 on the host.

    Attributes:
        energy: kJ/mol.
        forces: shape (n, 3), kJ/mol/nm.
        potentials: potential at each particle due to all other particles and, with a periodic
            boundary, to all images and the background; shape (n,), kJ/mol/e. It is the derivative
            of the energy with respect to the particle's charge.
        fields: shape (n, 3), kJ/mol/nm/e, with ``forces = charges * fields``.
        virial: -dE/dstrain, where the strain takes positions and box vectors x to
            ``x @ (1 + strain)``; symmetric, shape (3, 3), kJ/mol. Its trace is the energy. None
            unless requested.
        volume: volume of the cell, nm^3; None unless it is periodic along all directions.
        point_potentials: potentials at the points, shape (m,), kJ/mol/e; None unless requested.
        point_fields: fields at the points, shape (m, 3), kJ/mol/nm/e; None unless requested.

    At an uncharged particle, or a point, that lies on a charge from which it is not excluded,
    potential and field are NaN and the force is zero.
    """

    energy: float
    forces: np.ndarray
    potentials: np.ndarray
    fields: np.ndarray
    virial: np.ndarray | None = None
    volume: float | None = None
    point_potentials: np.ndarray | None = None
    point_fields: np.ndarray | None = None

    @classmethod
    def on_device(cls, charges, potentials, fields) -> "CoulombResult":
        """Make a result of potentials (n,), e/nm, and fields (n, 3), e/nm^2, on the device, in
        place."""
        potentials *= COULOMB_CONSTANT
        fields *= COULOMB_CONSTANT
        energy = (0.5 * charges @ potentials).reshape(1)
        return cls(energy, charges[:, None] * fields, potentials, fields)

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
        largest = float(np.abs(charges).max())
        undefined = in_units(potentials, fields, width, largest, max_potential)
        energy, forces = 0.5 * inner(charges, potentials), charges[:, None] * fields
        if undefined.any():
            potentials[undefined] = fields[undefined] = np.nan
        return cls(energy, forces, potentials, fields)


def split(both: CoulombResult, n: int, virial: np.ndarray | None) -> CoulombResult:
    """The result for n particles from one in which particles without charge at the points follow
    them."""
    return replace(
        both,
        forces=both.forces[:n],
        potentials=both.potentials[:n],
        fields=both.fields[:n],
        virial=virial,
        point_potentials=both.potentials[n:],
        point_fields=both.fields[n:],
    )


def spread(result: CoulombResult, known: np.ndarray) -> CoulombResult:
    """The result with NaN inserted for the points at which it is not ``known``, shape (m,)."""
    potentials, fields = np.full(len(known), np.nan), np.full((len(known), 3), np.nan)
    if known.any():
        potentials[known], fields[known] = result.point_potentials, result.point_fields
    return replace(result, point_potentials=potentials, point_fields=fields)


def in_units(
    potentials: np.ndarray,
    fields: np.ndarray | None,
    width: float,
    largest: float,
    max_potential: float = MAX_POTENTIAL,
) -> np.ndarray:
    """Bring potentials (..., n) and fields (..., n, 3) in units of the box width to kJ/mol and nm,
    in place.

    Args:
        largest: the largest charge, e.
        max_potential: potential of particles at the same place, in units of the largest charge.

    Returns:
        whether each is undefined, shape (..., n); undefined values are set to 0.
    """
    undefined = ~(np.abs(potentials) <= max_potential * largest)
    if fields is not None:
        finite = np.isfinite(fields)  # whose last axis is too short for `all` to be fast
        undefined |= ~(finite[..., 0] & finite[..., 1] & finite[..., 2])
    if undefined.any():
        potentials[undefined] = 0.0
        if fields is not None:
            fields[undefined] = 0.0
    potentials *= COULOMB_CONSTANT / width
    if fields is not None:
        fields *= COULOMB_CONSTANT / width**2
    return undefined


@dataclass(frozen=True, eq=False, repr=False)
class ChargeSetsResult(_Extended):
    """Result of one evaluation of K sets of charges at the same positions; float64 on the host.

    Attributes:
        potentials: potentials of each set at all particles, shape (K, n), kJ/mol/e; None if they
            were not requested.
        matrix: ``G[s, t] = sum_i q_s,i phi_t,i``, shape (K, K), kJ/mol, symmetric. The energy of
            charges ``sum_s c_s q_s`` is ``c @ G @ c / 2``.
        forces: shape (K, n, 3), kJ/mol/nm; None unless fields were requested.
        fields: shape (K, n, 3), kJ/mol/nm/e; None unless fields were requested.
        virial: -dE/dstrain of each set, shape (K, 3, 3), kJ/mol; None unless requested.
        volume: volume of the cell, nm^3; None unless it is periodic along all directions.
        point_potentials: potentials of each set at the points, shape (K, m), kJ/mol/e; None unless
            requested.
        point_fields: shape (K, m, 3), kJ/mol/nm/e; None unless requested.
    """

    potentials: np.ndarray | None
    matrix: np.ndarray
    forces: np.ndarray | None = None
    fields: np.ndarray | None = None
    virial: np.ndarray | None = None
    volume: float | None = None
    point_potentials: np.ndarray | None = None
    point_fields: np.ndarray | None = None

    def with_virials(self, work: np.ndarray, width: float) -> "ChargeSetsResult":
        """The result with the virial of each set.

        Args:
            work: traceless part of each, shape (K, 3, 3), square charges per box width.
        """
        trace = self.energy[:, None, None] * np.eye(3)
        return replace(self, virial=work * (COULOMB_CONSTANT / width) + trace / 3)

    @property
    def energy(self) -> np.ndarray:
        """The energy of each set, shape (K,), kJ/mol."""
        return 0.5 * np.diagonal(self.matrix)

    def __repr__(self) -> str:
        charges = "" if self.potentials is None else f" of {self.potentials.shape[1]} charges"
        return f"ChargeSetsResult({len(self.matrix)} sets{charges})"

    @classmethod
    def from_boxes(
        cls,
        charges: np.ndarray,
        potentials: np.ndarray,
        fields: np.ndarray | None,
        width: float,
        max_potential: float,
    ) -> "ChargeSetsResult":
        """Make a result of potentials (K, n) and fields (K, n, 3) on the host, in units of the box
        width; both arrays are overwritten. NaN marks undefined values."""
        largest = float(np.abs(charges).max())
        undefined = in_units(potentials, fields, width, largest, max_potential)
        matrix = charges @ potentials.T
        forces = None
        if fields is not None:
            forces = charges[:, :, None] * fields
            fields[undefined] = np.nan
        potentials[undefined] = np.nan
        return cls(potentials, 0.5 * (matrix + matrix.T), forces, fields)


@dataclass(frozen=True)
class MeasuredErrors:
    """Errors of the forces of an evaluation.

    Attributes:
        rms: relative RMS force error ``|F - F_exact| / |F_exact|`` over all particles.
        largest: largest error of the force on a particle, relative to the RMS force.
    """

    rms: float
    largest: float

    @classmethod
    def from_forces(cls, forces: np.ndarray, exact: np.ndarray) -> "MeasuredErrors":
        """The errors of forces, given the exact ones, both of shape (n, 3); infinite where only the
        exact ones vanish."""
        errors = np.linalg.norm(forces - exact, axis=1)
        rms, largest = float(np.sqrt(np.mean(errors**2))), float(errors.max())
        scale = float(np.linalg.norm(exact) / np.sqrt(len(exact)))
        if scale == 0.0:
            return cls(*(np.inf if error else 0.0 for error in (rms, largest)))
        return cls(rms / scale, largest / scale)


def name_coincidence(
    particle: int,
    positions: np.ndarray,
    cell: np.ndarray,
    charges: np.ndarray,
    exclusions: np.ndarray,
    minimum_image: bool,
) -> str:
    """Message that names the particle which coincides with a charged one; arguments as for a
    solver."""
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


def like(result: "CoulombResult | ChargeSetsResult", positions):
    """The result with arrays on the device of the positions, if they lie on one."""
    if not is_on_device(positions):
        return result
    xp = sys.modules["cupy"]  # whose array it is
    arrays = {
        field.name: xp.full(1, value) if isinstance(value, float) else xp.asarray(value)
        for field in fields(result)
        if field.name != "volume"
        and (value := getattr(result, field.name)) is not None
        and not is_on_device(value)
    }
    return replace(result, **arrays) if arrays else result
