"""The a-priori error estimate: near radius and order to relative RMS force error."""

import numpy as np

from fmm_openmm.box import BoxLattice, near_stencil


def first_far_distance(lattice: BoxLattice) -> float:
    """Distance of the nearest box that is not in the near stencil, mean box widths."""
    wider = near_stencil(lattice.boxes, lattice.near_radius + 1.5)
    near = {tuple(n) for n in lattice.near.tolist()}
    far = np.array([o for o in wider.tolist() if tuple(o) not in near])
    return float(np.linalg.norm(far @ lattice.boxes, axis=1).min())


def estimate_error(lattice: BoxLattice, order: int, smoothing: float) -> float:
    """Expected relative RMS force error."""
    return 0.35 * (0.90 / first_far_distance(lattice)) ** (order + 0.5)
