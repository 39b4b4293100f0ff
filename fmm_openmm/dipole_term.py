r"""What a dipole moment adds to the energy of a periodic cell: the boundary term of an infinite
crystal in a dielectric, and the correction that makes a stack of slabs one slab.

Both are sums over all pairs, excluded ones, images and a particle with itself included,

.. math::
    U = \frac{1}{2} \sum_{i,j} q_i q_j w(x_i - x_j), \qquad
    w(r) = -\sum_a c_a r_a^2 - d

so that the charge Q, the dipole moment M and the second moments :math:`T = \sum_i q_i x_i x_i^T`
of a set of charges give potentials, fields, energy and virial:

.. math::
    \phi(x) = -Q \sum_a c_a x_a^2 + \sum_a c_a (2 x_a M_a - T_{aa}) - Q d, \qquad
    U = \sum_a c_a (M_a^2 - Q T_{aa}) - \frac{d}{2} Q^2

With the volume V of the cell, the dielectric constant :math:`\epsilon'` of the surroundings and the
height L of the cell along the normal z of a and b,

.. math::
    c_a = \frac{2 \pi k_e}{(2 \epsilon' + 1) V}, \quad d = 0
    \qquad \text{or} \qquad
    c_z = \frac{2 \pi k_e}{V}, \quad c_x = c_y = 0, \quad d = \frac{2 \pi k_e}{V} \frac{L^2}{6} .

S. W. de Leeuw, J. W. Perram and E. R. Smith, Proc. R. Soc. A 373, 27 (1980),
doi:10.1098/rspa.1980.0135; I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155 (1999),
doi:10.1063/1.479595; with a net charge V. Ballenegger, A. Arnold and J. J. Cerda, J. Chem. Phys.
131, 094107 (2009), doi:10.1063/1.3216473.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fmm_openmm.boundary import Boundary, net_charge
from fmm_openmm.checks import check_flag, check_number
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.placed_term import NORMAL, PlacedTerm
from fmm_openmm.units import COULOMB_CONSTANT

TIN_FOIL = float("inf")
"""Dielectric constant of a conductor."""


@dataclass
class DipoleTerm:
    """The term of a periodic cell.

    Attributes:
        slab_correction: correct a stack of slabs.
        surface_dielectric: dielectric constant of the surroundings, 1 or more.
        has_warned: whether a warning has said that charges span more than the height of the cell.
    """

    slab_correction: bool = False
    surface_dielectric: float = TIN_FOIL
    has_warned: bool = False

    @classmethod
    def from_options(
        cls, slab_correction: bool, surface_dielectric: float, boundary: Boundary
    ) -> "DipoleTerm | None":
        """The term that a user asks for; None if it is zero.

        Raises:
            TypeError, ValueError: an option is invalid, both are given, or the boundary is not
                periodic along all axes.
        """
        check_flag(slab_correction, "slab_correction")
        dielectric = check_number(surface_dielectric, "surface_dielectric", 1.0, TIN_FOIL)
        if slab_correction and dielectric != TIN_FOIL:
            raise ValueError(
                "`slab_correction` and `surface_dielectric` exclude each other: the correction "
                f"leaves vacuum around the slab, got {dielectric:g}"
            )
        if not slab_correction and dielectric == TIN_FOIL:
            return None
        if not boundary.fills_space:
            name = "slab_correction" if slab_correction else "surface_dielectric"
            raise ValueError(
                f"`{name}` needs `boundary='periodic'`, got {boundary.name!r}, where no dipole "
                "moment is to be corrected"
            )
        return cls(bool(slab_correction), dielectric)

    def __str__(self) -> str:
        """The option as it is written in Python."""
        if self.slab_correction:
            return "slab_correction=True"
        return f"surface_dielectric={self.surface_dielectric:g}"

    @property
    def unknown_images(self) -> str:
        """The error of positions that may be wrapped."""
        return (
            f"`{self}` needs a Context that Python has made of the System with the force, not one "
            "inside another force, whose positions may be wrapped"
        )

    @property
    def strengths(self) -> dict[int, float]:
        """:math:`c_a V / (2 \\pi k_e)` of the axes where it is not 0."""
        if self.slab_correction:
            return {NORMAL: 1.0}
        return dict.fromkeys(range(3), 1.0 / (2.0 * self.surface_dielectric + 1.0))

    @property
    def constant(self) -> float:
        """:math:`d V / (2 \\pi k_e L^2)`."""
        return 1.0 / 6.0 if self.slab_correction else 0.0

    def check_charges(self, charges: Any) -> None:
        """Refuse a net charge of charges, shape (n,), e, in a dielectric.

        Raises:
            UnsupportedError: the net charge is not zero.
        """
        total = 0.0 if self.slab_correction else net_charge(charges)
        if total:
            raise UnsupportedError(
                f"`charges` must be neutral in total with `{self}`, as the dipole moment depends "
                f"on the origin, got a net charge of {total:.6g} e: add counterions"
            )

    def at(self, positions: Any, cell: np.ndarray) -> "PlacedDipoleTerm":
        """The term of particles at positions as given, shape (n, 3), nm, on the host or a device,
        in a reduced cell, shape (3, 3), nm."""
        return PlacedDipoleTerm(self, positions, cell)

    def check_span(self, positions: np.ndarray, charges: np.ndarray, cell: np.ndarray) -> None:
        """Warn once if charged particles span more than the height of the cell.

        Warns:
            UserWarning: they do.
        """
        z, height = positions[charges != 0.0, NORMAL], cell[NORMAL, NORMAL]
        span = float(np.ptp(z)) if len(z) else 0.0
        if self.slab_correction and span > height and not self.has_warned:
            self.has_warned = True
            warn(
                f"`positions`: charges span {span:.4g} nm along the normal of the slab, more than "
                f"the height of the cell, {height:.4g} nm: `slab_correction` needs coordinates of "
                "one image of the slab"
            )


class PlacedDipoleTerm(PlacedTerm):
    """A :class:`DipoleTerm` of particles at fixed positions.

    Args:
        term: the term.
        positions: shape (n, 3), nm, not wrapped.
        cell: reduced, shape (3, 3), nm.
    """

    def __init__(self, term: DipoleTerm, positions: Any, cell: np.ndarray):
        super().__init__(positions)
        self._is_slab = term.slab_correction
        strength = 2.0 * np.pi * COULOMB_CONSTANT / float(np.prod(np.diag(cell)))
        self._strengths = {axis: strength * factor for axis, factor in term.strengths.items()}
        self._constant = term.constant * strength * cell[NORMAL, NORMAL] ** 2

    def _moments(self, total: Any) -> Any:
        """Charge (K,), dipole moment (K, 3) and the weighted second moment
        :math:`\\sum_a c_a T_{aa}` (K,)."""
        x = self._x
        dipole = self._xp.stack([total(x[:, axis]) for axis in range(3)], 1)
        second = total(sum(c * x[:, axis] ** 2 for axis, c in self._strengths.items()))
        return total(self._xp.ones(len(x))), dipole, second

    def _evaluated(self, moments: Any, x: Any, fields: bool = True) -> tuple[Any, Any]:
        charge, dipole, second = moments
        potentials = self._xp.zeros((len(charge), len(x)))
        potentials -= (charge * self._constant + second)[:, None]
        field = self._xp.zeros((len(charge), len(x), 3)) if fields else None
        for axis, c in self._strengths.items():
            along, moment = x[:, axis], dipole[:, axis, None]
            potentials += c * along * (2.0 * moment - charge[:, None] * along)
            if field is not None:
                field[:, :, axis] = 2.0 * c * (charge[:, None] * along - moment)
        return potentials, field

    def _matrix(self, moments: Any) -> Any:
        charge, dipole, second = moments
        matrix = -(charge[:, None] * second + second[:, None] * charge)
        matrix -= self._constant * charge[:, None] * charge
        for axis, c in self._strengths.items():
            matrix += 2.0 * c * dipole[:, None, axis] * dipole[:, axis]
        return matrix

    def _virial(self, charges: Any, moments: Any) -> Any:
        """-dE/dstrain of a set of charges, shape (n,); shape (3, 3). With the volume V and lengths
        along the normal, the energy of a slab scales as their square over V."""
        charge, dipole, _ = moments
        xp, x = self._xp, self._x
        energy = 0.5 * self._matrix(moments)[0, 0]
        if self._is_slab:
            return energy * xp.asarray(np.diag([1.0, 1.0, -1.0]))
        products = [[(charges * x[:, a] * x[:, b]).sum() for a in range(3)] for b in range(3)]
        second = self._over_ranks(xp.stack([xp.stack(row) for row in products]))
        stretched = dipole[0, :, None] * dipole[0] - charge[0] * second
        return energy * xp.eye(3) - 2.0 * self._strengths[0] * stretched


def add_dipole_term(
    result: Any,
    positions: np.ndarray,
    charges: np.ndarray,
    cell: np.ndarray,
    slab_correction: bool = False,
    surface_dielectric: float = TIN_FOIL,
) -> Any:
    """A result of charges, shape (n,), e, at positions, shape (n, 3), nm, in a periodic cell, shape
    (3, 3), nm, on the host, with the term.

    Raises:
        TypeError, ValueError, UnsupportedError: as in :class:`DipoleTerm`.
    """
    term = DipoleTerm.from_options(slab_correction, surface_dielectric, Boundary())
    if term is None:
        return result
    term.check_charges(charges)
    term.check_span(positions, charges, cell)
    return term.at(positions, cell).add(result, charges)
