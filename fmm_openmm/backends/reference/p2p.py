"""p2p: direct interactions within the near stencil."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.stages import Accumulator, NearExclusions, Parts


def p2p(
    targets: Parts,
    sources: Parts,
    near: NearExclusions,
    lattice: BoxLattice,
    out: Accumulator,
    moment: np.ndarray | None = None,
) -> None:
    """See :meth:`fmm_openmm.stages.Stages.p2p`.

    Coinciding charges that are not excluded give infinite results.
    """
    m, n = len(targets.x), len(sources.x)
    with_exclusions = np.repeat(np.arange(m), np.diff(near.start))
    excluded = (near.offset * m + with_exclusions) * n + near.part
    for row, offset in enumerate(lattice.near):
        box = lattice.linear(targets.box + offset)
        count = sources.start[box + 1] - sources.start[box]
        i = np.repeat(np.arange(m), count)
        j = (
            np.arange(len(i))
            - np.repeat(np.cumsum(count) - count, count)
            + np.repeat(sources.start[box], count)
        )
        keep = ~np.isin((row * m + i) * n + j, excluded[near.offset == row])
        i, j = i[keep], j[keep]
        delta, charge = targets.x[i] - sources.x[j] - offset @ lattice.boxes, sources.charge[j]
        r = np.linalg.norm(delta, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.where(charge == 0.0, 0.0, charge / r)
            strength = np.where(s == 0.0, 0.0, s / r**2)[:, None] * delta
        out.potentials += np.bincount(i, s, m)
        out.fields += sums_of_rows(i, strength, m)
        if moment is not None:
            charged = targets.charge[i] != 0.0  # others may be where a charge is
            force = targets.charge[i[charged]] @ strength[charged]
            moment += np.outer(offset @ lattice.boxes, force)


def sums_of_rows(group: np.ndarray, rows: np.ndarray, groups: int) -> np.ndarray:
    """Sum of the rows (k, columns) of each group, shape (groups, columns)."""
    return np.stack([np.bincount(group, column, groups) for column in rows.T], 1)
