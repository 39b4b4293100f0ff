"""The sums over points from which ``expansions/operators/`` makes the lattice operator."""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import regular
from fmm_openmm.backends.cpu.threads import LANES, kernel
from fmm_openmm.openmp import portion

FEW = 4 * LANES
"""Least number of columns that are summed at once: the points of fewer are distributed over more,
as those of one box would use one lane of one thread."""


@kernel("f8[:,:,::1], f8[:,:,::1], f8[:,::1]")
def _sum(thread, x, weight, out):
    """Sum harmonics over the points ``x`` (k, 3, n) with ``weight`` (k, degrees, n) into ``out``
    (terms, n), ``LANES`` columns at a time."""
    top, columns = weight.shape[1] - 1, out.shape[1]
    for block in portion((columns + LANES - 1) // LANES, thread):
        begin = block * LANES
        used = min(LANES, columns - begin)
        total = np.zeros((len(out), LANES))
        terms = np.empty((len(out), LANES))
        point, factor = np.zeros((3, LANES)), np.zeros(LANES)
        for j in range(len(x)):
            for axis in range(3):
                for w in range(used):
                    point[axis, w] = x[j, axis, begin + w]
            regular(point[0], point[1], point[2], top, terms)
            for l in range(top + 1):
                for w in range(used):
                    factor[w] = weight[j, l, begin + w]
                for a in range(l * l, (l + 1) * (l + 1)):
                    for w in range(LANES):
                        total[a, w] += factor[w] * terms[a, w]
        for a in range(len(out)):
            for w in range(used):
                out[a, begin + w] = total[a, w]


def harmonic_sums(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """See :func:`fmm_openmm.expansions.operators.periodic.harmonic_sums`."""
    columns, top = x.shape[2], weight.shape[1] - 1
    parts = max(1, FEW // columns)
    out = np.empty(((top + 1) ** 2, parts * columns))
    _sum(_distributed(x, parts), _distributed(weight, parts), out)
    return out.reshape(-1, parts, columns).sum(1)


def _distributed(values: np.ndarray, parts: int) -> np.ndarray:
    """Values of points (k, m, n) with every column in several, shape (ceil(k / parts), m,
    parts n); what points lack is 0."""
    points, numbers, columns = values.shape
    rows = -(-points // parts)
    padded = np.zeros((rows * parts, numbers, columns))
    padded[:points] = values
    padded = padded.reshape(rows, parts, numbers, columns).swapaxes(1, 2)
    return np.ascontiguousarray(padded.reshape(rows, numbers, parts * columns))
