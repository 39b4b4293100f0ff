"""sort: splits particles into parts and orders them by box; gather: sums the results of the
parts."""

import numpy as np

from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.stages import Parts


def cubic_step(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``t^2 (3 - 2 t)``, which rises from 0 to 1 with a vanishing derivative at both ends,
    and its slope."""
    return t**2 * (3.0 - 2.0 * t), 6.0 * t * (1.0 - t)


def sort(positions, charges, lattice: BoxLattice, width: float, smoothing: float) -> Parts:
    """See :meth:`fmm_openmm.stages.Stages.sort`."""
    inverse = np.linalg.inv(lattice.boxes)
    scaled = positions / width @ inverse + ORIGIN
    home = np.floor(scaled).astype(np.int64)
    u = scaled - home

    # along each axis: the neighbouring box (0: none) and its share of the particle's charge
    side = np.where(u < smoothing, -1, np.where(u > 1.0 - smoothing, 1, 0))
    if smoothing > 0.0:
        distance = np.where(side < 0, u, 1.0 - u)
        step, slope = cubic_step(
            (smoothing - np.where(side, distance, smoothing)) / (2.0 * smoothing)
        )
        share, share_slope = (
            np.where(side, step, 0.0),
            np.where(side, side * slope / (2.0 * smoothing), 0.0),
        )
    else:
        share = share_slope = np.zeros_like(u)

    pieces = []
    for index in np.ndindex(2, 2, 2):
        corner = np.array(index)
        which = np.flatnonzero((side[:, corner == 1] != 0).all(1))
        shift = side[which] * corner
        w = np.where(corner, share[which], 1.0 - share[which])
        dw = np.where(corner, share_slope[which], -share_slope[which])
        slope = np.stack(
            [
                dw[:, 0] * w[:, 1] * w[:, 2],
                w[:, 0] * dw[:, 1] * w[:, 2],
                w[:, 0] * w[:, 1] * dw[:, 2],
            ],
            1,
        )
        x = (u[which] - shift - 0.5) @ lattice.boxes
        pieces.append((which, x, w.prod(1), slope @ inverse.T, home[which] + shift))
    particle, x, weight, slope, box = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )

    number = lattice.linear(box)
    order = np.lexsort((particle, number))
    particle, x, weight, slope, box = (
        particle[order],
        x[order],
        weight[order],
        slope[order],
        box[order],
    )
    start = np.searchsorted(number[order], np.arange(lattice.size + 1))
    return Parts(particle, x, charges[particle] * weight, weight, slope, box, start)


def gather(parts: Parts, out, particles: int) -> tuple[np.ndarray, np.ndarray]:
    """See :meth:`fmm_openmm.stages.Stages.gather`."""
    with np.errstate(invalid="ignore"):  # coinciding particles
        potentials = np.bincount(parts.particle, parts.weight * out.potentials, particles)
        contribution = parts.weight[:, None] * out.fields - parts.slope * out.potentials[:, None]
    fields = np.stack([np.bincount(parts.particle, c, particles) for c in contribution.T], 1)
    return potentials, fields
