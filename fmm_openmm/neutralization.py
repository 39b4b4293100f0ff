r"""What neutralises a slab or wire with a net charge: uniform sheets, lines or cylinders.

A net charge Q of a slab or wire has potentials that grow with the distance. k equal parts of -Q are
therefore spread over sheets parallel to a slab, or over lines and cylinders parallel to a wire. The
potential of a unit charge on one of them is the finite part of a slab's or wire's potential: at the
distance z from a sheet, or at the distance :math:`\rho` from the axis of a cylinder of radius R,

.. math::
    -\frac{2 \pi k_e}{A} |z| \qquad \text{or} \qquad
    -\frac{2 k_e}{c} \ln \frac{\max(\rho, R)}{c}

with the area A of the cell of a slab, and the period c of a wire. Each charge comes with its
opposite, and pairs of charges add

.. math::
    w(x_i, x_j) = u(x_i) + u(x_j) + e

to their potential, where -u is the mean potential of the k unit charges and e their mean potential
on each other. With the heights :math:`z_s` of sheets, or the distances :math:`\rho_s` from axes,

.. math::
    u = \frac{2 \pi k_e}{A k} \sum_s |z - z_s|, \qquad
    e = -\frac{2 \pi k_e}{A k^2} \sum_{s,t} |z_s - z_t|

.. math::
    u = \frac{2 k_e}{c k} \sum_s \ln \frac{\max(\rho_s, R_s)}{c}, \qquad
    e = -\frac{2 k_e}{c k^2} \sum_{s,t} \ln \frac{d_{st}}{c}

where :math:`d_{st}` is the distance of two axes or, if one cylinder encloses the other, and for s =
t, the larger radius. What a line adds to itself is infinite and left out. The energy is that of
all charges; its derivative with respect to a charge is the potential, the others following.

J. D. Jackson, Classical Electrodynamics, 3rd ed. (1999), sections 1.6 and 2.2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmm_openmm.boundary import SAME_PLACE, Boundary
from fmm_openmm.checks import check_numbers
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.placed_term import NORMAL, PlacedTerm
from fmm_openmm.units import COULOMB_CONSTANT

FARTHEST = 0.45
"""Largest distance of the middle of a slab or wire from that of what neutralises it, along a box
vector without images, over that vector: in OpenMM and in trajectories, which know a slab or wire up
to its images along these vectors."""


class Neutralization(ABC):
    """What neutralises a slab or wire, as a user asks for it."""

    boundary: Boundary

    @classmethod
    def from_option(cls, option: Any, boundary: Boundary) -> "Sheets | Cylinders | None":
        """What a user asks for; None for None.

        Raises:
            ValueError: the option does not fit the boundary.
            UnsupportedError: the boundary is not that of a slab along a and b, or of a wire.
        """
        if option is None:
            return None
        if boundary == Boundary.from_name("slab"):
            return Sheets.from_heights(option)
        if sum(boundary.periodic) == 1:
            return Cylinders.from_rows(option, boundary)
        raise UnsupportedError(
            f"`neutralization` needs `boundary='slab'` or that of a wire, got {boundary.name!r}: "
            "sheets are parallel to a and b, lines and cylinders to a wire"
        )

    def __str__(self) -> str:
        """The option as it is written in Python."""
        return f"neutralization={self.option}"

    @property
    @abstractmethod
    def option(self) -> list:
        """The option as lists of numbers."""

    @property
    @abstractmethod
    def middle(self) -> np.ndarray:
        """Mean position across the vectors of the images, shape (3,), nm."""

    @abstractmethod
    def at(self, positions: Any, cell: np.ndarray) -> "PlacedNeutralization":
        """The term of particles at positions, shape (n, 3), nm, on the host or a device, in a cell,
        shape (3, 3), nm, of which only the vectors of the images matter."""

    def place(self, positions: np.ndarray, box_vectors: np.ndarray) -> np.ndarray:
        """Positions of a slab or wire that lies together, shape (n, 3), nm, moved by the box
        vectors without images to the image nearest to what neutralises it.

        Raises:
            ValueError: two images are about as near.
        """
        away = (positions.mean(0) - self.middle) @ np.linalg.inv(box_vectors)
        periods = np.rint(away) * self.boundary.free
        far = np.abs(away - periods) * self.boundary.free > FARTHEST
        if far.any():
            vector = "abc"[int(np.argmax(far))]
            raise ValueError(
                f"`{self}` is about half of box vector {vector} away from the middle of the "
                f"particles, which may lie on either side of it with "
                f"`boundary={self.boundary.name!r}`: lengthen the vector or move one to the other"
            )
        return positions - periods @ box_vectors

    def check_charges(self, charges: Any) -> None:
        """Take any charges: a net charge is neutralised."""
        return

    @abstractmethod
    def check_span(self, positions: np.ndarray, charges: np.ndarray, cell: np.ndarray) -> None:
        """Refuse positions, shape (n, 3), nm, on the host, at which the potential is infinite."""


@dataclass(frozen=True, eq=False)
class Sheets(Neutralization):
    """Sheets of a slab.

    Attributes:
        heights: along the normal, shape (k,), nm.
    """

    heights: np.ndarray
    boundary = Boundary.from_name("slab")

    __str__ = Neutralization.__str__

    @classmethod
    def from_heights(cls, heights: Any) -> "Sheets":
        """Sheets at heights that a user gives.

        Raises:
            ValueError: `heights` is not a sequence of numbers.
        """
        checked = check_numbers(heights, "nanometer", "neutralization")
        if checked.ndim != 1 or not len(checked) or not np.isfinite(checked).all():
            raise ValueError(
                "`neutralization` must be the heights of one or more sheets, shape (k,), "
                f"got {heights!r}"
            )
        return cls(checked)

    @property
    def option(self) -> list:
        """The heights."""
        return self.heights.tolist()

    @property
    def middle(self) -> np.ndarray:
        """On the normal through the origin."""
        return np.array([0.0, 0.0, self.heights.mean()])

    @property
    def mean_distance(self) -> float:
        """Mean distance of two sheets, the same one included, nm."""
        return float(np.abs(self.heights[:, None] - self.heights).mean())

    def at(self, positions: Any, cell: np.ndarray) -> "PlacedSheets":
        """The sheets for particles in a reduced cell."""
        return PlacedSheets(self, positions, cell)

    def check_span(self, positions: np.ndarray, charges: np.ndarray, cell: np.ndarray) -> None:
        """Take any positions."""


@dataclass(frozen=True, eq=False)
class Cylinders(Neutralization):
    """Lines and cylinders parallel to a wire.

    Attributes:
        points: on the axes, shape (k, 3), nm.
        radii: shape (k,), nm; 0 for lines.
        boundary: boundary of the wire.
    """

    points: np.ndarray
    radii: np.ndarray
    boundary: Boundary

    __str__ = Neutralization.__str__

    @classmethod
    def from_rows(cls, rows: Any, boundary: Boundary) -> "Cylinders":
        """Lines and cylinders that a user gives.

        Raises:
            ValueError: `rows` are neither points nor points and radii.
        """
        checked = np.atleast_2d(check_numbers(rows, "nanometer", "neutralization"))
        if (
            checked.ndim != 2
            or checked.shape[1] not in (3, 4)
            or not np.isfinite(checked).all()
            or (checked[:, 3:] < 0).any()
        ):
            raise ValueError(
                "`neutralization` of a wire must be points on lines, shape (k, 3), or points on "
                f"the axes of cylinders and their radii, shape (k, 4), got {rows!r}"
            )
        return cls(checked[:, :3], np.resize(checked[:, 3:], len(checked)), boundary)

    @property
    def option(self) -> list:
        """Points and radii."""
        return np.column_stack([self.points, self.radii]).tolist()

    @property
    def middle(self) -> np.ndarray:
        """Mean point."""
        return self.points.mean(0)

    def across(self, axis: np.ndarray) -> np.ndarray:
        """Points relative to their mean, across a wire along a unit vector, shape (k, 3), nm."""
        points = self.points - self.middle
        return points - np.outer(points @ axis, axis)

    def distances(self, axis: np.ndarray) -> np.ndarray:
        """The distances :math:`d_{st}` that are not 0, across a wire along a unit vector, nm.

        Raises:
            ValueError: two lines or cylinders cross each other.
        """
        points = self.across(axis)
        apart = np.linalg.norm(points[:, None] - points, axis=2)
        larger = np.maximum(self.radii[:, None], self.radii)
        smaller = np.minimum(self.radii[:, None], self.radii)
        distances = np.maximum(apart, larger)
        crossing = np.triu(
            (apart < larger + smaller) & (apart > larger - smaller) | (distances < SAME_PLACE), 1
        )
        if crossing.any():
            first, second = np.argwhere(crossing)[0]
            raise ValueError(
                f"`{self}`: {first} and {second} cross each other: lines and cylinders must "
                "lie apart or one inside the other"
            )
        return distances[distances > SAME_PLACE]  # lines have none of their own

    def turned(self, axes: np.ndarray) -> "Cylinders":
        """The same in coordinates along unit vectors, in columns, shape (3, 3)."""
        return replace(self, points=self.points @ axes)

    def at(self, positions: Any, cell: np.ndarray) -> "PlacedCylinders":
        """The cylinders for particles."""
        return PlacedCylinders(self, positions, cell)

    def check_span(self, positions: np.ndarray, charges: np.ndarray, cell: np.ndarray) -> None:
        """Refuse particles on a line of charge.

        Raises:
            ValueError: a particle is on a line.
        """
        found = self.at(positions, cell).on_a_line()
        if len(found):
            raise ValueError(
                f"`{self}`: particle {found[0]} lies on a line of charge, whose potential is "
                "infinite there: give the line a radius, or move it"
            )


class PlacedNeutralization(PlacedTerm):
    """A :class:`Neutralization` beside particles at fixed positions; subclasses know
    ``_constant``, e."""

    _constant: float

    @abstractmethod
    def _opposite_potentials(self, x: Any) -> Any:
        """u at x, shape (m, 3), relative to the origin; shape (m,), kJ/mol/e^2."""

    @abstractmethod
    def _opposite_fields(self, x: Any) -> Any:
        """Minus the gradient of u, shape (m, 3), kJ/mol/nm/e^2."""

    def _moments(self, total: Any) -> Any:
        """Charge and the sum of u over the charges, both (K,)."""
        return total(self._xp.ones(len(self._x))), total(self._opposite_potentials(self._x))

    def _evaluated(self, moments: Any, x: Any, fields: bool = True) -> tuple[Any, Any]:
        charge, opposite = moments
        potentials = charge[:, None] * (self._opposite_potentials(x) + self._constant)
        potentials += opposite[:, None]
        if not fields:
            return potentials, None
        return potentials, charge[:, None, None] * self._opposite_fields(x)

    def _matrix(self, moments: Any) -> Any:
        charge, opposite = moments
        crossed = charge[:, None] * opposite
        return crossed + crossed.T + self._constant * charge[:, None] * charge


class PlacedSheets(PlacedNeutralization):
    """The potential of :class:`Sheets` for particles at fixed positions.

    Args:
        sheets: the sheets.
        positions: shape (n, 3), nm.
        cell: reduced, shape (3, 3), nm.
    """

    def __init__(self, sheets: Sheets, positions: Any, cell: np.ndarray):
        heights = sheets.heights
        super().__init__(positions, sheets.middle)
        self._heights = (heights - heights.mean()).tolist()
        area = float(cell[0, 0] * cell[1, 1])
        self._strength = 2.0 * np.pi * COULOMB_CONSTANT / (area * len(heights))
        self._constant = -self._strength * len(heights) * sheets.mean_distance

    def _opposite_potentials(self, x: Any) -> Any:
        distances: Any = sum(abs(x[:, NORMAL] - height) for height in self._heights)
        return self._strength * distances

    def _opposite_fields(self, x: Any) -> Any:
        field = self._xp.zeros_like(x)
        signs = sum(self._xp.sign(x[:, NORMAL] - height) for height in self._heights)
        field[:, NORMAL] = -self._strength * signs
        return field

    def _virial(self, charges: Any, moments: Any) -> Any:
        """The virial, with heights scaled along the normal and areas in the plane, the sheets
        moving with the particles."""
        energy = 0.5 * self._matrix(moments)[0, 0]
        return energy * self._xp.asarray(np.diag([1.0, 1.0, -1.0]))


class PlacedCylinders(PlacedNeutralization):
    """The potential of :class:`Cylinders` for particles at fixed positions.

    Args:
        cylinders: the lines and cylinders.
        positions: shape (n, 3), nm.
        cell: shape (3, 3), nm.

    Raises:
        ValueError: two of them cross each other.
    """

    def __init__(self, cylinders: Cylinders, positions: Any, cell: np.ndarray):
        super().__init__(positions, cylinders.middle)
        vector = cell[int(np.argmax(cylinders.boundary.periodic))]
        self._period = float(np.linalg.norm(vector))
        self._axis = vector / self._period
        self._along = np.outer(self._axis, self._axis)
        self._transverse = np.eye(3) - self._along
        self._points = cylinders.across(self._axis)
        self._radii = cylinders.radii
        self._strength = 2.0 * COULOMB_CONSTANT / (self._period * len(self._radii))
        logarithms = np.log(cylinders.distances(self._axis) / self._period)
        self._constant = -self._strength * float(logarithms.sum()) / len(self._radii)

    def _across(self, x: Any, point: np.ndarray) -> tuple[Any, Any]:
        """Vectors from an axis, shape (m, 3), and their squares, shape (m,)."""
        relative = x - self._xp.asarray(point)
        along = sum(relative[:, k] * float(self._axis[k]) for k in range(3))
        across = relative - along[:, None] * self._xp.asarray(self._axis)
        return across, (across**2).sum(1)

    def _opposite_potentials(self, x: Any) -> Any:
        found = self._xp.zeros(len(x))
        for point, radius in zip(self._points, self._radii.tolist(), strict=True):
            _, squares = self._across(x, point)
            found += 0.5 * self._xp.log(self._xp.maximum(squares, radius**2) / self._period**2)
        return self._strength * found

    def _opposite_fields(self, x: Any) -> Any:
        found = self._xp.zeros_like(x)
        for point, radius in zip(self._points, self._radii.tolist(), strict=True):
            across, squares = self._across(x, point)
            outside = squares > radius**2
            found -= across * (outside / self._xp.where(outside, squares, 1.0))[:, None]
        return self._strength * found

    def on_a_line(self) -> np.ndarray:
        """The particles, on the host, that lie on a line."""
        lines = self._points[self._radii == 0]
        found = [self._across(self._x, point)[1] <= SAME_PLACE**2 for point in lines]
        return np.flatnonzero(np.any(found, axis=0)) if found else np.zeros(0, int)

    def _stretches(self, across: Any, squares: Any, weights: Any, radii: float) -> Any:
        """Sum of the weighted derivatives of :math:`\\ln d / c` with respect to a strain, shape
        (3, 3), for vectors from an axis and the sum of the squares of the radii.

        A strain makes ellipses of the circles. The derivative is the mean of :math:`n n^T` over the
        directions n between points of two circles, less that along the axis. Of the traceless part
        across, circles outside of each other have :math:`1 - (R_s^2 + R_t^2) / d^2`, others none.
        """
        xp = self._xp
        share = xp.maximum(1.0 - radii / xp.where(squares > 0, squares, radii), 0.0) * weights
        share = share / xp.where(squares > 0, squares, 1.0)
        outer = [[(share * across[:, a] * across[:, b]).sum() for a in range(3)] for b in range(3)]
        even = 0.5 * (weights.sum() - (share * squares).sum())
        found = xp.stack([xp.stack(row) for row in outer]) + even * xp.asarray(self._transverse)
        return found - weights.sum() * xp.asarray(self._along)

    def _virial(self, charges: Any, moments: Any) -> Any:
        """The virial, with the cylinders strained like the particles."""
        xp, charge = self._xp, moments[0][0]
        energy = 0.5 * self._matrix(moments)[0, 0]
        count = len(self._radii)
        found = xp.zeros((3, 3))
        for s in range(count):
            radius = float(self._radii[s])
            own = self._stretches(*self._across(self._x, self._points[s]), charges, radius**2)
            found += self._over_ranks(own)
            for t in range(count):
                if s != t or radius:
                    across, squares = self._across(
                        xp.asarray(self._points[t : t + 1]), self._points[s]
                    )
                    radii = radius**2 + float(self._radii[t]) ** 2
                    weight = -0.5 * charge.reshape(1) / count
                    found += self._stretches(across, squares, weight, radii)
        return energy * xp.asarray(self._along) - charge * self._strength * found
