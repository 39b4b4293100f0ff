"""Numba's compiler with a robust cache, and its threads, which sleep while they wait.

The threads of the FFT, and OpenMM's threads between evaluations, use the same cores as Numba's
threads; waiting threads must therefore not spin. OpenMP reads the environment when Numba starts or
counts its threads for the first time, so all of the package imports these functions from here.

Numba's own cache raises an error on import where it finds no writable folder, and in every call
while its files are damaged or the disk is full. It passes machine code to LLVM unchecked, so that a
damaged file ends the process. The cache here adds a checksum to each file. Files that cannot be
read are compiled again; code that cannot be stored is used by the present process only.
"""

import hashlib
import logging
import os
import pickle
import re
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba
from numba import get_num_threads, prange, set_num_threads
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.sigutils import normalize_signature
from numba.np.ufunc import parallel

__all__ = [
    "at_most_threads",
    "breaks_when_forked",
    "fft_workers",
    "finish_kernels_only",
    "get_num_threads",
    "is_kept",
    "njit",
    "prange",
    "types_of",
]

THREADED = 2**17
"""Size of arrays from which Fourier transforms use several threads."""

_log = logging.getLogger("fmm_openmm")
_warned = False
_LOOP = re.compile("^__numba_parfor_gufunc|GufuncWrapper|^parallelgufuncwrapper$")
"""Numba's names of the libraries with the loops of a kernel."""


def njit(cache: bool = False, **options) -> Callable:
    """``numba.njit`` with a cache that tolerates damaged files, a full disk and missing folders.

    Args:
        cache: store compiled code in the folder that Numba chooses.
        options: options of ``numba.njit``.
    """
    compiled = numba.njit(**options)

    def decorated(function: Callable) -> Callable:
        dispatcher = compiled(function)
        if cache and dispatcher is not function:  # as it is with NUMBA_DISABLE_JIT
            try:
                dispatcher._cache = _Cache(function)  # as `dispatcher.enable_caching()` does
            except RuntimeError as error:
                _warn_once(f"Numba keeps no compiled kernels ({error})")
        return dispatcher

    return decorated


@contextmanager
def at_most_threads(count: int | None):
    """Context manager in which evaluations of the calling thread use at most ``count`` threads; all
    of the process where it is None."""
    usual = get_num_threads()
    set_num_threads(min(usual, count or usual))
    try:
        yield
    finally:
        set_num_threads(usual)


def fft_workers(size: int) -> int:
    """Number of threads for the Fourier transform of an array of a size: to wake one takes longer
    than the transform of a small array."""
    return get_num_threads() if size >= THREADED else 1


def breaks_when_forked() -> bool:
    """Whether the threads of this process run already and those of a process that is forked from it
    could not: GNU OpenMP ends it in its first parallel loop."""
    return parallel._is_initialized and numba.threading_layer() == "omp"


def types_of(signature: str) -> tuple:
    """Numba types of arguments, from their abbreviations."""
    return normalize_signature(f"void({signature})")[0]


def is_kept(dispatcher, signature: tuple) -> bool | None:
    """Whether the function compiled for a signature is on disk; None without a cache."""
    return (
        dispatcher._cache.holds(signature, dispatcher.targetctx)
        if isinstance(dispatcher._cache, _Cache)
        else None
    )


def finish_kernels_only() -> None:
    """Have Numba optimise and assemble a parallel loop as part of its kernel only, not in each of
    the three libraries through which it gets there; this saves a seventh of the time. For
    processes that only compile into the cache."""

    def skip_for_loops(method):
        def finished(library):
            if not _LOOP.search(library.name):
                method(library)

        return finished

    for step in ("_optimize_final_module", "_finalize_specific"):
        setattr(JITCodeLibrary, step, skip_for_loops(getattr(JITCodeLibrary, step)))


class _Cache(FunctionCache):
    """Compiled versions of a function on disk. Failures to read or write are logged and cost only
    time."""

    def __init__(self, function: Callable):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(
            self._cache_path, self._impl.filename_base, locator.get_source_stamp()
        )

    def load_overload(self, sig, target_context):
        """The function compiled for a signature; None if its file is missing or damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle may raise any
            path = self._cache_file.last_read
            _log.warning(
                "%s is ignored (%s: %s): it is compiled anew", path, type(error).__name__, error
            )
            with suppress(OSError):
                path.unlink()
            return None

    def holds(self, sig, target_context) -> bool:
        """Whether :meth:`load_overload` would find a file."""
        try:
            return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()
        except Exception:  # a damaged index may raise any
            return False

    def save_overload(self, sig, data):
        """Store the function compiled for a signature; after a failure nothing is stored any
        more."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a damaged index may raise any
            self.disable()
            _warn_once(f"Numba keeps no compiled kernels in {self.cache_path} ({error})")


class _Files(IndexDataCacheFile):
    """Numba's cache files, with a SHA-256 appended to those of machine code."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._version += ", with SHA-256"  # files of Numba's own format count as another version's
        self.last_read = Path(self._index_path)

    def _dump(self, obj) -> bytes:
        data = super()._dump(obj)
        # Numba reads the index up to the end of the pickle
        return data + hashlib.sha256(data).digest()

    def _load_index(self) -> dict:
        self.last_read = Path(self._index_path)
        return super()._load_index()

    def _load_data(self, name: str):
        self.last_read = Path(self._data_path(name))
        content = self.last_read.read_bytes()
        length = len(content) - hashlib.sha256().digest_size
        if hashlib.sha256(content[:length]).digest() != content[length:]:
            raise ValueError("its checksum is wrong")
        return pickle.loads(content[:length])


def _warn_once(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        _log.warning(
            "%s: each process compiles its own; "
            "the variable NUMBA_CACHE_DIR may name another folder",
            reason,
        )
