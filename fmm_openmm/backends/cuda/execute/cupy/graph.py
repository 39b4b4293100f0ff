"""CUDA graphs in which every kernel has the priority of the stream it was captured on; CuPy's
have that of their launch. The arguments of the first kernel can change between launches."""

import ctypes
import sys
import weakref
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import runtime

USE_NODE_PRIORITY = 8
"""CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY of the CUDA driver."""

PASSED = {int: ctypes.c_void_p, float: ctypes.c_double, np.int32: ctypes.c_int32}
"""Types of arguments as a kernel receives them; an integer of Python is an address."""


class Call(NamedTuple):
    """The launch of a kernel.

    Attributes:
        kernel: a kernel of CuPy on the current device.
        blocks: number of blocks along each axis.
        threads: number of threads per block.
        arguments: addresses, floating-point numbers and 32-bit integers of NumPy.
    """

    kernel: Any
    blocks: tuple[int, int, int]
    threads: int
    arguments: tuple

    def queue(self) -> None:
        """Queue the kernel on the current stream."""
        self.kernel(self.blocks, (self.threads,), self.arguments)


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of the CUDA driver, in its first version."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("blocks", "threads") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
    )


class Graph:
    """Work captured on a stream, ready to be launched.

    Args:
        graph: the captured graph.
        first: the kernel that the graph begins with, if its arguments may change.
        uses: what must outlive the graph.
    """

    def __init__(self, graph: int, first: Call | None = None, uses: tuple = ()):
        executable, flags = ctypes.c_void_p(), ctypes.c_ulonglong(USE_NODE_PRIORITY)
        instantiate = _driver().cuGraphInstantiateWithFlags
        status = instantiate(ctypes.byref(executable), ctypes.c_void_p(graph), flags)
        self._executable: Any = executable.value
        weakref.finalize(self, _destroy, self._executable, graph, uses)
        runtime.check_status(status)
        if first:
            self._prepare(graph, first)

    @classmethod
    def captured(
        cls, stream: cupy.cuda.Stream, first: Call | None = None, uses: tuple = ()
    ) -> "Graph":
        """End the capture on a stream, and make a graph of it."""
        return cls(runtime.streamEndCapture(stream.ptr), first, uses)

    def _prepare(self, graph: int, first: Call) -> None:
        """Find the first kernel, and where its arguments are kept."""
        node, count = ctypes.c_void_p(), ctypes.c_size_t(1)
        roots = _driver().cuGraphGetRootNodes
        runtime.check_status(roots(ctypes.c_void_p(graph), ctypes.byref(node), ctypes.byref(count)))
        self._arguments = first.arguments
        self._passed: list[Any] = [PASSED[type(each)](each) for each in first.arguments]
        addresses = [ctypes.addressof(each) for each in self._passed]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self._parameters = _KernelNode(
            first.kernel.kernel.ptr,
            *(*first.blocks, first.threads, 1, 1),
            arguments=ctypes.addressof(self._addresses),
        )
        set_node = _driver().cuGraphExecKernelNodeSetParams
        executable, parameters = ctypes.c_void_p(self._executable), ctypes.byref(self._parameters)
        self._set = lambda: set_node(executable, node, parameters)

    def launch(self, stream: cupy.cuda.Stream, first: Call | None = None) -> None:
        """Queue the graph, with the arguments of ``first`` for the kernel that it begins with."""
        if first and (given := first.arguments) != self._arguments:
            for passed, old, value in zip(self._passed, self._arguments, given, strict=True):
                if value != old:
                    passed.value = value
            runtime.check_status(self._set())
            self._arguments = given
        runtime.graphLaunch(self._executable, stream.ptr)


def _destroy(executable: int | None, graph: int, uses: tuple) -> None:
    """Destroy a graph, before what it uses: NCCL waits for its graphs when a communicator ends."""
    if executable:
        runtime.graphExecDestroy(executable)
    runtime.graphDestroy(graph)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
