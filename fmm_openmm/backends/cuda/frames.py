"""Evaluations of positions on the host, several of which are queued before the first has ended."""

from collections.abc import Callable, Sequence

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.exchange import Given
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, pinned
from fmm_openmm.backends.cuda.execute.cupy.graph import Call
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.checks import MAX_COORDINATE

BLOCK = 256
"""Threads per block of ``kernels/examine.cu``."""

FOUND = 4
"""Number of values that ``kernels/examine.cu`` writes."""


class QueuedFrame:
    """A queued evaluation, in pinned memory that later ones reuse.

    Args:
        particles: number of particles.
        buffers: the buffers of the program.

    Attributes:
        positions: the positions, shape (n, 3), nm, float32 or float64.
        target: address of :attr:`found`.
        first: the launch that brings positions and the parameter block to the buffers.
    """

    positions: np.ndarray
    first: Call
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
        self._source, self._block, self.target = (each.ctypes.data for each in held)
        self._launches: dict[np.dtype, Call] = {}
        self._copies: dict[str, tuple[np.ndarray, int]] = {}
        self._done = cupy.cuda.Event(disable_timing=True)

    def put(self, positions: np.ndarray, parameters: np.ndarray) -> None:
        """Copy positions, shape (n, 3), nm, float32 or float64, and the parameter block to where
        the device reads them."""
        dtype, buffers = positions.dtype, self._buffers
        if dtype not in self._launches:
            given = Given(len(positions), dtype.itemsize, buffers["charges"].itemsize)
            self._launches[dtype] = given.take(buffers, self._source, parameters=self._block)
        self.positions, self.first = self._places[dtype], self._launches[dtype]
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
    def found(self) -> tuple[float, float, float, float]:
        """Energy, sums of q^2 E^2 and q^2 |E|^3, and the number of invalid values, as
        ``kernels/examine.cu`` finds them."""
        return tuple(self._found.tolist())

    def copy(self) -> dict[str, np.ndarray]:
        """New arrays with the contents of the buffers that were read, by name."""
        return {name: self._copies[name][0].copy() for name in self._names}


class FrameQueue:
    """Evaluations of a program on the current device.

    Args:
        run: the program.
    """

    def __init__(self, run: Run):
        buffers = self._buffers = run.buffers
        potentials, self._run = buffers["potentials"], run
        self._particles, self._free = len(potentials), list[QueuedFrame]()
        self._count = np.int32(self._particles)
        self._blocks = -(-self._particles // BLOCK), 1, 1
        self._kernel = load("examine", {"REAL": real_type(potentials.dtype)}).get_function(
            "examine"
        )
        self._partial = cupy.empty(self._blocks[0]), cupy.zeros(1, np.int32)
        names = "positions", "potentials", "energy", "force_sums"
        self._examined = tuple(buffers[name].data.ptr for name in names)
        self._sums = tuple(each.data.ptr for each in self._partial)

    def queue(
        self,
        evaluate: Callable[[Callable[[Run], Call]], None],
        positions: np.ndarray,
        parameters: np.ndarray,
        largest_potential: float,
        names: Sequence[str],
    ) -> QueuedFrame:
        """Queue an evaluation on the current stream.

        Args:
            evaluate: queues an evaluation; called with the function that returns the launch of the
                first kernel, which writes positions and parameters to the buffers.
            positions: shape (n, 3), nm, float32 or float64.
            parameters: the parameter block of the boxes.
            largest_potential: largest valid potential, kJ/mol/e.
            names: the buffers to be copied.
        """
        free = self._free
        frame = free.pop() if free else QueuedFrame(self._particles, self._buffers)
        frame.put(positions, parameters)
        evaluate(lambda run: frame.first)
        x, potentials, *results = self._examined
        limits = MAX_COORDINATE, largest_potential
        arguments = self._count, x, potentials, *limits, *results, *self._sums, frame.target
        self._run.launch(Call(self._kernel, self._blocks, BLOCK, arguments))
        frame.read(names)
        return frame

    def release(self, frame: QueuedFrame) -> None:
        """Make the memory of a completed evaluation available to later ones."""
        self._free.append(frame)
