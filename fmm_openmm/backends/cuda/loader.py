"""The one place that compiles CUDA kernels for CuPy: a stage and its macros in, a ``cupy.RawModule`` out."""

import cupy

from fmm_openmm.backends.cuda.source import OPTIONS, source_of


def load(stage: str, macros: dict) -> cupy.RawModule:
    """The compiled module of a stage on the current device; CuPy keeps the binary on disk."""
    return cupy.RawModule(code=source_of(stage, macros), options=OPTIONS, backend="nvrtc")


def why_unusable() -> str | None:
    """What the CUDA runtime says if there is no usable device; None if there is one."""
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return None
