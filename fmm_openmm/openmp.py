"""Numba's parallel loops, the cache of what it compiles, and the number of its threads, of which
those that wait sleep.

The FFT's threads, and OpenMM's between two evaluations, want the same cores. OpenMP reads the
environment when Numba first starts or counts its threads, so this is where the package takes from
Numba what does either.

Numba by itself refuses to import a module where it finds no folder to keep compiled functions in,
fails in every call while the files are damaged or the disk is full, and hands machine code to LLVM
unchecked, which ends the process if that is damaged. Here the files carry a checksum; what cannot
be read is compiled anew, and what cannot be kept serves the process alone.
"""

import hashlib
import logging
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba
from numba import get_num_threads, prange
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.sigutils import normalize_signature

__all__ = ["get_num_threads", "is_kept", "njit", "prange", "types_of"]

_log = logging.getLogger("fmm_openmm")
_told = False


def njit(cache: bool = False, **options) -> Callable:
    """Numba's decorator of that name, with a cache that may be damaged, full or missing.

    Args:
        cache: keep what is compiled, in the folder that Numba chooses.
        options: Numba's.
    """
    compiled = numba.njit(**options)

    def decorated(function: Callable) -> Callable:
        dispatcher = compiled(function)
        if cache and dispatcher is not function:  # as it is with NUMBA_DISABLE_JIT
            try:
                dispatcher._cache = _Cache(function)  # as `dispatcher.enable_caching()` does
            except RuntimeError as error:
                _tell_once(f"Numba keeps no compiled kernels ({error})")
        return dispatcher

    return decorated


def types_of(signature: str) -> tuple:
    """Numba's types of arguments, from its abbreviations of them."""
    return normalize_signature(f"void({signature})")[0]


def is_kept(dispatcher, signature: tuple) -> bool | None:
    """Whether a function compiled for a signature is on disk; None where nothing would be kept."""
    return (
        dispatcher._cache.holds(signature, dispatcher.targetctx)
        if isinstance(dispatcher._cache, _Cache)
        else None
    )


class _Cache(FunctionCache):
    """A function's compiled versions on disk; a failure to read or to write them is logged, and
    costs time only."""

    def __init__(self, function: Callable):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(
            self._cache_path, self._impl.filename_base, locator.get_source_stamp()
        )

    def load_overload(self, sig, target_context):
        """The function compiled for a signature; None if it is not there, or damaged."""
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
        """Keep the function compiled for a signature; it is not tried again if it fails."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a damaged index may raise any
            self.disable()
            _tell_once(f"Numba keeps no compiled kernels in {self.cache_path} ({error})")


class _Files(IndexDataCacheFile):
    """Numba's files, those of machine code followed by their SHA-256."""

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


def _tell_once(reason: str) -> None:
    global _told
    if not _told:
        _told = True
        _log.warning(
            "%s: each process compiles its own; "
            "the variable NUMBA_CACHE_DIR may name another folder",
            reason,
        )
