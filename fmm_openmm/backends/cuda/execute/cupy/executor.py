"""Programs through CuPy: their buffers and kernels, and the queueing of their steps."""

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.faults import out_of_memory
from fmm_openmm.backends.cuda.execute.cupy.graph import Call, Graph
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.program import (
    BACKGROUND,
    SETUP,
    At,
    Buffer,
    Device,
    Launch,
    Memset,
    Program,
    Record,
    Step,
    Wait,
)

FOREMOST = -100
"""A priority beyond the range of CUDA, which takes its highest priority instead."""


def current_device() -> Device:
    """The properties of the current device."""
    facts = cupy.cuda.Device().attributes
    return Device(facts["MultiProcessorCount"], facts["MaxSharedMemoryPerBlockOptin"])


def allocated(program: Program, given: dict[str, cupy.ndarray]) -> dict[str, cupy.ndarray]:
    """Allocate the buffers of a program that are neither ``given`` nor flags, with their initial
    contents. Returns all buffers but flags by name."""
    found = given | {
        name: cupy.empty(buffer.shape, buffer.dtype)
        if buffer.data is None
        else cupy.asarray(buffer.data)
        for name, buffer in program.buffers.items()
        if name not in given and buffer.kind != "flag" and not buffer.within
    }
    for name, buffer in program.buffers.items():
        if buffer.within:
            host, first = buffer.within
            found[name] = cupy.ndarray(buffer.shape, buffer.dtype, found[host].data + first)
    return found


def pinned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array in pinned memory, at whose address the current device finds it."""
    size = math.prod(shape)
    memory = cupy.cuda.alloc_pinned_memory(size * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, size).reshape(shape)


def shared(buffer: Buffer) -> tuple[np.ndarray, cupy.ndarray]:
    """A flag in pinned memory, filled with zeros, for the host and for the current device, whose
    kernels write there."""
    host = pinned(buffer.shape, buffer.dtype)
    host[...] = 0
    device = cupy.cuda.Device().id
    pointer = cupy.cuda.UnownedMemory(host.ctypes.data, buffer.nbytes, host, device)
    return host, cupy.ndarray(buffer.shape, buffer.dtype, cupy.cuda.MemoryPointer(pointer, 0))


def compiled(program: Program) -> dict:
    """The kernels of a program by name, allowed the dynamic shared memory they use."""
    modules = {
        file: load(file, program.macros)
        for file in {kernel.file for kernel in program.kernels.values()}
    }
    kernels = {}
    for name, kernel in program.kernels.items():
        kernels[name] = modules[kernel.file].get_function(name)
        if kernel.shared:
            kernels[name].max_dynamic_shared_size_bytes = kernel.shared
    return kernels


def element_of(array: cupy.ndarray, element: int) -> cupy.ndarray:
    """A contiguous array from an element on. A view takes the host longer than a launch."""
    return array.ravel()[element:] if element else array


def bound(step: Step, program: Program, kernels: dict, buffers: dict, events: dict):
    """A function that queues a step on the current stream. The events in ``events``, by name, are
    made on first use."""
    match step:
        case Launch(kernel=name, grid=grid, block=block):
            kernel, shared = kernels[name], program.kernels[name].shared
            arguments = tuple(
                element_of(buffers[argument.buffer], argument.element)
                if isinstance(argument, At)
                else argument
                for argument in step.arguments
            )
            return lambda: kernel(grid, (block,), arguments, shared_mem=shared)
        case Memset(buffer=name):
            return lambda: buffers[name].data.memset_async(0, buffers[name].nbytes)
        case Record(event=name):
            event = events.setdefault(name, cupy.cuda.Event(disable_timing=True))
            return lambda: event.record()
        case Wait(event=name):
            event = events.setdefault(name, cupy.cuda.Event(disable_timing=True))
            return lambda: cupy.cuda.get_current_stream().wait_event(event)


class Run:
    """A program on the current device, to be queued on its current stream.

    Args:
        program: the program.
        given: the buffers of another program that it uses.

    Attributes:
        buffers: buffers by name. The caller fills those that the program reads.
        flags: arrays on the host by name, which kernels write.
        stages: names of all stages but the set-up, in their order.
    """

    def __init__(self, program: Program, given: dict[str, cupy.ndarray] | None = None):
        self.buffers, self.flags = allocated(program, given or {}), {}
        for name, buffer in program.buffers.items():
            if buffer.kind == "flag":
                self.flags[name], self.buffers[name] = shared(buffer)
        self._program, self._kernels = program, compiled(program)
        self._stream, *self._side = (
            cupy.cuda.Stream(non_blocking=True, priority=0 if number == BACKGROUND else FOREMOST)
            for number in range(program.streams)
        )
        self._events: dict[str, cupy.cuda.Event] = {}
        names = dict.fromkeys(step.stage for step in program.steps)
        self.stages = tuple(name for name in names if name != SETUP)
        self._bound_stages: dict[str, list] = {}
        self._graphs: dict[Any, Graph] = {}

    def _bound(self, stage: str) -> list:
        """The steps of a stage, ready to be queued."""
        if stage not in self._bound_stages:
            self._bound_stages[stage] = [
                (step.stream, bound(step, self._program, self._kernels, self.buffers, self._events))
                for step in self._program.steps_of(stage)
            ]
        return self._bound_stages[stage]

    def replace(self, buffers: dict[str, cupy.ndarray], *stages: str) -> None:
        """Replace buffers, which only the given stages use, by arrays of the same type and size."""
        self.buffers |= buffers
        for stage in stages:
            self._bound_stages.pop(stage, None)

    def queue(self, *stages: str) -> None:
        """Queue these stages or, without names, all but the set-up; each reads what those before
        it left in the buffers."""
        caller = cupy.cuda.get_current_stream()
        for stage in stages or self.stages:
            for stream, step in self._bound(stage):
                with (caller, *self._side)[stream]:
                    step()

    def writer(self, stage: str, *names: str) -> Callable[..., None]:
        """A function of addresses, which queues the only kernel of a stage with these addresses in
        place of the buffers ``names``."""
        (step,) = (step for step in self._program.steps_of(stage) if isinstance(step, Launch))
        given = [
            self._address(argument) if isinstance(argument, At) else argument
            for argument in step.arguments
        ]
        places = [step.arguments.index(At(name)) for name in names]
        call = Call(self._kernels[step.kernel], step.grid, step.block, ())

        def write(*addresses: int) -> None:
            for place, address in zip(places, addresses, strict=True):
                given[place] = address
            self.launch(call._replace(arguments=tuple(given)))

        return write

    def _address(self, argument: At) -> int:
        buffer = self.buffers[argument.buffer]
        return buffer.data.ptr + argument.element * buffer.itemsize

    def replay(self, *stages: str, first: Call | None = None) -> None:
        """Queue these stages or, without names, all but the set-up, as a CUDA graph, which the
        first call captures. The graph begins with the kernel ``first``, if given, whose arguments
        may differ between calls."""

        def queue():
            if first:
                first.queue()
            self.queue(*stages)

        self._replay((stages, first and first[:3]), queue, first)

    def launch(self, call: Call) -> None:
        """Queue a kernel as a CUDA graph of its own: a plain launch takes the host longer."""
        self._replay(call[:3], call.queue, call)

    def _replay(self, key: Any, queue: Callable[[], None], first: Call | None) -> None:
        """Queue a graph of what ``queue`` queues; ``first`` is the kernel that it begins with."""
        if key not in self._graphs:
            self._graphs[key] = self.captured(queue, first)
        self._graphs[key].launch(cupy.cuda.get_current_stream(), first)

    def captured(
        self, queue: Callable[[], None], first: Call | None = None, uses: tuple = ()
    ) -> Graph:
        """A CUDA graph of what ``queue`` queues on the current stream, which it also does at once;
        ``first`` as of :meth:`_replay`, ``uses`` as of :class:`Graph`."""
        queue()  # compiles, and sets up what must not happen during capture
        with self._stream:
            self._stream.begin_capture()
            queue()
            return Graph.captured(self._stream, first, uses)


def set_up(program: Program) -> Run:
    """A program on the current device, whose set-up, if it has one, is queued: for programs whose
    set-up reads nothing that the caller has to fill in.

    Raises:
        MemoryError: device memory does not suffice.
    """
    try:
        run = Run(program)
    except cupy.cuda.memory.OutOfMemoryError as error:
        wanted = sum(buffer.nbytes for buffer in program.buffers.values())
        raise out_of_memory(error, wanted) or error from None
    if program.steps_of(SETUP):
        run.queue(SETUP)
    return run
