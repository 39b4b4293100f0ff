"""A program as bytes, for the executor in C++ (``fmm_openmm/native/core/program.cpp``)."""

import struct

from fmm_openmm.backends.cuda.abi import BUFFER_KINDS, MAGIC, STEP_KINDS, VERSION
from fmm_openmm.backends.cuda.program import WAITING, At, Launch, Memset, Program, Record, Wait
from fmm_openmm.backends.cuda.source import source_of


def serialise(program: Program) -> bytes:
    """A program as bytes, little-endian; integers are int64, strings and blocks have their length
    before them.

    ::

        magic, version
        sources:  count, then for each the file's name and its complete text
        kernels:  count, then for each its name, the number of its source, bytes of dynamic shared
                  memory, 1 if it waits for the kernel before it
        buffers:  count, then for each its name, its kind (0 own, 1 external, 2 flag), bytes, 1 if
                  a copy of its contents is kept, and the block of its initial contents (empty:
                  none)
        phases:   count, then for each its name
        streams, events:  counts
        steps:    count, then for each its kind, the number of its phase, its stream and
                  0 launch     kernel, grid x, y, z, block, 1 if it is cooperative, argument count,
                               then for each argument buffer and byte offset, or -1 and the
                               scalar's bytes
                  1 memset     buffer
                  2 record     event
                  3 wait       event

    :meth:`fmm_openmm.backends.cuda.program.Program.phase_of` gives the phase of a step, ``shaped``
    the buffers whose contents are kept.
    """
    out = [MAGIC]

    def put(*values):
        for value in values:
            if isinstance(value, bytes):
                out.append(struct.pack("<q", len(value)))
                out.append(value)
            else:
                out.append(struct.pack("<q", value))

    sources = sorted({kernel.file for kernel in program.kernels.values()})
    kernels, buffers, shaped = list(program.kernels), list(program.buffers), program.shaped
    events = sorted({step.event for step in program.steps if isinstance(step, Record)})
    phases = list(dict.fromkeys(map(program.phase_of, program.steps)))
    put(VERSION, len(sources))
    for stage in sources:
        put(stage.encode(), source_of(stage, program.macros).encode())
    put(len(kernels))
    for name, kernel in program.kernels.items():
        put(name.encode(), sources.index(kernel.file), kernel.shared, int(name in WAITING))
    put(len(buffers))
    for name, buffer in program.buffers.items():
        kind = BUFFER_KINDS.index(buffer.kind)
        data = b"" if buffer.data is None else buffer.data.tobytes()
        put(name.encode(), kind, buffer.nbytes, int(name in shaped), data)
    put(len(phases), *(name.encode() for name in phases))
    put(program.streams, len(events), len(program.steps))
    for step in program.steps:
        phase = phases.index(program.phase_of(step))
        put(STEP_KINDS.index(type(step)), phase, step.stream)
        if isinstance(step, Launch):
            put(
                kernels.index(step.kernel),
                *step.grid,
                step.block,
                int(step.cooperative),
                len(step.arguments),
            )
            for argument in step.arguments:
                if isinstance(argument, At):
                    itemsize = program.buffers[argument.buffer].dtype.itemsize
                    put(buffers.index(argument.buffer), argument.element * itemsize)
                else:
                    put(-1, argument.tobytes())
        elif isinstance(step, Memset):
            put(buffers.index(step.buffer))
        elif isinstance(step, Record | Wait):
            put(events.index(step.event))
    return b"".join(out)
