"""NVIDIA's runtime compiler through ctypes: several versions in one process,
without CuPy or a GPU."""

import ctypes
import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from tests.compiler import digest

PACKAGES = {12: "nvidia-cuda-nvrtc-cu12", 13: "nvidia-cuda-nvrtc"}
"""PyPI's packages by the major version of CUDA."""

OLD = re.compile(r"nvrtc: warning: Architectures prior to .* are deprecated .*\n")
"""What CUDA 12 says of sm_70, and has no option to leave out."""


@cache
def library(major: int) -> ctypes.CDLL | None:
    """The compiler of a version of CUDA; None if its package is not installed,
    or is another version's."""
    try:
        (path,) = [
            path
            for path in files(PACKAGES[major])
            if path.name in (f"libnvrtc.so.{major}", f"nvrtc64_{major}0_0.dll")
        ]
    except (PackageNotFoundError, ValueError):
        return None
    return ctypes.CDLL(str(path.locate()))


def architectures(nvrtc: ctypes.CDLL) -> list[int]:
    """Architectures that NVRTC compiles for, as 90 for sm_90."""
    count = ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    numbers = (ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(numbers) == 0
    return list(numbers)


def compiled(nvrtc: ctypes.CDLL, source: str, name: str, options) -> tuple[bool, str]:
    """Whether a source compiles, and the compiler's log, without remarks on old architectures."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
        == 0
    )
    try:
        status = nvrtc.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options))
        )
        assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
        log = ctypes.create_string_buffer(size.value)
        assert nvrtc.nvrtcGetProgramLog(program, log) == 0
        return status == 0, OLD.sub("", log.value.decode())
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compiled_once(folder: Path, major: int, source: str, name: str, options) -> tuple[bool, str]:
    """As :func:`compiled`, with the log of an earlier run if the same source was compiled then by
    the same release of the compiler with the same options."""
    path = folder / f"{name}_{digest(version(PACKAGES[major]), source, *options)}.log"
    if path.exists():
        return True, path.read_text()
    done, log = compiled(library(major), source, name, options)
    if done:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(log)
        part.replace(path)
    return done, log
