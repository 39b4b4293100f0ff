"""Numba's parallel loops and the number of their threads, of which those that wait sleep.

The FFT's threads, and OpenMM's between two evaluations, want the same cores. OpenMP reads the environment when Numba first
starts or counts its threads, so this is where the package takes from Numba what does either.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from numba import get_num_threads, njit, prange

__all__ = ["get_num_threads", "njit", "prange"]
