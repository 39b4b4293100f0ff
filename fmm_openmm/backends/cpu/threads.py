"""Compilation and work sharing common to the CPU kernels.

All kernels gather: each output element is written by one thread, in a fixed order, so results do
not depend on the number of threads.

Numba caches compiled kernels on disk and recompiles one if its own file has changed, but not if a
file that it imports from has. Therefore constants of other modules are passed as arguments. The
exceptions are `LANES`, the options below and functions marked ``inline`` that other files use:
after changing them, delete ``fmm_openmm/backends/cpu/__pycache__``.

Elements of an array are assigned to a slice in a loop: Numba would compile the message of the
error that shapes differ, which takes seconds. A scalar has none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fmm_openmm.openmp import get_num_threads, njit, on_all_threads

LANES = 16
"""Length of inner loops over particles or wave vectors, which the compiler vectorises."""

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "arcp", "nsz", "afn"},
}

inline = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)
"""Decorator of a function that only kernels call: it has no entries for Python and C, and is in the
disk cache only as a part of kernels."""

signatures: dict[Any, str] = {}
"""Argument types of every kernel, as given to :func:`kernel`."""


def kernel(signature: str, parallel: bool = True) -> Callable:
    """Decorator of a kernel.

    Args:
        signature: types of its arguments in Numba's notation, with ``real`` for the working
            precision. Other types work too, but are compiled on first use.
        parallel: whether threads share a loop of it, see
            :func:`fmm_openmm.openmp.on_all_threads`.
    """

    def decorated(function: Callable) -> Callable:
        compiled = on_all_threads if parallel else partial(njit, nogil=True, no_cfunc_wrapper=True)
        dispatcher = compiled(cache=True, **_OPTIONS)(function)
        if hasattr(dispatcher, "py_func"):  # not with NUMBA_DISABLE_JIT
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
