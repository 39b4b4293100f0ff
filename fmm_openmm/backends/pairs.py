"""Lookup tables of excluded pairs and of near boxes for the kernels."""

import numpy as np


def partners(
    pairs, particles: int, xp=np, itself_first: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Lists of excluded partners. The list ``partner[start[i]:start[i + 1]]`` contains particle i
    itself and its partners, in ascending order.

    Args:
        pairs: excluded pairs, shape (k, 2).
        particles: number of particles.
        xp: the library of the arrays, NumPy or CuPy.
        itself_first: whether each list begins with the particle itself; its partners then ascend
            cyclically.

    Returns:
        ``start``, shape (particles + 1,), and ``partner``.
    """
    pairs, everyone = xp.asarray(pairs, xp.int64).reshape(-1, 2), xp.arange(particles)
    i = xp.concatenate([everyone, pairs[:, 0], pairs[:, 1]])
    j = xp.concatenate([everyone, pairs[:, 1], pairs[:, 0]])
    origin = i if itself_first else 0
    key = xp.sort(i * particles + (j - origin) % particles)
    origin = key // particles if itself_first else 0
    return xp.searchsorted(key, xp.arange(particles + 1) * particles), (key + origin) % particles


def near_table(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Table of the row of every offset in ``near`` (m, 3), -1 if it is not near, indexed by
    offset + reach; and ``reach`` (3,), the largest offset along each axis."""
    reach = np.abs(near).max(0)
    table = np.full(2 * reach + 1, -1)
    table[tuple((near + reach).T)] = np.arange(len(near))
    return table, reach
