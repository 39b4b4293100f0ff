"""Charges at random, and how far two results are apart."""

import numpy as np

SKEWED = np.array([[2.1, 0.0, 0.0], [0.7, 1.9, 0.0], [-1.0, 0.8, 2.3]])


def relative(a, b):
    return np.linalg.norm(np.subtract(np.asarray(a), np.asarray(b))) / np.linalg.norm(b)


def random_charges(n, cell, net=0.0, gap=0.1):
    """Charges scattered over 27 cells, unwrapped; no two nearer than `gap` nm, images included."""
    rng = np.random.default_rng(0)
    fractions = np.empty((0, 3))
    while len(fractions) < n:
        trial = rng.uniform(0, 1, 3)
        delta = trial - fractions
        if len(delta) == 0 or np.linalg.norm((delta - np.round(delta)) @ cell, axis=1).min() > gap:
            fractions = np.vstack([fractions, trial])
    charges = rng.normal(size=n)
    return (fractions + rng.integers(-1, 2, (n, 3))) @ cell, charges - charges.mean() + net / n


def cluster(scale, seed=1, others=0):
    """60 charges within ``scale`` nm of each other, and others anywhere in a cube of 20 nm."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([7.0 + scale * rng.normal(size=(60, 3)), 20.0 * rng.random((others, 3))])
    q = rng.choice([-1.0, 1.0], len(x))
    return x, q - q.mean(), 20.0 * np.eye(3)


def apart_and_close():
    """Positions of charges in wide boxes, and later ones where two charges are close to each other;
    the charges, and the cell."""
    x, q, cell = cluster(3.0, others=60)
    close = x.copy()
    close[1] = close[0] + [6e-4, 0.0, 8e-4]
    return x, close, q, cell


def layers():
    """60 charges in a slab that is periodic along x and y, of which one lies 150 nm above the
    others; the same with all negative charges there, so that potentials are large compared with the
    forces; the charges, and the cell."""
    rng = np.random.default_rng(7)
    x, q = rng.random((60, 3)), np.tile([1.0, -1.0], 30)
    apart = x + np.outer(q < 0, [0.0, 0.0, 150.0])
    x[0, 2] += 150.0
    return x, apart, q, np.diag([1.0, 1.0, 400.0])
