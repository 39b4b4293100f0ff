"""Parallel compilation of kernels by other processes before first use.

Numba compiles functions one at a time, and one with a parallel loop takes seconds. Processes
started here import the same modules, compile some of the kernels into Numba's disk cache and exit.
This process then loads all kernels from the cache, as every later process does, so that all of them
produce the same bits: code loaded from the cache may round differently from code that was just
compiled.
"""

import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fmm_openmm.backends.cpu.threads import signatures
from fmm_openmm.openmp import get_num_threads, is_kept, types_of

MAX_PROCESSES = 4

SECONDS = 120
"""Time limit of a kernel, s. If no process has begun another one by then, those that are left are
compiled here at their first call."""

_log = logging.getLogger("fmm_openmm")

_PROGRAM = """
import gc, json, sys
gc.disable()  # saves a twelfth of the time
paths, names, real, claims = json.loads(sys.argv[1])
sys.path[:] = paths
from fmm_openmm.backends.cpu.compilation import compile_named
from fmm_openmm.openmp import finish_only
finish_only([name for _, name in names])
compile_named(names, real, claims)
"""


@cache
def prepare(kernels: tuple[Any, ...], dtype: np.dtype) -> None:
    """Compile kernels for a working precision into the disk cache, from which they are loaded when
    called.

    The number of processes is the number of threads that Numba may use, at most ``MAX_PROCESSES``.
    Kernels that cannot be cached are compiled here at their first call.
    """
    cached = {kernel: _is_cached(kernel, dtype) for kernel in kernels if kernel in signatures}
    if all(cached.values()):
        return
    _log.info("compiling kernels (once per precision)")
    if None in cached.values():
        return
    with _lock(Path(next(iter(cached)).stats.cache_path)):
        _compile([kernel for kernel in cached if not _is_cached(kernel, dtype)], dtype)


def _lock(cache: Path) -> AbstractContextManager:
    """Context in which no other process compiles into a folder, so that what several workers or
    MPI's ranks need is compiled once. A process waits until no file has been added for ``SECONDS``,
    at most, and not at all where files cannot be locked."""
    try:
        import fcntl  # not on Windows

        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "compiling.lock", "w")
    except (ImportError, OSError):
        return nullcontext()
    files, end = 0, 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            before, files = files, len(os.listdir(cache))
            if files != before:
                end = time.monotonic() + SECONDS
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
        except OSError:  # some file systems have no locks
            pass
        return lock


def _compile(kernels: list, dtype: np.dtype) -> None:
    missing = sorted(kernels, key=_lines, reverse=True)
    count = min(MAX_PROCESSES, get_num_threads(), len(missing))
    try:
        folder = tempfile.TemporaryDirectory(prefix="fmm_openmm-")
    except OSError as error:
        _log.info("kernels are compiled as they are called: %s", error)
        return
    with folder as claims:
        processes = [_start(missing, dtype, claims) for _ in range(count)]
        try:
            for process in filter(None, processes):
                _wait(process, Path(claims))
        finally:
            for process in filter(None, processes):
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen, claims: Path) -> None:
    """Wait until a process ends, or until no process has claimed a kernel for ``SECONDS``."""
    before = None
    while before != (claimed := len(list(claims.iterdir()))):
        before = claimed
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
            return


def _signature(kernel, dtype: np.dtype) -> tuple:
    return types_of(signatures[kernel].replace("real", f"f{dtype.itemsize}"))


def _is_cached(kernel, dtype: np.dtype) -> bool | None:
    return is_kept(kernel, _signature(kernel, dtype))


def _lines(kernel) -> int:
    """Length of a kernel's source; longer ones tend to take longer to compile."""
    return len(inspect.getsource(kernel.py_func).splitlines())


def _start(kernels: list, dtype: np.dtype, claims: str) -> subprocess.Popen | None:
    names = [(kernel.py_func.__module__, kernel.py_func.__name__) for kernel in kernels]
    command = [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, names, dtype.name, claims])]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        _log.info("kernels are compiled as they are called: %s", error)
        return None


def compile_named(names: list[tuple[str, str]], real: str, claims: str) -> None:
    """Compile those kernels, given by module and name, that no other process has claimed, for a
    working precision; called in the processes that :func:`prepare` starts.

    Args:
        claims: folder with a file for each kernel that a process has claimed.
    """
    for module, name in names:
        try:
            (Path(claims) / f"{module}.{name}").touch(exist_ok=False)
        except FileExistsError:
            continue
        kernel = getattr(import_module(module), name)
        kernel.compile(_signature(kernel, np.dtype(real)))
