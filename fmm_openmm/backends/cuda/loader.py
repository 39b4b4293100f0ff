"""The one place that compiles CUDA kernels for CuPy: a stage and its macros in, a ``cupy.RawModule`` out."""

import cupy

from fmm_openmm.backends.cuda.source import OPTIONS, source_of


def load(stage: str, macros: dict) -> cupy.RawModule:
    """The compiled module of a stage on the current device; CuPy keeps the binary on disk."""
    return cupy.RawModule(code=source_of(stage, macros), options=OPTIONS, backend="nvrtc")


def why_unusable() -> str | None:
    """What CUDA says if there is no usable device or no compiler for it; None if there is one."""
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no device"
        cupy.cuda.nvrtc.getVersion()
    except (RuntimeError, OSError) as error:  # CUDA's errors are RuntimeErrors
        return str(error)
    return None


def device_name() -> str:
    """Of the current device."""
    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
