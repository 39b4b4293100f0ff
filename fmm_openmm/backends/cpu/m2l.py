r"""m2l: adds the contributions of the interaction lists of a level to its local expansions.

One thread owns a tile of boxes of the same parity, which have the same interactions. For each
offset it collects the moments of the boxes at that offset, and all lanes are translated by the same
shift. Boxes without charges are skipped, and targets whose expansions nobody needs.

``p4``        multiplies by the dense matrix of the shift, whose entries are computed from irregular
              harmonics as needed: (p + 1)^4 multiplications per lane and offset
``rotation``  multiplies four times by the matrix J, a quarter of which is nonzero, rotates four
              times about z and translates along z: about 2 (p + 1)^3 in all
              (``expansions/translations.py``)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fmm_openmm.backends.cpu.sort import home
from fmm_openmm.backends.cpu.threads import LANES, inline, kernel
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.expansions.translations import Rotation, exchange, irregular
from fmm_openmm.octree import Octree, parities
from fmm_openmm.openmp import portion

P4_LANES = 4 * LANES
"""Lanes of ``p4``: many, because each entry of a matrix is computed once for all lanes.
``rotation`` uses fewer, so that two expansions per box stay in the cache."""

LEVEL = "f8[:,::1], i8[:,::1], b1[::1], i8[::1], i8[::1], i8[::1], i8[:,::1], i8[::1], i8[::1], "
"""Types of the leading arguments, which both operators share."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """The offsets of each parity, and the operator's tables for every offset.

    Attributes:
        parity: parities of the boxes of every level but the root, shape (boxes,) each.
        offsets: all offsets that occur, shape (k, 3) int64.
        start, which: rows of ``offsets`` of parity c are ``which[start[c]:start[c + 1]]``.
        tables: further arguments of the operator's kernel.
    """

    parity: dict[int, np.ndarray]
    offsets: np.ndarray
    start: np.ndarray
    which: np.ndarray
    tables: tuple

    @classmethod
    def from_octree(cls, octree: Octree, order: int, operator: "Operator") -> "Interactions":
        offsets, rows = octree.offsets
        start = np.cumsum([0, *map(len, rows)])
        parity = {level: parities(octree.lattices[level]) for level in range(1, octree.levels + 1)}
        tables = operator.tables(-(offsets @ octree.leaf.boxes), order)
        return cls(parity, offsets, start, np.concatenate(rows), tables)


def _p4_tables(shifts: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
    """Irregular harmonics of every shift (k, (2 order + 1)^2), indices and weights of the coupling,
    and the sign of each term."""
    index, weight = coupling(order)
    return (
        np.ascontiguousarray(irregular(shifts, 2 * order).T),
        index,
        weight,
        (-1.0) ** degrees(order),
    )


def _rotation_tables(shifts: np.ndarray, order: int) -> tuple:
    """Cosines and sines of m phi and m theta (k, 4, order + 1); the nonzero entries by row of J, of
    its transpose, and of the translation along z for every shift; the order."""
    frames = [Rotation.from_shift(shift) for shift in shifts]
    m, n = np.arange(order + 1), np.arange(2 * order + 1)
    rotations = np.array(
        [
            [f(m * angle) for angle in (frame.phi, frame.theta) for f in (np.cos, np.sin)]
            for frame in frames
        ]
    )
    matrix = np.zeros(((order + 1) ** 2,) * 2)
    for l, block in enumerate(exchange(order)):
        matrix[l * l : (l + 1) ** 2, l * l : (l + 1) ** 2] = block
    radial = np.array([np.cumprod(np.maximum(1.0, n)) / frame.r ** (n + 1.0) for frame in frames])
    degree = degrees(order)
    signed = np.arange(len(degree)) - degree * degree - degree
    factor = (-1.0) ** (degree + signed) * np.where(signed, 2.0, 1.0)
    start, column, pattern = _by_row(np.where(np.equal.outer(signed, signed), factor[:, None], 0.0))
    row = np.repeat(np.arange(len(degree)), np.diff(start))
    along = np.ascontiguousarray(pattern * radial[:, degree[row] + degree[column]])
    return rotations, *_by_row(matrix), *_by_row(matrix.T), start, column, along, order


def _by_row(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nonzero entries row by row: start of each row, column, value; rows are padded to a multiple
    of 4."""
    columns, values = [], []
    for entries in matrix:
        used = np.flatnonzero(entries)
        fill = -len(used) % 4
        columns.append(np.append(used, np.full(fill, used[0])))
        values.append(np.append(entries[used], np.zeros(fill)))
    start = np.cumsum([0, *map(len, columns)])
    return start, np.concatenate(columns), np.concatenate(values)


@inline
def _collect(moments, counts, filled, targets, begin, used, offset, source, tile):
    """Collect the moments (terms, lanes) of the boxes at ``offset`` from the targets. Return
    whether any of them holds charges."""
    n0, n1 = counts[0, 0], counts[1, 1]
    any_filled = False
    for w in range(len(source)):
        box = targets[begin + (w if w < used else 0)]
        i0, i1, i2 = home(
            box % n0 + offset[0], box // n0 % n1 + offset[1], box // (n0 * n1) + offset[2], counts
        )
        source[w] = i0 + n0 * (i1 + n1 * i2)
        any_filled = any_filled or filled[source[w]]
    if any_filled:
        for w in range(len(source)):
            for a in range(len(tile)):
                tile[a, w] = moments[source[w], a]
    return any_filled


@inline
def _entry(weight, harmonics, index):
    """Entry of the matrix of a shift."""
    return weight[0] * harmonics[index[0]] + weight[1] * harmonics[index[1]]


@kernel(LEVEL + "f8[:,::1], i4[:,:,::1], f8[:,:,::1], f8[::1], f8[:,::1]")
def _m2l_p4(
    thread,
    moments,
    counts,
    filled,
    targets,
    tiles,
    parity,
    offsets,
    start,
    which,
    harmonics,
    index,
    weight,
    sign,
    local,
):
    terms = moments.shape[1]
    for t in portion(len(tiles) - 1, thread):
        begin, used = tiles[t], tiles[t + 1] - tiles[t]
        source = np.empty(P4_LANES, np.int64)
        # multiplied in blocks of two rows and two columns; beyond the matrix there are zeros
        upper, lower = np.zeros(terms + 1), np.zeros(terms + 1)
        tile, total = np.zeros((terms + 1, P4_LANES)), np.zeros((terms + 1, P4_LANES))
        for k in range(start[parity[t]], start[parity[t] + 1]):
            e = which[k]
            if not _collect(
                moments, counts, filled, targets, begin, used, offsets[e], source, tile[:terms]
            ):
                continue
            for a in range(0, terms, 2):
                below = min(a + 1, terms - 1)
                for b in range(terms):
                    upper[b] = _entry(weight[a, b], harmonics[e], index[a, b])
                    lower[b] = _entry(weight[below, b], harmonics[e], index[below, b])
                for b in range(0, terms, 2):
                    u0, u1, l0, l1 = upper[b], upper[b + 1], lower[b], lower[b + 1]
                    for w in range(P4_LANES):
                        x, y = tile[b, w], tile[b + 1, w]
                        total[a, w] += u0 * x + u1 * y
                        total[a + 1, w] += l0 * x + l1 * y
        for w in range(used):
            for a in range(terms):
                local[targets[begin + w], a] += sign[a] * total[a, w]


@inline
def _rotate_z(tile, order, cosine, sine, sense):
    """Rotate about z in place: the real and imaginary parts of order m rotate by the angle m g, or
    by -m g if ``sense`` is -1."""
    for l in range(1, order + 1):
        for m in range(1, l + 1):
            c, s = cosine[m], sense * sine[m]
            a, b = l * l + l + m, l * l + l - m
            for w in range(LANES):
                x, y = tile[a, w], tile[b, w]
                tile[a, w], tile[b, w] = c * x - s * y, s * x + c * y


@inline
def _multiply(start, column, value, tile, out):
    """Multiply, ``out = matrix tile``, with the matrix given by its rows."""
    for a in range(len(tile)):
        for k in range(start[a], start[a + 1], 4):
            v0, v1, v2, v3 = value[k], value[k + 1], value[k + 2], value[k + 3]
            b0, b1, b2, b3 = column[k], column[k + 1], column[k + 2], column[k + 3]
            for w in range(LANES):
                s = (v0 * tile[b0, w] + v1 * tile[b1, w]) + (v2 * tile[b2, w] + v3 * tile[b3, w])
                out[a, w] = s if k == start[a] else out[a, w] + s


@kernel(
    LEVEL
    + (
        "f8[:,:,::1], i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], "
        "f8[:,::1], i8, f8[:,::1]"
    )
)
def _m2l_rotation(
    thread, moments, counts, filled, targets, tiles, parity, offsets, start, which, rotations, row,
    column, value, transposed_row, transposed_column, transposed_value, along_row, along_column,
    along_value, order, local,
):  # fmt: skip
    terms = moments.shape[1]
    for t in portion(len(tiles) - 1, thread):
        begin, used = tiles[t], tiles[t + 1] - tiles[t]
        source = np.empty(LANES, np.int64)
        tile, other = np.empty((terms, LANES)), np.empty((terms, LANES))
        total = np.zeros((terms, LANES))
        for k in range(start[parity[t]], start[parity[t] + 1]):
            e = which[k]
            if not _collect(
                moments, counts, filled, targets, begin, used, offsets[e], source, tile
            ):
                continue
            _rotate_z(tile, order, rotations[e, 0], rotations[e, 1], -1.0)
            _multiply(row, column, value, tile, other)
            _rotate_z(other, order, rotations[e, 2], rotations[e, 3], 1.0)
            _multiply(row, column, value, other, tile)
            _multiply(along_row, along_column, along_value[e], tile, other)
            _multiply(transposed_row, transposed_column, transposed_value, other, tile)
            _rotate_z(tile, order, rotations[e, 2], rotations[e, 3], -1.0)
            _multiply(transposed_row, transposed_column, transposed_value, tile, other)
            _rotate_z(other, order, rotations[e, 0], rotations[e, 1], 1.0)
            for a in range(terms):
                for w in range(LANES):
                    total[a, w] += other[a, w]
        for w in range(used):
            for a in range(terms):
                local[targets[begin + w], a] += total[a, w]


@dataclass(frozen=True)
class Operator:
    """An operator for translations between boxes.

    Attributes:
        kernel: adds to the local expansions of a level.
        tables: makes the kernel's tables from shifts (k, 3) and the order.
        width: number of lanes.
    """

    kernel: Callable
    tables: Callable
    width: int


P4 = Operator(_m2l_p4, _p4_tables, P4_LANES)
ROTATION = Operator(_m2l_rotation, _rotation_tables, LANES)


def m2l(
    moments,
    local,
    wanted: np.ndarray,
    octree: Octree,
    interactions: Interactions,
    level: int,
    operator: Operator,
) -> None:
    """Add to ``local``, see :meth:`fmm_openmm.stages.Stages.m2l`.

    Args:
        moments, local: shape (boxes, terms).
        wanted: whether the local expansions of boxes are needed, shape (boxes,).
    """
    counts, parity = octree.lattices[level].counts, interactions.parity[level]
    filled, targets = moments.any(1), np.flatnonzero(wanted)
    targets = targets[np.argsort(parity[targets], kind="stable")]
    first = np.searchsorted(parity[targets], np.arange(9))
    tiles = np.concatenate([np.arange(first[c], first[c + 1], operator.width) for c in range(8)])
    arguments = (
        moments, counts, filled, targets, np.append(tiles, len(targets)), parity[targets[tiles]],
        interactions.offsets, interactions.start, interactions.which, *interactions.tables,
    )  # fmt: skip
    operator.kernel(*arguments, local)
