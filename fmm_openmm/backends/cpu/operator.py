"""The sums over points from which ``expansions/operators/`` makes the lattice operator."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fmm_openmm.backends.cpu.harmonics import regular
from fmm_openmm.backends.cpu.threads import LANES, kernel
from fmm_openmm.openmp import get_num_threads

SHARE = 2**21
"""Terms of sums, points times columns times terms of the harmonics, for which a thread is started:
it takes as long as a few hundred thousand."""


@kernel("f8[:,:,::1], f8[:,:,::1], i8, i8, f8[:,::1]", parallel=False)
def _sum(x, weight, start, stop, out):
    """Sum harmonics over the points ``x`` (k, 3, n) with ``weight`` (k, degrees, n) into columns
    ``start`` to ``stop`` of ``out`` (terms, n), ``LANES`` at a time."""
    top = weight.shape[1] - 1
    for begin in range(start, stop, LANES):
        used = min(LANES, stop - begin)
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
    points, _, columns = x.shape
    out = np.empty((weight.shape[1] ** 2, columns))
    x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
    threads = min(get_num_threads(), 1 + points * out.size // SHARE)
    step = LANES * max(1, -(-columns // (LANES * threads)))
    if step >= columns:
        _sum(x, weight, 0, columns, out)
        return out
    # Python's threads serve, as these sums are rare: a parallel loop takes twice as long to compile
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(
                lambda start: _sum(x, weight, start, min(start + step, columns), out),
                range(0, columns, step),
            )
        )  # raises what a thread has raised
    return out
