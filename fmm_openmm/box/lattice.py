"""The lattice of nearly cubic boxes that the FMM works on.

``cell = counts @ boxes``: the periodic cell (rows a, b, c) is a supercell of the box lattice, with
``counts`` an integer lower-triangular matrix. For a rectangular cell it is diagonal and this is the
usual grid; in a triclinic cell the off-diagonal integers keep the boxes nearly cubic.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.box.grid import box_width
from fmm_openmm.box.group import group_cycles, row_cycle
from fmm_openmm.box.stencil import far_stencil, index_grid, near_stencil
from fmm_openmm.box.vectors import MAX_STRAIN, SAME_SHAPE, strain

ORIGIN = 0.125
"""Where the origin lies in its box, along each box vector.

Crystals are usually given with an atom at the origin. Boxes whose faces lie on lattice planes would
cut these planes at random, which multiplies the truncation error by ten and more. An eighth is
farthest from planes at quarters of a box.
"""


DISTANT = 2.0
"""Box widths beyond the near radius from which boxes add nothing to the error that nearer ones
have not: periodic images that are not boxes of the lattice must lie there, unless all boxes are
near."""


@dataclass(frozen=True, eq=False)
class BoxLattice:
    """The boxes of one cell shape, everything in units of the mean box width.

    Attributes:
        counts: shape (3, 3) int64, lower triangular.
        boxes: box vectors over the mean box width, shape (3, 3) float64, determinant 1.
        near_radius: boxes whose centres are closer than this are near, box widths.
        filled: approximate fraction of the boxes that hold particles; it affects only speed.
        strained_from: boxes of another shape whose near stencil these keep; None without such.
    """

    counts: np.ndarray
    boxes: np.ndarray
    near_radius: float
    filled: float = 1.0
    strained_from: "BoxLattice | None" = None

    @classmethod
    def from_cell(
        cls, cell: np.ndarray, counts: np.ndarray, near_radius: float, filled: float = 1.0
    ) -> "BoxLattice":
        return cls(
            counts,
            np.linalg.solve(counts.astype(float), cell) / box_width(cell, counts),
            near_radius,
            filled,
        )

    def __getstate__(self) -> dict:
        """All attributes but those that are computed from others."""
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def width_in(self, cell: np.ndarray) -> float | None:
        """The mean width of the boxes in ``cell``, in its unit, if they differ from these only by a
        uniform scaling; else None."""
        (ax, _, _), (bx, by, _), (cx, cy, cz) = cell.tolist()  # NumPy takes microseconds a number
        (i, _, _), (ji, j, _), (ki, kj, k) = self.counts.tolist()
        width = box_width(cell, self.counts)
        a = ax / i
        b = (bx - ji * a) / j, by / j
        c = (cx - ki * a - kj * b[0]) / k, (cy - kj * b[1]) / k, cz / k
        pairs = zip((a, *b, *c), self._components, strict=True)
        same = all([abs(value / width - own) < SAME_SHAPE for value, own in pairs])
        return width if same else None

    @cached_property
    def _components(self) -> list[float]:
        """The lower triangle of the box vectors, row by row."""
        return self.boxes[np.tril_indices(3)].tolist()

    def _have_shape_of(self, boxes: np.ndarray) -> bool:
        return bool(np.abs(boxes - self.boxes).max() < SAME_SHAPE)

    @property
    def unstrained(self) -> "BoxLattice":
        """The boxes that the near stencil was chosen for: these themselves, or those that they
        are strained from."""
        return self.strained_from or self

    def strained(self, cell: np.ndarray) -> "BoxLattice | None":
        """These boxes in another cell, with the same near stencil; None if it strains
        :attr:`unstrained` by more than :data:`MAX_STRAIN`, so that boxes and parameters are to be
        chosen for it."""
        boxes = BoxLattice.from_cell(cell, self.counts, self.near_radius).boxes
        for known in (self, self.unstrained):
            if known._have_shape_of(boxes):
                return known
        return (
            replace(self, boxes=boxes, strained_from=self.unstrained)
            if self.unstrained.is_strained_to(boxes)
            else None
        )

    def deformed(self, gradient: np.ndarray) -> "BoxLattice":
        """The lattice, boxes and cell, under ``x -> x @ gradient``, with the same near stencil.

        Args:
            gradient: shape (3, 3), lower triangular with determinant 1.
        """
        return replace(self, boxes=self.boxes @ gradient, strained_from=self.unstrained)

    def is_strained_to(self, boxes: np.ndarray) -> bool:
        """Whether box vectors, shape (3, 3), are strained from these by at most
        :data:`MAX_STRAIN`."""
        return bool(np.abs(strain(self.boxes, boxes)).max() <= MAX_STRAIN)

    @cached_property
    def are_cuboids(self) -> bool:
        """Whether the boxes are cuboids, and their near stencil is one of cuboids: symmetric
        under mirroring x, y and z."""
        return not np.tril(self.boxes, -1).any() and not np.tril(self.unstrained.boxes, -1).any()

    def coarsened(self, levels: int) -> "BoxLattice":
        """The lattice of boxes ``2^levels`` times as wide, of which the counts must be
        multiples; its unit is their width."""
        strained_from = self.strained_from and self.strained_from.coarsened(levels)
        return BoxLattice(
            self.counts >> levels, self.boxes, self.near_radius, strained_from=strained_from
        )

    @cached_property
    def size(self) -> int:
        """Number of boxes in the cell."""
        return int(np.prod(np.diag(self.counts)))

    @cached_property
    def inverse(self) -> np.ndarray:
        """The inverse of the box vectors, shape (3, 3)."""
        return np.linalg.inv(self.boxes)

    @cached_property
    def cell(self) -> np.ndarray:
        """Periodic cell vectors, shape (3, 3), box widths."""
        return self.counts @ self.boxes

    @property
    def background(self) -> float:
        """Density of the background that neutralises a unit charge in the cell, per box volume."""
        return 1.0 / self.size

    @property
    def gap(self) -> float:
        """Distance from a box to the nearest image of a box that is not itself a box of the
        lattice, box widths; infinite, because all images are boxes of the lattice."""
        return np.inf

    @property
    def images(self) -> np.ndarray:
        """Displacements of images that are not boxes of the lattice, shape (m, 3), box widths."""
        return np.empty((0, 3))

    @property
    def neighbours(self) -> float:
        """Mean number of near boxes per box, the box itself included."""
        return len(self.near)

    def occurring(self, offsets: np.ndarray) -> np.ndarray:
        """Those of the offsets, shape (m, 3), that occur between two boxes: all, because every
        offset from a box leads to an image of a box."""
        return offsets

    @cached_property
    def near(self) -> np.ndarray:
        """Offsets of the near stencil, shape (m, 3) int64, first axis fastest."""
        return (
            self.strained_from.near
            if self.strained_from
            else near_stencil(self.boxes, self.near_radius)
        )

    @cached_property
    def far(self) -> np.ndarray:
        """Offsets of the first boxes beyond the near stencil: up to `DISTANT` box widths more,
        shape (m, 3) int64."""
        return (
            self.strained_from.far
            if self.strained_from
            else far_stencil(self.boxes, self.near_radius, DISTANT)
        )

    @property
    def nearest_far(self) -> float:
        """Distance of the nearest box beyond the near stencil, box widths."""
        return float(np.linalg.norm(self.far @ self.boxes, axis=1).min())

    def is_near(self, offsets: np.ndarray) -> np.ndarray:
        """Whether each offset (..., 3) belongs to the near stencil."""
        reach = np.abs(self.near).max()
        digits = (2 * reach + 1) ** np.arange(3)
        return (np.abs(offsets) <= reach).all(-1) & np.isin(offsets @ digits, self.near @ digits)

    @cached_property
    def cycles(self) -> tuple[np.ndarray, np.ndarray]:
        """V (3, 3) and d (3,), see :func:`group_cycles`.

        In a rectangular cell slots are box numbers.
        """
        return self.strained_from.cycles if self.strained_from else group_cycles(self.counts)

    @cached_property
    def in_rows(self) -> bool:
        """Whether neighbours along the first axis are neighbours in memory."""
        return row_cycle(self.counts) is not None

    @property
    def fft_shape(self) -> tuple[int, int, int]:
        return tuple(self.cycles[1].tolist())

    def home(self, index: np.ndarray) -> np.ndarray:
        """The representative of each box index inside the cell, 0 <= index < diag(counts); shape
        (..., 3) int64."""
        index = np.array(index, dtype=np.int64)
        for axis in (2, 1, 0):
            wraps = np.floor_divide(index[..., axis], self.counts[axis, axis])
            index -= wraps[..., None] * self.counts[axis]
        return index

    def linear(self, index: np.ndarray) -> np.ndarray:
        """Number of each box in memory order, first axis fastest; ``index`` (..., 3) may lie in
        any periodic image."""
        i = self.home(index)
        n0, n1, _ = np.diag(self.counts)
        return i[..., 0] + n0 * (i[..., 1] + n1 * i[..., 2])

    def slot(self, index: np.ndarray) -> np.ndarray:
        """Place of each box index (..., 3) in the flattened FFT array of shape ``fft_shape``."""
        v, d = self.cycles
        return np.ravel_multi_index(tuple(np.moveaxis(np.mod(index @ v, d), -1, 0)), tuple(d))

    @property
    def span(self) -> np.ndarray:
        """Boxes along each axis that can hold particles, shape (3,) int64."""
        return np.diag(self.counts)

    @property
    def padded(self) -> tuple[bool, bool, bool]:
        """Along which axes the lattice is padded with empty boxes, so that none of its boxes is an
        image of another."""
        return (False, False, False)

    @property
    def is_padded(self) -> bool:
        """Whether the lattice is padded along any axis."""
        return any(self.padded)

    @property
    def boundary(self) -> Boundary:
        """The boundary of the particles."""
        return Boundary.from_cell(self.cell)

    @property
    def has_images(self) -> tuple[bool, bool, bool]:
        """Along which axes the particles have images that are not boxes of the lattice."""
        return (False, False, False)

    def slots_of(self, span: np.ndarray) -> np.ndarray:
        """FFT slot of every box with ``0 <= index < span``, first axis fastest, int64."""
        return self.slot(index_grid(0, span).reshape(-1, 3))

    @cached_property
    def slots(self) -> np.ndarray:
        """FFT slot of every box in memory order, shape (size,) int64."""
        return self.slots_of(np.diag(self.counts))
