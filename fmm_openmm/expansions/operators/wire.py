r"""The lattice operator of a wire: images along the vector a, which is parallel to x, and none
along y and z. Boxes are padded with empty ones along y and z.

The pair potential is the finite part of the sum over the images n a of period a, which is
``-(2 / a) ln(rho / a)`` at a distance rho >> a from the axis,

    K(r) = lim (sum_{|n| <= N} 1 / |r + n a| - (2 / a) ln(2 N)),   N -> infinity

Images up to n = M are summed as they are, without near ones. With the addition theorem of the
complex solid harmonics the others add to T

    sum_{j, k} (-1)^j conj(R_jk(r)) Z_(l + j),(m + k)
    Z_lm = 2 S_lm(e_x) zeta(l + 1, M + 1) / a^(l + 1) for even l, else 0

with Hurwitz's zeta function, in whose place ``-psi(M + 1) - ln 2`` is the finite part for l = 0.

At a distance rho of many periods from the axis the images are a line of charge, up to
``exp(-2 pi rho / a)``. There K of period a is that of the period ``2^k a``, times ``2^k``, less
``(2 / a) k ln 2``: fewer images remain to be summed.

Sources: E. O. Steinborn and K. Ruedenberg, Adv. Quantum Chem. 7, 1 (1973),
doi:10.1016/S0065-3276(08)60558-4; the finite part: DLMF, https://dlmf.nist.gov/25.11 and 5.4.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import digamma, gammaln, zeta

from fmm_openmm.box import PaddedLattice, index_grid
from fmm_openmm.expansions.harmonics import (
    degrees,
    irregular_norm,
    regular,
    term_count,
)
from fmm_openmm.expansions.operators.periodic import sums_by_column, transformed

RATIO = 0.25
"""Largest distance of two boxes over that of the nearest image that is not summed as it is."""

LINE = 16.0
"""Distance from the axis, in periods, from which images are a line of charge in float64."""

IDENTITY = np.eye(3)


def wire_operator(
    lattice: PaddedLattice,
    top: int,
    accuracy: float,
    sums: Callable,
    octant: bool,
    gradient: np.ndarray = IDENTITY,
) -> np.ndarray:
    """See :data:`fmm_openmm.expansions.operators.OPERATORS`."""
    n0, n1, n2 = lattice.span.tolist()
    boxes = lattice.boxes @ gradient
    period = n0 * boxes[0, 0]
    # of two opposite displacements one: T_t(-r) = (-1)^l T_t(r)
    low = np.array([-(n0 // 2), 1 - n1, 0])
    displacements = index_grid(low, [n0 - n0 // 2, n1, n2]).reshape(-1, 3)
    grid = np.zeros((term_count(top), lattice.size))
    slots = lattice.slot(displacements)
    doublings = _doublings(lattice, displacements, displacements @ boxes, period)
    for k in np.unique(doublings).tolist():
        chosen, copies = doublings == k, 2**k
        terms = _images(lattice, displacements[chosen], copies, boxes, top, accuracy, sums)
        terms *= copies
        terms[0] -= 2.0 / period * k * np.log(2.0)
        grid[:, slots[chosen]] = terms
    parity = (-1.0) ** degrees(top)[:, None]
    grid[:, lattice.slot(-displacements)] = parity * grid[:, slots]
    operator = transformed(grid.reshape(-1, *lattice.fft_shape))
    d1, d2, _ = lattice.fft_shape
    return operator[:, : d1 // 2 + 1, : d2 // 2 + 1] if octant else operator


def _doublings(
    lattice: PaddedLattice, displacements: np.ndarray, x: np.ndarray, period: float
) -> np.ndarray:
    """How many times the period may be doubled for displacements x, shape (m, 3): none where an
    image is near."""
    beyond = (np.abs(displacements[:, 1:]) > np.abs(lattice.near[:, 1:]).max()).any(1)
    periods = np.linalg.norm(x[:, 1:], axis=1) / (LINE * period)
    return np.where(beyond, np.floor(np.log2(np.maximum(periods, 1.0))), 0.0).astype(np.int64)


def _images(
    lattice: PaddedLattice,
    displacements: np.ndarray,
    copies: int,
    boxes: np.ndarray,
    top: int,
    accuracy: float,
    sums: Callable,
) -> np.ndarray:
    """The sum over all images of a period of as many ``copies`` of the cell, shape (terms,
    displacements)."""
    x, step = displacements @ boxes, copies * int(lattice.span[0])
    period = step * boxes[0, 0]
    distance = float(np.linalg.norm(x, axis=1).max(initial=1.0))
    stencil = int(lattice.near[:, 0].max())
    summed = max(int(np.ceil(distance / (RATIO * period))), stencil // step + 1)
    near = _near_images(lattice, displacements, summed, step, boxes, top, sums)
    return near + _distant_images(x, period, summed, top, accuracy, distance)


def _near_images(
    lattice: PaddedLattice,
    displacements: np.ndarray,
    summed: int,
    step: int,
    boxes: np.ndarray,
    top: int,
    sums: Callable,
) -> np.ndarray:
    """The sum over ``|n| <= summed``, shape (terms, displacements), of images ``step`` boxes
    apart."""
    images = np.arange(-summed, summed + 1)[:, None, None] * [step, 0, 0]
    offsets = displacements + images
    near = lattice.is_near(offsets)
    x = (offsets @ boxes)[~near]
    column = np.broadcast_to(np.arange(len(displacements)), near.shape)[~near]
    r = np.linalg.norm(x, axis=1)
    # on the unit sphere: nothing overflows at long distances
    weight = r ** -(np.arange(top + 1.0)[:, None] + 1)
    return sums_by_column(column, len(displacements), x / r[:, None], weight, sums)


def _distant_images(
    x: np.ndarray, period: float, summed: int, top: int, accuracy: float, distance: float
) -> np.ndarray:
    """The sum over ``|n| > summed``, shape (terms, points), at points of shape (m, 3)."""
    nearest = (summed + 1) * period
    inner, outer = _orders(top, accuracy, distance, nearest, summed)
    # distances in units of `nearest` and T in that of S there: nothing overflows
    harmonics = regular(x / nearest, inner)
    matrix = _coefficients(outer, inner, summed)
    out = np.zeros((term_count(top), len(x)))
    scale = nearest ** -(degrees(outer) + 1.0)
    out[: len(matrix)] = scale[:, None] * (matrix @ harmonics)
    return out


@lru_cache(maxsize=4)
def _coefficients(outer: int, inner: int, summed: int) -> np.ndarray:
    """The matrix that takes regular harmonics to the terms of the sum over j and k, shape
    (terms up to outer, terms up to inner), in units of the distance of the nearest image that is
    not ``summed``. It is kept for the strained cells of one virial."""
    degree = np.arange(outer + inner + 1)
    sizes = np.concatenate(
        [[-digamma(summed + 1) - np.log(2)], zeta(degree[1:] + 1.0, summed + 1.0)]
    )
    sizes = np.where(degree % 2, 0.0, 2 * sizes * (summed + 1.0) ** (degree + 1))
    along = irregular_norm(outer + inner) * regular(np.array([1.0, 0.0, 0.0]), outer + inner)
    l, j = degrees(outer), degrees(inner)
    m, k = (np.arange(len(each)) - each * each - each for each in (l, j))
    rows = np.flatnonzero(m >= 0)
    l, m = l[rows, None], m[rows, None]
    order = m + k
    # R_j,-k = (-1)^k conj(R_jk), and likewise S
    value = (-1.0) ** (j + np.minimum(order, 0) + np.minimum(k, 0)) * sizes[l + j]
    value *= along[(l + j) * (l + j + 1) + np.abs(order)]
    matrix = np.zeros((term_count(outer), term_count(inner)))
    real, imaginary = j * j + j + np.abs(k), j * j + j - np.abs(k)
    np.add.at(
        matrix,
        (np.broadcast_to(l * l + l + m, value.shape), np.broadcast_to(real, value.shape)),
        value,
    )
    both = (m > 0) & (k != 0)
    at, source = (
        np.broadcast_to(l * l + l - m, value.shape),
        np.broadcast_to(imaginary, value.shape),
    )
    np.add.at(matrix, (at[both], source[both]), (-np.sign(k) * value)[both])
    matrix.setflags(write=False)
    return matrix


def _orders(
    top: int, accuracy: float, distance: float, nearest: float, summed: int
) -> tuple[int, int]:
    """Degrees j, and l, up to which distant images count, relative to S at two box widths."""
    l, j = np.arange(top + 1)[:, None], np.arange(200)
    size = (
        gammaln(l + j + 1)
        - gammaln(l + 1)
        - gammaln(j + 1)
        + j * np.log(distance / nearest)
        + (l + 1) * np.log(2.0 / nearest)
        + np.log(summed + 2.0)
    )
    counts = size > np.log(accuracy)
    return int(np.flatnonzero(counts.any(0)).max(initial=2)), int(
        np.flatnonzero(counts.any(1)).max(initial=min(top, 2))
    )
