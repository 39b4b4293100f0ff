"""Charges in empty space on the GPU by meeting every pair: quadratic in their number, and exact to rounding."""

import cupy
import numpy as np

from fmm_openmm.backends.cuda.loader import load
from fmm_openmm.stages import OpenSum

TILE = 128
"""Sources that pass through shared memory together, and targets a block."""

BLOCKS = 16
"""Blocks a multiprocessor that are wanted; where targets make fewer, several share the sources."""

THREADS = 128
NONE = np.uintp(0)


class DirectSum(OpenSum):
    """See :class:`fmm_openmm.stages.OpenSum`."""

    def __init__(self, charges, pairs, dtype):
        self.dtype = np.dtype(dtype)
        self._kernels = load("direct", {"REAL": real_type(dtype), "TILE": TILE})
        self.charges = cupy.asarray(charges, np.float64)
        self._partners = partner_lists(pairs, len(charges))

    def set_charges(self, charges) -> None:
        self.charges = cupy.asarray(charges, np.float64)

    def evaluate(self, positions):
        n = len(self.charges)
        high, low = split(self._kernels, positions, self.charges, None, self.dtype)
        tiles = -(-n // TILE)
        processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
        shares = min(tiles, -(-BLOCKS * processors // tiles))
        partial = cupy.empty((shares, n, 4))
        self._kernels.get_function("direct")((tiles, shares), (TILE,), (np.int32(n), high, low, *self._partners, partial))
        return collect(self._kernels, partial, None)


def real_type(dtype) -> str:
    """The name in CUDA of float32 or float64."""
    return "float" if np.dtype(dtype) == np.float32 else "double"


def partner_lists(pairs, particles: int):
    """Every particle itself and its excluded partners, ascending, as ``partner[start[i]:start[i + 1]]``: start, partner."""
    pairs = cupy.asarray(pairs, np.int64).reshape(-1, 2)
    everyone = cupy.arange(particles)
    i = cupy.concatenate([everyone, pairs[:, 0], pairs[:, 1]])
    j = cupy.concatenate([everyone, pairs[:, 1], pairs[:, 0]])
    key = cupy.sort(i * particles + j)
    start = cupy.searchsorted(key, cupy.arange(particles + 1) * particles)
    return start.astype(np.int32), (key % particles).astype(np.int32)


def split(kernels, positions, charges, order, dtype):
    """Coordinates as sums of two reals, (n, 4) each, in the given order: the rounded ones with the charges, and the rest."""
    n = len(charges)
    high, low = cupy.empty((n, 4), dtype), cupy.empty((n, 4), dtype)
    positions = cupy.ascontiguousarray(cupy.asarray(positions, np.float64))
    arguments = np.int32(n), positions, charges, NONE if order is None else order, high, low
    kernels.get_function("split")((-(-n // THREADS),), (THREADS,), arguments)
    return high, low


def collect(kernels, partial, order):
    """Potentials and fields from shares of them, (shares, n, 4), in the given order."""
    shares, n = partial.shape[:2]
    potentials, fields = cupy.empty(n), cupy.empty((n, 3))
    arguments = np.int32(n), np.int32(shares), partial, NONE if order is None else order, potentials, fields
    kernels.get_function("collect")((-(-n // THREADS),), (THREADS,), arguments)
    return potentials, fields
