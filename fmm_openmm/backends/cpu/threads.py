"""Compilation and work sharing common to the CPU kernels.

All kernels gather: each output element is written by one thread, in a fixed order, so results do
not depend on the number of threads.

Numba caches compiled kernels on disk and recompiles one if its own file has changed, but not if a
file that it imports from has. Therefore constants of other modules are passed as arguments. The
exceptions are `LANES`, the options below and functions marked ``inline`` that other files use:
after changing them, delete ``fmm_openmm/backends/cpu/__pycache__``.
"""

from collections.abc import Callable
from typing import Any

from fmm_openmm.openmp import get_num_threads, njit

LANES = 16
"""Length of inner loops over particles or wave vectors, which the compiler vectorises."""

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "arcp", "nsz", "afn"},
}

_NOT_PARALLEL = dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)
"""Parallel transforms that kernels do not need; disabling them saves a tenth of the compilation
time."""

inline = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)
"""Decorator of a function that only kernels call: its entries for Python and C are not compiled."""

signatures: dict[Any, str] = {}
"""Argument types of every kernel, as given to :func:`kernel`."""


def kernel(signature: str, parallel: bool = True) -> Callable:
    """Decorator of a kernel.

    Args:
        signature: types of its arguments in Numba's notation, with ``real`` for the working
            precision. Other types work too, but are compiled on first use.
        parallel: whether it has a parallel loop. A kernel without one releases the lock of
            Python's interpreter.
    """

    def decorated(function: Callable) -> Callable:
        threads: dict[str, Any] = {"parallel": _NOT_PARALLEL} if parallel else {"nogil": True}
        dispatcher = njit(no_cfunc_wrapper=True, **threads, **_OPTIONS)(function)
        if dispatcher is not function:  # they are the same with NUMBA_DISABLE_JIT
            signatures[dispatcher] = signature
        return dispatcher

    return decorated


def kernels_in(*modules: str) -> tuple[Any, ...]:
    """The kernels of modules of this package."""
    names = {f"{__package__}.{module}" for module in modules}
    return tuple(entry for entry in signatures if entry.py_func.__module__ in names)


def chunk_count(work: int) -> int:
    """Number of interleaved chunks that share ``work`` items evenly among the threads."""
    return max(1, min(work, 8 * get_num_threads()))
