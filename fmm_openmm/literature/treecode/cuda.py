"""Charges in free space by a treecode on the GPU: an octree is built for every evaluation, and
distant cells act through their moments."""

import cupy
import numpy as np

from fmm_openmm.backends.cuda.direct import TILE, collect, partners_on_device, split
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.literature.treecode.tree import Tree, build_tree
from fmm_openmm.stages import OpenSum

LEAF = 64
"""Maximum particles in a leaf of the tree."""

GROUP = 32
"""Particles that traverse the tree together."""

THREADS = 64


class Treecode(OpenSum):
    """The treecode on the GPU, see :class:`fmm_openmm.stages.OpenSum`."""

    def __init__(self, charges, pairs, dtype, order: int, theta: float):
        self.dtype, self.order, self.theta = np.dtype(dtype), order, theta
        macros = {
            "REAL": real_type(dtype),
            "ORDER": order,
            "THETA": repr(float(theta)),
            "WALK_THREADS": THREADS,
        }
        self._kernels = load("treecode", macros)
        self._shared = load("direct", {"REAL": real_type(dtype), "TILE": TILE})
        self.charges = cupy.asarray(charges, np.float64)
        self._pairs = cupy.asarray(pairs, np.int64).reshape(-1, 2)

    def set_charges(self, charges) -> None:
        self.charges = cupy.asarray(charges, np.float64)

    def evaluate(self, positions):
        positions = cupy.asarray(positions, np.float64)
        tree = build_tree(positions, LEAF, cupy)
        n = len(positions)
        order = tree.order.astype(np.int32)
        place = cupy.empty(n, np.int64)
        place[tree.order] = cupy.arange(n)
        partners = partners_on_device(place[self._pairs], n)
        high, low = split(self._shared, positions, self.charges, order, self.dtype)
        cells = _cells(tree, self.dtype)
        leaves = cupy.flatnonzero(tree.children == 0)
        moments = self._moments(tree, cells, leaves, high, low)

        count = tree.last[leaves] - tree.first[leaves]
        groups = -(-count // GROUP)
        start = cupy.cumsum(groups) - groups
        total = int(groups.sum())
        own = cupy.searchsorted(start, cupy.arange(total), side="right") - 1
        group = cupy.stack(
            [leaves[own], tree.first[leaves][own] + GROUP * (cupy.arange(total) - start[own])], 1
        )
        by_start = leaves[cupy.argsort(tree.first[leaves])]
        leaf_of = by_start[
            cupy.searchsorted(tree.first[by_start], cupy.arange(n), side="right") - 1
        ]
        results = cupy.empty((1, n, 4))
        self._warps("walk", total, np.int32(total), group.astype(np.int32), cells,
                    tree.parent.astype(np.int32), leaf_of.astype(np.int32), moments, high, low,
                    *partners, results)  # fmt: skip
        return collect(self._shared, results, order)

    def _moments(self, tree: Tree, cells, leaves, high, low):
        """Moments of all cells in units of their widths, shape (cells, terms)."""
        terms = (self.order + 1) ** 2
        moments = cupy.empty((len(tree.first), terms), self.dtype)
        self._warps(
            "p2m",
            len(leaves),
            np.int32(len(leaves)),
            leaves.astype(np.int32),
            cells,
            high,
            low,
            moments,
        )
        shared = THREADS // 32 * 2 * terms * self.dtype.itemsize
        for first, last in list(zip(tree.level, tree.level[1:], strict=False))[::-1]:
            parents = (first + cupy.flatnonzero(tree.children[first:last])).astype(np.int32)
            if len(parents):
                self._warps(
                    "m2m",
                    len(parents),
                    np.int32(len(parents)),
                    parents,
                    cells,
                    moments,
                    shared=shared,
                )
        return moments

    def _warps(self, kernel: str, warps: int, *arguments, shared: int = 0):
        function = self._kernels.get_function(kernel)
        function((-(-warps * 32 // THREADS),), (THREADS,), arguments, shared_mem=shared)


def _cells(tree: Tree, dtype):
    """Cells as ``Cell`` of ``kernels/literature/treecode.cu``, bytes of shape (cells, size)."""
    high = tree.centre.astype(dtype)
    reals = cupy.zeros((len(high), 8), dtype)
    reals[:, :3], reals[:, 3] = high, tree.width
    reals[:, 4:7] = tree.centre - high
    integers = cupy.stack([tree.first, tree.last, tree.child, tree.children], 1).astype(np.int32)
    return cupy.concatenate([reals.view(np.uint8), integers.view(np.uint8)], 1)
