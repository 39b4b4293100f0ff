"""The coordinates that cells are computed in: those of the user, but for slabs and wires, of which
the vectors of the images come first."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fmm_openmm.boundary import EMPTY_SPACE


@dataclass(frozen=True, eq=False)
class Frame:
    """A cell in Cartesian coordinates in which its periodic vectors are its first, in reduced form:
    a along x, and b, if there are two, in the x-y plane. z is then the normal of a slab, and x the
    axis of a wire.

    Attributes:
        axes: unit vectors along x, y and z in the coordinates of the user, in columns, shape
            (3, 3).
        cell: cell vectors, infinite along the other axes, shape (3, 3), nm.
        given: the cell in the coordinates of the user.
    """

    axes: np.ndarray
    cell: np.ndarray
    given: np.ndarray

    @classmethod
    def from_cell(cls, cell: np.ndarray) -> "Frame":
        """The frame of a cell, infinite along axes without images, shape (3, 3), nm."""
        periodic = np.flatnonzero(np.isfinite(cell).all(1))
        if len(periodic) in (0, 3):
            return cls(np.eye(3), cell, cell)
        first, *others = cell[periodic]
        x = first / np.linalg.norm(first)
        # without a second vector any direction will do: an axis, if the vector lies along one
        towards = others[0] if others else np.eye(3)[(periodic[0] + 1) % 3]
        y = towards - (towards @ x) * x
        y /= np.linalg.norm(y)
        axes = np.stack([x, y, np.cross(x, y)], 1)
        found = EMPTY_SPACE.copy()
        found[0] = [np.linalg.norm(first), 0.0, 0.0]
        if others:
            along, across = others[0] @ x, others[0] @ y
            found[1] = [along - np.rint(along / found[0, 0]) * found[0, 0], across, 0.0]
        return cls(axes, found, cell)

    @cached_property
    def is_users(self) -> bool:
        """Whether the coordinates are those of the user."""
        return np.array_equal(self.axes, np.eye(3))
