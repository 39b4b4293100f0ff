r"""The lattice operator where every axis is periodic, by Ewald's method with tin-foil boundary and
a neutralising background. With S's smooth cut-off in closed form through the regularised
incomplete gamma functions, Q + P = 1,

    T_t(i) =   sum over far images   S_t(r) Q(l + 1/2, alpha^2 r^2)
             - sum over near images  S_t(r) P(l + 1/2, alpha^2 r^2)
                                                          (at r = 0: - 2 alpha / sqrt(pi), l = 0)
             + sum_{G != 0} c_l(G) S-norm_t R_t(G) exp(i G.r)  -  pi / (alpha^2 V)
                                                          (last term: l = 0)
    c_l(G) = 4 pi / (V G^2) exp(-G^2 / 4 alpha^2) (-i)^l / (2 l - 1)!!

The images of the reciprocal sum that fall on one wave vector of the box lattice are added there
directly; the short-ranged real-space half is transformed by FFT.

Sources: P. P. Ewald, Ann. Phys. 369, 253 (1921), doi:10.1002/andp.19213690304; lattice sums of
multipole expansions: M. Challacombe, C. White and M. Head-Gordon, J. Chem. Phys. 107, 10131 (1997),
doi:10.1063/1.474150.
"""

from collections.abc import Callable

import numpy as np
import scipy.fft
from scipy.special import gammainc

from fmm_openmm.box import BoxLattice, within
from fmm_openmm.expansions.harmonics import by_degree, degrees, irregular_norm, regular, term_count
from fmm_openmm.expansions.splitting import (
    NEAREST_FAR,
    inverse_double_factorials,
    truncation_radii,
    upper_gamma,
)
from fmm_openmm.openmp import fft_workers

ALPHA = 0.55
"""Splitting parameter, inverse box widths: balances the real-space FFT against the reciprocal
images."""

POINTS = 4096
"""Number of points whose harmonics are evaluated together."""


def harmonic_sums(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted sums of regular harmonics over the first axis, ``sum_j weight[j, l] R_lm(x[j])``.

    Args:
        x: points, shape (k, 3, n).
        weight: weight of every point by degree, shape (k, top + 1, n).

    Returns:
        shape ((top + 1)^2, n) float64.
    """
    top = weight.shape[1] - 1
    out = np.zeros((term_count(top), x.shape[2]))
    points, weights = np.moveaxis(x, 1, -1), np.moveaxis(weight, 1, 0)
    rows = max(1, POINTS // max(1, x.shape[2]))  # few boxes have many images
    for start in range(0, len(x), rows):
        chunk = slice(start, start + rows)
        terms = regular(points[chunk], top) * weights[degrees(top), chunk]
        for row in range(terms.shape[1]):  # one after the other, whatever POINTS is: the same bits
            out += terms[:, row]
    return out


def periodic_operator(
    lattice: BoxLattice, top: int, accuracy: float, sums: Callable, octant: bool
) -> np.ndarray:
    """See :data:`fmm_openmm.expansions.operators.OPERATORS`."""
    real_cut, reciprocal_cut = truncation_radii(top, accuracy, ALPHA, NEAREST_FAR)
    operator = _real_space(lattice, top, real_cut, sums)
    operator += _reciprocal(lattice, top, reciprocal_cut, sums)
    d1, d2, _ = lattice.fft_shape
    return operator[:, : d1 // 2 + 1, : d2 // 2 + 1] if octant else operator


def _real_space(lattice: BoxLattice, top: int, cut: float, sums: Callable) -> np.ndarray:
    offsets = within(lattice.boxes, cut)
    # one of each pair of opposite offsets: S(-r) = (-1)^l S(r)
    offsets = offsets[len(offsets) // 2 + 1 :]
    x = offsets @ lattice.boxes
    r2 = (x * x).sum(1)
    near = np.flatnonzero(lattice.is_near(offsets))

    l, argument = np.arange(top + 1)[:, None] + 0.5, ALPHA**2 * r2
    weight = upper_gamma(top, argument)
    weight[:, near] = -gammainc(l, argument[near])
    falloff = 1 / np.sqrt(r2)
    for row in weight:
        row *= falloff
        falloff /= r2

    grid = sums_by_column(lattice.slot(offsets), lattice.size, x, weight, sums)
    slots = np.arange(lattice.size).reshape(lattice.fft_shape)
    opposite = np.roll(np.flip(slots), 1, (0, 1, 2)).ravel()
    for degree, terms in by_degree(len(grid)):
        grid[terms] += (-1.0) ** degree * grid[terms, opposite]
    grid[0, 0] -= 2 * ALPHA / np.sqrt(np.pi)
    return transformed(grid.reshape(-1, *lattice.fft_shape))


def transformed(sums: np.ndarray) -> np.ndarray:
    """The lattice operator from its terms T in real space, by a Fourier transform; formula in
    :mod:`fmm_openmm.expansions.operators`.

    Args:
        sums: T, summed over images, at the slots of a lattice, shape (terms, d1, d2, d3); the terms
            are those of all degrees up to a largest one.

    Returns:
        the transforms times (-1)^floor(l / 2) at the wave vectors of the half grid: real parts for
        even degree l, imaginary parts for odd, shape (terms, d1, d2, d3 // 2 + 1).
    """
    terms, *lengths, last = sums.shape
    out = np.empty((terms, *lengths, last // 2 + 1))
    for l, same in by_degree(terms):
        values = sums[same]
        transforms = scipy.fft.rfftn(values, axes=(1, 2, 3), workers=fft_workers(values.size))
        sign = 1.0 if l % 4 < 2 else -1.0
        out[same] = sign * (transforms.imag if l % 2 else transforms.real)
    return out


def transformed_back(operator: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """The inverse of :func:`transformed`: T at the slots of a lattice, shape (terms, d1, d2, d3).

    Args:
        operator: shape (terms, d1, d2, d3 // 2 + 1).
        shape: the lengths (d1, d2, d3).
    """
    out = np.empty((len(operator), *shape), operator.dtype)
    for l, terms in by_degree(len(operator)):
        factor = (1, 1j, -1, -1j)[l % 4]
        values = factor * operator[terms]
        workers = fft_workers(values.size)
        out[terms] = scipy.fft.irfftn(values, shape, axes=(1, 2, 3), workers=workers)
    return out


def _reciprocal(lattice: BoxLattice, top: int, cut: float, sums: Callable) -> np.ndarray:
    v, d = lattice.cycles
    shape = (*lattice.fft_shape[:2], lattice.fft_shape[2] // 2 + 1)
    kappa = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij"), -1).reshape(-1, 3)
    # the phase of box i is i V (kappa / d): its wave vector in coordinates of the reciprocal
    # lattice of the boxes
    fraction = (kappa / d) @ v.T
    reciprocal = 2 * np.pi * np.linalg.inv(lattice.boxes).T
    base = (fraction - np.rint(fraction)) @ reciprocal

    corner = float(np.linalg.norm(np.abs(reciprocal).sum(0))) / 2
    aliases = within(reciprocal, cut + corner) @ reciprocal

    g2 = ((base[:, None] + aliases) ** 2).sum(-1)
    wave, alias = np.nonzero((g2 < cut * cut) & (g2 > 1e-20))
    g2 = g2[wave, alias]
    gauss = np.exp(-g2 / (4 * ALPHA**2)) / g2
    # 4 pi N / V = 4 pi in box units; (-1)^floor(l/2) (-i)^l is +1 for even and -i for odd degree
    factor = 4 * np.pi * inverse_double_factorials(top) * (-1.0) ** np.arange(top + 1)
    weight = factor[:, None] * gauss
    out = sums_by_column(wave, len(base), base[wave] + aliases[alias], weight, sums)
    out[0, 0] -= np.pi / ALPHA**2
    return out.reshape(-1, *shape)


def sums_by_column(
    column: np.ndarray, columns: int, x: np.ndarray, weight: np.ndarray, sums: Callable
) -> np.ndarray:
    """Sums of ``S-norm_t R_t`` over the points of every column.

    Args:
        column: column of every point, shape (n,).
        columns: number of columns.
        x: points, shape (n, 3).
        weight: weight of every point by degree, shape (top + 1, n).
        sums: as for :func:`fmm_openmm.expansions.operators.lattice_operator`.

    Returns:
        shape ((top + 1)^2, columns).
    """
    order, count = np.argsort(column, kind="stable"), np.bincount(column, minlength=columns)
    column, top = column[order], len(weight) - 1
    row = np.arange(len(column)) - (np.cumsum(count) - count)[column]
    points = np.zeros((count.max(), 3, columns))
    weights = np.zeros((count.max(), top + 1, columns))
    points[row, :, column] = x[order]
    weights[row, :, column] = weight.T[order]
    return sums(points, weights) * irregular_norm(top)[:, None]
