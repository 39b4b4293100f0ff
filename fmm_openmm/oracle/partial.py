r"""Ewald sums with images along two directions or one, accurate to rounding.

.. math::
    \phi_i = \sum_{j,n}' q_j \frac{\operatorname{erfc}(\alpha r)}{r} + \sum_j q_j K_\alpha(x_i-x_j)
           - \frac{2 \alpha}{\sqrt \pi} q_i
           - \sum_{j \text{ excluded}} q_j \frac{\operatorname{erf}(\alpha r)}{r}

with n the periodic images; the primed sum omits i itself and, for an excluded pair, the image whose
bare :math:`1/r` is to be removed. For a slab, with the area A of the cell, wave vectors k in its
plane and z along the normal,

.. math::
    K_\alpha = \frac{\pi}{A} \sum_{k \ne 0} \frac{\cos(k \cdot r)}{k} \left[
        e^{k z} \operatorname{erfc}\left(\frac{k}{2 \alpha} + \alpha z\right)
      + e^{-k z} \operatorname{erfc}\left(\frac{k}{2 \alpha} - \alpha z\right) \right]
      - \frac{2 \sqrt \pi}{A} \left[ \frac{e^{-\alpha^2 z^2}}{\alpha}
      + \sqrt \pi z \operatorname{erf}(\alpha z) \right]

and for a wire of period c along x, at a distance :math:`\rho` from its axis,

.. math::
    K_\alpha = \frac{2}{c} \sum_{k > 0} \cos(k x)
               \int_1^\infty \frac{dt}{t} e^{-k^2 t / 4 \alpha^2 - \alpha^2 \rho^2 / t}
             + \frac{1}{c} \left[ \ln \frac{c^2}{\rho^2} - E_1(\alpha^2 \rho^2) \right]

The terms of wave vector 0 are finite parts: far away the potentials of a charge are
:math:`-2 \pi |z| / A` and :math:`-(2 / c) \ln(\rho / c)`. There is no background.

D. E. Parry, Surf. Sci. 49, 433 (1975), doi:10.1016/0039-6028(75)90362-3; M. Porto, J. Phys. A 33,
6211 (2000), doi:10.1088/0305-4470/33/35/303.
"""

import math

import numpy as np
from scipy.special import exp1

from fmm_openmm.openmp import get_num_threads, njit, on_all_threads, portion
from fmm_openmm.oracle.ewald import (
    EwaldResult,
    as_pairs,
    check_shapes,
    excluded_part,
    nearest_image,
    real_space,
)

NODES = 64
"""Number of nodes of the Gauss-Legendre rule for the integral over ln t."""


def partial_ewald_sum(
    positions,
    charges,
    box_vectors,
    exclusions=None,
    exclusions_periodic=False,
    accuracy=1e-13,
    alpha=None,
) -> EwaldResult:
    """Energy, forces, potentials and fields of point charges in a slab or a wire.

    Parameters
    ----------
    positions : (n, 3) float64, nm; wrapped or not.
    charges : (n,) float64, e; their sum need not vanish.
    box_vectors : (3, 3) float64, nm; two rows or one are the vectors of the images, in any
        direction. The others are infinite.
    exclusions : (m, 2) integers, optional: pairs whose bare ``q_i q_j / r`` is subtracted. They may
        coincide.
    exclusions_periodic : whether r of an excluded pair is the distance of its minimum image, by
        OpenMM's convention.
    accuracy : all sums are truncated where their terms have decayed to this fraction.
    alpha : splitting parameter, 1/nm. The result does not depend on it.

    Raises
    ------
    ValueError : an argument has the wrong shape, or other than one or two rows are finite.
    """
    x, q = np.asarray(positions, np.float64), np.asarray(charges, np.float64)
    vectors, pairs = np.asarray(box_vectors, np.float64), as_pairs(exclusions)
    check_shapes(x, q)
    periodic = vectors[np.isfinite(vectors).all(-1)]
    if vectors.shape != (3, 3) or len(periodic) not in (1, 2):
        raise ValueError(
            "`box_vectors` must have shape (3, 3) and one or two finite rows, "
            f"got {vectors.tolist()}"
        )
    decay = math.sqrt(-math.log(accuracy))
    size = math.sqrt(np.linalg.det(periodic @ periodic.T)) ** (1 / len(periodic))
    alpha = alpha or 2.2 / size
    inverse = np.linalg.pinv(periodic)
    wraps = np.floor(x @ inverse)
    wrapped = x - wraps @ periodic

    delta = x[pairs[:, 1]] - x[pairs[:, 0]]
    image = wraps[pairs[:, 1]] - wraps[pairs[:, 0]]
    if exclusions_periodic:
        axes, vectors = np.linalg.qr(periodic.T)
        shift = nearest_image(delta @ axes, vectors.T)
        delta, image = delta - shift @ periodic, image - shift

    # along the other directions the cell ends beyond the cut-off
    cut = decay / alpha
    others = np.linalg.svd(periodic)[2][len(periodic) :]
    along = wrapped @ others.T
    cell = np.concatenate([periodic, others * (np.ptp(along, axis=0) + 1.1 * cut)[:, None]])
    corner = (along.min(0) - 0.05 * cut) @ others
    images = np.concatenate([image, np.zeros((len(pairs), len(others)))], 1)
    potentials, fields = real_space(wrapped - corner, q, cell, pairs, images, alpha, cut)
    smooth = _slab if len(periodic) == 2 else _wire
    for sums in (
        smooth(wrapped, q, periodic, others, alpha, 2 * decay * alpha),
        excluded_part(delta, q, pairs, alpha),
    ):
        potentials += sums[0]
        fields += sums[1]
    potentials -= 2 * alpha / math.sqrt(math.pi) * q
    return EwaldResult.from_potentials(q, potentials, fields)


def _slab(x, q, periodic, others, alpha, k_max):
    """The smooth part where two directions are periodic."""
    normal = others[0]
    area = math.sqrt(np.linalg.det(periodic @ periodic.T))
    reciprocal = 2 * math.pi * np.linalg.pinv(periodic).T
    limits = np.floor(k_max * np.linalg.norm(periodic, axis=1) / (2 * math.pi)).astype(int)
    numbers = np.stack(np.meshgrid(*[np.arange(-n, n + 1) for n in limits]), -1).reshape(-1, 2)
    half = (numbers[:, 0] > 0) | ((numbers[:, 0] == 0) & (numbers[:, 1] > 0))
    waves = numbers[half] @ reciprocal
    waves = waves[np.linalg.norm(waves, axis=1) <= k_max]
    parts = np.zeros((get_num_threads(), len(q), 4))
    _slab_sums(x, x @ normal, q, waves, normal, alpha, area, parts)
    sums = parts.sum(0)
    return sums[:, 0], sums[:, 1:]


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _meet_once(i, step, number):
    """Whether particle i meets the one that is ``step`` places after it, in a circle: of two that
    are opposite each other the first."""
    return 2 * step != number or i < step


@on_all_threads(cache=True, error_model="numpy")
def _slab_sums(thread, x, z, q, waves, normal, alpha, area, sums):
    """Potential and field at each particle, to be summed over the threads, shape (threads, n, 4),
    from every pair once; of two opposite waves one is given."""
    root, n, own = math.sqrt(math.pi), len(q), sums[thread[0]]
    for i in portion(n, thread):
        for step in range(n // 2 + 1):
            if not _meet_once(i, step, n):
                continue
            j = (i + step) % n
            d0, d1, d2 = x[i, 0] - x[j, 0], x[i, 1] - x[j, 1], x[i, 2] - x[j, 2]
            dz = z[i] - z[j]
            gauss, error = math.exp(-((alpha * dz) ** 2)), math.erf(alpha * dz)
            phi = -2 * root / area * (gauss / alpha + root * dz * error)
            slope = -2 * math.pi / area * error
            f0 = f1 = f2 = 0.0
            for w in range(len(waves)):
                k0, k1, k2 = waves[w]
                k = math.sqrt(k0 * k0 + k1 * k1 + k2 * k2)
                up, down = k / (2 * alpha) + alpha * dz, k / (2 * alpha) - alpha * dz
                # beyond 26 the product underflows, too
                a = math.exp(k * dz) * math.erfc(up) if up < 26.0 else 0.0
                b = math.exp(-k * dz) * math.erfc(down) if down < 26.0 else 0.0
                angle = k0 * d0 + k1 * d1 + k2 * d2
                c = 2 * math.pi / (area * k) * math.cos(angle)
                s = 2 * math.pi / (area * k) * math.sin(angle) * (a + b)
                phi += c * (a + b)
                slope += c * k * (a - b)
                f0 += s * k0
                f1 += s * k1
                f2 += s * k2
            f0 -= slope * normal[0]
            f1 -= slope * normal[1]
            f2 -= slope * normal[2]
            _add(own, i, q[j], phi, f0, f1, f2)
            if step:
                _add(own, j, q[i], phi, -f0, -f1, -f2)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _add(sums, i, charge, phi, f0, f1, f2):
    sums[i, 0] += charge * phi
    sums[i, 1] += charge * f0
    sums[i, 2] += charge * f1
    sums[i, 3] += charge * f2


def _wire(x, q, periodic, others, alpha, k_max):
    """The smooth part where one direction is periodic."""
    length = float(np.linalg.norm(periodic))
    axis = periodic[0] / length
    waves = 2 * math.pi / length * np.arange(1, int(k_max * length / (2 * math.pi)) + 1)
    across = x @ others.T
    delta = across[:, None] - across
    squares = alpha**2 * (delta**2).sum(-1)
    # gamma + ln u + E_1(u) vanishes with u
    small = squares < 1e-9
    u = np.where(small, 1.0, squares)
    entire = np.where(small, squares, np.euler_gamma + np.log(u) + exp1(u))
    potentials = (np.euler_gamma + math.log((alpha * length) ** 2) - entire) @ q / length
    slope = np.where(small, 1.0, -np.expm1(-u) / u) * 2 * alpha**2 / length
    fields = np.einsum("ij,ijk,j->ik", slope, delta, q) @ others
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    parts, rule = np.zeros((get_num_threads(), len(q), 4)), ((1 + nodes) / 2, weights / 2)
    _wire_sums(x @ axis, across, q, waves, alpha, length, *rule, parts)
    sums = parts.sum(0)
    return potentials + sums[:, 0], fields + sums[:, 1:2] * axis + sums[:, 2:] @ others


@on_all_threads(cache=True, error_model="numpy")
def _wire_sums(thread, along, across, q, waves, alpha, length, nodes, weights, sums):
    """Potential, field along the axis and fields across it at each particle, to be summed over the
    threads, shape (threads, n, 4), from every pair once, with a rule for the integral over ln t
    from 0 to 1."""
    n, own = len(q), sums[thread[0]]
    for i in portion(n, thread):
        for step in range(n // 2 + 1):
            if not _meet_once(i, step, n):
                continue
            j = (i + step) % n
            phi = f0 = f1 = f2 = 0.0
            x = along[i] - along[j]
            y, z = across[i, 0] - across[j, 0], across[i, 1] - across[j, 1]
            square = alpha * alpha * (y * y + z * z)
            for w in range(len(waves)):
                k = waves[w]
                decay = k * k / (4 * alpha * alpha)
                value = radial = 0.0
                # beyond `end` the integrand is below rounding
                end = math.log(1.0 + 45.0 / decay)
                for node in range(len(nodes)):
                    t = math.exp(end * nodes[node])
                    term = end * weights[node] * math.exp(-decay * t - square / t)
                    value += term
                    radial += term / t
                cosine = 2 / length * math.cos(k * x)
                phi += cosine * value
                f0 += 2 / length * k * math.sin(k * x) * value
                radial *= cosine * 2 * alpha * alpha
                f1 += radial * y
                f2 += radial * z
            _add(own, i, q[j], phi, f0, f1, f2)
            if step:
                _add(own, j, q[i], phi, -f0, -f1, -f2)
