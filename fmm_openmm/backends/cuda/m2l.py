r"""M2L of one level of an octree in a periodic cube, by operators of several kinds, chosen by name.

A level is a grid of ``side^3`` boxes, whose 8 children-to-a-parent structure needs an even side. Boxes are near within
``separation`` along every axis. The interaction list of a box holds the children of its parent's near boxes that are not near
itself, 189 for separation 1 and 875 for separation 2, periodic images as they come:

    Lambda(target) = sum over the list of A(target - source) M(source)          (A as in expansions/translations.py)

Lengths are in box widths of the level. The operators, all but ``p4_parity`` also in the FMM (``pipeline/m2l.py``):

``p4``            ``kernels/m2l_p4.cu``            O(p^4), loops mapped to threads as they stand
``p4_dynamic``    ``kernels/m2l_p4_dynamic.cu``    O(p^4), a block a parent, index work hoisted out of the loops
``p4_symmetric``  ``kernels/m2l_p4_symmetric.cu``  O(p^4), matrices shared by the mirror images of a translation
``p4_parity``     ``kernels/m2l_p4_parity.cu``     O(p^4), and by target terms of the same signs also sums over mirror images
``rotation``      ``kernels/m2l_rotation.cu``      O(p^3), translations along z between rotations
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import factorial

import cupy
import numpy as np

from fmm_openmm.backends.cuda.interactions import Interactions
from fmm_openmm.backends.cuda.loader import load
from fmm_openmm.backends.cuda.pipeline.m2l import (
    WARP,
    parity_shape,
    rotation_shape,
    shares_of,
    symmetric_shape,
    threads_of_pairs,
)
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import degrees, term_count
from fmm_openmm.expansions.translations import Rotation, irregular

UNIT = 8.0
"""Lengths in the kernels are in box widths over this, so that terms of any order fit into float32."""

ONE_ROOT = {"OPEN": 0, **{f"ROOT{k}": 1 for k in range(3)}, **{f"ROOT{ij}": 0 for ij in ("10", "20", "21")}}
"""Macros of a root grid of one box: ``half`` of ``kernels/common/levels.cuh`` is the number of parents along an axis then."""


@dataclass(frozen=True)
class Level:
    """What an operator is made for.

    Attributes:
        order: expansion order p, 1 to 20.
        side: boxes along each axis, even.
        separation: 1 or 2.
        dtype: of moments and local expansions, float32 or float64.
    """

    order: int
    side: int
    separation: int = 1
    dtype: type = np.float32

    def __post_init__(self):
        if not 1 <= self.order <= 20:
            raise ValueError(f"`order` must lie between 1 and 20, got {self.order}")
        if self.side < 2 or self.side % 2:
            raise ValueError(f"`side` must be even and positive, got {self.side}")
        if self.separation not in (1, 2):
            raise ValueError(f"`separation` must be 1 or 2, got {self.separation}")

    @property
    def terms(self) -> int:
        return term_count(self.order)

    @property
    def boxes(self) -> int:
        return self.side**3

    @property
    def half(self) -> int:
        """Parents along each axis."""
        return self.side // 2

    @property
    def groups(self) -> int:
        """Warps that hold the boxes of one child position."""
        return -(-(self.half**3) // WARP)

    @property
    def bytes_of_real(self) -> int:
        return np.dtype(self.dtype).itemsize

    def module(self, stage: str, **macros) -> cupy.RawModule:
        """The compiled kernels of ``kernels/<stage>.cu``."""
        return load(stage, {"REAL": real_type(self.dtype), "ORDER": self.order, **ONE_ROOT, **macros})


Operator = Callable[[cupy.ndarray, cupy.ndarray], None]
"""Reads moments and overwrites local expansions, both shape (terms, boxes) with x fastest, contiguous, of the level's dtype."""


def m2l(name: str, level: Level) -> Operator:
    """The operator of that name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in OPERATORS:
        raise ValueError(f"`name` must be one of {', '.join(OPERATORS)}, got {name!r}")
    return _Slabs(level, OPERATORS[name](level))


class _Slabs:
    """An operator on boxes in slabs (``kernels/common/levels.cuh``), between changes of their order."""

    def __init__(self, level: Level, operator):
        self._level, self._operator = level, operator
        module = level.module("m2l", UNIT=UNIT)
        self._to, self._from = module.get_function("to_slabs"), module.get_function("from_slabs")
        self._moments = cupy.empty((8, level.groups, level.terms, WARP), level.dtype)
        self._sums = cupy.empty((operator.shares, *self._moments.shape), level.dtype)

    def __call__(self, moments: cupy.ndarray, local: cupy.ndarray) -> None:
        half, grid = np.int32(self._level.half), (-(-self._level.boxes // 256), self._level.terms)
        self._to((8 * self._level.groups,), (8 * WARP,), (half, moments, self._moments))
        self._operator(self._moments, self._sums)
        self._from(grid, (256,), (half, np.int32(self._operator.shares), self._sums, local))


class P4:
    """``kernels/m2l_p4.cu``."""

    shares = 1

    def __init__(self, level: Level):
        self._level, self._kernel = level, level.module("m2l_p4").get_function("m2l_p4")
        interactions = interactions_of(level.separation)
        self._list = cupy.asarray(interactions.list)
        self._harmonics = _harmonics(level, interactions.translations)

    def __call__(self, moments, sums):
        count = np.int32(self._list.shape[1])
        arguments = (np.int32(self._level.half), count, self._list, self._harmonics, moments, sums)
        self._kernel((self._level.half**3, 8), (threads_of_pairs(self._level.order),), arguments)


class P4Dynamic:
    """``kernels/m2l_p4_dynamic.cu``."""

    shares = 1

    def __init__(self, level: Level):
        self._level = level
        self._kernel = level.module("m2l_p4_dynamic").get_function("m2l_p4_dynamic")
        interactions = interactions_of(level.separation)
        near = interactions.lattice.near
        self._near = np.int32(len(near))
        self._parents = cupy.asarray(np.pad(near, ((0, 0), (0, 1))), np.int32)
        self._numbers = cupy.asarray(interactions.number)
        self._harmonics = _harmonics(level, interactions.translations)

    def __call__(self, moments, sums):
        half = np.int32(self._level.half)
        arguments = (half, self._near, self._parents, self._numbers, self._harmonics, moments, sums)
        self._kernel((self._level.half**3,), (threads_of_pairs(self._level.order),), arguments)


class P4Symmetric:
    """``kernels/m2l_p4_symmetric.cu``."""

    def __init__(self, level: Level):
        self._level = level
        shape = symmetric_shape(level.terms, level.bytes_of_real)
        self._warps, padded = shape["M2L_WARPS"], shape["PADDED"]
        self._blocks = padded // (self._warps * shape["M2L_ROWS"])
        module = level.module("m2l_p4_symmetric", **shape)
        self._kernel = module.get_function("m2l_p4_symmetric")
        vectors, group, sources = interactions_of(level.separation).mirrored
        self._group, self._list = cupy.asarray(group), cupy.asarray(sources)
        self._matrix = cupy.empty((len(vectors), level.terms, padded), level.dtype)
        grid = -(-padded // 128), level.terms, len(vectors)
        module.get_function("matrices")(grid, (128,), (_harmonics(level, vectors), self._matrix))
        self.shares = shares_of(8 * level.groups * self._blocks * self._warps, group.shape[1])

    def __call__(self, moments, sums):
        sizes = [np.int32(n) for n in (self._level.half, self._group.shape[1], self._list.shape[1])]
        arguments = (*sizes[:2], self._group, sizes[2], self._list, self._matrix, moments, sums)
        self._kernel((self._level.groups * self._blocks, 8, self.shares), (WARP * self._warps,), arguments)


class P4Parity:
    """``kernels/m2l_p4_parity.cu``."""

    def __init__(self, level: Level):
        self._level = level
        vectors, group, sources = parity_list(level.separation)
        shape = parity_shape(level.order, level.bytes_of_real)
        tiles, rows, abreast = shape["TILES"], shape["ROWS"], shape["ABREAST"]
        deep = min(shape["M2L_WARPS"] // abreast, level.groups)
        self._warps, self._blocks = abreast * deep, -(-level.groups // deep) * (tiles // abreast)
        module = level.module("m2l_p4_parity", **shape)
        self._kernel = module.get_function("m2l_p4_parity")
        self._group, self._list = cupy.asarray(group), cupy.asarray(sources)
        self._matrix = cupy.empty((len(vectors), level.terms, tiles, rows), level.dtype)
        grid = -(-tiles * rows // 128), level.terms, len(vectors)
        module.get_function("matrices")(grid, (128,), (_harmonics(level, vectors), self._matrix))
        self.shares = shares_of(8 * self._blocks * self._warps, len(group))

    def __call__(self, moments, sums):
        groups, count = np.int32(len(self._group)), np.int32(self._list.shape[1])
        arguments = (np.int32(self._level.half), groups, self._group, count, self._list, self._matrix, moments, sums)
        self._kernel((self._blocks, 8, self.shares), (WARP * self._warps,), arguments)


class ByRotation:
    """``kernels/m2l_rotation.cu``."""

    def __init__(self, level: Level):
        self._level = level
        shared = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        shape, self._memory = rotation_shape(level.order, level.bytes_of_real, shared)
        self._warps = shape["M2L_WARPS"]
        module = level.module("m2l_rotation", **shape)
        self._kernel = module.get_function("m2l_rotation")
        self._kernel.max_dynamic_shared_size_bytes = self._memory
        interactions = interactions_of(level.separation)
        self._list = cupy.asarray(interactions.list)
        self._translations = cupy.asarray(along_z(interactions.translations, level.order), level.dtype)
        self.shares = shares_of(8 * level.groups * self._warps, self._list.shape[1] // self._warps)

    def __call__(self, moments, sums):
        count = np.int32(self._list.shape[1])
        arguments = (np.int32(self._level.half), count, self._list, self._translations, moments, sums)
        self._kernel((self._level.groups, 8, self.shares), (WARP * self._warps,), arguments, shared_mem=self._memory)


OPERATORS = {"p4": P4, "p4_dynamic": P4Dynamic, "p4_symmetric": P4Symmetric, "p4_parity": P4Parity, "rotation": ByRotation}


# Tables


class _Cubes(BoxLattice):
    """Near within ``near_radius`` along every axis."""

    @cached_property
    def near(self) -> np.ndarray:
        reach = int(self.near_radius)
        return np.array(list(product(range(-reach, reach + 1), repeat=3)))[:, ::-1]


def interactions_of(separation: int) -> Interactions:
    """Of cubes that are near within ``separation`` along every axis."""
    return Interactions(_Cubes(np.eye(3, dtype=np.int64), np.eye(3), separation))


def parity_list(separation: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lists in groups of translations that differ in signs, in the same order for all child positions.

    Returns:
        vectors: the distinct absolute values of the translations, shape ``(groups, 3)`` int64.
        group: shape ``(groups, 2)`` int32: the group's first source; 8 * its vector + bits of the axes whose signs differ
            within it; largest first.
        sources: as :attr:`Interactions.list`, without the number of the translation. Of the last child position, the
            n-th translation of a group is negative along the axes in the n-th subset of its bits; of the others, they are
            mirrored along the axes in which they differ from it.
    """
    axes, farthest = range(3), 2 * separation + 1
    vectors = [v for v in product(range(farthest + 1), repeat=3) if max(v) > separation]
    mirrors = [sum((0 < v[axis] < farthest) << axis for axis in axes) for v in vectors]
    groups = sorted(range(len(vectors)), key=lambda n: -mirrors[n].bit_count())
    group, lists = [], [[] for _ in range(8)]
    for n in groups:
        group.append((len(lists[0]), 8 * n + mirrors[n]))
        for target, mirror in product(range(8), (g for g in range(8) if g & ~mirrors[n] == 0)):
            negative = mirror ^ target ^ 7
            source = [(target >> axis & 1) - vectors[n][axis] * (-1) ** (negative >> axis & 1) for axis in axes]
            lists[target].append((*(s >> 1 for s in source), sum((s & 1) << axis for axis, s in enumerate(source))))
    return np.array(vectors), np.array(group, np.int32), np.array(lists, np.int32)


def _harmonics(level: Level, vectors: np.ndarray) -> cupy.ndarray:
    """Irregular harmonics of the vectors, those of degree n over ``UNIT^n``, shape ``(vectors, (2 order + 1)^2)``."""
    top = 2 * level.order
    scaled = irregular(vectors.astype(float), top) / UNIT ** degrees(top)[:, None]
    return cupy.asarray(np.ascontiguousarray(scaled.T), level.dtype)


def along_z(vectors: np.ndarray, order: int) -> np.ndarray:
    """Parameters of translations (k, 3) by rotation, shape ``(k, 6 (order + 1))`` float64.

    ``exp(i m alpha)``, ``exp(i m theta)``, m = 0 ... order; ``n! / (R^(n+1) UNIT^n)``, n = 0 ... 2 order; a zero.
    """
    m, n = np.arange(order + 1), np.arange(2 * order + 1)
    rows = []
    for vector in vectors.astype(float):
        frame = Rotation.of(vector)
        phases = np.exp(1j * np.outer([frame.phi + np.pi / 2, frame.theta], m))
        powers = np.array([float(factorial(k)) for k in n]) / (frame.r ** (n + 1.0) * UNIT**n)
        rows.append(np.concatenate([phases.ravel().view(float), powers, [0.0]]))
    return np.array(rows)
