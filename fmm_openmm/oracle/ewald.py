r"""The Ewald sum in any periodic cell, accurate to rounding.

.. math::
    \phi_i = \sum_{j,n}' q_j \frac{\operatorname{erfc}(\alpha r)}{r}
           + \frac{4 \pi}{V} \sum_{k \ne 0} \frac{e^{-k^2 / 4 \alpha^2}}{k^2}
             \operatorname{Re} \bar S(k) e^{i k x_i}
           - \frac{2 \alpha}{\sqrt \pi} q_i - \frac{\pi Q}{V \alpha^2}
           - \sum_{j \text{ excluded}} q_j \frac{\operatorname{erf}(\alpha r)}{r}

with :math:`S(k) = \sum_j q_j e^{i k x_j}`, Q the net charge and n the periodic images. The primed
sum omits i itself and, for an excluded pair, the image whose bare :math:`1/r` is to be removed.
Tin-foil boundary conditions and a uniform neutralising background.

P. P. Ewald, Ann. Phys. 369, 253 (1921), doi:10.1002/andp.19213690304; the background of a net
charge: G. Hummer, L. R. Pratt, A. E. Garcia, J. Phys. Chem. 100, 1206 (1996),
doi:10.1021/jp951011v.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, gammainc

from fmm_openmm.dipole_term import TIN_FOIL, add_dipole_term
from fmm_openmm.openmp import on_all_threads, portion
from fmm_openmm.units import COULOMB_CONSTANT

BINS_PER_CUTOFF = 3
PAIR_COST = 24.0
"""Cost of a real-space pair relative to a (particle, wave vector) term. It affects the choice of
alpha, but not the result."""

CHUNK = 1 << 21
"""Maximum number of elements of an array in the reciprocal sum, unless a single row has more."""


@dataclass(frozen=True, eq=False)
class EwaldResult:
    """Result of a Coulomb sum; all arrays are float64 with one row per particle."""

    energy: float
    """kJ/mol"""
    forces: np.ndarray
    """(n, 3), kJ/mol/nm"""
    potentials: np.ndarray
    """(n,), kJ/mol/e: of all other particles, the particle's own periodic images and the
    background."""
    fields: np.ndarray
    """(n, 3), kJ/mol/e/nm: minus the gradient of the potential; ``forces = charges * fields``."""

    @classmethod
    def from_potentials(cls, charges, potentials, fields):
        """Make a result from potentials (n,) in e/nm and fields (n, 3) in e/nm^2."""
        potentials, fields = COULOMB_CONSTANT * potentials, COULOMB_CONSTANT * fields
        return cls(0.5 * float(charges @ potentials), charges[:, None] * fields, potentials, fields)


def ewald_sum(
    positions,
    charges,
    box_vectors,
    exclusions=None,
    exclusions_periodic=False,
    accuracy=1e-12,
    alpha=None,
    slab_correction=False,
    surface_dielectric=TIN_FOIL,
) -> EwaldResult:
    """Energy, forces, potentials and fields of point charges in a periodic cell.

    Coinciding charges that are not excluded have infinite potentials.

    Parameters
    ----------
    positions : (n, 3) float64, nm; wrapped or not.
    charges : (n,) float64, e; their sum need not vanish.
    box_vectors : (3, 3) float64, nm; rows a, b, c in OpenMM's reduced form.
    exclusions : (m, 2) integers, optional: pairs whose bare ``q_i q_j / r`` is subtracted. They may
        coincide.
    exclusions_periodic : whether r of an excluded pair is the distance of its minimum image, by
        OpenMM's convention, instead of the distance between the positions as given.
    accuracy : both sums are truncated where their terms have decayed to this fraction.
    alpha : splitting parameter, 1/nm; chosen for speed by default. The result does not
        depend on it.
    slab_correction, surface_dielectric : the dipole term, as in :class:`fmm_openmm.CoulombSolver`.

    Raises
    ------
    ValueError : an argument has the wrong shape.
    """
    x, q = np.asarray(positions, np.float64), np.asarray(charges, np.float64)
    cell, pairs = np.asarray(box_vectors, np.float64), as_pairs(exclusions)
    check_shapes(x, q)
    if cell.shape != (3, 3):
        raise ValueError(f"`box_vectors` must have shape (3, 3), got {cell.shape}")
    if len(q) == 0:
        return EwaldResult.from_potentials(q, np.zeros(0), np.zeros((0, 3)))

    volume = abs(np.linalg.det(cell))
    if alpha is None:
        # Pairs ~ n^2 (s / alpha)^3 / V and waves ~ n V (2 s alpha)^3 / 8 pi^3 / 2,
        # up to a common factor.
        alpha = (2 * math.pi**3 * PAIR_COST * len(q) / volume**2) ** (1 / 6)
    decay = math.sqrt(-math.log(accuracy))
    wraps = np.floor(x @ np.linalg.inv(cell))
    wrapped = x - wraps @ cell

    delta = x[pairs[:, 1]] - x[pairs[:, 0]]
    image = wraps[pairs[:, 1]] - wraps[pairs[:, 0]]
    if exclusions_periodic:
        shift = nearest_image(delta, cell)
        delta, image = delta - shift @ cell, image - shift

    potentials, fields = real_space(wrapped, q, cell, pairs, image, alpha, decay / alpha)
    for sums in (
        _reciprocal(wrapped, q, cell, alpha, 2 * decay * alpha),
        excluded_part(delta, q, pairs, alpha),
    ):
        potentials += sums[0]
        fields += sums[1]
    potentials -= 2 * alpha / math.sqrt(math.pi) * q + math.pi / (volume * alpha**2) * q.sum()
    result = EwaldResult.from_potentials(q, potentials, fields)
    return add_dipole_term(result, x, q, cell, slab_correction, surface_dielectric)


def as_pairs(exclusions):
    """Exclusions as an array (m, 2) int64; None and an empty list give (0, 2)."""
    return (
        np.zeros((0, 2), np.int64)
        if exclusions is None
        else np.asarray(exclusions, np.int64).reshape(-1, 2)
    )


def check_shapes(positions, charges):
    if charges.ndim != 1 or positions.shape != (len(charges), 3):
        raise ValueError(
            "`positions` must have shape (n, 3) and `charges` (n,), "
            f"got {positions.shape} and {charges.shape}"
        )


def nearest_image(delta, cell):
    """Numbers of cell vectors (m, k) that OpenMM subtracts from displacements to obtain their
    minimum images: first c, then b, then a. The cell (k, k) is lower triangular."""
    shift, rest = np.zeros_like(delta), delta.copy()
    for axis in reversed(range(len(cell))):
        shift[:, axis] = np.floor(rest[:, axis] / cell[axis, axis] + 0.5)
        rest -= shift[:, axis, None] * cell[axis]
    return shift


def partner_lists(n, pairs):
    """Excluded partners of each particle as compressed rows: starts (n + 1,), and entries (2 m,)
    that index the pairs followed by the reversed pairs."""
    first = np.concatenate([pairs[:, 0], pairs[:, 1]])
    return np.searchsorted(
        first[order := np.argsort(first, kind="stable")], np.arange(n + 1)
    ), order


def excluded_part(delta, q, pairs, alpha):
    """The term -erf(alpha r) / r of the excluded pairs; finite as r vanishes."""
    r = np.sqrt((delta**2).sum(1))
    u = (alpha * r) ** 2
    small = u < 1e-16
    safe = np.where(small, 1.0, r)
    potential = np.where(small, 2 * alpha / math.sqrt(math.pi), erf(alpha * safe) / safe)
    # erf(x) - 2 x exp(-x^2) / sqrt(pi) is the incomplete gamma function P(3/2, x^2), which avoids
    # cancellation at small x
    slope = np.where(small, 4 * alpha**3 / (3 * math.sqrt(math.pi)), gammainc(1.5, u) / safe**3)
    phi, field = np.zeros(len(q)), np.zeros((len(q), 3))
    for i, j, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        source = q[pairs[:, j]]
        np.add.at(phi, pairs[:, i], -source * potential)
        np.add.at(field, pairs[:, i], (sign * source * slope)[:, None] * delta)
    return phi, field


def _reciprocal(x, q, cell, alpha, k_max):
    """The sum over wave vectors k = n1 b1 + n2 b2 + n3 b3, as matrix products over n3 for blocks
    of rows (n1, n2)."""
    inverse = np.linalg.inv(cell)
    b = 2 * math.pi * inverse.T
    limits = np.floor(k_max * np.linalg.norm(cell, axis=1) / (2 * math.pi)).astype(int)
    ranges = [np.arange(-m, m + 1) for m in limits]
    ranges[0] = ranges[0][limits[0] :]  # k and -k contribute equally: half of them, counted twice
    phases = 2 * math.pi * (x @ inverse)
    e1, e2, e3 = (np.exp(1j * n[:, None] * phases[:, axis]) for axis, n in enumerate(ranges))

    phi, slopes = np.zeros(len(q)), np.zeros((3, len(q)))
    scale = 4 * math.pi * abs(np.linalg.det(inverse))
    rows, step = len(e1) * len(e2), max(1, CHUNK // max(len(q), 3 * len(e3)))
    for start in range(0, rows, step):
        n1, n2 = np.divmod(np.arange(start, min(start + step, rows)), len(e2))
        n2 -= limits[1]
        k = n1[:, None] * b[0] + n2[:, None] * b[1]
        shortest = k - np.rint(k @ b[2] / (b[2] @ b[2]))[:, None] * b[2]
        reached = (shortest**2).sum(1) <= k_max**2
        if not reached.any():
            continue
        n1, n2 = n1[reached], n2[reached]
        k2 = ((k[reached, None] + ranges[2][:, None] * b[2]) ** 2).sum(-1)
        inside = (k2 <= k_max**2) & (k2 > 0)
        used = inside.any(0)  # few values of n3 if the cell is skewed
        n3, e, k2, inside = ranges[2][used], e3[used], k2[:, used], inside[:, used]
        k2[~inside] = 1.0
        green = (
            np.where(inside, scale * np.exp(-k2 / (4 * alpha**2)) / k2, 0.0)
            * np.where(n1 > 0, 2.0, 1.0)[:, None]
        )

        plane = e1[n1] * e2[n2 + limits[1]]
        weights = green * np.conj((plane * q) @ e.T)
        terms = plane * (weights @ e)
        phi += terms.real.sum(0)
        slopes[0] += n1 @ terms.imag
        slopes[1] += n2 @ terms.imag
        slopes[2] += (plane * ((weights * n3) @ e)).imag.sum(0)
    return phi, slopes.T @ b


def real_space(x, q, cell, pairs, images, alpha, cutoff):
    """The sum over all images within the cutoff, which may exceed the cell, with particles sorted
    into bins."""
    inverse = np.linalg.inv(cell)
    heights = 1 / np.linalg.norm(inverse, axis=0)
    shape = np.maximum(1, (BINS_PER_CUTOFF * heights / cutoff).astype(np.int64))
    layers = np.ceil(cutoff * shape / heights).astype(np.int64)
    bins = np.clip((x @ inverse * shape).astype(np.int64), 0, shape - 1)
    flat = (bins[:, 0] * shape[1] + bins[:, 1]) * shape[2] + bins[:, 2]
    order = np.argsort(flat, kind="stable")
    starts = np.searchsorted(flat[order], np.arange(shape.prod() + 1))

    rank = np.argsort(order)
    ends = np.concatenate([rank[pairs], rank[pairs[:, ::-1]]])
    skip_starts, entries = partner_lists(len(q), rank[pairs])
    skips = np.column_stack([ends[:, 1], np.concatenate([images, -images])]).astype(np.int64)[
        entries
    ]
    sums = np.empty((len(q), 4))
    _bin_sums(
        x[order],
        q[order],
        cell,
        bins[order],
        starts,
        shape,
        layers,
        cutoff,
        alpha,
        skip_starts,
        skips,
        sums,
    )
    return sums[rank, 0], sums[rank, 1:]


@on_all_threads(cache=True, error_model="numpy")
def _bin_sums(
    thread, x, q, cell, bins, starts, shape, layers, cutoff, alpha, skip_starts, skips, sums
):
    """Potential and field at each particle, shape (n, 4), without ``skips``: rows of a partner and
    its image in cell vectors."""
    gauss = 2 * alpha / math.sqrt(math.pi)
    for i in portion(len(q), thread):
        phi = fx = fy = fz = 0.0
        for u in range(bins[i, 0] - layers[0], bins[i, 0] + layers[0] + 1):
            n0 = u // shape[0]
            for v in range(bins[i, 1] - layers[1], bins[i, 1] + layers[1] + 1):
                n1 = v // shape[1]
                for w in range(bins[i, 2] - layers[2], bins[i, 2] + layers[2] + 1):
                    n2 = w // shape[2]
                    ox = n0 * cell[0, 0] + n1 * cell[1, 0] + n2 * cell[2, 0] - x[i, 0]
                    oy = n0 * cell[0, 1] + n1 * cell[1, 1] + n2 * cell[2, 1] - x[i, 1]
                    oz = n0 * cell[0, 2] + n1 * cell[1, 2] + n2 * cell[2, 2] - x[i, 2]
                    home = (
                        ((u - n0 * shape[0]) * shape[1] + v - n1 * shape[1]) * shape[2]
                        + w
                        - n2 * shape[2]
                    )
                    for j in range(starts[home], starts[home + 1]):
                        dx, dy, dz = x[j, 0] + ox, x[j, 1] + oy, x[j, 2] + oz
                        r2 = dx * dx + dy * dy + dz * dz
                        if r2 > cutoff * cutoff or (j == i and n0 == 0 and n1 == 0 and n2 == 0):
                            continue
                        skipped = False
                        for s in range(skip_starts[i], skip_starts[i + 1]):
                            if (
                                skips[s, 0] == j
                                and skips[s, 1] == n0
                                and skips[s, 2] == n1
                                and skips[s, 3] == n2
                            ):
                                skipped = True
                        if skipped:
                            continue
                        r = math.sqrt(r2)
                        screened = q[j] * math.erfc(alpha * r) / r
                        slope = (screened + q[j] * gauss * math.exp(-alpha * alpha * r2)) / r2
                        phi += screened
                        fx -= slope * dx
                        fy -= slope * dy
                        fz -= slope * dz
        sums[i, 0], sums[i, 1], sums[i, 2], sums[i, 3] = phi, fx, fy, fz
