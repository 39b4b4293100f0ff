"""The implementations of the stages. The GPU's is imported, and CuPy with it, only when it is asked for."""

import warnings
from importlib import import_module

from fmm_openmm.errors import UnsupportedError
from fmm_openmm.stages import OpenSum, Stages

BACKENDS = ("auto", "cuda", "cpu", "reference")
"""Names a user may give."""

_told = False
_OPEN_SUMS = {"direct": "DirectSum", "treecode": "Treecode"}


def backend_class(name: str) -> type[Stages]:
    """The stages of the backend "cuda", "cpu" or "reference".

    Raises:
        UnsupportedError: "cuda" without CuPy or without a usable GPU; the message says which.
    """
    if name == "cuda":
        return _cuda()
    if name == "cpu":
        from fmm_openmm.backends.cpu import CpuStages

        return CpuStages
    from fmm_openmm.backends.reference import ReferenceStages

    return ReferenceStages


def open_sum(backend: str, method: str) -> type[OpenSum]:
    """The class of a method for empty space without boxes, "direct" or "treecode", on the backend "cuda" or "cpu".

    Raises:
        UnsupportedError: as for :func:`backend_class`.
    """
    backend_class(backend)
    return getattr(import_module(f"fmm_openmm.backends.{backend}.{method}"), _OPEN_SUMS[method])


def choose_backend(name: str = "auto") -> str:
    """The backend of that name; for "auto" "cuda" where it is usable, else "cpu", and one warning why not."""
    global _told
    if name != "auto":
        return name
    try:
        _cuda()
    except UnsupportedError as reason:
        if not _told:
            _told = True
            warn_of_fallback(reason, stacklevel=3)
        return "cpu"
    return "cuda"


def warn_of_fallback(reason: Exception, stacklevel: int) -> None:
    """Say, in one line, why "auto" means "cpu"."""
    warnings.warn(f"backend 'auto' means 'cpu' here: {' '.join(str(reason).split())}", stacklevel=stacklevel + 1)


def _cuda() -> type[Stages]:
    try:
        from fmm_openmm.backends.cuda.loader import why_unusable

        reason = why_unusable()
        if not reason:
            from fmm_openmm.backends.cuda.stages import CudaStages

            return CudaStages
    except ImportError as error:
        raise UnsupportedError(
            f"`backend='cuda'` needs CuPy ({str(error).splitlines()[0]}): "
            "pip install 'fmm_openmm[cuda13]' or 'fmm_openmm[cuda12]'"
        ) from error
    raise UnsupportedError(f"`backend='cuda'` needs an NVIDIA GPU and its driver: {reason}")
