"""The coordinates in which slabs and wires are computed: the vectors of their images come first."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.boundary import EMPTY_SPACE


@dataclass(frozen=True, eq=False)
class Frame:
    """Cartesian coordinates in which the periodic vectors of a cell are its first, in reduced form:
    a along x, and b, if there are two, in the x-y plane. z is then the normal of a slab, and x the
    axis of a wire.

    Attributes:
        axes: unit vectors along x, y and z in the coordinates of the user, in columns, shape
            (3, 3).
        cell: cell vectors, infinite along the other axes, shape (3, 3), nm.
    """

    axes: np.ndarray
    cell: np.ndarray

    @classmethod
    def from_cell(cls, cell: np.ndarray) -> "Frame":
        """The frame of a cell with one or two finite vectors, shape (3, 3), nm."""
        periodic = np.flatnonzero(np.isfinite(cell).all(1))
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
        return cls(axes, found)

    @property
    def is_users(self) -> bool:
        """Whether the coordinates are those of the user."""
        return np.array_equal(self.axes, np.eye(3))
