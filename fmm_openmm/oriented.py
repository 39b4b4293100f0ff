"""``OrientedSolver``: a ``CoulombSolver`` for the cells of other codes, which have any orientation
and handedness and need not be reduced."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fmm_openmm.boundary import SAME_PLACE, Boundary
from fmm_openmm.checks import check_charges, check_numbers, check_positions
from fmm_openmm.convert.orientation import orient_cell, periodic_first
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.neutralization import Cylinders, Neutralization
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
        neutralization: see :class:`OrientedNeutralization`.
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
        neutralization: "ArrayLike | None" = None,
        **options,
    ):
        self._charges, self._exclusions = check_charges(charges), exclusions
        self._periodic = np.array(periodic, bool)
        self._boundary, self._options = BOUNDARIES[self._periodic.sum()], options
        self._neutralization = OrientedNeutralization(neutralization, self._periodic)
        self._option: list | None = None
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
            UnsupportedError: see :meth:`OrientedNeutralization.option`.
        """
        x = check_positions(positions, len(self._charges))
        box, rotation = oriented_box(cell, self._periodic)
        if rotation is not None:
            x = x @ rotation
        option = self._neutralization.option(rotation)
        if self._solver is None or option is not self._option:
            self._option = option
            self._solver = CoulombSolver(
                self._charges,
                box,
                self._exclusions,
                boundary=self._boundary,
                exclusions_periodic=True,
                positions=x,
                neutralization=option,
                **self._options,
            )
        result = self._solver.compute(x, box, virial=virial)
        return result if rotation is None else rotated(result, rotation.T)


class OrientedNeutralization:
    """What neutralises a slab or wire in a cell of any orientation.

    Args:
        option: heights of sheets, shape (k,), nm, along the normal of a slab whose component is
            positive along x, y or z if the first, second or third vector has no images; or points
            on lines, shape (k, 3), nm, or points on the axes of cylinders and their radii, shape
            (k, 4), nm. None for nothing.
        periodic: along which vectors of the cell there are images.

    Raises:
        ValueError, UnsupportedError: see :meth:`Neutralization.from_option`.
    """

    def __init__(self, option: "ArrayLike | None", periodic: Sequence[bool] | np.ndarray):
        boundary = Boundary.from_name(BOUNDARIES[sum(periodic)])
        self._term = Neutralization.from_option(option, boundary)
        self._axis = int(np.argmin(periodic))
        self._last: list | None = None

    def option(self, rotation: np.ndarray | None) -> list | None:
        """The option of the solver, the same object as in the last call unless a wire with lines
        or cylinders has turned.

        Args:
            rotation: as of :func:`oriented_box`.

        Raises:
            UnsupportedError: the normal of a slab has no component along the axis that tells its
                direction.
        """
        term = self._term
        if term is None:
            return None
        axes = np.eye(3) if rotation is None else rotation
        if isinstance(term, Cylinders):
            term = term.turned(axes)
        elif abs(axes[self._axis, 2]) < SAME_PLACE:
            raise UnsupportedError(
                f"`neutralization` needs a slab whose normal is not perpendicular to "
                f"{'xyz'[self._axis]}, the direction in which heights are measured, got the "
                f"normal {axes[:, 2].tolist()}: turn cell and positions"
            )
        if self._last is None or not np.allclose(self._last, term.option, 0.0, SAME_PLACE):
            self._last = term.option
        return self._last


def neutralization_in_nm(option: "ArrayLike | None", length: float) -> np.ndarray | None:
    """The option ``neutralization``, numbers in a unit of length, nm, that other codes have."""
    if option is None:
        return None
    return length * check_numbers(option, "dimensionless", "neutralization")


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
