"""What CuPy and CUDA raise where something is missing, as errors that a caller can act on."""

from collections.abc import Iterator
from contextlib import contextmanager

from cupy.cuda.compiler import CompileException

from fmm_openmm.backends.cuda.program import Program
from fmm_openmm.errors import UnsupportedError

OUT_OF_MEMORY = ("out of memory", "MemoryAllocation")
"""In the texts of CUDA's runtime, its driver and CuPy's memory pool."""

MISSING = (RuntimeError, ImportError, OSError, CompileException)
"""Raised while stages are made where a library, the compiler, the driver or the device
is not good enough."""


def out_of_memory(error: Exception, wanted: int) -> MemoryError | None:
    """A MemoryError with the bytes wanted, if device memory is what failed."""
    if not isinstance(error, MemoryError) and not any(text in str(error) for text in OUT_OF_MEMORY):
        return None
    return MemoryError(
        f"`backend='cuda'` needs {wanted:,} bytes of device memory here: {_first_line(error)}"
    )


def missing(error: Exception) -> UnsupportedError | None:
    """An UnsupportedError, if making stages failed for what this machine lacks."""
    if not isinstance(error, MISSING):
        return None
    return UnsupportedError(f"`backend='cuda'` cannot be set up here: {_first_line(error)}")


@contextmanager
def explained(program: Program) -> Iterator[None]:
    """Context manager that converts errors in the allocation and compilation of a program to errors
    that a caller can act on."""
    try:
        yield
    except Exception as error:
        wanted = sum(buffer.nbytes for buffer in program.buffers.values())
        fault = out_of_memory(error, wanted) or missing(error)
        if fault is None:
            raise
        raise fault from None


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
