"""The GPU of one of many ranks: programs on it, and NCCL between the GPUs of all."""

import ctypes
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy

from fmm_openmm.backends.cuda.execute.cupy.executor import FOREMOST, Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import explained
from fmm_openmm.backends.cuda.execute.cupy.loader import device_name
from fmm_openmm.backends.cuda.program import Device, Program
from fmm_openmm.backends.cuda.virial import fill_derivatives
from fmm_openmm.box import BoxLattice
from fmm_openmm.errors import UnsupportedError

CHANNELS = "NCCL_MAX_P2P_NCHANNELS", "16"
"""NCCL's variable for the maximum number of channels between GPUs, and its value unless the
environment has one. More channels take memory and multiprocessors. They shorten the exchange of
particles, which the near field waits for; those of spectra run concurrently with it."""


class GpuRank:
    """The current device of this rank, which no other rank uses.

    Attributes:
        arrays: the module of its arrays.
        name: its model.
    """

    arrays = cupy

    def __init__(self):
        self._device, self.name = cupy.cuda.Device(), device_name()
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=FOREMOST)
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._entered, self._left, self._parted, self._joined = (
            cupy.cuda.Event(disable_timing=True) for _ in range(4)
        )
        self._nccl: Any = None
        self._allocator: Any = None  # of memory that NCCL maps; None is CuPy's own

    @property
    def place(self) -> tuple[str, str]:
        """Name of the host and PCI bus ID, which distinguish the devices of ranks."""
        return socket.gethostname(), self._device.pci_bus_id

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context manager in which the device is the current one, with a stream of high priority:
        exchanges do not wait for the near field. This stream waits for the caller's at the
        beginning, and the caller's for it at the end."""
        with self._device:
            caller = cupy.cuda.get_current_stream()
            self._stream.wait_event(caller.record(self._entered))
            with self._stream:
                yield
            caller.wait_event(self._stream.record(self._left))

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Context manager in which the current stream is another one, of low priority, which waits
        for what has been queued so far, and for which what is queued after :meth:`join` waits."""
        self._beside.wait_event(self._stream.record(self._parted))
        with self._beside:
            yield
        self._beside.record(self._joined)

    def join(self) -> None:
        """See :meth:`beside`."""
        self._stream.wait_event(self._joined)

    @property
    def facts(self) -> Device:
        """What launches depend on."""
        return current_device()

    def nccl_id(self) -> tuple | None:
        """An identifier of a new communicator.

        Raises:
            UnsupportedError: CuPy does not find NCCL.
        """
        return _nccl().get_unique_id()

    def connect(self, ranks: int, rank: int, identifier: tuple) -> None:
        """Make the communicator; all ranks call this together."""
        os.environ.setdefault(*CHANNELS)
        with self._device:
            self._nccl = _nccl().NcclCommunicator(ranks, identifier, rank)
        if hasattr(_library(), "ncclMemAlloc"):  # from NCCL 2.19 on
            self._allocator = cupy.cuda.PythonFunctionAllocator(_allocate, _free).malloc

    def made(self, program: Program, given: dict[str, Any], exchanged: Iterable[str]) -> Run:
        """A program on the device, with buffers of another one. Those that are ``exchanged`` have
        memory that NCCL maps."""
        with explained(program):
            if self._allocator:
                with cupy.cuda.using_allocator(self._allocator):
                    for name in set(exchanged) - given.keys():
                        buffer = program.buffers[name]
                        given[name] = cupy.empty(buffer.shape, buffer.dtype)
            return Run(program, given)

    def kernel(self, run: Run, stage: str, *names: str) -> Callable[..., None]:
        """A function of arrays, which queues the only kernel of a stage of a program with these
        arrays in place of the buffers ``names``."""
        write = run.writer(stage, *names)
        return lambda *arrays: write(*(array.data.ptr for array in arrays))

    def repeated(self, run: Run, queue: Callable[[], None]) -> Callable[[], None]:
        """Queue the stages of a program and the exchanges that ``queue`` queues. Returns what
        queues the same again, as a CUDA graph. All ranks call both together."""
        pool = cupy.cuda.MemoryPool(self._allocator)  # of arrays between kernels of the graph
        with cupy.cuda.using_allocator(pool.malloc):
            graph = run.captured(queue, uses=(pool, self._nccl, run.buffers))
        return lambda: graph.launch(cupy.cuda.get_current_stream())

    def fill_derivatives(self, run: Run, lattice: BoxLattice, order: int, first: int) -> None:
        """Fill "operator_derivatives" of a program, see
        :func:`fmm_openmm.backends.cuda.virial.fill_derivatives`."""
        fill_derivatives(run.buffers["operator_derivatives"], lattice, order, first)

    def exchange(
        self, rank: int, *pairs: tuple[Sequence[cupy.ndarray], Sequence[cupy.ndarray]]
    ) -> None:
        """Queue exchanges of contiguous arrays.

        Args:
            rank: this rank.
            pairs: outgoing and incoming arrays of each exchange: ``outgoing[r]`` is sent to rank r,
                and ``incoming[r]`` receives what that sends to this one, of the same size.
        """
        for outgoing, incoming in pairs:
            if outgoing[rank] is not incoming[rank]:
                incoming[rank][...] = outgoing[rank].reshape(incoming[rank].shape)
        if self._nccl is None:
            return
        nccl, stream = _nccl(), cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        for outgoing, incoming in pairs:
            for other, (sent, received) in enumerate(zip(outgoing, incoming, strict=True)):
                if other == rank:
                    continue
                for array, queue in ((sent, self._nccl.send), (received, self._nccl.recv)):
                    if array.size:
                        queue(array.data.ptr, array.nbytes, nccl.NCCL_INT8, other, stream)
        nccl.groupEnd()


def _allocate(size: int, device: int) -> int:
    """Memory that other GPUs can map, which halves the time of what a graph exchanges: NCCL then
    copies it once, not to buffers of its own and from there. Returns its address."""
    address = ctypes.c_void_p()
    for _ in range(2):
        if not _library().ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(size)):
            return address.value or 0
        cupy.get_default_memory_pool().free_all_blocks()  # as CuPy does
    raise MemoryError(f"NCCL finds no {size:,} bytes")


def _free(address: int, device: int) -> None:
    """The inverse of :func:`_allocate`. Unlike `cudaFree` it has to wait for the device itself."""
    cupy.cuda.runtime.deviceSynchronize()
    _library().ncclMemFree(ctypes.c_void_p(address))


@cache
def _library() -> ctypes.CDLL:
    """NCCL, which CuPy has loaded, for the two functions that CuPy does not call."""
    return ctypes.CDLL("libnccl.so.2")


def _nccl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing library, which is an error here
        from cupy.cuda import nccl
    if not nccl.available:
        version = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise UnsupportedError(
            "`backend='cuda'` needs the library NCCL on many ranks, which CuPy does not find here: "
            f"pip install nvidia-nccl-cu{version}, or add its folder to LD_LIBRARY_PATH"
        )
    return nccl
