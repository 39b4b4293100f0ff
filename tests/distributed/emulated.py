"""A GPU of a rank on the host: programs by ``tests/emulator``, NumPy's arrays, exchanged by MPI."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from fmm_openmm.backends.cuda.program import Program
from fmm_openmm.distributed.communication import exchange
from tests.emulator import DEVICE, Emulator, fill_derivatives


class EmulatedRun:
    """A program with the buffers of another one."""

    def __init__(self, program: Program, given: dict[str, np.ndarray], folder: Path):
        self._emulator = Emulator(program, folder, {k: v for k, v in given.items() if len(v)})
        self.buffers = self._emulator.buffers

    def queue(self, *stages: str) -> None:
        self._emulator.run(stages)


class EmulatedGpu:
    """As :class:`fmm_openmm.distributed.gpu_stages.Gpu`."""

    arrays, name, facts, active, beside = np, None, DEVICE, nullcontext, nullcontext

    def __init__(self, comm, folder: Path):
        self._comm, self._folder = comm, folder

    def join(self) -> None:
        pass

    def made(
        self, program: Program, given: dict[str, np.ndarray], exchanged: Iterable[str]
    ) -> EmulatedRun:
        return EmulatedRun(program, given, self._folder)

    def kernel(self, run: EmulatedRun, stage: str, *names: str) -> Callable[..., None]:
        def queue(*arrays: np.ndarray) -> None:
            for name, array in zip(names, arrays, strict=True):
                run.buffers[name][...] = array
            run.queue(stage)
            for name, array in zip(names, arrays, strict=True):
                array[...] = run.buffers[name]

        return queue

    def repeated(self, run: EmulatedRun, queue: Callable[[], None]) -> Callable[[], None]:
        queue()
        return queue

    def fill_derivatives(self, run: EmulatedRun, lattice, order: int, first: int) -> None:
        fill_derivatives(run.buffers["operator_derivatives"], lattice, order, self._folder, first)

    def exchange(self, rank: int, *pairs: tuple[list, list]) -> None:
        for outgoing, incoming in pairs:
            blocks = exchange(self._comm, [np.ascontiguousarray(block) for block in outgoing])
            for block, array in zip(blocks, incoming, strict=True):
                array[...] = block.reshape(array.shape)
