"""Evaluations on a GPU through CuPy, each queued as a whole without waiting for the device."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import cupy
import numpy as np

from fmm_openmm.arrays import is_on_device, to_host
from fmm_openmm.backends.cuda.charge_sets import CudaChargeSets, SetsRun
from fmm_openmm.backends.cuda.execute.cupy.exchange import Given, assign, contiguous
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import missing, out_of_memory
from fmm_openmm.backends.cuda.execute.cupy.graph import Call
from fmm_openmm.backends.cuda.execute.cupy.loader import device_name
from fmm_openmm.backends.cuda.frames import FrameQueue, QueuedFrame
from fmm_openmm.backends.cuda.groups import GroupsRun
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.setup_tables import serves
from fmm_openmm.backends.cuda.points import PointsRun
from fmm_openmm.backends.cuda.program import OUTPUTS, SETUP, Program
from fmm_openmm.backends.cuda.virial import fill_derivatives
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Evaluator
from fmm_openmm.units import COULOMB_CONSTANT

ORIGIN = (0.0, 0.0, 0.0)

SETS_KEPT = 3
"""Number of programs for sets of charges that are kept, the most recently used ones."""


class CudaEvaluator(Evaluator):
    """See :class:`fmm_openmm.stages.Evaluator`. Results stay on the device.

    Made for the current device, on which it stays; evaluations are queued on that device's current
    stream.

    Attributes:
        outputs: names of the buffers that ``compute`` returns.
        run: the program, whose graph evaluates the positions as they are.

    Raises:
        MemoryError: device memory does not suffice, at creation or later; the evaluator is then
            empty and of no more use.
        UnsupportedError: the kernels cannot be compiled or loaded, or cannot do these levels.
    """

    outputs: tuple[str, ...] = OUTPUTS

    def __init__(self, specification: Specification):
        super().__init__(specification)
        self._device = cupy.cuda.Device()
        self._program = self._build()
        self._attempt(self._make, missing)

    def _build(self) -> Program:
        return build(self.specification, current_device())

    @classmethod
    def device(cls) -> str:
        return device_name()

    def _make(self):
        self.run = Run(self._program)
        self.run.flags["force_sums"][...] = np.nan
        self._caller: cupy.cuda.Stream | None = None
        self._place: tuple[float, ...] | None = None
        self._parameters: np.ndarray | None = None
        self._set_up = False
        self._for_sets: OrderedDict[tuple[int, str], SetsRun] = OrderedDict()
        self._groups: GroupsRun | None = None
        self._frames: FrameQueue | None = None
        self._virial: VirialEvaluator | None = None
        self._points: tuple[int, PointsRun] | None = None
        buffers = [self.run.buffers[name] for name in self.outputs]
        self._kinds = [(each.shape, each.dtype) for each in buffers]
        # the last stage, gather, writes to new arrays
        self._before_gather = tuple(stage for stage in self.run.stages if stage != "gather")
        self._gather = self.run.writer("gather", *self.outputs)

    def _attempt(self, work, explain=None):
        """The result of ``work()``.

        A lack of memory is raised as a MemoryError, another failure as the error that ``explain``
        returns for it, if any. Of the original error, which holds arrays, only the text is kept.
        The traceback of the new one holds this evaluator, which is therefore emptied.
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

    def set_charges(self, charges):
        super().set_charges(charges)
        buffer = self.run.buffers["charges"]
        with self.on_device():
            if is_on_device(charges):
                assign(buffer, charges)
            else:
                buffer.set(np.asarray(charges, buffer.dtype))
        if self._virial:
            self._virial.set_charges(charges)

    def adopt(self, specification: Specification) -> bool:
        if not serves(self.specification, specification):
            return False
        self.lattice, self._place, self._set_up = specification.lattice, None, False
        if self._virial and not self._virial.adopt(specification):
            self._virial = None
        return True

    @property
    def with_virial(self) -> "VirialEvaluator":
        """The evaluator of the same boxes and charges that computes the virial too, made on first
        use."""
        if self._virial is None:
            charges = to_host(self.charges)
            wanted = replace(self.specification, lattice=self.lattice, charges=charges)
            with self._device:
                self._virial = VirialEvaluator(wanted)
        return self._virial

    def compute(self, positions, width: float, origin=ORIGIN):
        """Queue an evaluation on the current stream.

        Args:
            positions: shape (n, 3), nm.
            width: mean box width, nm.
            origin: what open boxes take for the origin, shape (3,), nm.

        Returns:
            energy (1,), forces (n, 3), potentials (n,), fields (n, 3) in OpenMM units, on the
            device.
        """
        with self._device:
            return self._attempt(lambda: self._compute(positions, width, origin))

    def _compute(self, positions, width: float, origin) -> tuple[cupy.ndarray, ...]:
        """The results in new arrays, which are allocated while the device computes and which its
        last kernel writes."""
        self._queue(self._reading(positions), width, origin, *self._before_gather)
        results = tuple(cupy.ndarray(*kind) for kind in self._kinds)
        self._gather(*(each.data.ptr for each in results))
        return results

    def _evaluate(self, positions, width: float) -> dict[str, cupy.ndarray]:
        """The buffers after an evaluation, which the next one overwrites."""
        self.queue(self._reading(positions), width)
        return self.run.buffers

    def _reading(self, positions) -> Callable[[Run], Call]:
        """The argument ``fill`` of :meth:`queue` for positions, shape (n, 3), nm."""
        x = contiguous(positions, np.float64, np.float32)
        given = Given(len(x), x.itemsize, self.run.buffers["charges"].itemsize)
        return lambda run: given.take(run.buffers, x.data.ptr)

    def queue(self, fill: Callable[[Run], Call | None], width: float, origin=ORIGIN) -> None:
        """Queue an evaluation of the buffers of :attr:`run`, and leave the results there.

        Args:
            fill: called with :attr:`run`; queues what is new in the buffers "positions" and
                "charges" on the current stream, or returns the launch of a kernel that writes it.
            width, origin: as in :meth:`compute`.
        """
        with self._device:
            self._attempt(lambda: self._queue(fill, width, origin))

    def queue_frame(
        self, positions: np.ndarray, width: float, largest: float, names: Sequence[str]
    ) -> QueuedFrame:
        """Queue an evaluation of positions on the host, shape (n, 3), nm, float32 or float64, and
        copies of these buffers; see :class:`fmm_openmm.backends.cuda.frames.FrameQueue`."""
        with self._device:
            return self._attempt(lambda: self._queue_frame(positions, width, largest, names))

    def _queue_frame(self, positions, width: float, largest: float, names) -> QueuedFrame:
        self._follow()
        parameters = self.parameters(width, ORIGIN)
        if not self._set_up:
            self._place_boxes(parameters)
        self._parameters = parameters  # which the first kernel writes
        return self.frames.queue(positions, parameters, largest, names)

    @property
    def frames(self) -> FrameQueue:
        """The memory of queued frames, made on first use."""
        if self._frames is None:
            self._frames = FrameQueue(self.run)
        return self._frames

    def _queue(self, fill, width: float, origin, *stages: str) -> None:
        self._follow()
        self._place_boxes(self.parameters(width, origin))
        self.run.replay(*stages, first=fill(self.run))

    def _place_boxes(self, parameters: np.ndarray) -> None:
        """Queue what depends on the place, the size and the shape of the boxes."""
        if parameters is not self._parameters:
            self.run.buffers["parameters"].set(parameters)
            self._parameters = parameters
        if not self._set_up:
            self._shape()
            self._set_up = True

    def _shape(self):
        """Queue what depends on the shape of the cell."""
        self.run.queue(SETUP)

    def parameters(self, width: float, origin) -> np.ndarray:
        """The parameter block of the boxes; the same object as long as they stay where they are."""
        place = width, *origin
        if place != self._place:
            self._place, self._block = place, parameter_block(self.lattice, width, origin)
        return self._block

    def on_device(self) -> AbstractContextManager:
        """Context manager in which the evaluator's device is the current one. Its current stream
        waits for the stream of the previous caller, who uses the same buffers."""
        with self._device:
            self._follow()
        return self._device

    def _follow(self):
        caller = cupy.cuda.get_current_stream()
        if self._caller not in (None, caller):
            caller.wait_event(self._caller.record())
        self._caller = caller

    @property
    def force_sums(self) -> tuple[float, float, float]:
        """Sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, in units of charges and box widths, of the last
        evaluation that the device has completed; NaN before the first."""
        return tuple(self.run.flags["force_sums"].tolist())

    def wait(self) -> None:
        """Wait until the device has completed the last evaluation."""
        with self.on_device():
            cupy.cuda.get_current_stream().synchronize()

    def copy_charges(self) -> np.ndarray:
        """The charges of the last evaluation, shape (n,), e, float64, on the host."""
        with self.on_device():
            return self.run.buffers["charges"].get().astype(np.float64)

    def for_sets(self, sets: int, wanted: str) -> SetsRun:
        """The program for a number of sets of charges; ``wanted`` as in
        :func:`fmm_openmm.backends.cuda.pipeline.sets.build_sets`."""
        key, kept = (sets, wanted), self._for_sets
        if key not in kept:
            while len(kept) >= SETS_KEPT:
                kept.popitem(last=False)
            kept[key] = SetsRun(self.specification, sets, wanted)
        kept.move_to_end(key)
        return kept[key]

    def for_groups(self, group: np.ndarray) -> GroupsRun:
        """The program for the energies among groups; the most recent one is kept."""
        if self._groups is None or not np.array_equal(self._groups.group, group):
            self._groups = None
            self._groups = GroupsRun(self.specification, group)
        return self._groups

    def charge_sets(self, positions, width, origin=(0.0, 0.0, 0.0)):
        """See :meth:`fmm_openmm.stages.Evaluator.charge_sets`; positions on the device, too."""
        if self.specification.levels:
            return super().charge_sets(positions, width)
        return CudaChargeSets(self, positions, width, origin)

    def compute_at(self, points):
        """Queue the evaluation of points among the particles of the last evaluation; there must be
        no levels.

        Args:
            points: shape (m, 3), nm, on the host or the device.

        Returns:
            potentials (m,) and fields (m, 3) in OpenMM units, on the device; not finite at a point
            that lies on a charge.
        """
        with self.on_device():
            points = cupy.asarray(points, np.float64)
            if self._points is None or self._points[0] != len(points):
                self._points = None
                run = PointsRun(self.specification, len(points), self.run.buffers)
                self._points = len(points), run
            return self._points[1].evaluate(points, self._block)

    def evaluate_at(self, positions, points, width):
        """See :meth:`fmm_openmm.stages.HostStages.evaluate_at`."""
        with self._device:
            self._evaluate(positions, width)
            return self._in_boxes(*self.compute_at(points), width)

    def evaluate(self, positions, width):
        """Potentials and fields, on the host as the positions are."""
        with self._device:
            found = self._evaluate(positions, width)
            return self._in_boxes(found["potentials"], found["fields"], width)

    @staticmethod
    def _in_boxes(potentials, fields, width) -> tuple[np.ndarray, np.ndarray]:
        """Potentials and fields on the host, in units of the box width."""
        scale = width / COULOMB_CONSTANT
        return (
            potentials.get().astype(np.float64) * scale,
            fields.get().astype(np.float64) * (scale * width),
        )

    def evaluate_with_virial(
        self, positions: np.ndarray, width: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :meth:`fmm_openmm.stages.HostStages.evaluate_with_virial`."""
        potentials, fields = self.with_virial.evaluate(positions, width)
        virial = self.with_virial.run.buffers["virial"].get() * (width / COULOMB_CONSTANT)
        return potentials, fields, virial - np.eye(3) * (np.trace(virial) / 3)


class VirialEvaluator(CudaEvaluator):
    """An evaluator whose program also computes the virial, (3, 3) float64, kJ/mol. Takes boxes
    without levels that fill a periodic cell, or an open boundary."""

    outputs = (*OUTPUTS, "virial")

    def _build(self):
        return build(self.specification, current_device(), with_virial=True)

    def _shape(self):
        super()._shape()
        derivatives = self.run.buffers["operator_derivatives"]
        fill_derivatives(derivatives, self.lattice, self.specification.order)
