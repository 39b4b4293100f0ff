"""Compilation and work sharing common to the CPU kernels.

All kernels gather: each output element is written by one thread, in a fixed order, so results do not depend on the number
of threads.

Numba keeps compiled kernels on disk and compiles one anew when its own file has changed, whatever it takes from other files. So
constants of other modules are arguments. What is left is `LANES`, the options below and functions marked ``inline`` that
another file uses: after a change of these delete ``fmm_openmm/backends/cpu/__pycache__``.
"""

from fmm_openmm.openmp import get_num_threads, njit

LANES = 16
"""Particles or wave vectors that an inner loop of fixed length treats at once, for the compiler to vectorise."""

_OPTIONS = {"cache": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "arcp", "nsz", "afn"}}

kernel = njit(parallel=True, **_OPTIONS)
serial = njit(**_OPTIONS)
inline = njit(inline="always", **_OPTIONS)


def chunk_count(work: int) -> int:
    """Number of interleaved chunks that share ``work`` items evenly among the threads."""
    return max(1, min(work, 8 * get_num_threads()))
