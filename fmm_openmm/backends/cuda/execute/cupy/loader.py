"""The only module that compiles CUDA kernels for CuPy: a stage and its macros in, a
``cupy.RawModule`` out.

CuPy keeps compiled kernels in a folder, and checks what it reads there by a hash. Where that folder
cannot be made, is full, or holds what the driver refuses, the process does without: kernels are
compiled anew, and a warning names the folder.
"""

import logging
import os
import time
import warnings
from functools import cache
from importlib import resources
from importlib.util import find_spec
from typing import Any

from fmm_openmm.backends.cuda.source import OPTIONS, source_of

FOLDER = "CUPY_CACHE_DIR"
IN_MEMORY = "CUPY_CACHE_IN_MEMORY"
"""Variables of CuPy: the folder, which CuPy 14 reads when it is imported; "1" for none, which it
reads at each compilation."""

SLOW = 0.2
"""Seconds after which a kernel was compiled: CuPy's folder gives it in milliseconds."""

_log = logging.getLogger("fmm_openmm")


def _imported() -> Any:
    """CuPy, which from version 14 on makes its folder when it is imported, and fails if it
    cannot. What it warns of meanwhile is logged: the user did not import it."""
    named = os.environ.get(FOLDER)
    try:
        if find_spec("cupy"):
            os.makedirs(_cache_folder(), mode=0o700, exist_ok=True)
    except OSError as error:
        _do_without(error)
        # a folder that is there; nothing is written to it
        os.environ[FOLDER] = str(resources.files("fmm_openmm"))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import cupy
    finally:
        os.environ.pop(FOLDER, None)
        if named is not None:
            os.environ[FOLDER] = named
    for warning in caught:
        _log.info("CuPy: %s", " ".join(str(warning.message).split()))
    return cupy


def _cache_folder() -> str:
    return os.environ.get(FOLDER, os.path.expanduser("~/.cupy/kernel_cache"))


def _do_without(error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    _log.warning(
        "CuPy's kernel cache %s is not used (%s): this process compiles its kernels anew",
        _cache_folder(),
        reason,
    )
    os.environ[IN_MEMORY] = "1"


cupy = _imported()


def load(stage: str, macros: dict) -> Any:
    """The compiled module of a stage on the current device; CuPy keeps the binary
    on disk, if it can."""
    code = source_of(stage, macros)
    before = os.environ.get(IN_MEMORY, "0")
    try:
        return _compiled(code)
    except (OSError, RuntimeError) as error:  # CUDA's errors are RuntimeErrors
        if before == "1":
            raise
        failed = error.with_traceback(None)  # which would keep arrays alive
    os.environ[IN_MEMORY] = "1"
    try:
        module = _compiled(code)
    except BaseException:
        os.environ[IN_MEMORY] = before  # it was not the folder
        raise
    _do_without(failed)
    return module


def _compiled(code: str) -> Any:
    module, start = cupy.RawModule(code=code, options=OPTIONS, backend="nvrtc"), time.monotonic()
    module.compile()
    if time.monotonic() - start > SLOW:
        _tell_of_compilation()
    return module


@cache
def _tell_of_compilation() -> None:
    """Log once in a process what the first evaluations wait for."""
    _log.info("compiling kernels (once per precision)")


def why_unusable() -> str | None:
    """Reason that CUDA gives if there is no usable device or no compiler for it; None if there is
    one."""
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no device"
        cupy.cuda.nvrtc.getVersion()
    except (RuntimeError, OSError) as error:  # CUDA's errors are RuntimeErrors
        return str(error)
    return None


def device_name() -> str:
    """Model of the current device."""
    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
