"""``OrientedSolver``: a ``CoulombSolver`` for the cells of other codes, which have any orientation
and handedness and need not be reduced."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fmm_openmm.checks import check_charges, check_numbers, check_positions
from fmm_openmm.convert.orientation import orient_cell, periodic_first
from fmm_openmm.results import CoulombResult
from fmm_openmm.solver import CoulombSolver

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

BOUNDARIES = ("open", "a", "slab", "periodic")
"""Names of the boundary by the number of periodic vectors, the periodic vectors first."""


class OrientedSolver:
    """Coulomb interaction of n point charges in a cell of any orientation.

    Cell and positions are rotated or reflected into OpenMM's orientation, the cell is replaced by
    the reduced cell of the same lattice, and the results are rotated back. Pairs are excluded at
    their nearest image. One :class:`fmm_openmm.CoulombSolver` serves all evaluations: only a new
    shape of the cell has something computed anew.

    Args:
        charges: shape (n,), e.
        exclusions: excluded pairs, shape (m, 2).
        periodic: along which vectors of the cell there are periodic images.
        options: keyword arguments of :class:`fmm_openmm.CoulombSolver`.

    Raises:
        ValueError, TypeError: an argument is invalid.
        UnsupportedError: a net charge with images along only some vectors of the cell.
    """

    def __init__(
        self,
        charges: "ArrayLike",
        exclusions: "ArrayLike | None" = None,
        periodic: Sequence[bool] = (True, True, True),
        **options,
    ):
        self._charges, self._exclusions = check_charges(charges), exclusions
        self._periodic = np.array(periodic, bool)
        self._boundary, self._options = BOUNDARIES[self._periodic.sum()], options
        self._solver: CoulombSolver | None = None

    @property
    def charges(self) -> np.ndarray:
        """The charges, shape (n,), e; a copy."""
        return self._charges.copy()

    def set_charges(self, charges: "ArrayLike") -> None:
        """Replace the charges, shape (n,), e."""
        charges = check_charges(charges)
        if self._solver is not None:
            self._solver.set_charges(charges)
        self._charges = charges

    def compute(
        self, positions: "ArrayLike", cell: "ArrayLike | None" = None, virial: bool = False
    ) -> CoulombResult:
        """Energy, forces, potentials, fields and, on request, the virial.

        Args:
            positions: shape (n, 3), nm.
            cell: rows a, b, c, shape (3, 3), nm; vectors without images are ignored. None in
                free space.
            virial: compute the virial as well.

        Raises:
            ValueError: wrong shapes, values that are not finite, or a cell that spans no volume.
        """
        x = check_positions(positions, len(self._charges))
        box, rotation = oriented_box(cell, self._periodic)
        if rotation is not None:
            x = x @ rotation
        if self._solver is None:
            self._solver = CoulombSolver(
                self._charges,
                box,
                self._exclusions,
                boundary=self._boundary,
                exclusions_periodic=True,
                positions=x,
                **self._options,
            )
        result = self._solver.compute(x, box, virial=virial)
        return result if rotation is None else rotated(result, rotation.T)


def oriented_box(
    cell: "ArrayLike | None", periodic: Sequence[bool] | np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The reduced box vectors of a cell, None without images, and the rotation into their
    orientation, None if they have it already."""
    periodic = np.array(periodic, bool)
    if not periodic.any():
        return None, None
    rows = check_numbers(cell, "nanometer", "cell")
    if rows.shape != (3, 3):
        raise ValueError(f"`cell` must have shape (3, 3), got {rows.shape}")
    return orient_cell(periodic_first(rows, periodic))


def rotated(result: CoulombResult, rotation: np.ndarray) -> CoulombResult:
    """The result for particles at ``positions @ rotation``."""
    virial = result.virial
    return replace(
        result,
        forces=result.forces @ rotation,
        fields=result.fields @ rotation,
        virial=None if virial is None else rotation.T @ virial @ rotation,
    )
