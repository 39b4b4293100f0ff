"""p2p: direct interactions within the near stencil."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.stages import Accumulator, NearExclusions, Parts


def p2p(parts: Parts, near: NearExclusions, lattice: BoxLattice, out: Accumulator) -> None:
    """See :meth:`fmm_openmm.stages.Stages.p2p`.

    Coinciding charges that are not excluded give infinite results.
    """
    m = len(parts.x)
    targets = np.repeat(np.arange(m), np.diff(near.start))
    excluded = (near.offset * m + targets) * m + near.part
    for row, offset in enumerate(lattice.near):
        box = lattice.linear(parts.box + offset)
        count = parts.start[box + 1] - parts.start[box]
        i = np.repeat(np.arange(m), count)
        j = (
            np.arange(len(i))
            - np.repeat(np.cumsum(count) - count, count)
            + np.repeat(parts.start[box], count)
        )
        keep = ~np.isin((row * m + i) * m + j, excluded[near.offset == row])
        i, j = i[keep], j[keep]
        delta = parts.x[i] - parts.x[j] - offset @ lattice.boxes
        r = np.linalg.norm(delta, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.where(parts.charge[j] == 0.0, 0.0, parts.charge[j] / r)
            strength = np.where(s == 0.0, 0.0, s / r**2)[:, None] * delta
        out.potentials += np.bincount(i, s, m)
        out.fields += np.stack([np.bincount(i, f, m) for f in strength.T], 1)
