r"""The Coulomb sum over all pairs with open boundaries.

.. math::
    \phi_i = \sum_{j \ne i,\ j \text{ not excluded}} \frac{q_j}{|x_i - x_j|}
"""

import math

import numpy as np

from fmm_openmm.openmp import on_all_threads, portion
from fmm_openmm.oracle.ewald import EwaldResult, as_pairs, check_shapes, partner_lists


def direct_sum(positions, charges, exclusions=None) -> EwaldResult:
    """Energy, forces, potentials and fields of point charges in free space.

    Coinciding charges that are not excluded have infinite potentials.

    Parameters
    ----------
    positions : (n, 3) float64, nm.
    charges : (n,) float64, e.
    exclusions : (m, 2) integers, optional: pairs that do not interact. They may coincide.

    Raises
    ------
    ValueError : an argument has the wrong shape.
    """
    x, q, pairs = (
        np.asarray(positions, np.float64),
        np.asarray(charges, np.float64),
        as_pairs(exclusions),
    )
    check_shapes(x, q)
    starts, entries = partner_lists(len(q), pairs)
    partners = np.concatenate([pairs[:, 1], pairs[:, 0]])[entries]
    sums = np.empty((len(q), 4))
    _pair_sums(x, q, starts, partners, sums)
    return EwaldResult.from_potentials(q, sums[:, 0].copy(), sums[:, 1:].copy())


@on_all_threads(cache=True, error_model="numpy")
def _pair_sums(thread, x, q, starts, partners, sums):
    """Potential and field at each particle, shape (n, 4)."""
    for i in portion(len(q), thread):
        phi = fx = fy = fz = 0.0
        for j in range(len(q)):
            excluded = j == i
            for s in range(starts[i], starts[i + 1]):
                excluded |= partners[s] == j
            if excluded:
                continue
            dx, dy, dz = x[i, 0] - x[j, 0], x[i, 1] - x[j, 1], x[i, 2] - x[j, 2]
            inverse = 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz)
            bare = q[j] * inverse
            phi += bare
            slope = bare * inverse * inverse
            fx += slope * dx
            fy += slope * dy
            fz += slope * dz
        sums[i, 0], sums[i, 1], sums[i, 2], sums[i, 3] = phi, fx, fy, fz
