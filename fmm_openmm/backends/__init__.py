"""The implementations of the stages.

The GPU backend, and with it CuPy, is imported only on request.
"""

import logging
import os
import re
from glob import glob
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from fmm_openmm.arrays import is_on_device
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.implementations import SUMS, implementation
from fmm_openmm.stages import Evaluator, OpenSum

if TYPE_CHECKING:
    from fmm_openmm.backends.cuda.evaluator import CudaEvaluator

BACKENDS = ("auto", "cuda", "cpu", "reference")
"""Valid names of backends."""

GPU_FILES = ("/dev/nvidia[0-9]*", "/usr/lib/wsl/lib/libcuda.so.1", "C:/Windows/System32/nvcuda.dll")
"""Patterns of files of which at least one exists if there is a driver for an NVIDIA GPU, on Linux,
on WSL and on Windows."""

_log = logging.getLogger("fmm_openmm")
_reported = False


@overload
def backend_class(name: Literal["cuda"]) -> "type[CudaEvaluator]": ...
@overload
def backend_class(name: str) -> type[Evaluator]: ...
def backend_class(name: str) -> type[Evaluator]:
    """The class that computes on the backend "cuda", "cpu" or "reference".

    Raises:
        UnsupportedError: "cuda" without CuPy or without a usable GPU; the message gives the reason.
    """
    if name == "cuda":
        return _cuda()
    if name == "cpu":
        from fmm_openmm.backends.cpu import CpuStages

        return CpuStages
    from fmm_openmm.backends.reference import ReferenceStages

    return ReferenceStages


def open_sum(backend: str, method: str) -> type[OpenSum]:
    """The class of a method for free space without boxes, "direct" or "treecode", on the backend
    "cuda" or "cpu".

    Raises:
        UnsupportedError: as for :func:`backend_class`.
    """
    backend_class(backend)
    return implementation(SUMS, method, backend)


def turn(vectors, axes: np.ndarray):
    """The product ``vectors @ axes`` for floating-point vectors, shape (..., 3), on the host or on
    a GPU; it is computed where the vectors are.

    Args:
        axes: shape (3, 3), on the host.
    """
    if not is_on_device(vectors):
        return vectors @ axes
    from fmm_openmm.backends.cuda.turn import turn_on_device

    return turn_on_device(vectors, axes)


def choose_backend(name: str = "auto") -> str:
    """Resolve the name of a backend: "auto" means "cuda" if it is usable, else "cpu".

    The reason for "cpu" is reported once: as a warning if there is an NVIDIA GPU, else in the log
    at level INFO.
    """
    global _reported
    if name != "auto":
        return name
    try:
        _cuda()
    except UnsupportedError as reason:
        if not _reported:
            _reported = True
            (warn if has_gpu() else _log.info)(fallback(reason))
        return "cpu"
    return "cuda"


def fallback(reason: Exception) -> str:
    """A message of one line about why "auto" means "cpu"."""
    return f"backend 'auto' means 'cpu' here: {' '.join(str(reason).split())}"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU that ``CUDA_VISIBLE_DEVICES`` does not hide. Does
    not initialise CUDA, because a process cannot be forked afterwards."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and not re.match(r"\s*(\d|GPU-|MIG-)", visible)
    return not hidden and any(map(glob, GPU_FILES))


def _cuda() -> type[Evaluator]:
    try:
        from fmm_openmm.backends.cuda.execute.cupy.loader import why_unusable

        reason = why_unusable()
        if not reason:
            from fmm_openmm.backends.cuda.evaluator import CudaEvaluator

            return CudaEvaluator
    except ImportError as error:
        if not has_gpu():
            raise UnsupportedError("`backend='cuda'` needs an NVIDIA GPU and CuPy") from error
        raise UnsupportedError(
            f"`backend='cuda'` needs CuPy ({str(error).splitlines()[0]}): "
            "pip install 'fmm_openmm[cuda13]' or 'fmm_openmm[cuda12]'"
        ) from error
    raise UnsupportedError(f"`backend='cuda'` needs an NVIDIA GPU and its driver: {reason}")
