"""Arrays and streams of other packages, in the same memory and the same order of work."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.graph import Call
from fmm_openmm.backends.cuda.execute.cupy.loader import load

BLOCK = 128
"""Threads per block of the kernels in ``kernels/exchange.cu``, at least as many as a virial and the
parameter block have components."""

RESULTS = "energy", "forces", "potentials"


def as_array(owner) -> cupy.ndarray:
    """The memory of an object on the current device that supports DLPack, such as a tensor of
    PyTorch, as an array without a copy."""
    return cupy.from_dlpack(owner)


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


def contiguous(values, *dtypes: type) -> cupy.ndarray:
    """Values, on the host or a device, as a contiguous array on the current device; the same array
    if that is one of these types, else a copy of the first type."""
    values = cupy.asarray(values)
    is_here = values.flags.c_contiguous and values.device == cupy.cuda.Device()
    return (
        values if is_here and values.dtype in dtypes else cupy.array(values, dtypes[0], order="C")
    )


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


def on_stream(device: int, pointer: int) -> AbstractContextManager:
    """Context manager that queues CuPy's work on a stream of another package.

    Args:
        device: number of the device.
        pointer: address of the stream (``cudaStream_t``); 0 is the default stream.
    """
    is_current = cupy.cuda.runtime.getDevice() == device
    if is_current and cupy.cuda.get_current_stream().ptr == pointer:
        return nullcontext()
    return _changed(device, pointer)


@contextmanager
def _changed(device: int, pointer: int) -> Iterator[None]:
    with cupy.cuda.Device(device), _stream(device, pointer):
        yield


class Given(NamedTuple):
    """How contiguous arrays of another package on the current device, which are named by their
    addresses, differ from those of a program.

    Attributes:
        particles: number of particles.
        position_size, charge_size: bytes of a coordinate, as of a force, and of a charge, as of a
            potential: 4 or 8, float32 or float64.
        length, energy: units of length, nm, and of energy, kJ/mol.
        rotation: what turns rows of coordinates into those of the program, (3, 3) float64; 0 for
            none.
    """

    particles: int
    position_size: int
    charge_size: int
    length: float = 1.0
    energy: float = 1.0
    rotation: int = 0

    def take(
        self,
        buffers: dict[str, cupy.ndarray],
        positions: int,
        charges: int = 0,
        parameters: int = 0,
    ) -> Call:
        """The launch that copies positions and, unless their addresses are 0, charges and the
        parameter block into the buffers of a program."""
        places = (buffers[name].data.ptr for name in ("positions", "charges", "parameters"))
        turned, size = (self.rotation, self.length, parameters), buffers["charges"].itemsize
        return self._call("take", size, positions, charges, *turned, *places)

    def give(
        self,
        buffers: dict[str, cupy.ndarray],
        energy: int,
        forces: int,
        potentials: int,
        virial: int = 0,
    ) -> Call:
        """The launch that copies results from the buffers of a program into energy, float64,
        forces, potentials and, unless it is 0, virial, (3, 3) float64."""
        results = [buffers[name].data.ptr for name in RESULTS]
        results.append(buffers["virial"].data.ptr if virial else 0)
        turned = self.rotation, self.length, self.energy
        size = buffers["charges"].itemsize
        return self._call("give", size, *results, *turned, energy, forces, potentials, virial)

    def _call(self, name: str, size: int, *arguments) -> Call:
        """The launch of a kernel for a program whose real numbers have this size, bytes."""
        device = cupy.cuda.runtime.getDevice()
        kernel = _kernel(name, device, size, self.position_size, self.charge_size)
        blocks = -(-self.particles // BLOCK), 1, 1
        return Call(kernel, blocks, BLOCK, (np.int32(self.particles), *arguments))


@cache
def _kernel(name: str, device: int, *sizes: int):
    """A kernel of ``kernels/exchange.cu`` for types of these sizes, bytes, on the current
    device."""
    types = ({4: "float", 8: "double"}[size] for size in sizes)
    macros = dict(zip(("REAL", "GIVEN_POSITION", "GIVEN_CHARGE"), types, strict=True))
    return load("exchange", macros).get_function(name)
