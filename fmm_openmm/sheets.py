r"""Uniform sheets that neutralise a slab.

A net charge Q of a slab has potentials that grow with the distance. k sheets parallel to the slab,
at heights :math:`z_s` along its normal, carry the charge -Q / k each. A sheet of unit charge has
the finite part of a slab's potential at any distance, :math:`-2 \pi k_e |z| / A` with the area A of
the cell. Each charge therefore comes with its opposite on the sheets, and pairs of charges add

.. math::
    w(z_i, z_j) = u(z_i) + u(z_j) + e, \qquad
    u(z) = \frac{2 \pi k_e}{A k} \sum_s |z - z_s|, \qquad
    e = -\frac{2 \pi k_e}{A k^2} \sum_{s,t} |z_s - z_t|

to their potential. The energy is that of the charges and the sheets, without what one sheet adds
to itself, which is independent of all distances along the normal. Its derivative with respect to a
charge is the potential, the sheets' charge following.

The potential of a sheet: J. D. Jackson, Classical Electrodynamics, 3rd ed. (1999), section 1.6.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.checks import check_numbers
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.placed_term import PlacedTerm
from fmm_openmm.units import COULOMB_CONSTANT

NORMAL = 2
"""The normal of a and b in reduced box vectors is the axis z."""

FARTHEST = 0.45
"""Largest distance of the middle of a slab from that of its sheets along box vector c, over c: in
OpenMM and in trajectories, which know a slab up to its images along c."""


@dataclass(frozen=True, eq=False)
class Sheets:
    """Sheets of a slab.

    Attributes:
        heights: along the normal, shape (k,), nm.
    """

    heights: np.ndarray

    @classmethod
    def from_option(cls, heights: Any, boundary: Boundary) -> "Sheets | None":
        """The sheets that a user asks for; None for None.

        Raises:
            ValueError: not a sequence of heights.
            UnsupportedError: the boundary is not that of a slab along a and b.
        """
        if heights is None:
            return None
        if boundary != Boundary.from_name("slab"):
            raise UnsupportedError(
                f"`neutralization` needs `boundary='slab'`, got {boundary.name!r}: sheets are "
                "parallel to a and b"
            )
        checked = check_numbers(heights, "nanometer", "neutralization")
        if checked.ndim != 1 or not len(checked) or not np.isfinite(checked).all():
            raise ValueError(
                "`neutralization` must be the heights of one or more sheets, shape (k,), nm, "
                f"got {heights!r}"
            )
        return cls(checked)

    def __str__(self) -> str:
        """The option as it is written."""
        return f"neutralization={self.heights.tolist()}"

    def place(self, positions: np.ndarray, box_vectors: np.ndarray) -> np.ndarray:
        """Positions of a slab that lies together, shape (n, 3), nm, moved by box vector c to the
        image nearest to the sheets.

        Raises:
            ValueError: two images are about as near.
        """
        height = box_vectors[NORMAL, NORMAL]
        away = (positions[:, NORMAL].mean() - self.heights.mean()) / height
        periods = np.rint(away)
        if abs(away - periods) > FARTHEST:
            raise ValueError(
                f"`{self}`: the slab is {abs(away - periods) * height:.3g} nm from the middle of "
                f"its sheets, about half of the height of box vector c, {height:.3g} nm, so that "
                "it may lie on either side of them: lengthen the vector or move the sheets"
            )
        return positions - periods * box_vectors[NORMAL]

    def check_charges(self, charges: Any) -> None:
        """Nothing: any net charge is neutralised."""

    def check_span(self, positions: Any, charges: Any, cell: np.ndarray) -> None:
        """Nothing: particles may be anywhere, beyond the sheets, too."""

    def at(self, positions: Any, cell: np.ndarray) -> "PlacedSheets":
        """The sheets for particles at positions, shape (n, 3), nm, on the host or a device, in the
        reduced cell of a slab, shape (3, 3), nm."""
        return PlacedSheets(self, positions, cell)


class PlacedSheets(PlacedTerm):
    """The potential of :class:`Sheets` for particles at fixed positions.

    Args:
        sheets: the sheets.
        positions: shape (n, 3), nm.
        cell: reduced, shape (3, 3), nm; infinite along c.
    """

    def __init__(self, sheets: Sheets, positions: Any, cell: np.ndarray):
        heights = sheets.heights
        super().__init__(positions, np.array([0.0, 0.0, heights.mean()]))
        self._heights = (heights - heights.mean()).tolist()
        area = float(cell[0, 0] * cell[1, 1])
        self._strength = 2.0 * np.pi * COULOMB_CONSTANT / (area * len(heights))
        distances = np.abs(heights[:, None] - heights)
        self._constant = -self._strength * float(distances.sum()) / len(heights)

    def _distances(self, x: Any) -> Any:
        """The sum of distances from the sheets, shape (m,)."""
        return sum(abs(x[:, NORMAL] - height) for height in self._heights)

    def _moments(self, total: Any) -> Any:
        """Charge and energy with unit sheets, both (K,)."""
        ones = self._xp.ones(len(self._x))
        return total(ones), self._strength * total(self._distances(self._x))

    def _evaluated(self, moments: Any, x: Any, fields: bool = True) -> tuple[Any, Any]:
        charge, with_sheets = moments
        potentials = charge[:, None] * (self._strength * self._distances(x) + self._constant)
        potentials += with_sheets[:, None]
        if not fields:
            return potentials, None
        field = self._xp.zeros((*potentials.shape, 3))
        signs = sum(self._xp.sign(x[:, NORMAL] - height) for height in self._heights)
        field[:, :, NORMAL] = -self._strength * charge[:, None] * signs
        return potentials, field

    def _matrix(self, moments: Any) -> Any:
        charge, with_sheets = moments
        crossed = charge[:, None] * with_sheets
        return crossed + crossed.T + self._constant * charge[:, None] * charge

    def _virial(self, charges: Any, moments: Any) -> Any:
        """The virial, with heights scaled along the normal and areas in the plane, the sheets
        moving with the particles."""
        energy = 0.5 * self._matrix(moments)[0, 0]
        return energy * self._xp.asarray(np.diag([1.0, 1.0, -1.0]))
