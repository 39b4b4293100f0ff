"""The boundary: along which axes of the cell the particles have periodic images.

Only this module knows boundaries by name. Everything else asks a :class:`Boundary`, axis by axis
where it can, and finds what serves one boundary only (lattice operators, reference sums) in
registries by :attr:`Boundary.periodic`.

Inside the package a cell is an array of vectors, rows a, b, c in reduced form, shape (3, 3), nm,
infinite along axes without images: :data:`EMPTY_SPACE` where no axis has any.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import scipy

from fmm_openmm.checks import check_choice
from fmm_openmm.errors import UnsupportedError

PERIODIC, OPEN = (True, True, True), (False, False, False)

NAMES = {
    "periodic": PERIODIC,
    "slab": (True, True, False),
    "wire": (False, False, True),
    "ab": (True, True, False),
    "bc": (False, True, True),
    "ac": (True, False, True),
    "a": (True, False, False),
    "b": (False, True, False),
    "c": (False, False, True),
    "open": OPEN,
}
"""Names that a user may give, the default first. Of several names for the same axes messages use
the first."""

EMPTY_SPACE = np.diag(np.full(3, np.inf))
"""The cell of particles that have no images."""


NEUTRAL = 1e-3
"""Largest net charge that counts as rounding, e; relative to the sum of all
magnitudes where that is less than 1 e."""

SAME_PLACE = 1e-7
"""Distance below which places are the same, in cell vectors, or in nm along axes without images."""


@dataclass(frozen=True)
class Boundary:
    """The axes along which there are periodic images.

    Attributes:
        periodic: whether there are images along a, b and c.
    """

    periodic: tuple[bool, bool, bool] = PERIODIC

    @classmethod
    def from_name(cls, name: str) -> "Boundary":
        """The boundary that a user names.

        Raises:
            ValueError: no boundary has this name.
        """
        return cls(NAMES[check_choice(name, tuple(NAMES), "boundary")])

    @classmethod
    def from_cell(cls, cell: np.ndarray) -> "Boundary":
        """The boundary of a cell: periodic along its finite vectors."""
        a, b, c = map(isfinite, cell.diagonal().tolist())
        return cls((a, b, c))

    @property
    def name(self) -> str:
        """Name of the boundary in messages."""
        return next(name for name, periodic in NAMES.items() if periodic == self.periodic)

    @property
    def is_open(self) -> bool:
        """Whether there are no images at all, and so no box vectors."""
        return not any(self.periodic)

    @property
    def fills_space(self) -> bool:
        """Whether cell and images fill space, so that boxes can cover the whole cell."""
        return all(self.periodic)

    @property
    def is_partial(self) -> bool:
        """Whether there are images along some axes and none along others."""
        return not self.is_open and not self.fills_space

    @property
    def free(self) -> tuple[bool, bool, bool]:
        """The axes without images, along which boxes must follow the particles."""
        a, b, c = self.periodic
        return not a, not b, not c

    def cell(self, box_vectors: np.ndarray | None) -> np.ndarray:
        """The cell that box vectors, shape (3, 3), nm, make with this boundary; an open boundary
        needs none."""
        if self.is_open or box_vectors is None:
            return EMPTY_SPACE
        return np.where(np.array(self.periodic)[:, None], box_vectors, EMPTY_SPACE)

    def vectors(self, cell: np.ndarray) -> np.ndarray:
        """The vectors of a cell, and unit vectors along axes without images, shape (3, 3), nm."""
        return np.where(np.array(self.periodic)[:, None], cell, np.eye(3))

    def wrap(self, positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Coordinates along :meth:`vectors`, those along periodic axes in [0, 1) as
        :meth:`tree` takes them; shape (n, 3)."""
        points = positions @ np.linalg.inv(self.vectors(cell))
        for axis in np.flatnonzero(self.periodic):
            points[:, axis] = np.mod(points[:, axis], 1.0)
            points[points[:, axis] >= 1.0, axis] = 0.0  # what np.mod makes of -1e-17
        return points

    def images(self, differences: np.ndarray) -> np.ndarray:
        """The integer multiples of the cell vectors, shape (n, 3), to subtract from differences of
        coordinates along :meth:`vectors`, shape (n, 3), to obtain their minimum images."""
        return np.rint(differences) * self.periodic

    def tree(self, points: np.ndarray) -> "scipy.spatial.cKDTree":
        """Neighbours among coordinates, shape (n, 3), that :meth:`wrap` has made."""
        boxsize = None if self.is_open else np.array(self.periodic, float)
        return scipy.spatial.cKDTree(points, boxsize=boxsize)

    def coincide(self, points: np.ndarray, positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Whether each point, shape (m, 3), nm, is closer than :data:`SAME_PLACE` to a position,
        shape (n, 3), or an image of it, along every vector of the cell; shape (m,)."""
        tree = self.tree(self.wrap(positions, cell))
        found, _ = tree.query(self.wrap(points, cell), p=np.inf, distance_upper_bound=SAME_PLACE)
        return np.isfinite(found)

    def background(self, cell: np.ndarray) -> float:
        """Density of the uniform background that neutralises a unit charge, over the volume of
        the cell; 0 unless cell and images fill space."""
        return 1.0 / float(np.prod(np.diag(cell))) if self.fills_space else 0.0


def net_charge(charges: np.ndarray) -> float:
    """The net charge of charges, shape (n,), e; 0 where it counts as rounding, see
    :data:`NEUTRAL`."""
    total = float(charges.sum())
    return total if abs(total) > NEUTRAL * min(1.0, float(abs(charges).sum())) else 0.0


def check_neutral(charges: np.ndarray, boundary: Boundary, term: Any = None) -> None:
    """Refuse charges, shape (n,), e, whose net charge the boundary does not allow.

    In a slab or wire there is no background, so that the potential of a net charge and its images
    diverges. A dipole term or a neutralization, if given as ``term``, decides instead.

    Raises:
        UnsupportedError: the net charge is not zero.
    """
    if term is not None:
        return term.check_charges(charges)
    if not boundary.is_partial:
        return
    total = net_charge(charges)
    if total:
        others = {
            "slab": ", or give sheets (`neutralization`)",
            **dict.fromkeys(("a", "b", "wire"), ", or give a line or cylinder (`neutralization`)"),
        }
        raise UnsupportedError(
            f"`charges` must be neutral in total with `boundary={boundary.name!r}`, "
            f"got a net charge of {total:.6g} e: add counterions{others.get(boundary.name, '')}"
        )
