"""Compilation and work sharing common to the CPU kernels.

All kernels gather: each output element is written by one thread, in a fixed order, so results do
not depend on the number of threads.

Numba keeps compiled kernels on disk and compiles one anew when its own file has changed, whatever
it takes from other files. So constants of other modules are arguments. What is left is `LANES`, the
options below and functions marked ``inline`` that another file uses: after a change of these delete
``fmm_openmm/backends/cpu/__pycache__``.
"""

from collections.abc import Callable

from fmm_openmm.openmp import get_num_threads, njit

LANES = 16
"""Particles or wave vectors that an inner loop of fixed length treats at once,
for the compiler to vectorise."""

_OPTIONS = {
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "arcp", "nsz", "afn"},
}

_NOT_PARALLEL = dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)
"""What Numba need not look for in a kernel, which takes it a tenth of the time to compile."""

inline = njit(**_OPTIONS)
"""Decorator of a function that kernels call."""

signatures: dict[Callable, str] = {}
"""Argument types of every kernel, as given to :func:`kernel`."""


def kernel(signature: str, parallel: bool = True) -> Callable:
    """Decorator of a kernel.

    Args:
        signature: types of its arguments as Numba abbreviates them, ``real`` standing for the
            working precision. Others work as well, but are compiled when they are met.
        parallel: whether it has a parallel loop.
    """

    def decorated(function: Callable) -> Callable:
        dispatcher = njit(parallel=_NOT_PARALLEL if parallel else False, **_OPTIONS)(function)
        if dispatcher is not function:  # as it is with NUMBA_DISABLE_JIT
            signatures[dispatcher] = signature
        return dispatcher

    return decorated


def kernels_in(*modules: str) -> tuple[Callable, ...]:
    """The kernels of modules of this package."""
    names = {f"{__package__}.{module}" for module in modules}
    return tuple(each for each in signatures if each.py_func.__module__ in names)


def chunk_count(work: int) -> int:
    """Number of interleaved chunks that share ``work`` items evenly among the threads."""
    return max(1, min(work, 8 * get_num_threads()))
