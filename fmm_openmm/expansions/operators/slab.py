r"""The lattice operator of a slab: images along the vectors a and b, which lie in the x-y plane,
and none along z. Boxes are padded with empty ones along z.

The pair potential is the finite part of the sum over the images. With A the area of the cell,
G its wave vectors in the plane and G their lengths,

    K(r) = -2 pi |z| / A  +  sum_{G != 0} 2 pi / (A G) exp(-G |z|) exp(i G.r)

Images with a period C along z as well, on a uniform background, add to it

    2 pi z^2 / (A C) + pi C / (3 A)
    + sum_{G != 0} 2 pi / (A G) exp(i G.r) (exp(G z) u(s) + exp(-G z) u(-s))
    u(s) = 1 / (exp(G C + i G.s) - 1)

where s is the displacement in the plane of the image at C. The sum converges as exp(-G (C - |z|)).
The operator is therefore that of ``periodic.py``, of the same boxes with the period C, less the
derivatives ``S_lm(r) -> (-1)^l (d/dx + i d/dy)^m (d/dz)^(l - m)`` of what the images add. The
operator of degree 2 there lacks the trace 4 pi / (3 A C) of the background.

Sources: the sum over a slab's images: D. E. Parry, Surf. Sci. 49, 433 (1975),
doi:10.1016/0039-6028(75)90362-3; its difference from the periodic sum: A. Arnold, J. de Joannis and
C. Holm, J. Chem. Phys. 117, 2496 (2002), doi:10.1063/1.1491955.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import scipy.fft
from scipy.special import gammaln

from fmm_openmm.box import BoxLattice, PaddedLattice, index_grid
from fmm_openmm.box.grid import is_smooth
from fmm_openmm.expansions.harmonics import degrees, term, term_count
from fmm_openmm.expansions.operators.periodic import periodic_operator, transformed
from fmm_openmm.openmp import fft_workers

SEPARATION = 7.0
"""Least distance between a box and the layer's next image along z, box widths."""

CHUNK = 1 << 22
"""Largest number of elements of an array of the sum over wave vectors, unless those of one wave
vector of the boxes have more."""

IDENTITY = np.eye(3)


def slab_operator(
    lattice: PaddedLattice,
    top: int,
    accuracy: float,
    sums: Callable,
    octant: bool,
    gradient: np.ndarray = IDENTITY,
) -> np.ndarray:
    """See :data:`fmm_openmm.expansions.operators.OPERATORS`."""
    stack = stacked(lattice).deformed(gradient)
    operator = periodic_operator(stack, top, accuracy, sums, False)
    span = int(lattice.span[2])
    for wave, change in _images(stack, span, top, accuracy):
        operator.reshape(len(operator), -1)[:, wave] -= change
    if stack.fft_shape != lattice.fft_shape:
        operator = _on_lattice(operator, stack, lattice)
    d1, d2, _ = lattice.fft_shape
    return operator[:, : d1 // 2 + 1, : d2 // 2 + 1] if octant else operator


def stacked(lattice: PaddedLattice) -> BoxLattice:
    """The boxes with images along z, at least :data:`SEPARATION` away."""
    counts, unstrained = lattice.counts.copy(), lattice.unstrained
    least = int(np.ceil(SEPARATION / unstrained.boxes[2, 2])) + int(lattice.span[2]) - 1
    if least > counts[2, 2]:
        counts[2, 2] = next(n for n in count(least + least % 2, 2) if is_smooth(n))
    stack = BoxLattice(counts, unstrained.boxes, lattice.near_radius)
    if lattice is unstrained:
        return stack
    return replace(stack, boxes=lattice.boxes, strained_from=stack)


def longest_wave(distance: float, top: int, accuracy: float) -> float:
    """Length up to which wave vectors in the plane count, for images at a distance along z."""
    g, l = np.arange(0.5, 80.0, 0.25), np.arange(top + 1)[:, None]
    size = l * np.log(2 * g) - distance * g - gammaln(l + 1)  # over S at two box widths
    return float(g[(size > np.log(accuracy)).any(0)].max(initial=g[0]))


def _on_lattice(operator: np.ndarray, stack: BoxLattice, lattice: PaddedLattice) -> np.ndarray:
    """The operator of the stack at the displacements that occur, on the lattice."""
    l = degrees(int(len(operator) ** 0.5) - 1)[:, None, None, None]
    phase = np.array([1.0, 1j, -1.0, -1j])[l % 4]
    values = scipy.fft.irfftn(
        phase * operator, stack.fft_shape, axes=(1, 2, 3), workers=fft_workers(operator.size)
    ).reshape(len(operator), -1)
    n0, n1, n2 = lattice.span
    offsets = index_grid([0, 0, 1 - n2], [n0, n1, n2]).reshape(-1, 3)
    grid = np.zeros((len(operator), lattice.size))
    grid[:, lattice.slot(offsets)] = values[:, stack.slot(offsets)]
    return transformed(grid.reshape(-1, *lattice.fft_shape))


def _images(
    stack: BoxLattice, span: int, top: int, accuracy: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Contributions of the images along z to the operator: numbers of wave vectors, shape (k,), in
    the order of the operator, and terms at these, shape (terms, k)."""
    v, d = stack.cycles
    shape = (*stack.fft_shape[:2], stack.fft_shape[2] // 2 + 1)
    kappa = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij"), -1).reshape(-1, 3)
    fraction = (kappa / d) @ v.T
    fraction -= np.rint(fraction)
    size = int(stack.counts[0, 0] * stack.counts[1, 1])  # of the group in the plane
    planes, place = np.unique(
        np.mod(np.rint(fraction[:, :2] * size), size), axis=0, return_inverse=True
    )
    planes = planes / size
    planes -= np.rint(planes)
    layers = np.arange(1 - span, span)
    waves = 2 * np.pi * np.arange(stack.counts[2, 2]) / stack.counts[2, 2]
    phases = np.exp(-1j * layers[:, None] * waves)
    along = np.mod(np.rint(fraction[:, 2] * len(waves)), len(waves)).astype(int)
    members = np.argsort(place.ravel(), kind="stable")
    starts = np.searchsorted(place.ravel()[members], np.arange(len(planes) + 1))

    rows = max(1, CHUNK // (term_count(top) * len(waves)))
    for first in range(0, len(planes), rows):
        last = min(first + rows, len(planes))
        plane_waves = _plane_waves(stack, planes[first:last], span, top, accuracy)
        values = _waves(stack, layers, plane_waves, top, phases)
        chosen = members[starts[first] : starts[last]]
        yield chosen, values[place.ravel()[chosen] - first, :, along[chosen]].T


def _plane_waves(
    stack: BoxLattice, planes: np.ndarray, span: int, top: int, accuracy: float
) -> np.ndarray:
    """The shortest wave vectors in the plane, shape (k, n, 2), that are equal to each of
    ``planes`` modulo wave vectors of the boxes, with all that count.

    Args:
        planes: in coordinates of the wave vectors of the boxes, shape (k, 2).
    """
    distance = (stack.counts[2, 2] - span + 1) * stack.boxes[2, 2]
    cut = longest_wave(distance, top, accuracy)
    reciprocal = 2 * np.pi * np.linalg.inv(stack.boxes[:2, :2]).T
    reach = cut + np.linalg.norm(np.abs(reciprocal).sum(0)) / 2
    most = np.ceil(reach * np.linalg.norm(stack.boxes[:2, :2], axis=1) / (2 * np.pi)).astype(int)
    numbers = np.stack(np.meshgrid(*[np.arange(-n, n + 1) for n in most]), -1).reshape(-1, 2)
    waves = (planes[:, None] + numbers) @ reciprocal
    lengths = np.linalg.norm(waves, axis=-1)
    most_used = max(1, int((lengths <= cut).sum(1).max()))
    used = np.argsort(lengths, axis=1, kind="stable")[:, :most_used]
    return np.take_along_axis(waves, used[..., None], 1)


def _waves(
    stack: BoxLattice, layers: np.ndarray, wave: np.ndarray, top: int, phases: np.ndarray
) -> np.ndarray:
    """The terms by wave vectors in the plane and wave numbers along z, shape (k, terms, m).

    Args:
        layers: displacements along z, boxes.
        wave: shape (k, n, 2), see :func:`_plane_waves`.
        phases: phases of the displacements and wave numbers, shape (layers, m).
    """
    boxes, period = stack.boxes, stack.counts[2, 2] * stack.boxes[2]
    area, z = boxes[0, 0] * boxes[1, 1], layers * boxes[2, 2]
    g = np.linalg.norm(wave, axis=-1)
    zero = g < 1e-9
    g = np.where(zero, 1.0, g)
    turn = np.where(zero, 0.0, (wave[..., 0] + 1j * wave[..., 1]) / g)
    shift, turned = wave @ period[:2], np.exp(1j * (wave @ boxes[2, :2])[..., None] * layers)
    total = np.zeros((len(wave), term_count(top), phases.shape[1]))
    l = degrees(top)
    for side in (1.0, -1.0):
        image = -g * period[2] - side * 1j * shift  # exp(image) / (1 - exp(image)) = u
        factor = np.exp(side * g[..., None] * z + image[..., None]) * turned
        factor *= (~zero * 2 * np.pi / (area * g * -np.expm1(image)))[..., None]
        both = _derivatives(g, turn, top, side) @ (factor @ phases)
        total += np.where((l % 2 == 0)[:, None], both.real, both.imag)
    for row in np.flatnonzero(zero.any(1)):
        even = np.array([2 * np.pi / period[2] * z**2 + np.pi * period[2] / 3])
        total[row, 0] += (even @ phases)[0].real / area
        total[row, 2] += (-4 * np.pi / period[2] * z @ phases).imag / area
        if top > 1:
            total[row, 6] += (np.full(len(z), 8 * np.pi / (3 * period[2])) @ phases).real / area
    return total * np.array([1.0, 1.0, -1.0, -1.0])[l % 4][:, None]


def _derivatives(g: np.ndarray, turn: np.ndarray, top: int, side: float) -> np.ndarray:
    """``(-1)^l (d/dx + i d/dy)^m (d/dz)^(l - m)``, real and imaginary parts apart, of
    ``exp(i G.r + side G z)``: shape (k, terms, waves).

    Args:
        g: lengths of the wave vectors, shape (k, waves).
        turn: ``(G_x + i G_y) / G``, shape (k, waves).
    """
    out = np.empty((len(g), term_count(top), g.shape[1]), complex)
    power, turns = g[..., None] ** np.arange(top + 1), turn[..., None] ** np.arange(top + 1)
    for l in range(top + 1):
        for m in range(l + 1):
            factor = (-1.0) ** l * side ** (l - m) * 1j**m * power[..., l]
            out[:, term(l, m)] = factor * turns[..., m].real
            if m:
                out[:, term(l, -m)] = factor * turns[..., m].imag
    return out
