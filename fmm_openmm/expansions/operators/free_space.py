r"""The lattice operator of boxes with empty ones around them (:class:`PaddedLattice`), with
distant periodic images or without.

In free space, for |i| < span along every axis,

    T_t(i) = S_t(i @ boxes) if not near,   else 0

on a lattice so large that the displacements of two boxes of the span all differ modulo its lengths.
The circular convolution with T is then the plain sum over boxes: R. W. Hockney and J. W. Eastwood,
Computer Simulation Using Particles (1988), doi:10.1201/9780367806934. Storage and signs as in
``__init__.py``.

In a periodic cell Ewald's sum of ``periodic.py``, with alpha so small that it has one image in real
space,

    T_t(i) = S_t(r) Q(l + 1/2, alpha^2 r^2) if not near,
             else - S_t(r) P(l + 1/2, alpha^2 r^2)                              (at r = 0: as there)
             + sum_{G != 0} c_l(G) S-norm_t R_t(G) exp(i G.r)  -  pi / (alpha^2 V)
                                                                                (last term: l = 0)

with the G of the cell, whatever its relation to the boxes, takes its place: alpha = 0 is empty
space. Cut off at |i| < span, exp(i G.r) has the transform

    D_x(G_x - k_x) D_y(G_y - k_y) D_z(G_z - k_z),
    D(a) = sum_{|n| < span} cos(a n) = sin((span - 1/2) a) / sin(a / 2)

so the sum over G is done axis after axis, for any wave vectors k.

Boxes are cubes, so the terms of the real-space part at one octant of displacements give all:
mirroring x, y or z multiplies a term, and its transform, by

    x: (-1)^m, -(-1)^m for imaginary parts      y: 1, -1 for imaginary parts      z: (-1)^(l + m)

and the transform along an axis is a cosine or a sine transform of half the axis. In a rectangular
cell this holds for all of T.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy.fft
from scipy.special import gammainc, gammaincc

from fmm_openmm.box import PaddedLattice, index_grid
from fmm_openmm.expansions.harmonics import by_degree, degrees, irregular_norm, regular
from fmm_openmm.expansions.splitting import (
    NEAREST_FAR,
    inverse_double_factorials,
    isolating_split,
    spectral_weight,
)
from fmm_openmm.openmp import fft_workers

IDENTITY = np.eye(3)


def free_space_operator(
    lattice: PaddedLattice, top: int, accuracy: float, sums: Callable, octant: bool
) -> np.ndarray:
    """See :data:`fmm_openmm.expansions.operators.OPERATORS`; ``sums`` are not needed."""
    operator = _from_octants(
        lattice, mirrors(top), _terms(lattice, top, accuracy, IDENTITY), octant
    )
    _add_reciprocal(operator, lattice, top, accuracy, [(1.0, IDENTITY)])
    return operator


def free_space_derivative(
    lattice: PaddedLattice, top: int, accuracy: float, generator: np.ndarray, step: float
) -> np.ndarray:
    """Derivative of the operator along a traceless generator, see ``derivatives.py``: boxes, images
    and G are strained, and alpha is not."""
    both = [(sign / (2 * step), scipy.linalg.expm(sign * step * generator)) for sign in (1.0, -1.0)]
    terms = [_terms(lattice, top, accuracy, gradient) for _, gradient in both]
    change = ((after - before) / (2 * step) for after, before in zip(*terms, strict=True))
    # a shear along x by y is odd where S is even, along both axes
    even = mirrors(top)
    for axes in np.argwhere(np.tril(generator, -1)):
        even[:, 2 - axes] ^= True
    operator = _from_octants(lattice, even, change, False)
    _add_reciprocal(operator, lattice, top, accuracy, both)
    return operator


def _from_octants(
    lattice: PaddedLattice, even: np.ndarray, terms: Iterable[np.ndarray], octant: bool
) -> np.ndarray:
    """Fourier transform of terms given at the displacements of one octant.

    Args:
        even: parities of the terms along z, y and x, shape (terms, 3), see :func:`mirrors`.
        terms: those of each degree, shape (2 l + 1, z, y, x).
        octant: see :func:`fmm_openmm.expansions.operators.lattice_operator`.
    """
    shape = lattice.fft_shape
    lengths = [
        length // 2 + 1 if octant or axis == 2 else length for axis, length in enumerate(shape)
    ]
    operator = np.empty((len(even), *lengths))
    for (l, same), of_degree in zip(by_degree(len(even)), terms, strict=True):
        for parity in np.unique(even[same], axis=0):
            chosen = np.flatnonzero((even[same] == parity).all(1))
            part = np.zeros([len(chosen), *(length // 2 + 1 for length in shape)])
            z, y, x = of_degree.shape[1:]
            part[:, :z, :y, :x] = of_degree[chosen]
            for axis in range(3):
                part = _transformed(part, 1 + axis, parity[axis])
            for axis in range(0 if octant else 2):
                part = _mirrored(part, 1 + axis, shape[axis], parity[axis])
            # a sine transform leaves out the factor -i
            odd = 3 - parity.sum()
            operator[same][chosen] = (1, 1, -1, -1)[l % 4] * (1, -1, -1, 1)[odd] * part
    return operator


def _add_reciprocal(
    operator: np.ndarray,
    lattice: PaddedLattice,
    top: int,
    accuracy: float,
    strains: list[tuple[float, np.ndarray]],
) -> None:
    """Add the sum over G and the last term at the wave vectors of ``operator``, shape (terms, z, y,
    x).

    Degrees to which they add less than ``accuracy``, relative to S at the nearest far boxes, are
    left out.

    Args:
        strains: factors and gradients F of the deformations ``x -> x @ F`` of boxes and cell, which
            leave G.r as it is, whose weighted sum is added.
    """
    alpha, cut = isolating_split(top, accuracy, lattice.gap)
    if alpha == 0.0:
        return
    weight = spectral_weight(top, alpha * np.arange(0.2, 30.0, 0.1), alpha, NEAREST_FAR).max(1)
    top = int(np.flatnonzero(weight > accuracy).max())
    parity = (-1.0) ** degrees(top)
    factor = inverse_double_factorials(top)[degrees(top)] * irregular_norm(top) * parity
    waves = [
        2 * np.pi * np.arange(m) / n
        for m, n in zip(operator.shape[:0:-1], lattice.fft_shape[::-1], strict=True)
    ]
    # along x lies a* alone, along y a* and b*
    reciprocal = 2 * np.pi * np.linalg.inv(lattice.cell).T
    reach = np.floor(cut * np.linalg.norm(lattice.cell, axis=1) / (2 * np.pi)).astype(int)
    plane = (
        np.stack(np.meshgrid(*[np.arange(-n, n + 1) for n in reach[1:]], indexing="ij"), -1)
        @ reciprocal[1:]
    )
    rows, ends = [], []  # summed along z and y, (terms, z, y), and their kernels along x
    for a in range(reach[0] + 1):
        g = plane + a * reciprocal[0]
        inside = (g * g).sum(-1) <= cut * cut
        # of a plane that lies outside, as in a skewed cell, one vector stays, with weight 0
        used = np.ix_(inside.any(1), inside.any(0)) if inside.any() else np.ix_([0], [0])
        g, inside = g[used], inside[used]
        values = np.zeros(())
        for share, gradient in strains:
            strained = g @ np.linalg.inv(gradient).T
            g2 = (strained**2).sum(-1)
            with np.errstate(divide="ignore"):
                gauss = 4 * np.pi * np.exp(-g2 / (4 * alpha**2)) / g2
            gauss = np.where(inside & (g2 > 0.0), gauss, 0.0)
            terms = regular(strained, top)
            terms *= gauss * share * lattice.background
            if a == 0:
                last = np.pi / alpha**2 * share * lattice.background
                terms[0, g2 == 0.0] -= last
            values = values + terms
        for sign in (1, -1)[: 1 + (a > 0)]:  # G and its opposite
            x, y, z = (
                _window(sign * g[..., k, None] - waves[k], lattice.span[k]) for k in range(3)
            )
            along_z = values.transpose(1, 0, 2) @ z  # (b, terms, z)
            rows.append(
                (along_z.transpose(1, 2, 0) @ y[:, 0])
                * (factor * parity if sign < 0 else factor)[:, None, None]
            )
            ends.append(x[0, 0])
        if len(rows) > 64 or a == reach[0]:
            operator[: len(factor)] += np.tensordot(rows, ends, (0, 0))
            rows, ends = [], []


def _window(angle: np.ndarray, span: int) -> np.ndarray:
    """``sum_{|n| < span} cos(n angle)``."""
    half = (angle - 2 * np.pi * np.rint(angle / (2 * np.pi))) / 2
    small = np.abs(half) < 1e-9
    return np.where(
        small, 2.0 * span - 1.0, np.sin((2 * span - 1) * half) / np.sin(np.where(small, 1.0, half))
    )


def _terms(
    lattice: PaddedLattice, top: int, accuracy: float, gradient: np.ndarray
) -> Iterator[np.ndarray]:
    """The real-space part degree by degree, at the displacements of one octant under ``x -> x @
    gradient``: arrays of shape (2 l + 1, z, y, x)."""
    alpha, _ = isolating_split(top, accuracy, lattice.gap)
    offsets = index_grid(0, lattice.span)
    near = lattice.is_near(offsets)
    x = offsets @ gradient
    r = np.linalg.norm(x, axis=-1)
    argument = (alpha * r) ** 2
    r[0, 0, 0] = np.inf
    # on the unit sphere: nothing overflows at long distances
    harmonics = regular(x / r[..., None], top)
    norm = irregular_norm(top)[:, None, None, None]
    for l, same in by_degree(len(harmonics)):
        weight = np.where(near, -gammainc(l + 0.5, argument), gammaincc(l + 0.5, argument)) / r ** (
            l + 1
        )
        terms = norm[same] * harmonics[same] * weight
        if l == 0:
            terms[0, 0, 0, 0] = -2 * alpha / np.sqrt(np.pi)
        yield terms


def mirrors(top: int) -> np.ndarray:
    """Whether the terms up to degree ``top`` are even, not odd, along z, y and x;
    shape (terms, 3) bool."""
    l = degrees(top)
    m = np.arange(len(l)) - l * l - l
    return np.stack([(l + m) % 2 == 0, m >= 0, (m >= 0) == (m % 2 == 0)], 1)


def _transformed(half: np.ndarray, axis: int, even: bool) -> np.ndarray:
    """Fourier transform along an axis of which half is given, ends included; without the factor
    -i if it is odd."""
    if even:
        return scipy.fft.dct(half, 1, axis=axis, workers=fft_workers(half.size))
    half = np.moveaxis(half, axis, 0)
    out = np.zeros_like(half)
    if len(half) > 2:
        out[1:-1] = scipy.fft.dst(half[1:-1], 1, axis=0, workers=fft_workers(half.size))
    return np.moveaxis(out, 0, axis)


def _mirrored(half: np.ndarray, axis: int, length: int, even: bool) -> np.ndarray:
    """Index i >= 0 along ``axis`` continued to ``-i``, which is ``length - i``."""
    half = np.moveaxis(half, axis, 0)
    out = np.concatenate([half, (1.0 if even else -1.0) * half[length - len(half) : 0 : -1]])
    return np.moveaxis(out, 0, axis)
