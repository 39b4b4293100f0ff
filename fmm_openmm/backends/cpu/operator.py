"""The sums over points from which ``expansions/operators/`` makes the lattice operator."""

import numpy as np

from fmm_openmm.backends.cpu.harmonics import regular
from fmm_openmm.backends.cpu.threads import LANES, kernel
from fmm_openmm.openmp import portion


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
    out = np.empty((weight.shape[1] ** 2, x.shape[2]))
    _sum(np.ascontiguousarray(x), np.ascontiguousarray(weight), out)
    return out
