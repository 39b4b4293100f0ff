"""Kernels compiled before they are needed, by other processes side by side.

Numba compiles one function after the other, and one with a parallel loop takes seconds. It keeps
what it has compiled on disk: processes started here import the same modules, compile what they are
told and end. So this one reads all kernels from there, as every later one does, and gives the same
bits: machine code is made anew from what is kept, and may round in another way.
"""

import inspect
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module

import numpy as np

from fmm_openmm.backends.cpu.threads import signatures
from fmm_openmm.openmp import get_num_threads, is_kept, types_of

MOST_PROCESSES = 4

SECONDS = 120
"""A process that takes longer is given up: what it has not done is compiled here,
at the first call."""

_log = logging.getLogger("fmm_openmm")

_PROGRAM = """
import json, sys
paths, names, real = json.loads(sys.argv[1])
sys.path[:] = paths
from fmm_openmm.backends.cpu.compilation import compile_named
compile_named(names, real)
"""


@cache
def prepare(kernels: tuple[Callable, ...], dtype: np.dtype) -> None:
    """Have kernels compiled for a working precision and kept on disk, from where they are read when
    they are called.

    As many processes share the work as Numba may use threads. What is not kept is compiled here, at
    its first call.
    """
    kept = {kernel: _is_kept(kernel, dtype) for kernel in kernels if kernel in signatures}
    if all(kept.values()):
        return
    _log.info("compiling kernels (once per precision)")
    if None in kept.values():
        return
    missing = [kernel for kernel in kept if not kept[kernel]]
    shares = _shares(missing, min(MOST_PROCESSES, get_num_threads()))
    processes = [process for share in shares if (process := _start(share, dtype))]
    try:
        for process in processes:
            process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _signature(kernel, dtype: np.dtype) -> tuple:
    return types_of(signatures[kernel].replace("real", f"f{dtype.itemsize}"))


def _is_kept(kernel, dtype: np.dtype) -> bool | None:
    return is_kept(kernel, _signature(kernel, dtype))


def _shares(kernels: Sequence, count: int) -> list[list]:
    """Kernels by process; times go by the length of their source."""
    lines = {kernel: len(inspect.getsource(kernel.py_func).splitlines()) for kernel in kernels}
    shares, loads = [[] for _ in range(count)], [0] * count
    for kernel in sorted(kernels, key=lines.get, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(kernel)
        loads[least] += lines[kernel]
    return [share for share in shares if share]


def _start(share: list, dtype: np.dtype) -> subprocess.Popen | None:
    names = [(kernel.py_func.__module__, kernel.py_func.__name__) for kernel in share]
    command = [sys.executable, "-c", _PROGRAM, json.dumps([sys.path, names, dtype.name])]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    try:
        return subprocess.Popen(command, **quiet)
    except OSError as error:
        _log.info("kernels are compiled as they are called: %s", error)
        return None


def compile_named(names: list[tuple[str, str]], real: str) -> None:
    """What a process does that :func:`prepare` has started: module and name of each kernel, and
    the working precision."""
    for module, name in names:
        kernel = getattr(import_module(module), name)
        kernel.compile(_signature(kernel, np.dtype(real)))
