"""The pipeline on the GPU as data: buffers, kernels and steps, which any executor can allocate,
compile and queue.

A :class:`Program` is made once for a box lattice, an order, exclusions and a precision. The
executors (CuPy in ``execute/cupy/``, C++ inside OpenMM's CUDA context) know nothing of the method,
which the package ``pipeline`` describes. What changes between evaluations lies in the buffers of
``INPUTS``; everything else is written by the steps themselves.

Steps are queued in order, each on the stream it names; streams run side by side but for ``Record``
and ``Wait``. Stream 0 is the caller's. A stage that uses other streams joins them to stream 0 where
their results are needed. :data:`BACKGROUND` yields to all others.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

SETUP = "operator"
"""Name of the set-up, which computes what depends on the shape of the cell. It is queued before the
first evaluation, and again when the shape has changed. The other stages follow in the order of
:data:`fmm_openmm.stages.STAGES`; inside OpenMM "export" can take the place of "gather"."""

BACKGROUND = 1
"""The stream of lower priority than the others: its work fills what they leave idle, in a CUDA
graph as well."""

WAITING = frozenset(
    {"p2m", "convolve", "convolve_mirrored"}
    | {f"{way}{part}" for way in ("forward", "inverse") for part in ("", "_planes", "0", "1")}
)
"""Kernels that call ``wait_for_previous_kernel`` (kernels/common/dependency.cuh) before they access
memory. Inside OpenMM their launch overlaps the end of the previous kernel (programmatic dependent
launch)."""

ALIGNMENT = 256
"""Bytes. Buffers within another buffer begin at multiples of it, like buffers of their own."""

INPUTS = ("positions", "parameters", "charges")
"""Buffers the executor fills: (n, 3) nm, unless they are OpenMM's;
``pipeline.description.parameter_block``; (n,) e. Inside OpenMM also "placement" of a slab or wire:
:class:`fmm_openmm.backends.cuda.abi.Placement`; and "cell_offsets" for a dipole term: see
``pipeline.term``."""

OUTPUTS = ("energy", "forces", "potentials", "fields")
"""Buffers that hold the results in OpenMM units: (1,), (n, 3), (n,), (n, 3). In the CPU's memory
"force_sums" holds the sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, as of
:class:`fmm_openmm.planning.forces.ForceLimits`, of the last evaluation completed. Inside OpenMM the
forces are added to OpenMM's, there are no fields, and "sums" holds the energy among others
(:class:`fmm_openmm.backends.cuda.abi.Sums`). There the executor may set "potentials_wanted" to 0:
then sums and potentials are left as they are."""


class Phase:
    """When the executor inside OpenMM queues the steps of a stage."""

    SETUP = "setup"
    """Before the first evaluation, and when ``parameters`` brings another shape."""

    AHEAD, EVALUATE = "ahead", "evaluate"
    """At an evaluation; the first holds steps that set a flag which the executor must see early."""

    FAR, NEAR = "far", "near"
    """After these, if several devices share the work: the far field after the moments, on one of
    them, and the near field."""

    EXPORT, GATHER = "export", "gather"
    """At the end of an evaluation, with and without forces."""

    LIST, SEARCH = "list", "search"
    """A new order of Lennard-Jones sites where the list of their pairs is outdated, and the search
    for neighbours where it is not part of another phase."""

    FORCES, ENERGY, BOTH = "forces", "energy", "both"
    """After the list: forces, energy or both, as requested."""


@dataclass(frozen=True)
class Device:
    """The properties of a device that launches depend on.

    Attributes:
        multiprocessors: number of multiprocessors.
        shared: bytes of dynamic shared memory a block may ask for.
    """

    multiprocessors: int
    shared: int


@dataclass(frozen=True)
class Interface:
    """OpenMM's arrays, between which a program inside its CUDA context works.

    Attributes:
        precision: precision of the Context: "single", "mixed" or "double".
        padded: length of the arrays.
        turned: whether the program's coordinates are others than OpenMM's, as those of wires.
    """

    precision: str
    padded: int
    turned: bool = False


@dataclass(frozen=True)
class Share:
    """Boxes whose parts get results: the share of a device among several. What a particle gets from
    all shares adds up to its results.

    Attributes:
        first, end: the boxes first to end - 1, until the executor writes others to "share", (2, 2):
            those with a near field, and those with a far field.
        most: the largest number of boxes that it may write.
    """

    first: int
    end: int
    most: int


@dataclass(frozen=True)
class Kernel:
    """An entry point of a kernel file; ``shared`` bytes of dynamic shared memory per block."""

    file: str
    shared: int = 0


@dataclass(frozen=True)
class Buffer:
    """Device memory of a shape and type, with or without initial contents.

    Its ``kind`` is "own"; "external" for an array that exists already; or "flag" for numbers in the
    CPU's memory that kernels set and the executor reads. It may lie ``within`` another buffer, from
    a byte on, and use that memory while the other one does not.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    data: np.ndarray | None = field(default=None, repr=False)
    kind: str = "own"
    within: tuple[str, int] | None = None

    @property
    def external(self) -> bool:
        """Whether others than the program may write it."""
        return self.kind != "own"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class At:
    """A kernel argument: the address of an element of a buffer, counted in its flattened form."""

    buffer: str
    element: int = 0


@dataclass(frozen=True)
class Step:
    """Something to queue: the stage it belongs to, and its stream."""

    stage: str
    stream: int


@dataclass(frozen=True)
class Launch(Step):
    """A kernel and its arguments, buffers (:class:`At`) and NumPy scalars. The blocks of a
    ``cooperative`` launch wait for each other, so all of them must be resident together."""

    kernel: str
    grid: tuple[int, int, int]
    block: int
    arguments: tuple
    cooperative: bool = False


@dataclass(frozen=True)
class Memset(Step):
    """Sets all bytes of a buffer to 0."""

    buffer: str


@dataclass(frozen=True)
class Record(Step):
    """Marks this point of the stream with the event of a name."""

    event: str


@dataclass(frozen=True)
class Wait(Step):
    """Makes the stream wait for an event, if the event was recorded."""

    event: str


@dataclass
class Program:
    """Kernels, buffers and steps of a pipeline.

    Attributes:
        macros: macros that all kernel files share.
        kernels, buffers: kernels and buffers by name.
        steps: steps in the order in which they are queued.
        phases: phases of stages by name, if other than :attr:`Phase.EVALUATE`.
    """

    macros: dict[str, object] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=lambda: {SETUP: Phase.SETUP})

    def steps_of(self, stage: str) -> list[Step]:
        """The steps of one stage."""
        return [step for step in self.steps if step.stage == stage]

    def phase_of(self, step: Step) -> str:
        """Phase in which the executor inside OpenMM queues a step."""
        return self.phases.get(step.stage, Phase.EVALUATE)

    @property
    def shaped(self) -> list[str]:
        """Buffers in which the steps of :data:`SETUP` leave what depends on the shape of the
        cell. An executor that keeps their contents returns to a shape without these steps. None
        in programs that do not have ``parameters``."""
        if "parameters" not in self.buffers:
            return []
        setup, later = (
            {
                argument.buffer
                for step in self.steps
                if isinstance(step, Launch) and (step.stage == SETUP) == is_setup
                for argument in step.arguments
                if isinstance(argument, At)
            }
            for is_setup in (True, False)
        )
        return [
            name
            for name, buffer in self.buffers.items()
            if name in setup & later - {*INPUTS} and buffer.data is None
        ]

    @property
    def streams(self) -> int:
        """Number of streams, the caller's included."""
        return 1 + max(step.stream for step in self.steps)


class ProgramBuilder:
    """Ways to add buffers, kernels and steps to a program."""

    def __init__(self):
        self.program = Program()
        self._stage = ""

    def stage(
        self, name: str, file: str | None = None, phase: str | None = None, /, **shared: int
    ) -> None:
        """Begin a stage: following steps belong to it.

        Args:
            name: name of the stage.
            file: file of its kernels, without ".cu"; that of the stage's name by default.
            phase: when OpenMM's executor queues the stage (:class:`Phase`).
            shared: kernels of the file, each with the bytes of its dynamic shared memory.
        """
        self._stage = name
        if phase:
            self.program.phases[name] = phase
        self.program.kernels |= {
            kernel: Kernel(file or name, size) for kernel, size in shared.items()
        }

    def macros(self, **values) -> None:
        self.program.macros |= values

    def buffer(self, name: str, shape, dtype, external: bool = False) -> None:
        """A buffer that steps write before they read it, or one that belongs to OpenMM."""
        shape = (shape,) if np.isscalar(shape) else shape
        self.program.buffers[name] = Buffer(
            tuple(map(int, shape)), np.dtype(dtype), kind="external" if external else "own"
        )

    def share_memory(self, host: str, *groups: tuple[str, ...]) -> None:
        """Place groups of buffers within the one-dimensional buffer ``host``, which is enlarged if
        necessary. ``host`` and each of the groups must be used at different times."""
        buffers = self.program.buffers
        most = buffers[host].nbytes
        for group in groups:
            end = 0
            for name in group:
                buffers[name] = replace(buffers[name], within=(host, end))
                end += -(-buffers[name].nbytes // ALIGNMENT) * ALIGNMENT
            most = max(most, end)
        dtype = buffers[host].dtype
        buffers[host] = replace(buffers[host], shape=(-(-most // dtype.itemsize),))

    def flag(self, name: str, number: int = 1, dtype=np.int32) -> None:
        """Numbers in the CPU's memory that kernels set."""
        self.program.buffers[name] = Buffer((number,), np.dtype(dtype), kind="flag")

    def table(self, name: str, values, dtype) -> None:
        """A buffer with initial contents."""
        data = np.ascontiguousarray(values, dtype)
        self.program.buffers[name] = Buffer(data.shape, data.dtype, data)

    def launch(
        self, kernel: str, grid, block: int, *arguments, stream: int = 0, cooperative: bool = False
    ) -> None:
        """Append the launch of a kernel; arguments are names of buffers, :class:`At` or NumPy
        scalars."""
        grid = (grid,) if np.isscalar(grid) else grid
        arguments = tuple(At(a) if isinstance(a, str) else a for a in arguments)
        self._add(
            Launch, stream, kernel, (*map(int, grid), 1, 1)[:3], block, arguments, cooperative
        )

    def memset(self, buffer: str, stream: int = 0) -> None:
        self._add(Memset, stream, buffer)

    def record(self, event: str, stream: int = 0) -> None:
        self._add(Record, stream, event)

    def wait(self, event: str, stream: int = 0) -> None:
        self._add(Wait, stream, event)

    def _add(self, kind, *arguments) -> None:
        self.program.steps.append(kind(self._stage, *arguments))
