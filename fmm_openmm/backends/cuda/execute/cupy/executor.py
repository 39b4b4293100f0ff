"""Programs through CuPy: their buffers, their kernels, and what queues their steps."""

import cupy

from fmm_openmm.backends.cuda.execute.cupy.faults import out_of_memory
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.program import (
    SETUP,
    At,
    Device,
    Launch,
    Memset,
    Program,
    Record,
    Step,
    Wait,
)


def current_device() -> Device:
    """The facts of the current device."""
    facts = cupy.cuda.Device().attributes
    return Device(facts["MultiProcessorCount"], facts["MaxSharedMemoryPerBlockOptin"])


def allocated(program: Program) -> dict[str, cupy.ndarray]:
    """The buffers of a program by name, with their initial contents."""
    return {
        name: cupy.empty(buffer.shape, buffer.dtype)
        if buffer.data is None
        else cupy.asarray(buffer.data)
        for name, buffer in program.buffers.items()
    }


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


def bound(step: Step, program: Program, kernels: dict, buffers: dict, events: dict):
    """What queues a step on the current stream; ``events``, by name,
    are made as they are needed."""
    match step:
        case Launch(kernel=name, grid=grid, block=block):
            kernel, shared = kernels[name], program.kernels[name].shared
            arguments = tuple(
                buffers[argument.buffer].ravel()[argument.element :]
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
    """A program of one stream, set up and ready to be run on the current one.

    Attributes:
        buffers: by name; what the program reads is to be filled.

    Raises:
        MemoryError: device memory does not suffice.
    """

    def __init__(self, program: Program):
        try:
            self.buffers = allocated(program)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise out_of_memory(
                error, sum(buffer.nbytes for buffer in program.buffers.values())
            ) from None
        kernels = compiled(program)
        self._steps: dict[str, list] = {}
        for step in program.steps:
            self._steps.setdefault(step.stage, []).append(
                bound(step, program, kernels, self.buffers, {})
            )
        for step in self._steps.pop(SETUP, []):
            step()

    def queue(self, *stages: str) -> None:
        """Queue these stages or, without names, all."""
        for stage in stages or self._steps:
            for step in self._steps[stage]:
                step()
