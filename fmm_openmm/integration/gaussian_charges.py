"""The potential of Gaussian charges, from that of point charges.

A charge q spread over a Gaussian of standard deviation w has the potential
``k_e q erf(r / (sqrt(2) w)) / r``, which differs from that of the point charge only at small
distances.
"""

import numpy as np
import scipy
from scipy.special import erfc

from fmm_openmm.boundary import Boundary
from fmm_openmm.units import COULOMB_CONSTANT

CUTOFF = 4.9
"""Distance in widths w beyond which the difference is less than 1e-6 of the potential."""

PAIRS = 4_000_000
"""Number of pairs, roughly, that are in memory at a time."""


def excess_of_points(
    points: np.ndarray,
    positions: np.ndarray,
    charges: np.ndarray,
    cell: np.ndarray,
    width: float,
) -> np.ndarray:
    """Potentials of point charges minus those of Gaussian charges.

    They are ``k_e sum q erfc(r / (sqrt(2) w)) / r`` over all charges and images within the cutoff.

    Args:
        points: shape (m, 3), nm.
        positions: shape (n, 3), nm.
        charges: shape (n,), e.
        cell: cell vectors, shape (3, 3), nm.
        width: standard deviation w, nm.

    Returns:
        shape (m,), kJ/mol/e.
    """
    cutoff = CUTOFF * width
    boundary = Boundary.from_cell(cell)
    vectors = boundary.vectors(cell)
    points, positions = (boundary.wrap(x, cell) @ vectors for x in (points, positions))
    places, owners = _images(positions, vectors, boundary.periodic, cutoff)
    charged = charges[owners] != 0.0
    tree, q = scipy.spatial.cKDTree(places[charged]), charges[owners[charged]]
    excess = np.zeros(len(points))
    sample = points[:: len(points) // 100 + 1]
    neighbours = tree.query_ball_point(sample, cutoff, return_length=True).mean()
    step = max(1, int(PAIRS / (1.0 + neighbours)))
    for begin in range(0, len(points), step):
        some = scipy.spatial.cKDTree(points[begin : begin + step])
        pair = some.sparse_distance_matrix(tree, cutoff, output_type="ndarray")
        value = q[pair["j"]] * erfc(pair["v"] / (np.sqrt(2.0) * width)) / pair["v"]
        excess[begin : begin + step] = np.bincount(pair["i"], value, len(some.data))
    return COULOMB_CONSTANT * excess


def _images(
    positions: np.ndarray, vectors: np.ndarray, periodic: tuple[bool, ...], cutoff: float
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the particles and of their images within the cutoff of the cell, and the index
    of the particle that each belongs to."""
    inverse = np.linalg.inv(vectors)
    margin = np.where(periodic, cutoff * np.linalg.norm(inverse, axis=0), 0.0)  # fractional
    owners = np.arange(len(positions))
    for axis in np.flatnonzero(periodic):
        fraction = (positions @ inverse)[:, axis]
        found = []
        for shift in range(-int(np.ceil(margin[axis])), int(np.ceil(margin[axis])) + 1):
            place = fraction + shift
            inside = (place >= -margin[axis]) & (place < 1.0 + margin[axis])
            found.append((positions[inside] + shift * vectors[axis], owners[inside]))
        positions, owners = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return positions, owners
