"""The implementations of the stages. The GPU's is imported, and CuPy with it, only when it is asked for."""

import logging

from fmm_openmm.errors import UnsupportedError
from fmm_openmm.stages import Stages

_log = logging.getLogger("fmm_openmm")
_told = False


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


def choose_backend() -> str:
    """ "cuda" where it is usable, else "cpu"; says once, in the log, why not."""
    global _told
    try:
        _cuda()
    except UnsupportedError as reason:
        if not _told:
            _log.info("backend 'auto' means 'cpu' here: %s", reason)
            _told = True
        return "cpu"
    return "cuda"


def _cuda() -> type[Stages]:
    try:
        from fmm_openmm.backends.cuda.loader import why_unusable
        from fmm_openmm.backends.cuda.stages import CudaStages
    except ImportError as error:
        raise UnsupportedError(
            f"`backend='cuda'` needs CuPy ({str(error).splitlines()[0]}): "
            "pip install 'fmm_openmm[cuda13]' or 'fmm_openmm[cuda12]'"
        ) from error
    reason = why_unusable()
    if reason:
        raise UnsupportedError(f"`backend='cuda'` needs an NVIDIA GPU and its driver: {reason}")
    return CudaStages
