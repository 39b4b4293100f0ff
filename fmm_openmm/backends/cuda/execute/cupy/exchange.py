"""Arrays and streams of other packages: one memory and one order of work, nothing copied; and
copies within a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import cupy


def as_array(owner) -> cupy.ndarray:
    """The array of what lies on the current device and supports DLPack, such as a tensor of
    PyTorch; the memory stays the owner's."""
    return cupy.from_dlpack(owner)


def copied(array: cupy.ndarray) -> cupy.ndarray:
    """A copy of a contiguous array, queued as a copy of memory: in a fraction of the time that the
    host needs to launch CuPy's kernel for copies."""
    copy = cupy.ndarray(array.shape, array.dtype)
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


def assign(buffer: cupy.ndarray, values) -> None:
    """Queue ``buffer[...] = values``, by a copy of memory if possible.

    Args:
        buffer: contiguous.
        values: on the host or the device.
    """
    values = cupy.asarray(values)
    is_same = values.dtype == buffer.dtype and values.shape == buffer.shape
    if is_same and values.flags.c_contiguous and values.device == buffer.device:
        buffer.data.copy_from_device_async(values.data, values.nbytes)
    else:
        buffer[...] = values


@dataclass(frozen=True)
class _Foreign:
    """A stream that follows CUDA's stream protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _stream(device: int, pointer: int) -> cupy.cuda.Stream:
    """CuPy's stream for one of another package, which has few. Kept: some versions of CuPy destroy
    the stream itself together with what ``from_external`` returns."""
    if not pointer:
        return cupy.cuda.Stream.null
    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
        return cupy.cuda.Stream.from_external(_Foreign(pointer))
    return cupy.cuda.ExternalStream(pointer, device)


@contextmanager
def on_stream(device: int, pointer: int) -> Iterator[None]:
    """Context manager that queues CuPy's work on a stream of another package.

    Args:
        device: number of the device.
        pointer: address of the stream (``cudaStream_t``); 0 is the default stream.
    """
    with cupy.cuda.Device(device), _stream(device, pointer):
        yield
