"""exclusions: subtracts excluded pairs beyond the near stencil and lists those within it for
p2p."""

import numpy as np

from fmm_openmm.backends.pairs import near_table
from fmm_openmm.backends.reference.p2p import sums_of_rows
from fmm_openmm.box import BoxLattice
from fmm_openmm.stages import Accumulator, NearExclusions, Parts


def expand(
    parts: Parts, pairs: np.ndarray, particles: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of parts of the given pairs of particles: the indices of both parts and of the
    pair, shape (k,) each."""
    by_particle = np.argsort(parts.particle, kind="stable")
    first = np.searchsorted(parts.particle[by_particle], np.arange(particles + 1))
    count = np.diff(first)
    ways = count[pairs[:, 0]] * count[pairs[:, 1]]
    pair = np.repeat(np.arange(len(pairs)), ways)
    k = np.arange(len(pair)) - np.repeat(np.cumsum(ways) - ways, ways)
    i, j = pairs[pair].T
    return by_particle[first[i] + k // count[j]], by_particle[first[j] + k % count[j]], pair


def exclusions(
    parts: Parts,
    pairs: np.ndarray,
    shifts: np.ndarray,
    particles: int,
    lattice: BoxLattice,
    out: Accumulator,
    moment: np.ndarray | None = None,
) -> NearExclusions:
    """See :meth:`fmm_openmm.stages.Stages.exclusions`.

    Args:
        pairs: excluded pairs in both directions, shape (k, 2).
        shifts: cell translation from each pair's second particle to its excluded image, shape
            (k, 3) integer.
    """
    own = np.repeat(np.arange(particles)[:, None], 2, axis=1)
    a, b, pair = expand(parts, np.concatenate([own, pairs]), particles)
    shift = (
        np.concatenate([np.zeros_like(own, shape=(particles, 3)), shifts])[pair] @ lattice.counts
    )
    offset = parts.box[b] + shift - parts.box[a]

    table, reach = near_table(lattice.near)
    inside = (np.abs(offset) <= reach).all(1)
    row = np.where(inside, table[tuple((np.clip(offset, -reach, reach) + reach).T)], -1)

    far = row < 0
    apart = offset[far] @ lattice.boxes
    delta = parts.x[a[far]] - parts.x[b[far]] - apart
    s = parts.charge[b[far]] / np.linalg.norm(delta, axis=1)
    out.potentials -= np.bincount(a[far], s, len(parts.x))
    strength = (s / (delta**2).sum(1))[:, None] * delta
    out.fields -= sums_of_rows(a[far], strength, len(parts.x))
    if moment is not None:
        moment -= apart.T @ (parts.charge[a[far], None] * strength)

    a, b, row = a[~far], b[~far], row[~far]
    order = np.argsort(a, kind="stable")
    return NearExclusions(
        np.searchsorted(a[order], np.arange(len(parts.x) + 1)), b[order], row[order]
    )
