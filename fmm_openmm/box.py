"""Boxes: checks of box vectors, and the lattice of nearly cubic boxes the FMM works on.

``cell = counts @ boxes``: the periodic cell (rows a, b, c) is a supercell of the box lattice, with
``counts`` an integer lower-triangular matrix. For a rectangular cell it is diagonal and this is the
usual grid; in a triclinic cell the off-diagonal integers keep the boxes nearly cubic. Box indices i
and i + m @ counts are the same box. This finite group is Z_d1 x Z_d2 x Z_d3, on which a sum over
all boxes and all their periodic images is a plain three-dimensional circular convolution. Rows of
boxes are the last cycle where they split off; the rest follows from the Smith normal form
``U counts V = diag(d)``, and as Z_mn is Z_m x Z_n for coprime m and n, long and thin groups become
as compact as they can be.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from math import gcd
from operator import mul

import numpy as np

from fmm_openmm.checks import check_numbers


def fractional(positions: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Coordinates along the cell's vectors, wrapped into [0, 1) as a periodic ``cKDTree`` takes
    them; shape (n, 3)."""
    points = np.mod(positions @ np.linalg.inv(cell), 1.0)
    points[points >= 1.0] = 0.0  # what np.mod makes of -1e-17
    return points


def check_box_vectors(box_vectors, name: str = "box_vectors") -> np.ndarray:
    """Box vectors as a (3, 3) float64 array of rows a, b, c in nm, in OpenMM's reduced form.

    Raises:
        ValueError: wrong shape, not finite, zero or negative volume, not in reduced form, or a
            ``Quantity`` of another dimension.
    """
    box = check_numbers(box_vectors, "nanometer", name)
    if box.shape != (3, 3):
        raise ValueError(f"`{name}` must have shape (3, 3), got {box.shape}")
    if not np.isfinite(box).all():
        raise ValueError(f"`{name}` must be finite, got {box.tolist()}")
    slack = 1e-6 * np.abs(box).max(1)
    if max(abs(box[0, 1]), abs(box[0, 2])) > slack[0] or abs(box[1, 2]) > slack[1]:
        raise ValueError(
            f"`{name}` must be in reduced form: the first periodic box vector must be parallel to "
            f"x and the second in the x-y plane, got {box.tolist()}"
        )
    box[0, 1] = box[0, 2] = box[1, 2] = 0.0
    if min(box[0, 0], box[1, 1], box[2, 2]) <= 0.0:
        raise ValueError(f"`{name}` must span a positive volume, got {box.tolist()}")
    if (
        2 * np.abs([box[1, 0], box[2, 0], box[2, 1]]) > (1.0 + 1e-6) * box.diagonal()[[0, 0, 1]]
    ).any():
        raise ValueError(
            f"`{name}`: periodic box vectors must be in reduced form, got {box.tolist()}"
        )
    return box


ORIGIN = 0.125
"""Where the origin lies in its box, along each box vector.

Crystals are usually given with an atom at the origin. Boxes whose faces lie on lattice planes would
cut these planes at random, which multiplies the truncation error by ten and more. An eighth is
farthest from planes at quarters of a box.
"""


DISTANT = 2.0
"""Box widths beyond the near radius from which boxes add nothing to the error that nearer ones
have not: periodic images that are no boxes of the lattice must lie there."""


MAX_STRAIN = 0.02
"""Largest :func:`strain` of a cell in which its boxes keep their near stencil, and all that was
chosen for them.

Lengths then change by less than 4.8 %: the spectral norm of a lower triangular matrix is at most
2.25 times its largest component.
"""


SAME_SHAPE = 1e-12
"""Components of box vectors, over their width, and of strains that are rounding."""


def strain(cell: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Strain by which one cell becomes another, apart from a uniform scaling:
    ``other = f cell (1 + e)``, ``f^3`` the ratio of their volumes. Cells of one shape have none,
    and those that differ by the choice of their periodic vectors a large one.

    Args:
        cell, other: lower triangular, rows are vectors, shape (3, 3), in any unit.

    Returns:
        e, lower triangular, shape (3, 3).
    """
    deformation = np.linalg.solve(cell, other)
    return np.tril(deformation / np.cbrt(np.prod(np.diag(deformation)))) - np.eye(3)


def box_width(cell: np.ndarray, counts: np.ndarray) -> float:
    """Mean width of a box, ``h = (V / number of boxes)^(1/3)``, in the unit of ``cell``."""
    return float(np.cbrt(np.prod(np.diag(cell)) / np.prod(np.diag(counts))))


def index_grid(low, high) -> np.ndarray:
    """Every index vector with ``low <= index < high``, shape (n2, n1, n0, 3) int64: the first axis
    runs fastest.

    Args:
        low, high: of the three axes, or one number for all.
    """
    axes = map(np.arange, np.broadcast_to(low, 3)[::-1], np.broadcast_to(high, 3)[::-1])
    return np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)


def within(vectors: np.ndarray, radius: float) -> np.ndarray:
    """Integer combinations of the rows of ``vectors`` up to a length, shape (m, 3) int64,
    symmetric under inversion, the first axis fastest."""
    reach = np.ceil(radius * np.linalg.norm(np.linalg.inv(vectors), axis=0)).astype(int)
    numbers = index_grid(-reach, reach + 1).reshape(-1, 3)
    return numbers[np.linalg.norm(numbers @ vectors, axis=1) <= radius]


def near_stencil(boxes: np.ndarray, radius: float) -> np.ndarray:
    """Box offsets that interact directly: centres within ``radius``, and always the 27 boxes that
    touch.

    Args:
        boxes: box vectors in units of the mean box width, shape (3, 3).
        radius: in mean box widths.

    Returns:
        offsets, shape (m, 3) int64, symmetric under inversion, sorted with the first axis fastest.
    """
    reach = np.maximum(
        1, np.ceil(radius * np.linalg.norm(np.linalg.inv(boxes), axis=0) + 1e-9)
    ).astype(int)
    offsets = index_grid(-reach, reach + 1).reshape(-1, 3)
    touching = (np.abs(offsets) <= 1).all(1)
    return offsets[touching | (np.linalg.norm(offsets @ boxes, axis=1) <= radius * (1 + 1e-9))]


def smith_normal_form(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``U @ counts @ V = diag(d)`` with unimodular integer U and V and positive d.

    Returns:
        u, v: shape (n, n), like counts, integers of any length: object.  d: shape (n,) int64.
    """
    a, n = np.array(counts, dtype=object), len(counts)
    u, v = np.eye(n, dtype=object), np.eye(n, dtype=object)
    for t in range(n):
        while True:
            i, j = min(
                ((i, j) for i in range(t, n) for j in range(t, n) if a[i, j]),
                key=lambda ij: abs(a[ij]),
            )
            a[[t, i]], u[[t, i]] = a[[i, t]], u[[i, t]]
            a[:, [t, j]], v[:, [t, j]] = a[:, [j, t]], v[:, [j, t]]
            for i in range(t + 1, n):
                f = a[i, t] // a[t, t]
                a[i], u[i] = a[i] - f * a[t], u[i] - f * u[t]
            for j in range(t + 1, n):
                f = a[t, j] // a[t, t]
                a[:, j], v[:, j] = a[:, j] - f * a[:, t], v[:, j] - f * v[:, t]
            if not any(a[t + 1 :, t]) and not any(a[t, t + 1 :]):
                break
        if a[t, t] < 0:
            a[t], u[t] = -a[t], -u[t]
    return u, v, np.diag(a).astype(np.int64)


def compact_cycles(v: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group of ``index @ v mod d`` as one of as many cycles whose lengths are as equal as they
    get, the longest last.

    Cycles are split into cycles of prime powers, and those for different primes joined again, by
    ``n = sum_q n_q (length / q) mod length`` (I. J. Good, doi:10.1111/j.2517-6161.1958.tb00300.x).

    Returns:
        v: shape (n, n) int64, reduced modulo the lengths.  lengths: shape (n,) int64.
    """
    n = len(d)
    powers: dict[int, list] = {}
    for axis, length in enumerate(d.tolist()):
        for prime, power in _prime_powers(length).items():
            powers.setdefault(prime, []).append((power, axis))
    lengths, parts = [1] * n, [[] for _ in range(n)]
    for of_one_prime in sorted(
        (sorted(each, reverse=True) for each in powers.values()), reverse=True
    ):
        shortest = sorted(range(n), key=lengths.__getitem__)
        for cycle, (power, axis) in zip(shortest, of_one_prime, strict=False):
            lengths[cycle] *= power
            parts[cycle].append((power, axis))
    order = sorted(range(n), key=lengths.__getitem__)
    columns = [
        sum(((lengths[k] // power) * v[:, axis] for power, axis in parts[k]), np.zeros(n, np.int64))
        for k in order
    ]
    lengths = np.array([lengths[k] for k in order], np.int64)
    return np.mod(np.stack(columns, 1), lengths), lengths


def row_cycle(counts: np.ndarray) -> tuple[int, ...] | None:
    """Integers v, v[0] = 1, for which ``counts @ v mod counts[0, 0]`` is zero, or None if there are
    none: ``index @ v`` numbers the boxes of every row along the first axis one by one, and the
    group is that cycle times another group.

    Args:
        counts: lower triangular, shape (n, n).
    """
    length = int(counts[0, 0])

    def completed(v: tuple[int, ...]) -> tuple[int, ...] | None:
        if len(v) == len(counts):
            return v
        *before, own = counts[len(v), : len(v) + 1].tolist()
        rest, common = sum(map(mul, before, v)), gcd(own, length)
        if rest % common:
            return None
        step = length // common
        # of the k with rest + own k = 0 mod length
        first = -rest // common * pow(own // common, -1, step) % step
        return next(filter(None, (completed((*v, k)) for k in range(first, length, step))), None)

    return completed((1,))


def group_cycles(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """V and d: boxes are the same if their ``index @ V mod d`` is.

    Neighbours along the first axis are neighbours in the last cycle wherever that is possible, then
    those along the second in the one before; what is left is made of compact cycles. A rectangular
    grid is left as it is, its axes reversed.

    Args:
        counts: lower triangular, shape (n, n).

    Returns:
        v: shape (n, n) int64.  d: shape (n,) int64.
    """
    if not len(counts):
        return np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
    row = row_cycle(counts)
    if row is None:
        _, v, d = smith_normal_form(counts)
        return compact_cycles((v % d).astype(np.int64), d)
    v, d = group_cycles(counts[1:, 1:])
    v = np.pad(v, [(1, 0), (0, 1)])
    v[:, -1] = row
    return v, np.append(d, counts[0, 0])


def _prime_powers(n: int) -> dict[int, int]:
    """The largest power of each prime that divides n."""
    powers, prime = {}, 2
    while n > 1:
        if prime * prime > n:
            prime = n
        while n % prime == 0:
            powers[prime] = powers.get(prime, 1) * prime
            n //= prime
        prime += 1
    return powers


def _is_smooth(n: int) -> bool:
    for f in (2, 3, 5, 7):
        while n % f == 0:
            n //= f
    return n == 1


def _slowness(n: int) -> float:
    """What an FFT of this length costs more than one of a power of two, roughly,
    in the score of :func:`choose_counts`."""
    return 0.01 * (n % 5 == 0) + 0.015 * (n % 7 == 0) + 0.01 * (n % 2)


def counts_matrix(grid) -> np.ndarray:
    """The counts matrix of a ``grid`` given as three integers or as a lower-triangular 3x3 integer
    matrix.

    Raises:
        ValueError: any other shape, non-integers, a diagonal below 1, or entries above the
            diagonal.
    """
    try:
        counts = np.array(grid)
    except ValueError as error:
        raise ValueError(
            f"`grid` must be three integers or a 3x3 integer matrix, got {grid!r:.80}"
        ) from error
    if counts.shape == (3,):
        counts = np.diag(counts)
    if counts.shape != (3, 3) or counts.dtype.kind not in "iu":
        raise ValueError(f"`grid` must be three integers or a 3x3 integer matrix, got {grid!r}")
    if np.triu(counts, 1).any() or np.diag(counts).min() < 1:
        raise ValueError(
            f"`grid` must be lower triangular with a diagonal of at least 1, got {counts.tolist()}"
        )
    return counts.astype(np.int64)


def deformation(cell: np.ndarray, counts: np.ndarray) -> float:
    """Half the longest diagonal of a box over that of a cube of its volume: 1 for cubes,
    larger otherwise."""
    return float(
        _deformation(np.linalg.solve(counts.astype(float), cell)) / box_width(cell, counts)
    )


def _deformation(boxes: np.ndarray) -> np.ndarray:
    """The longest diagonals of boxes, shape (..., 3, 3), over that of a cube of unit edge."""
    signs = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]])
    return np.linalg.norm(signs @ boxes, axis=-1).max(-1) / np.sqrt(3.0)


ROWLESS = 0.1
"""Added to the score of :func:`choose_counts` where no :func:`row_cycle` keeps neighbours
together in memory."""


def choose_counts(cell: np.ndarray, width: float) -> np.ndarray:
    """The counts matrix whose boxes are nearly cubes of about the given width and whose FFT lengths
    are 2, 3, 5, 7-smooth.

    Args:
        cell: box vectors in reduced form, shape (3, 3).
        width: wanted box width, in the unit of ``cell``.
    """
    ranges = []
    for n in np.diag(cell) / width:
        numbers = np.arange(max(1, int(np.floor(0.87 * n))), max(1, int(np.ceil(1.13 * n))) + 1)
        nearest = numbers[np.argsort(np.abs(np.log(numbers / n)), kind="stable")].tolist()
        smooth = [number for number in nearest if _is_smooth(number)]
        ranges.append(sorted([number for number in smooth if number in nearest[:7]] or smooth[:3]))
    diagonals = np.array(list(product(*ranges)))
    widths = np.diag(cell) / diagonals
    candidates = np.rint(np.tril(cell, -1) / widths[:, None, :]).astype(np.int64)
    candidates[:, range(3), range(3)] = diagonals
    boxes = np.linalg.solve(candidates.astype(float), np.broadcast_to(cell, candidates.shape))
    size = np.cbrt(widths.prod(1))
    scores = 4.0 * (_deformation(boxes) / size - 1.0) + np.abs(np.log(size / width))
    best, best_score = None, np.inf
    for k in np.argsort(scores.round(12), kind="stable"):
        if scores[k] >= best_score:
            break
        lengths = smith_normal_form(candidates[k])[2].tolist()
        score = (
            scores[k] + sum(map(_slowness, lengths)) + ROWLESS * (row_cycle(candidates[k]) is None)
        )
        if score < best_score:
            best, best_score = candidates[k], score
    return best


@dataclass(frozen=True, eq=False)
class BoxLattice:
    """The boxes of one cell shape, everything in units of the mean box width.

    Attributes:
        counts: shape (3, 3) int64, lower triangular.
        boxes: box vectors over the mean box width, shape (3, 3) float64, determinant 1.
        near_radius: near means box centres within this many box widths.
        filled: fraction of the boxes that hold particles, roughly: nothing but speed depends on it.
        strained_from: boxes of another shape whose near stencil these keep; None: it is their own.
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

    def same_shape(self, cell: np.ndarray) -> bool:
        """Whether the boxes of ``cell`` differ from these by a uniform scaling only."""
        return self._have_shape_of(BoxLattice.from_cell(cell, self.counts, self.near_radius).boxes)

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

    def is_strained_to(self, boxes: np.ndarray) -> bool:
        """Whether box vectors, shape (3, 3), are strained from these by
        :data:`MAX_STRAIN` at most."""
        return bool(np.abs(strain(self.boxes, boxes)).max() <= MAX_STRAIN)

    @property
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

    @property
    def size(self) -> int:
        """Number of boxes in the cell."""
        return int(np.prod(np.diag(self.counts)))

    @property
    def cell(self) -> np.ndarray:
        """Periodic cell vectors, box widths, shape (3, 3)."""
        return self.counts @ self.boxes

    @property
    def background(self) -> float:
        """Density of the background that neutralises a unit charge in the cell, per box volume."""
        return 1.0 / self.size

    @property
    def gap(self) -> float:
        """Distance of a box's nearest images that are no boxes of the lattice, box widths:
        there are none."""
        return np.inf

    @property
    def neighbours(self) -> float:
        """Mean number of near boxes that a box has."""
        return len(self.near)

    def occurring(self, offsets: np.ndarray) -> np.ndarray:
        """Those of the offsets (m, 3) by which two boxes can lie apart: every one, as every box
        has images everywhere."""
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
        if self.strained_from:
            return self.strained_from.far
        wider = near_stencil(self.boxes, self.near_radius + DISTANT)
        return wider[~self.is_near(wider)]

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
    def is_open(self) -> bool:
        """Whether boxes have no images among the boxes."""
        return False

    def slots_of(self, span: np.ndarray) -> np.ndarray:
        """FFT slot of every box with ``0 <= index < span``, first axis fastest, int64."""
        return self.slot(index_grid(0, span).reshape(-1, 3))

    @cached_property
    def slots(self) -> np.ndarray:
        """FFT slot of every box in memory order, shape (size,) int64."""
        return self.slots_of(np.diag(self.counts))


EMPTY_SPACE = np.diag(np.full(3, np.inf))
"""The periodic cell of particles that have no images."""


class OpenLattice(BoxLattice):
    """Cubic boxes with empty space around them: ``span`` boxes along each axis, within a lattice so
    much larger that a circular convolution over it is the plain one, and that no box has a near one
    through the boundary. Its lengths are even.

    Every particle must lie in a box with ``0 <= index < span``. What images they have in a periodic
    cell are far away, no boxes of the lattice, and part of the lattice operator only.

    Args:
        span: shape (3,) int64, multiples of ``2^levels``.
        levels: levels above this lattice, up to the root grid, the one whose lengths are chosen;
            the others follow it.
        cell: periodic cell vectors in reduced form, box widths, shape (3, 3), whatever their
            relation to the boxes.
    """

    def __init__(
        self,
        span: np.ndarray,
        near_radius: float,
        filled: float = 1.0,
        levels: int = 0,
        cell: np.ndarray = EMPTY_SPACE,
    ):
        reach = np.abs(near_stencil(np.eye(3), near_radius)).max()
        root = (int(n) >> levels for n in span)
        lengths = [
            2 * next(m for m in count(max(n, -(-(n + reach) // 2))) if _is_smooth(m)) for n in root
        ]
        super().__init__(
            np.diag(lengths).astype(np.int64) << levels, np.eye(3), near_radius, filled
        )
        object.__setattr__(self, "_span", np.array(span, np.int64))
        object.__setattr__(self, "_levels", levels)
        object.__setattr__(self, "_cell", np.array(cell, float))

    def coarsened(self, levels: int) -> "OpenLattice":
        return OpenLattice(
            self.span >> levels,
            self.near_radius,
            self.filled,
            self._levels - levels,
            self.cell / 2**levels,
        )

    @property
    def span(self) -> np.ndarray:
        """Boxes along each axis, shape (3,) int64."""
        return self._span

    @property
    def is_open(self) -> bool:
        """True."""
        return True

    @property
    def cell(self) -> np.ndarray:
        """Periodic cell vectors, box widths, shape (3, 3); infinite in empty space."""
        return self._cell

    @property
    def background(self) -> float:
        """Density of the background that neutralises a unit charge in the cell, per box volume;
        0 in empty space."""
        return 1.0 / float(np.prod(np.diag(self.cell)))

    @cached_property
    def gap(self) -> float:
        """Distance of the nearest image of a box of the span from another, box widths."""
        beyond = np.maximum(np.abs(self._shifts) - (self.span - 1), 0.0)
        return float(np.linalg.norm(beyond, axis=1).min(initial=np.inf))

    @property
    def images(self) -> np.ndarray:
        """Displacements of the images up to `DISTANT` box widths farther than the nearest, shape
        (m, 3), box widths."""
        found = (
            self._shifts[:, None] + index_grid(1 - self.span, self.span).reshape(-1, 3)
        ).reshape(-1, 3)
        return found[np.linalg.norm(found, axis=1) <= self.gap + DISTANT]

    @property
    def _shifts(self) -> np.ndarray:
        """Of the nearest periodic images, shape (k, 3), box widths."""
        if not np.isfinite(self.cell).all():
            return np.zeros((0, 3))
        numbers = np.array(list(product(range(-2, 3), repeat=3)))
        return numbers[numbers.any(1)] @ self.cell

    @property
    def neighbours(self) -> float:
        """Mean number of near boxes that a box of the span has."""
        return float(np.maximum(0.0, 1.0 - np.abs(self.near) / self.span).prod(1).sum())

    def occurring(self, offsets: np.ndarray) -> np.ndarray:
        """Those of the offsets (m, 3) by which two boxes can lie apart."""
        return offsets[(np.abs(offsets) < self.span).all(1)]
