"""An adaptive octree of particles in free space, built level by level without loops over particles.

Particles are sorted along a Morton curve, so that every cell of every level is a contiguous range
of them: M. S. Warren and J. K. Salmon, Supercomputing '93, doi:10.1145/169627.169640. Works with
NumPy and CuPy arrays.
"""

from dataclasses import dataclass

import numpy as np

DEPTH = 20
"""Maximum levels below the root: three coordinates of as many bits fit into a 64-bit key."""

SPREAD = (
    (32, 0x1F00000000FFFF),
    (16, 0x1F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)
"""Shifts and masks that spread the bits of a number to every third bit."""


@dataclass(frozen=True)
class Tree:
    """Cells level by level, the root first; the children of a cell are contiguous.

    Attributes (n particles, c cells):
        order: order of the particles along the curve, shape (n,).
        first, last: cell i holds particles ``order[first[i]:last[i]]``, shape (c,) each.
        parent: shape (c,), -1 at the root.
        child, children: first child and number of children, 0 for leaves, shape (c,) each.
        centre: shape (c, 3), nm.
        width: shape (c,), nm.
        level: first cell of each level, then the number of cells.
    """

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray
    parent: np.ndarray
    child: np.ndarray
    children: np.ndarray
    centre: np.ndarray
    width: np.ndarray
    level: list[int]


def build_tree(positions, leaf: int, xp=np) -> Tree:
    """Build a tree: cells are halved along each axis until they hold at most ``leaf`` particles or
    are at ``DEPTH``; empty cells are omitted.

    Args:
        positions: shape (n, 3), nm.
        leaf: maximum particles in a leaf.
        xp: the library of the arrays, NumPy or CuPy.
    """
    low, high = positions.min(0), positions.max(0)
    root = float((high - low).max()) * (1 + 1e-12) or 1.0
    corner = (low + high) / 2 - root / 2
    index = xp.clip(((positions - corner) * (2.0**DEPTH / root)).astype(xp.int64), 0, 2**DEPTH - 1)
    key = (
        _interleaved(index[:, 0]) | _interleaved(index[:, 1]) << 1 | _interleaved(index[:, 2]) << 2
    )
    order = xp.argsort(key)
    key = key[order]

    n = len(key)
    bounds = [(xp.zeros(1, xp.int64), xp.full(1, n), xp.full(1, -1))]
    children, level = [], [0, 1]
    for depth in range(1, DEPTH + 1):
        first, last, _ = bounds[-1]
        divided = xp.flatnonzero(last - first > leaf)
        if len(divided) == 0:
            break
        shift = 3 * (DEPTH - depth)
        corners = ((key[first[divided]] >> shift + 3) * 8)[:, None] + xp.arange(9)
        edges = xp.searchsorted(key, (corners << shift).ravel()).reshape(-1, 9)
        parent, octant = xp.nonzero(edges[:, 1:] > edges[:, :-1])
        bounds.append(
            (edges[parent, octant], edges[parent, octant + 1], level[-2] + divided[parent])
        )
        count = xp.zeros(len(first), xp.int64)
        count[divided] = xp.bincount(parent, minlength=len(divided))
        children.append(count)
        level.append(level[-1] + len(parent))
    children.append(xp.zeros(len(bounds[-1][0]), xp.int64))

    first, last, parent = (
        xp.concatenate([level_bounds[k] for level_bounds in bounds]) for k in range(3)
    )
    children = xp.concatenate(children)
    child = 1 + xp.cumsum(children) - children
    depths = xp.asarray(np.repeat(np.arange(len(bounds)), np.diff(level)))
    width = root / 2.0**depths
    inside = xp.right_shift(index[order[first]], (DEPTH - depths)[:, None])
    return Tree(
        order,
        first,
        last,
        parent,
        child,
        children,
        corner + (inside + 0.5) * width[:, None],
        width,
        level,
    )


def _interleaved(x):
    """Spread the bits of x, with two zeros between adjacent bits."""
    for shift, mask in SPREAD:
        x = (x | x << shift) & mask
    return x
