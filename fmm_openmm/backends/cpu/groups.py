r"""Energies among groups of charges.

With ``q_i`` the charge of part i, ``g_i`` its group and ``Phi_B`` the potential of group B,

    M_AB = 1/2 sum_{i in A} q_i Phi_B(x_i)

is bilinear in the charges, so that no potentials of all groups at all particles are needed. The
parts of a group in a box are a *fragment* of it, with moments ``m_s`` about the centre of the box.

Near field: one pass over near pairs (i, j), each once, adds ``q_i q_j / r`` to the entry of
``g_i`` and ``g_j``, whatever the number of groups.

Far field: groups with fragments in few boxes, such as residues, interact fragment by fragment. With
T(d) the lattice operator in real space, all periodic images included, and A(d) its translation
matrix (:mod:`fmm_openmm.expansions.harmonics`), two fragments s and t in boxes a and b add

    m_s^T A(a - b) m_t

Pairs of boxes are sorted by their displacement, so that A is made once for many products. A group
in many boxes, such as the solvent, is cheaper by convolution: its local expansions ``L_B`` at all
boxes, like those of a plain evaluation, and ``m_s^T L_B`` for every fragment. :func:`choose_small`
chooses between both by their costs. With levels all groups are convolved.

The trace term (:mod:`fmm_openmm.expansions.background`) is bilinear in the sums Q, D and S of the
groups,

    sum_k c_k (S_Ak Q_B + Q_A S_Bk - 2 D_Ak D_Bk)

Each contribution to ``2 M`` is found once, for A and B or for B and A, as a term of a matrix W with
``2 M = W + W^T``.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmm_openmm.backends.cpu.p2m import p2m
from fmm_openmm.backends.cpu.p2p import columns, copy_sources, find_sources
from fmm_openmm.backends.cpu.sort import CpuParts
from fmm_openmm.backends.cpu.threads import LANES, chunk_count, inline, kernel
from fmm_openmm.box import BoxLattice
from fmm_openmm.driver import expand
from fmm_openmm.expansions.background import coefficients
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.openmp import get_num_threads, portion
from fmm_openmm.stages import Accumulator, Moments, NearExclusions

BLOCK = 64
"""Parts of a fragment whose potentials are summed in the working precision before the sum is added
in float64."""

COLUMNS = 128
"""Fragments whose moments are translated together: so many that inner loops are long, and so few
that their moments stay in a core's cache."""

CONVOLUTION = 10.0
"""Cost of a convolution for each place of the Fourier transform, relative to that of a fragment
and another box."""

MAX_ENTRIES = 1 << 22
"""Entries of the rows of fragments, and pairs of boxes, that are held at a time, which bounds the
memory."""


@dataclass
class Fragments:
    """Parts, sorted by box and within a box by group.

    Attributes, for f fragments of G groups in b boxes:
        parts: the parts, with the charges of all groups.
        group: group of each part, shape (m,).
        start: parts of fragment s are ``start[s]:start[s + 1]``, shape (f + 1,).
        owner: group of each fragment, shape (f,).
        box: box of each fragment, shape (f,).
        of_box: fragments of box a are ``of_box[a]:of_box[a + 1]``, shape (b + 1,).
    """

    parts: CpuParts
    group: np.ndarray
    start: np.ndarray
    owner: np.ndarray
    box: np.ndarray
    of_box: np.ndarray

    @classmethod
    def from_parts(cls, parts: CpuParts, charge: np.ndarray, group: np.ndarray) -> "Fragments":
        """The fragments of groups.

        Args:
            parts: the parts, sorted by box.
            charge: charges of the parts, shape (m,).
            group: group of each particle, shape (n,).
        """
        boxes, m = len(parts.start) - 1, len(parts.x)
        box, of_part = np.repeat(np.arange(boxes), np.diff(parts.start)), group[parts.particle]
        order = np.lexsort((of_part, box))
        place = np.empty(m, np.int64)
        place[order] = np.arange(m)
        names = ("particle", "x", "weight", "slope", "box")
        moved = {name: getattr(parts, name)[order] for name in names}
        parts = replace(parts, charge=charge[order], place=place[parts.place], **moved)
        of_part = of_part[order]
        begins = np.flatnonzero(np.diff(of_part, prepend=-1) | np.diff(box, prepend=-1))
        of_box = np.searchsorted(box[begins], np.arange(boxes + 1))
        return cls(parts, of_part, np.append(begins, m), of_part[begins], box[begins], of_box)

    def sum_by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums over the parts of each group, shape (G,), of values, shape (m,)."""
        return np.bincount(self.group, values)

    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums of ``q``, ``q x`` and ``q x^2`` of each group, shapes (G,), (G, 3) and (G, 3)."""
        q, x = self.parts.charge.astype(np.float64), self.parts.x.astype(np.float64).T
        return (
            self.sum_by_group(q),
            np.stack([self.sum_by_group(q * column) for column in x], 1),
            np.stack([self.sum_by_group(q * column**2) for column in x], 1),
        )


def choose_small(fragments: Fragments, places: int) -> np.ndarray:
    """Whether the far field of each group is computed fragment by fragment, shape (G,): of the
    groups with at most k fragments, for the k that costs least.

    Args:
        places: places of the Fourier transform.
    """
    sizes = np.bincount(fragments.owner)
    least = np.full(len(fragments.of_box) - 1, len(fragments.box) + 1)
    np.minimum.at(least, fragments.box, sizes[fragments.owner])
    tried = np.unique(np.append(0, sizes))
    costs = [
        0.5 * sizes[sizes <= k].sum() * (least <= k).sum()
        + CONVOLUTION * places * (sizes > k).sum()
        for k in tried
    ]
    return sizes <= tried[np.argmin(costs)]


@kernel(
    "real[:,::1], real[:,::1], i8[::1], i8[:,::1], f8[:,::1], i8[:,::1], i8[::1], i8[::1], "
    "i8[::1], i8[::1], i8[::1], i8[::1], i8, i8, i8, f8, f8[:,::1]"
)
def _near(
    thread, x, sources, start, counts, boxes, near, excluded_start, excluded_part, excluded_row,
    fragment, of_box, owner, first, last, chunks, limit, rows,
):  # fmt: skip
    """Add to the rows of the fragments in the boxes from ``first`` to ``last``, shape (fragments,
    G), their energies with groups, each near pair once: ``near`` is one half of the near stencil,
    from the box itself on. NaN marks potentials beyond ``limit``."""
    real = x.dtype.type
    half = len(near) - 1  # the row of the box itself in the whole stencil
    charge = sources[3]
    for chunk in portion(chunks, thread):
        source, begin = np.empty(len(near), np.int64), np.empty(len(near), np.int64)
        buffer, phi = np.empty((4, 0), x.dtype), np.empty(0, x.dtype)
        saved = np.empty(0, x.dtype)
        for box in range(first + chunk, last, chunks):
            if start[box] == start[box + 1]:
                continue
            length = find_sources(box, near, start, counts, source, begin)
            if length > buffer.shape[1]:
                buffer = np.empty((4, length + length // 2), x.dtype)
                phi = np.empty(length + length // 2, x.dtype)
            copy_sources(sources, start, boxes, near, source, begin, buffer)
            bx, by, bz, bq = buffer[0], buffer[1], buffer[2], buffer[3]
            for f in range(of_box[box], of_box[box + 1]):
                row = rows[f - of_box[first]]
                for block in range(fragment[f], fragment[f + 1], BLOCK):
                    phi[:length] = real(0.0)
                    for i in range(block, min(block + BLOCK, fragment[f + 1])):
                        q = charge[i]
                        if q == real(0.0):  # which may be where a charge is
                            continue
                        entries = excluded_start[i + 1] - excluded_start[i]
                        if entries > len(saved):
                            saved = np.empty(2 * entries, x.dtype)
                        for e in range(entries):
                            k = excluded_row[excluded_start[i] + e] - half
                            if k >= 0:
                                j = excluded_part[excluded_start[i] + e] - start[source[k]]
                                saved[e] = phi[begin[k] + j]
                        x0, x1, x2 = x[i, 0], x[i, 1], x[i, 2]
                        for j in range(length):
                            dx, dy, dz = x0 - bx[j], x1 - by[j], x2 - bz[j]
                            phi[j] += q / np.sqrt(dx * dx + dy * dy + dz * dz)
                        for e in range(entries):
                            k = excluded_row[excluded_start[i] + e] - half
                            if k >= 0:
                                j = excluded_part[excluded_start[i] + e] - start[source[k]]
                                phi[begin[k] + j] = saved[e]
                    for k in range(len(near)):
                        share = 1.0 if k else 0.5  # pairs within the box occur twice
                        shift = begin[k] - start[source[k]]
                        for g in range(of_box[source[k]], of_box[source[k] + 1]):
                            energy, beyond = 0.0, 0
                            for j in range(fragment[g] + shift, fragment[g + 1] + shift):
                                energy += np.float64(bq[j] * phi[j])
                                beyond += 0 if abs(phi[j]) <= limit else 1
                            row[owner[g]] += np.nan if beyond else share * energy


@inline
def _multiply(matrix, x, columns, out):
    """Multiply, ``out = matrix x``, in the first ``columns``, a multiple of LANES; the matrix has
    an even number of rows, and a multiple of four columns."""
    for i in range(0, len(matrix), 2):
        out0, out1 = out[i], out[i + 1]
        for w in range(columns):
            out0[w], out1[w] = out.dtype.type(0.0), out.dtype.type(0.0)
        for j in range(0, matrix.shape[1], 4):
            a0, a1, a2, a3 = matrix[i, j], matrix[i, j + 1], matrix[i, j + 2], matrix[i, j + 3]
            i1 = i + 1
            b0, b1, b2, b3 = matrix[i1, j], matrix[i1, j + 1], matrix[i1, j + 2], matrix[i1, j + 3]
            x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            for w in range(columns):
                out0[w] += (a0 * x0[w] + a1 * x1[w]) + (a2 * x2[w] + a3 * x3[w])
                out1[w] += (b0 * x0[w] + b1 * x1[w]) + (b2 * x2[w] + b3 * x3[w])


@kernel(
    "real[:,::1], i8[::1], i8[::1], i8[::1], real[:,::1], i4[:,:,::1], real[:,:,::1], i8[::1], "
    "i8[::1], i8[::1], i8[::1], i8[::1], f8[:,::1]"
)
def _far(
    thread, moments, owner, of_box, row, operator, index, weight, degree, start, displacement,
    target, source, rows,
):  # fmt: skip
    """Add to rows the far energies of fragments with groups, each pair of fragments once.

    Args:
        moments: of the fragments, shape (fragments, terms).
        owner: group of each fragment.
        of_box: fragments in each box that has any, as in :class:`Fragments`.
        row: number of the row of each fragment.
        operator: the lattice operator in real space, shape (places, terms).
        start: pairs of boxes of chunk c are ``start[c]:start[c + 1]``; no two chunks have the same
            target boxes.
        displacement: row of the operator for each pair of boxes, ascending in each chunk.
        target, source: numbers of the two boxes of each pair.
    """
    terms = moments.shape[1]
    even, padded = (terms + 1) // 2 * 2, (terms + 3) // 4 * 4
    for chunk in portion(len(start) - 1, thread):
        matrix = np.zeros((even, padded), moments.dtype)
        x, y = np.zeros((padded, COLUMNS), moments.dtype), np.empty((even, COLUMNS), moments.dtype)
        local = np.empty((COLUMNS, terms), moments.dtype)
        pair, fragment = np.empty(COLUMNS, np.int64), np.empty(COLUMNS, np.int64)
        p, t, last = start[chunk], np.int64(0), np.int64(-1)
        while p < start[chunk + 1]:
            d, used = displacement[p], 0
            if d != last:
                last = d
                for i in range(terms):
                    for j in range(terms):
                        a = weight[i, j, 0] * operator[d, index[i, j, 0]]
                        a += weight[i, j, 1] * operator[d, index[i, j, 1]]
                        matrix[i, j] = -a if degree[i] % 2 else a
            while used < COLUMNS and p < start[chunk + 1] and displacement[p] == d:
                if t < of_box[source[p] + 1] - of_box[source[p]]:
                    pair[used], fragment[used] = p, of_box[source[p]] + t
                    used += 1
                    t += 1
                else:
                    p, t = p + 1, np.int64(0)
            for w in range(used):
                for j in range(terms):
                    x[j, w] = moments[fragment[w], j]
            _multiply(matrix, x, (used + LANES - 1) // LANES * LANES, y)
            for i in range(terms):
                for w in range(used):
                    local[w, i] = y[i, w]
            for w in range(used):
                box, one = target[pair[w]], local[w]
                # pairs within a box occur twice
                share = 0.5 if box == source[pair[w]] else 1.0
                for s in range(of_box[box], of_box[box + 1]):
                    other, energy = moments[s], 0.0
                    for i in range(terms):
                        energy += np.float64(one[i] * other[i])
                    rows[row[s], owner[fragment[w]]] += share * energy


def energies_among(fragments: Fragments, stages: Any, limit: float) -> np.ndarray:
    """``2 M`` of the module's formula, see :meth:`fmm_openmm.stages.ChargeSets.among_groups`.

    Args:
        stages: the :class:`fmm_openmm.backends.cpu.CpuStages` that sorted the parts.
        limit: potential that only charges at the same place have.
    """
    charge, dipole, square = sums = fragments.sums()
    c = coefficients(stages.lattice)
    half = np.outer(charge, square @ c) - (c * dipole) @ dipole.T
    near = _without_distant(fragments, stages, half)
    own = replace(fragments.parts, start=fragments.start)
    moments = p2m(own, np.arange(len(fragments.box)), stages.order).boxes
    small = np.zeros(len(charge), bool)
    if not stages.octree.levels:
        small = choose_small(fragments, stages.lattice.size)
    for group in np.flatnonzero(~small).tolist():
        total = Moments(moments, *(values[group] for values in sums))
        energies = _convolved(total, group, fragments, stages)
        half[:, group] += np.where(small, 1.0, 0.5) * energies
    _add_pairs(half, fragments, moments, small, near, stages, limit)
    return half + half.T


def _without_distant(fragments: Fragments, stages: Any, half: np.ndarray) -> NearExclusions:
    """Subtract excluded pairs whose boxes are not near from W, and return the others."""
    parts = fragments.parts

    def excluded(charge: np.ndarray) -> tuple[NearExclusions, np.ndarray]:
        out = Accumulator(np.zeros(len(charge)), np.zeros((len(charge), 3)))
        near = stages.exclusions(replace(parts, charge=charge), out)
        return near, fragments.sum_by_group(parts.charge * out.potentials)

    near, _ = excluded(parts.charge)
    for group in np.unique(fragments.group[near.part[near.offset < 0]]):
        charge = np.where(fragments.group == group, parts.charge, parts.charge.dtype.type(0))
        half[:, group] += 0.5 * excluded(charge)[1]
    return near


def _convolved(total: Moments, group: int, fragments: Fragments, stages: Any) -> np.ndarray:
    """Far energies of all groups, shape (G,), in the potential of one.

    Args:
        total: with the moments of all fragments, shape (terms, f), and the sums of this group.
    """
    lattice, own = stages.lattice, fragments.owner == group
    slots, moments = lattice.slots[fragments.box], total.boxes
    boxes = np.zeros((len(moments), lattice.size), moments.dtype)
    boxes[:, slots[own]] = moments[:, own]
    local = expand(stages, fragments.parts, replace(total, boxes=boxes))
    energies = np.einsum("as,as->s", moments, local[:, slots], dtype=np.float64)
    return np.bincount(fragments.owner, energies)


def _add_pairs(
    half: np.ndarray,
    fragments: Fragments,
    moments: np.ndarray,
    small: np.ndarray,
    near: NearExclusions,
    stages: Any,
    limit: float,
) -> None:
    """Add the near field, and the far field among small groups, to W.

    Args:
        moments: of the fragments, shape (terms, f).
        small: whether each group is one of these, shape (G,).
    """
    lattice, parts, groups = stages.lattice, fragments.parts, len(small)
    sources = columns(parts.x, parts.charge)
    few = np.flatnonzero(small[fragments.owner])
    occupied = np.unique(fragments.box[few])
    # fragments at a time, or those of one box
    first, step = 0, max(1, MAX_ENTRIES // max(groups, len(occupied)))
    if len(few):
        index, weight = coupling(stages.order)
        tables = (
            stages.operator_in_space, index, weight.astype(moments.dtype), degrees(stages.order)
        )  # fmt: skip
        own = np.ascontiguousarray(moments[:, few].T), fragments.owner[few]
        of_box = np.searchsorted(fragments.box[few], np.append(occupied, lattice.size))
    while first < lattice.size:
        begin = fragments.of_box[first]
        last = max(first + 1, np.searchsorted(fragments.of_box, begin + step, "right") - 1)
        rows = np.zeros((fragments.of_box[last] - begin, groups))
        _near(
            parts.x, sources, parts.start, lattice.counts, lattice.boxes,
            lattice.near[len(lattice.near) // 2 :], near.start, near.part, near.offset,
            fragments.start, fragments.of_box, fragments.owner, first, last,
            chunk_count(last - first), limit, rows,
        )  # fmt: skip
        if len(few):
            pairs = _box_pairs(lattice, occupied, *np.searchsorted(occupied, (first, last)))
            _far(*own, of_box, few - begin, *tables, *pairs, rows)
        order = np.argsort(fragments.owner[begin : fragments.of_box[last]], kind="stable")
        owners, starts = np.unique(fragments.owner[begin + order], return_index=True)
        half[owners] += np.add.reduceat(rows[order], starts)
        first = last


def _box_pairs(lattice: BoxLattice, occupied: np.ndarray, first: int, last: int) -> tuple:
    """Pairs of occupied boxes, each pair once, for target boxes with numbers from ``first`` to
    ``last`` among them: the last four arguments of :func:`_far` before the rows."""
    numbers = np.arange(first, last)
    sources = np.concatenate([np.arange(a, len(occupied)) for a in numbers] or [numbers])
    targets = np.repeat(numbers, len(occupied) - numbers)
    lengths = lattice.fft_shape
    place = np.stack(np.unravel_index(lattice.slots[occupied], lengths))
    displacement = np.ravel_multi_index(
        tuple(place[:, targets] - place[:, sources]), lengths, mode="wrap"
    )
    chunks = get_num_threads()  # few, so that a chunk has many pairs with the same displacement
    key = (targets - first) % chunks * lattice.size + displacement
    order = np.argsort(key, kind="stable")
    start = np.searchsorted(key[order], np.arange(chunks + 1) * lattice.size)
    return start, displacement[order], targets[order], sources[order]
