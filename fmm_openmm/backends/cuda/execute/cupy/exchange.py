"""Arrays and streams of other packages: one memory and one order of work, nothing copied."""

from collections.abc import Iterator
from contextlib import contextmanager

import cupy


def as_array(owner) -> cupy.ndarray:
    """The array of what lies on the current device and supports DLPack, such as a tensor of
    PyTorch; the memory stays the owner's."""
    return cupy.from_dlpack(owner)


@contextmanager
def on_stream(device: int, pointer: int) -> Iterator[None]:
    """Context manager that queues CuPy's work on a stream of another package.

    Args:
        device: number of the device.
        pointer: address of the stream (``cudaStream_t``); 0 is the default stream.
    """
    with cupy.cuda.Device(device):
        stream = cupy.cuda.ExternalStream(pointer, device) if pointer else cupy.cuda.Stream.null
        with stream:
            yield
