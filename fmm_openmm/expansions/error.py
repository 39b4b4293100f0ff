r"""The a-priori error estimate: geometry of the boxes and order to relative RMS force error.

A box at distance d contributes a truncation error proportional to ``(a / d^b)^(p + 1) / d``, the contributions of the boxes
add up as independent ones, and more particles in a box average it. With the effective distance of the first boxes that are
not near,

    R = ( sum over far boxes of d^(-2 (p + 2)) ) ^ (-1 / (2 (p + 2)))                                   (box widths)

the estimate is

    error = SAFETY * C * n^X * R^-Z * (A D^G / R^B)^(p + 1) * exp(IONIC * chi) * f(smoothing)
    f(s)  = sqrt(1 + (S0 / s)^2) exp(-S1 s)   for s > 0,   1 for s = 0

where n is the number of particles in a box (where there are any), D the boxes' deformation and chi the ionic fraction.
The constants were fitted by least squares to 1,728 measured errors against Ewald sums (water, molten salt and a solvated
peptide; radii 1.75 to 4.2, orders 3 to 14, smoothing 0 to 0.3; standard deviation of log(measured / fitted) 0.31), and
``SAFETY`` covers the spread between systems; ``docs/accuracy.md`` has the comparison for the whole test set.
"""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fmm_openmm.box import BoxLattice, near_stencil

C, X, Z = 0.52, -0.43, 1.96
A, B, G = 1.17, 1.18, 1.7
S0, S1 = 0.049, 1.9
IONIC = 1.2
SAFETY = 2.0
NOISE, NOISE_IONIC = 1.5e-6, 1.7


def ionic_fraction(charges: np.ndarray, exclusions: np.ndarray) -> float:
    """``sum Q_g^2 / sum q^2`` with Q_g the net charges of groups of particles tied together by exclusions, at most 1.

    0 for neutral molecules, 1 for bare ions: unscreened ions have larger box moments at the same net forces.
    """
    total = float(charges @ charges)
    if total == 0.0:
        return 0.0
    n = len(charges)
    links = coo_array((np.ones(len(exclusions)), (exclusions[:, 0], exclusions[:, 1])), shape=(n, n))
    groups, label = connected_components(links, directed=False)
    net = np.bincount(label, charges, groups)
    return min(1.0, float(net @ net) / total)


def far_distances(lattice: BoxLattice) -> np.ndarray:
    """Distances of the boxes just beyond the near stencil, box widths."""
    wider = near_stencil(lattice.boxes, lattice.near_radius + 2.0)
    return np.linalg.norm(wider[~lattice.is_near(wider)] @ lattice.boxes, axis=1)


def estimate_error(
    distances: np.ndarray, order: int, smoothing: float, per_box: float, deformation: float, ionic: float
) -> float:
    """The module's formula.

    Args:
        distances: of the first far boxes, from :func:`far_distances`.
        order: expansion order p.
        smoothing: width of the transition regions, box widths.
        per_box: mean number of particles in a box that holds any.
        deformation: of the boxes, from :func:`fmm_openmm.box.deformation`.
        ionic: from :func:`ionic_fraction`.
    """
    nearest = distances.min()
    effective = nearest * ((distances / nearest) ** (-2.0 * (order + 2))).sum() ** (-0.5 / (order + 2))
    transition = np.hypot(1.0, S0 / smoothing) * np.exp(-S1 * smoothing) if smoothing > 0.0 else 1.0
    decay = A * deformation**G / effective**B
    return float(
        SAFETY * C * max(per_box, 1.0) ** X * effective**-Z * decay ** (order + 1) * np.exp(IONIC * ionic) * transition
    )


def single_noise(ionic: float) -> float:
    """Relative RMS force error of float32 arithmetic: measured 0.6 to 1.8e-6 in water and 3 to 8e-6 in salt crystals."""
    return float(NOISE * np.exp(NOISE_IONIC * ionic))
