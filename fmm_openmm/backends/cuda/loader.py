"""The one place that compiles CUDA kernels: source files in, a ``cupy.RawModule`` out.

A kernel file is compiled with macros for everything that is fixed for a solver (``kernels/common/types.cuh`` lists them).
CuPy caches the binaries on disk by source and options; it does not look into included headers, so their hash is an option.
"""

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

import cupy

OPTIONS = ("--std=c++17", "--ftz=true")


@cache
def kernel_folder() -> Path:
    """Where the kernel sources are: in the installed package, or beside it in a source tree."""
    package = Path(str(resources.files("fmm_openmm")))
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


@cache
def _headers_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted((kernel_folder() / "common").glob("*.cuh")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def source_of(stage: str) -> str:
    """The source of a stage, numbered for the compiler's messages."""
    return f'#line 1 "{stage}.cu"\n' + (kernel_folder() / f"{stage}.cu").read_text()


def options_of(macros: dict) -> tuple[str, ...]:
    """Compiler options for the given macros."""
    defines = tuple(f"-D{name}={value}" for name, value in sorted(macros.items()))
    return (*OPTIONS, f"-I{kernel_folder()}", f"-DHEADERS={_headers_hash()}", *defines)


def load(stage: str, macros: dict) -> cupy.RawModule:
    """The compiled module of a stage on the current device."""
    return cupy.RawModule(code=source_of(stage), options=options_of(macros), backend="nvrtc")


def why_unusable() -> str | None:
    """What the CUDA runtime says if there is no usable device; None if there is one."""
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return None
