"""How the halves of Ewald's sums for the lattice operator are split and cut off;
formula in ``operators/periodic.py``."""

from functools import lru_cache

import numpy as np
from scipy.special import erfc, gammaincc

NEAREST_FAR = 2.0
"""Distance of the nearest far boxes beyond the smallest near stencil, 27 boxes, box widths."""


def inverse_double_factorials(top: int) -> np.ndarray:
    """``1 / (2 l - 1)!!`` of the degrees up to ``top``, shape (top + 1,)."""
    return 1.0 / np.cumprod([1.0] + [2.0 * l - 1.0 for l in range(1, top + 1)])


def upper_gamma(top: int, x: np.ndarray) -> np.ndarray:
    """Q(l + 1/2, x) for positive x, shape (n,), and the degrees up to ``top``, shape (top + 1, n):
    ``gammaincc`` by recurrence, of terms that are all positive."""
    out = np.empty((top + 1, len(x)))
    value, term = erfc(np.sqrt(x)), 2 * np.sqrt(x / np.pi) * np.exp(-x)
    for l in range(top + 1):
        out[l] = value
        value = value + term
        term *= x / (l + 1.5)
    return out


@lru_cache(64)  # they do not depend on the shape of the cell
def truncation_radii(top: int, accuracy: float, alpha: float, reach: float) -> tuple[float, float]:
    """Radii in real and reciprocal space beyond which every degree up to ``top`` is below
    ``accuracy`` of S at ``reach``.

    Args:
        alpha: splitting parameter.
        reach: distance of the nearest far boxes.
    """
    l = np.arange(top + 1)[:, None]
    r, g = np.arange(3.0, 60.0, 0.25), np.arange(1.0, 60.0, 0.25)
    real = (reach / r) ** (l + 1) * gammaincc(l + 0.5, (alpha * r) ** 2) * 4 * np.pi * r**3
    spectral = spectral_weight(top, g, alpha, reach)
    return float(r[(real > accuracy).any(0)].max()) + 0.25, float(
        g[(spectral > accuracy).any(0)].max()
    ) + 0.25


def isolating_split(top: int, accuracy: float, gap: float) -> tuple[float, float]:
    """The smallest splitting parameter with which terms of real space are negligible at the
    distance ``gap`` and beyond, and the truncation radius in reciprocal space; both are zero if the
    gap is infinite. Other arguments as in :func:`truncation_radii`."""
    if not np.isfinite(gap):
        return 0.0, 0.0
    l = np.arange(top + 1)[:, None]
    x = np.arange(2.0, 12.0, 0.1)
    images = 26 * (NEAREST_FAR / gap) ** (l + 1) * gammaincc(l + 0.5, x * x)
    alpha = x[(images > accuracy).any(0)].max(initial=x[0]) / gap
    g = alpha * np.arange(0.2, 30.0, 0.1)
    return alpha, float(
        g[(spectral_weight(top, g, alpha, NEAREST_FAR) > accuracy).any(0)].max(initial=g[0])
    )


def spectral_weight(top: int, g: np.ndarray, alpha: float, reach: float) -> np.ndarray:
    """Contributions of wave vectors of length g, shape (m,), to the terms of degrees up to ``top``,
    relative to S at ``reach``; shape (top + 1, m)."""
    l = np.arange(top + 1)[:, None]
    return np.exp(
        (l + 1) * np.log(g * reach)
        - g**2 / (4 * alpha**2)
        + np.log(inverse_double_factorials(top))[:, None]
    )
