"""Charges in free space by a treecode: an octree is built for every evaluation, and distant cells
act through their moments.

After J. Barnes and P. Hut, Nature 324, 446 (1986), doi:10.1038/324446a0. The moments of a cell are
in units of its width, and are converted to coefficients of irregular harmonics for the potential
and the three components of the field.
"""

from functools import cache

import numpy as np

from fmm_openmm.backends.cpu.compilation import prepare
from fmm_openmm.backends.cpu.direct import add_range, sources
from fmm_openmm.backends.cpu.harmonics import regular as regular_lanes
from fmm_openmm.backends.cpu.m2m import parent_matrices
from fmm_openmm.backends.cpu.threads import LANES, inline, kernel
from fmm_openmm.backends.pairs import partners
from fmm_openmm.expansions.harmonics import irregular_norm, regular, term, term_count
from fmm_openmm.literature.treecode.tree import DEPTH, Tree, build_tree
from fmm_openmm.openmp import portion
from fmm_openmm.stages import OpenSum

LEAF = 64
"""Maximum particles in a leaf of the tree."""

CHUNK = 1 << 16
"""Particles whose harmonics are in memory at a time."""

HALF_DIAGONAL = 0.5 * 3**0.5

DIRECT = 2.0
"""Particles per term of the moments below which a distant cell is summed directly, which is cheaper
and exact."""


class Treecode(OpenSum):
    """The treecode in Numba, see :class:`fmm_openmm.stages.OpenSum`."""

    def __init__(self, charges, pairs, dtype, order: int, theta: float):
        self.dtype, self.order, self.theta = np.dtype(dtype), order, theta
        prepare((_walk,), self.dtype)
        self._pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
        self.set_charges(charges)

    def set_charges(self, charges) -> None:
        self.charges = np.asarray(charges, np.float64)

    def evaluate(self, positions) -> tuple[np.ndarray, np.ndarray]:
        tree = build_tree(positions, LEAF)
        n = len(positions)
        place = np.empty(n, np.int64)
        place[tree.order] = np.arange(n)
        x, charges = positions[tree.order], self.charges[tree.order]
        leaves = np.flatnonzero(tree.children == 0)
        leaves = leaves[np.argsort(tree.first[leaves])]
        leaf_of = np.repeat(leaves, tree.last[leaves] - tree.first[leaves])
        moments = _moments(tree, leaves, x, charges, self.order)
        coefficients = np.tensordot(moments, evaluation(self.order), (1, 2)).astype(self.dtype)
        sums = np.zeros((n, 4))
        cells = (
            tree.first,
            tree.last,
            tree.child,
            tree.children,
            tree.parent,
            tree.centre,
            tree.width,
        )
        x, y, z = np.ascontiguousarray(x.T)
        charges = charges.astype(self.dtype)
        particles = x, y, z, sources(x, charges), charges, *partners(place[self._pairs], n)
        _walk(leaves, leaf_of, *cells, coefficients, *particles, self.theta, DEPTH, sums)
        sums = sums[place]
        return sums[:, 0].copy(), sums[:, 1:].copy()


@cache
def evaluation(order: int) -> np.ndarray:
    """Matrices from moments to the coefficients of S for potential and field, shape (4, (order +
    2)^2, (order + 1)^2) float64.

    With complex terms ``Phi = sum_l [M_l0 S_l0 + 2 sum_m>0 Re(conj M_lm S_lm)]``; the field follows
    from ``(d/dx + i d/dy) S_lm = -S_l+1,m+1``, ``(d/dx - i d/dy) S_lm = S_l+1,m-1``,
    ``dS_lm/dz = -S_l+1,m``. The factors of :func:`irregular_norm` are included: the coefficients
    are of ``R(x / r^2) / r``.
    """
    out = np.zeros((4, term_count(order + 1), term_count(order)))

    def add(axis, l, m, degree, below, factor):
        if abs(below) <= degree:
            out[axis, term(l, m), term(degree, below)] += factor

    for l in range(order + 2):
        for m in range(l + 1):
            twice = 2.0 if m else 1.0
            for sign in (1, -1) if m else (1,):
                if l <= order:
                    add(0, l, sign * m, l, sign * m, twice)
                if l > 0:
                    add(3, l, sign * m, l - 1, sign * m, twice)
            if l == 0:
                continue
            j = l - 1
            # Re and Im of M_j,m+1 - M_j,m-1 and of their sum; order 0 has no imaginary part
            for below, factor in ((m + 1, 1.0), (m - 1, -1.0)) if m else ((1, 1.0),):
                add(1, l, m, j, below, -factor)
                if below > 0:
                    add(2, l, m, j, -below, -1.0)
                    if m:
                        add(1, l, -m, j, -below, -factor)
                if m:
                    add(2, l, -m, j, below, 1.0)
    return out * irregular_norm(order + 1)[:, None]


@cache
def _parent_matrices(order: int) -> np.ndarray:
    """:func:`parent_matrices` for cubes."""
    return parent_matrices(np.eye(3), order)


def _moments(
    tree: Tree, leaves: np.ndarray, x: np.ndarray, charges: np.ndarray, order: int
) -> np.ndarray:
    """Moments of all cells in units of their widths, shape (cells, terms); ``leaves`` are in the
    order of their particles."""
    moments = np.zeros((len(tree.first), term_count(order)))
    first = tree.first[leaves]
    for chunk in np.split(np.arange(len(leaves)), np.flatnonzero(np.diff(first // CHUNK)) + 1):
        begin, end = first[chunk[0]], tree.last[leaves[chunk[-1]]]
        own = np.repeat(leaves[chunk], tree.last[leaves[chunk]] - first[chunk])
        harmonics = regular((x[begin:end] - tree.centre[own]) / tree.width[own, None], order)
        moments[leaves[chunk]] = np.add.reduceat(
            harmonics * charges[begin:end], first[chunk] - begin, axis=1
        ).T
    matrices = _parent_matrices(order)
    for begin, end in list(zip(tree.level[1:], tree.level[2:], strict=False))[::-1]:
        parent = tree.parent[begin:end]
        octant = (tree.centre[begin:end] > tree.centre[parent]) @ [4, 2, 1]
        for number, matrix in enumerate(matrices):
            children = np.flatnonzero(octant == number)
            moments[parent[children]] += moments[begin + children] @ matrix
    return moments


@inline
def _accepted(cell, leaf, centre, width, theta):
    """Whether a cell is distant enough from a leaf that its moments may be used for all particles
    of the leaf."""
    dx, dy, dz = (
        centre[cell, 0] - centre[leaf, 0],
        centre[cell, 1] - centre[leaf, 1],
        centre[cell, 2] - centre[leaf, 2],
    )
    distance = HALF_DIAGONAL * (width[cell] / theta + width[leaf])
    return dx * dx + dy * dy + dz * dz >= distance * distance


@inline
def _m2p(begin, end, x, y, z, centre, width, coefficients, order, points, harmonics, sums):
    """Add the contribution of a cell's moments at the points ``begin`` to ``end``, at most
    LANES."""
    real = coefficients.dtype.type
    scale = 1.0 / width
    for w in range(LANES):
        k = min(begin + w, end - 1)
        dx, dy, dz = (
            (x[k] - centre[0]) * scale,
            (y[k] - centre[1]) * scale,
            (z[k] - centre[2]) * scale,
        )
        inverse2 = 1.0 / (dx * dx + dy * dy + dz * dz)
        points[0, w], points[1, w], points[2, w] = (
            real(dx * inverse2),
            real(dy * inverse2),
            real(dz * inverse2),
        )
        points[3, w] = real(np.sqrt(inverse2))
    regular_lanes(points[0], points[1], points[2], order + 1, harmonics)
    for axis in range(4):
        for w in range(LANES):
            points[4, w] = real(0.0)
        for a in range(len(harmonics)):
            factor = coefficients[axis, a]
            for w in range(LANES):
                points[4, w] += factor * harmonics[a, w]
        unit = scale if axis == 0 else scale * scale
        for w in range(min(LANES, end - begin)):
            sums[begin + w, axis] += unit * points[3, w] * points[4, w]


@kernel(
    "i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], f8[:,::1], f8[::1], "
    "real[:,:,::1], f8[::1], f8[::1],"
    "f8[::1], f8[::1], real[::1], i8[::1], i8[::1], f8, i8, f8[:,::1]"
)
def _walk(
    thread, leaves, leaf_of, first, last, child, children, parent, centre, width, coefficients, x,
    y, z, source, charge, start, partner, theta, depth, sums,
):  # fmt: skip
    order = int(np.sqrt(coefficients.shape[2]) + 0.5) - 2
    few = DIRECT * coefficients.shape[2]
    for number in portion(len(leaves), thread):
        leaf = leaves[number]
        points = np.empty((5, LANES), coefficients.dtype)
        harmonics = np.empty((coefficients.shape[2], LANES), coefficients.dtype)
        stack = np.empty(7 * depth + 8, np.int64)
        stack[0], pending = 0, 1
        while pending > 0:
            pending -= 1
            cell = stack[pending]
            far = _accepted(cell, leaf, centre, width, theta)
            if far and last[cell] - first[cell] > few:
                for begin in range(first[leaf], last[leaf], LANES):
                    end = min(begin + LANES, last[leaf])
                    _m2p(
                        begin,
                        end,
                        x,
                        y,
                        z,
                        centre[cell],
                        width[cell],
                        coefficients[cell],
                        order,
                        points,
                        harmonics,
                        sums,
                    )
            elif children[cell] > 0 and not far:
                for c in range(children[cell]):
                    stack[pending + c] = child[cell] + c
                pending += children[cell]
            else:
                for i in range(first[leaf], last[leaf]):
                    begin = first[cell]
                    for k in range(start[i], start[i + 1]):
                        if begin <= partner[k] < last[cell]:
                            add_range(
                                x[i], y[i], z[i], source, y, z, charge, begin, partner[k], sums[i]
                            )
                            begin = partner[k] + 1
                    add_range(x[i], y[i], z[i], source, y, z, charge, begin, last[cell], sums[i])
        # subtract excluded partners that are contained in a cell whose moments were used
        for i in range(first[leaf], last[leaf]):
            for k in range(start[i], start[i + 1]):
                cell = leaf_of[partner[k]]
                while cell >= 0 and not (
                    last[cell] - first[cell] > few and _accepted(cell, leaf, centre, width, theta)
                ):
                    cell = parent[cell]
                if cell >= 0:
                    included = np.zeros(4)
                    add_range(
                        x[i], y[i], z[i], source, y, z, charge, partner[k], partner[k] + 1, included
                    )
                    for value in range(4):
                        sums[i, value] -= included[value]
