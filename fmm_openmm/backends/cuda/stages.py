"""The stages on the GPU through CuPy: an executor of ``program.py``.

All work of an evaluation is queued without waiting for the device. The first evaluation queues the
stages one by one through ``driver.evaluate``; the same calls, captured once, are then replayed as a
CUDA graph.
"""

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import (
    allocated,
    bound,
    compiled,
    current_device,
)
from fmm_openmm.backends.cuda.execute.cupy.faults import missing, out_of_memory
from fmm_openmm.backends.cuda.execute.cupy.graph import Graph
from fmm_openmm.backends.cuda.execute.cupy.loader import device_name
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.setup_tables import serves
from fmm_openmm.backends.cuda.program import BACKGROUND, OUTPUTS, SETUP
from fmm_openmm.box import BoxLattice
from fmm_openmm.driver import evaluate
from fmm_openmm.stages import Stages
from fmm_openmm.units import COULOMB_CONSTANT

FOREMOST = -100
"""CUDA takes the highest priority it has."""


class CudaStages(Stages):
    """See :class:`fmm_openmm.stages.Stages`; arguments as for ``ReferenceStages``, ``m2l`` a
    name in :data:`fmm_openmm.implementations.M2L`. Results stay on the device.

    Made for the current device, on which it stays; ``compute`` queues on that device's current
    stream and copies its argument to ``positions``.

    Raises:
        MemoryError: device memory does not suffice, at creation or later; the stages are then empty
            and of no more use.
        UnsupportedError: the kernels cannot be compiled or loaded, or cannot do these levels.
    """

    def __init__(
        self,
        lattice: BoxLattice,
        order: int,
        smoothing: float,
        charges,
        pairs,
        minimum_image: bool,
        dtype,
        levels: int = 0,
        m2l: str = "rotation",
    ):
        self.lattice = self._made_for = lattice
        self._levels = levels
        self._settings = order, smoothing, np.dtype(dtype)
        self._device = cupy.cuda.Device()
        self._program = build(
            lattice, order, smoothing, charges, pairs, minimum_image, dtype, current_device(),
            levels=levels, m2l=m2l
        )  # fmt: skip
        self._attempt(self._make, missing)

    @classmethod
    def device(cls) -> str:
        return device_name()

    def _make(self):
        self._buffers = allocated(self._program)
        kernels = compiled(self._program)
        self._stream, *self._side = (
            cupy.cuda.Stream(non_blocking=True, priority=0 if number == BACKGROUND else FOREMOST)
            for number in range(self._program.streams)
        )
        self._queue: dict[str, list] = {}
        events: dict[str, cupy.cuda.Event] = {}
        for step in self._program.steps:
            queued = bound(step, self._program, kernels, self._buffers, events)
            self._queue.setdefault(step.stage, []).append((step.stream, queued))
        self._caller: cupy.cuda.Stream | None = None
        self._graph = None
        self._place = None
        self._set_up = False

    def _attempt(self, work, explain=None):
        """``work()``.

        What fails for lack of memory is raised as a MemoryError, other failures as ``explain``
        makes of them.

        Nothing is kept then: the tracebacks of the new error hold these stages, so they are
        emptied, and of the old error, which holds arrays, only the text is left.
        """
        try:
            return work()
        except Exception as error:
            wanted = sum(buffer.nbytes for buffer in self._program.buffers.values())
            fault = out_of_memory(error, wanted) or (explain and explain(error))
            if fault is None:
                raise
        self.__dict__.clear()
        cupy.get_default_memory_pool().free_all_blocks()
        raise fault

    @property
    def positions(self) -> cupy.ndarray:
        """What is evaluated, shape (n, 3), nm."""
        return self._buffers["positions"]

    def set_charges(self, charges):
        buffer = self._buffers["charges"]
        with self._device:
            self._follow()
            buffer.set(np.asarray(charges, buffer.dtype))

    def adopt(self, lattice: BoxLattice, order: int, smoothing: float, dtype) -> bool:
        if self._settings != (order, smoothing, np.dtype(dtype)) or not serves(
            self._made_for, lattice
        ):
            return False
        self.lattice, self._place, self._set_up = lattice, None, False
        return True

    def compute(self, positions, width: float, origin=(0.0, 0.0, 0.0)):
        """Queue an evaluation on the current stream.

        Args:
            positions: shape (n, 3), nm.
            width: mean box width, nm.
            origin: what open boxes take for the origin, shape (3,), nm.

        Returns:
            energy (1,), forces (n, 3), potentials (n,), fields (n, 3) in OpenMM units, on the
            device; overwritten by the next evaluation.
        """
        with self._device:
            return self._attempt(lambda: self._compute(positions, width, origin))

    def _compute(self, positions, width: float, origin):
        self._follow()
        place = width, *origin
        if place != self._place:
            self._buffers["parameters"].set(parameter_block(self.lattice, width, origin))
            self._place = place
        if not self._set_up:
            self.queue(SETUP)
            self._set_up = True
        self.positions[...] = cupy.asarray(positions)
        if self._graph is None:
            # compiles, and sets up what must not happen during capture
            evaluate(self, self.positions, width)
            with self._stream:
                self._stream.begin_capture()
                evaluate(self, self.positions, width)
                self._graph = Graph.captured(self._stream)
        self.replay()
        return tuple(self._buffers[name] for name in OUTPUTS)

    def _follow(self):
        """Have the current stream wait for what an earlier caller queued on another:
        the buffers are the same."""
        caller = cupy.cuda.get_current_stream()
        if self._caller not in (None, caller):
            caller.wait_event(self._caller.record())
        self._caller = caller

    def replay(self):
        """Queue an evaluation of ``positions`` as they are, once :meth:`compute`
        has made the graph."""
        self._graph.launch(cupy.cuda.get_current_stream())

    def queue(self, stage: str):
        """Queue one stage; it reads what the stages before it left in the buffers."""
        caller = cupy.cuda.get_current_stream()
        for stream, step in self._queue[stage]:
            with (caller, *self._side)[stream]:
                step()

    def evaluate(self, positions, width):
        """See :meth:`fmm_openmm.stages.Stages.evaluate`; positions and results are on the host."""
        with self._device:
            _, _, potentials, fields = (array.get() for array in self.compute(positions, width))
        scale = width / COULOMB_CONSTANT
        return potentials.astype(np.float64) * scale, fields.astype(np.float64) * (scale * width)

    # the contract: data flow through the buffers

    def sort(self, positions, width):
        self.queue("sort")

    def p2m(self, parts):
        self.queue("p2m")

    def m2m(self, parts, moments):
        if self._levels:
            self.queue("m2m")
        return [moments] * (self._levels + 1)

    def lattice_m2l(self, moments):
        self.queue("lattice")

    def l2l(self, local, level):
        self.queue(f"l2l{level}")

    def m2l(self, moments, local, level):
        self.queue(f"m2l{level}")

    def l2p(self, parts, moments, local):
        self.queue("l2p")

    def exclusions(self, parts, out):
        """Part of p2p, which has the segments at hand that say where an
        excluded partner comes up."""

    def p2p(self, parts, near, out):
        self.queue("p2p")

    def gather(self, parts, out):
        self.queue("gather")
        return self._buffers["potentials"], self._buffers["fields"]
