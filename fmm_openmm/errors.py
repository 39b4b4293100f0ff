"""Exceptions of the package other than ``ValueError`` and ``TypeError``, and its warnings."""

import logging
import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

PASSED_THROUGH = {"fmm_openmm", "openmm", "functools", "contextlib"}
"""Packages whose frames are skipped when a warning is attributed to the user's code."""

_log = logging.getLogger("fmm_openmm")
_in_callback: ContextVar[bool] = ContextVar("in_callback", default=False)


class UnsupportedError(Exception):
    """A valid request, or a valid ``openmm.System``, that fmm_openmm does not support.

    The message names the force or option and the alternative. It is raised before anything is
    changed.
    """


class AnalysisError(Exception):
    """A trajectory analysis that ended early. The exception holds the results so far.

    Its ``__cause__`` is the original error, which concerned a frame, the file, or the executor.

    Attributes:
        frames: indices of the completed frames, ascending, from 0, shape (k,), int64.
        arrays: the return value of :func:`fmm_openmm.analyse` for the completed frames, with one
            row per frame; of :func:`fmm_openmm.potential_map` the mean ``values`` of these frames,
            ``origin`` and ``vectors``.
    """

    def __init__(self, message: str, frames: "np.ndarray", arrays: "dict[str, np.ndarray]"):
        super().__init__(message, frames, arrays)
        self.frames, self.arrays = frames, arrays

    def __str__(self) -> str:
        return self.args[0]


@contextmanager
def openmm_callback():
    """Context manager for code that OpenMM calls: warnings of the package do not become exceptions
    there, which would end the run."""
    token = _in_callback.set(True)
    try:
        yield
    finally:
        _in_callback.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning attributed to the innermost line outside of :data:`PASSED_THROUGH`.

    If filters turn warnings into errors, code that OpenMM calls (:func:`openmm_callback`) logs the
    message instead, to the logger ``fmm_openmm`` at level WARNING.
    """
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_THROUGH
    ):
        frame = frame.f_back
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(
            message,
            category,
            frame.f_code.co_filename,
            frame.f_lineno,
            names.get("__name__"),
            registry,
        )
    except category:
        if not _in_callback.get():
            raise
        _log.warning("%s", message)
