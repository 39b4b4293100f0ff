"""CUDA graphs in which every kernel has the priority of the stream it was captured on; CuPy's
have that of their launch."""

import ctypes
import sys
import weakref
from functools import cache

import cupy
from cupy.cuda import runtime

USE_NODE_PRIORITY = 8
"""CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY of the CUDA driver."""


class Graph:
    """Work captured on a stream, ready to be launched."""

    def __init__(self, executable: int | None):
        self._executable = executable
        weakref.finalize(self, runtime.graphExecDestroy, executable)

    @classmethod
    def captured(cls, stream: cupy.cuda.Stream) -> "Graph":
        """End the capture on a stream, and make a graph of it."""
        graph, executable = runtime.streamEndCapture(stream.ptr), ctypes.c_void_p()
        try:
            instantiate = _driver().cuGraphInstantiateWithFlags
            flags = ctypes.c_ulonglong(USE_NODE_PRIORITY)
            runtime.check_status(
                instantiate(ctypes.byref(executable), ctypes.c_void_p(graph), flags)
            )
        finally:
            runtime.graphDestroy(graph)
        return cls(executable.value)

    def launch(self, stream: cupy.cuda.Stream) -> None:
        """Queue the graph."""
        runtime.graphLaunch(self._executable, stream.ptr)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
