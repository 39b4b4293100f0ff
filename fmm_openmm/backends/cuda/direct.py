"""The direct sum over all pairs of charges in free space on the GPU: quadratic in their number, and
exact to rounding."""

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.backends.pairs import partners
from fmm_openmm.stages import OpenSum

TILE = 128
"""Sources in shared memory at a time, and targets per block."""

BLOCKS = 16
"""Wanted number of blocks per multiprocessor; if there are fewer, several share the sources."""

THREADS = 128
NONE = np.uintp(0)


class DirectSum(OpenSum):
    """See :class:`fmm_openmm.stages.OpenSum`."""

    def __init__(self, charges, pairs, dtype):
        self.dtype = np.dtype(dtype)
        self._kernels = load("direct", {"REAL": real_type(dtype), "TILE": TILE})
        self.charges = cupy.asarray(charges, np.float64)
        self._partners = partners_on_device(pairs, len(charges))

    def set_charges(self, charges) -> None:
        self.charges = cupy.asarray(charges, np.float64)

    def evaluate(self, positions):
        n = len(self.charges)
        high, low = split(self._kernels, positions, self.charges, None, self.dtype)
        tiles = -(-n // TILE)
        processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
        shares = min(tiles, -(-BLOCKS * processors // tiles))
        partial = cupy.empty((shares, n, 4))
        self._kernels.get_function("direct")(
            (tiles, shares), (TILE,), (np.int32(n), high, low, *self._partners, partial)
        )
        return collect(self._kernels, partial, None)


def partners_on_device(pairs, particles: int) -> list:
    """:func:`fmm_openmm.backends.pairs.partners` on the device, int32."""
    return [array.astype(np.int32) for array in partners(pairs, particles, cupy)]


def split(kernels, positions, charges, order, dtype):
    """Coordinates as sums of two reals, (n, 4) each, in the given order: the rounded ones with
    the charges, and the rest."""
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
    arguments = (
        np.int32(n),
        np.int32(shares),
        partial,
        NONE if order is None else order,
        potentials,
        fields,
    )
    kernels.get_function("collect")((-(-n // THREADS),), (THREADS,), arguments)
    return potentials, fields
