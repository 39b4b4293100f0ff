"""Evaluations of positions on the host, several of which are queued before the first has ended."""

from collections.abc import Sequence

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.exchange import Given
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, pinned
from fmm_openmm.backends.cuda.execute.cupy.graph import Call, Graph
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.checks import MAX_COORDINATE

BLOCK = 256
"""Threads per block of ``kernels/examine.cu``."""

FOUND = 5
"""Number of values that ``kernels/examine.cu`` writes."""


class QueuedFrame:
    """A queued evaluation, in pinned memory that later ones reuse.

    Args:
        particles: number of particles.
        buffers: the buffers of the program.

    Attributes:
        positions: the positions, shape (n, 3), nm, float32 or float64.
        source, parameters, target: addresses of the positions, of the parameter block and of
            :attr:`found`.
        graphs: the evaluation for positions of a type and a limit of the potentials.
    """

    positions: np.ndarray
    _names: Sequence[str]

    def __init__(self, particles: int, buffers: dict[str, cupy.ndarray]):
        memory = pinned((particles, 3), np.float64)
        self._places = {
            np.dtype(np.float64): memory,
            np.dtype(np.float32): memory.reshape(-1).view(np.float32)[: memory.size].reshape(-1, 3),
        }
        self._found, self._buffers = pinned((FOUND,), np.float64), buffers
        self._parameters = pinned(buffers["parameters"].shape, np.float64)
        held = memory, self._parameters, self._found
        self.source, self.parameters, self.target = (each.ctypes.data for each in held)
        self._copies: dict[str, tuple[np.ndarray, int]] = {}
        self._done = cupy.cuda.Event(disable_timing=True)
        self.graphs: dict[tuple[np.dtype, float], Graph] = {}

    def put(self, positions: np.ndarray, parameters: np.ndarray) -> None:
        """Copy positions, shape (n, 3), nm, float32 or float64, and the parameter block to where
        the device reads them."""
        self.positions = self._places[positions.dtype]
        np.copyto(self.positions, positions)
        self._parameters[...] = parameters

    def read(self, names: Sequence[str]) -> None:
        """Queue copies of these buffers, and an event after them."""
        self._names = names
        for name in names:
            buffer = self._buffers[name]
            if name not in self._copies:
                copy = pinned(buffer.shape, buffer.dtype)
                self._copies[name] = copy, copy.ctypes.data
            buffer.data.copy_to_host_async(self._copies[name][1], buffer.nbytes)
        self._done.record()

    def wait(self) -> None:
        """Wait until the device has completed the evaluation."""
        self._done.synchronize()

    @property
    def found(self) -> tuple[float, ...]:
        """Energy, number of invalid values, and sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, as
        ``kernels/examine.cu`` finds them."""
        return tuple(self._found.tolist())

    def copy(self) -> dict[str, np.ndarray]:
        """New arrays with the contents of the buffers that were read, by name."""
        return {name: self._copies[name][0].copy() for name in self._names}


class FrameQueue:
    """Evaluations of a program on the current device. Each place in memory has a CUDA graph of its
    own, whose arguments never change: the host queues a frame by one launch.

    Args:
        run: the program.
    """

    def __init__(self, run: Run):
        self._run, self._buffers = run, run.buffers
        potentials = run.buffers["potentials"]
        self._particles, self._free = len(potentials), list[QueuedFrame]()
        blocks = -(-self._particles // BLOCK)
        kernel = load("examine", {"REAL": real_type(potentials.dtype)}).get_function("examine")
        self._partial = cupy.empty(blocks), cupy.zeros(1, np.int32)
        self._examine = Call(kernel, (blocks, 1, 1), BLOCK, ())

    def queue(
        self, positions: np.ndarray, parameters: np.ndarray, largest: float, names: Sequence[str]
    ) -> QueuedFrame:
        """Queue an evaluation on the current stream.

        Args:
            positions: shape (n, 3), nm, float32 or float64.
            parameters: the parameter block of the boxes.
            largest: largest valid potential times the width of the boxes, e.
            names: the buffers to be copied.
        """
        free, key = self._free, (positions.dtype, largest)
        frame = free.pop() if free else QueuedFrame(self._particles, self._buffers)
        frame.put(positions, parameters)
        if key not in frame.graphs:
            frame.graphs[key] = self._run.captured(lambda: self._evaluate(frame, *key))
        frame.graphs[key].launch(cupy.cuda.get_current_stream())
        frame.read(names)
        return frame

    def _evaluate(self, frame: QueuedFrame, dtype: np.dtype, largest: float) -> None:
        """Queue the kernels of an evaluation."""
        buffers = self._buffers
        given = Given(self._particles, dtype.itemsize, buffers["charges"].itemsize)
        given.take(buffers, frame.source, parameters=frame.parameters).queue()
        self._run.queue()
        x, potentials, block, *results = (
            buffers[name].data.ptr
            for name in ("positions", "potentials", "parameters", "energy", "force_sums")
        )
        partial = (each.data.ptr for each in self._partial)
        arguments = x, potentials, MAX_COORDINATE, largest, block, *results, *partial, frame.target
        self._examine._replace(arguments=(np.int32(self._particles), *arguments)).queue()

    def release(self, frame: QueuedFrame) -> None:
        """Make the memory of a completed evaluation available to later ones."""
        self._free.append(frame)
