"""The pipeline on the GPU as data: buffers, kernels and steps, which any executor can allocate, compile and queue.

A :class:`Program` is made once for a box lattice, an order, exclusions and a precision. The executors (CuPy in ``stages.py``,
C++ inside OpenMM's CUDA context) know nothing of the method; the stage functions below are its only description. What
changes between evaluations lies in the buffers of ``INPUTS``; everything else is written by the steps themselves.

Steps are queued in order, each on the stream it names; streams run side by side but for ``Record`` and ``Wait``. Stream 0 is
the caller's. A stage that uses other streams joins them to stream 0 where their results are needed.
"""

import struct
from dataclasses import dataclass, field

import numpy as np

from fmm_openmm.backends.cpu.exclusions import near_table, partners
from fmm_openmm.backends.cuda.operator import OFFSET_TILE, OPERATOR_WAVES, OperatorTables
from fmm_openmm.backends.cuda.source import source_of
from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.units import COULOMB_CONSTANT

SETUP = "operator"
"""Comes before all stages: what depends on the shape of the cell. Queued once, and again when the shape has changed. The stages
follow in the order of :data:`fmm_openmm.stages.STAGES`; inside OpenMM "export" comes after them."""

INPUTS = ("positions", "parameters", "charges")
"""Buffers the executor fills: (n, 3) nm, unless they are OpenMM's; :func:`parameter_block`; (n,) e."""

OUTPUTS = ("energy", "forces", "potentials", "fields")
"""Buffers that hold the results in OpenMM units: (1,), (n, 3), (n,), (n, 3)."""

PHASES = {"export": 1, SETUP: 2}
"""When an executor queues the steps of a stage: 0 at an evaluation, 1 to add its forces to OpenMM's, 2 before the first
evaluation and when ``parameters`` brings another shape."""

MAGIC, VERSION = b"FMMprog\0", 2
"""First bytes of a serialised program, and the version of its format."""

NEAR_SIDE, TRACE_SIDE = 1, 2
"""Streams beside the caller's: p2p needs only the sorted parts, the trace term only the moments."""

SCAN_TILE = 4096  # boxes a block of the scan
P2P_WARPS = 2  # boxes a block of p2p; few, so that none waits for others
P2P_SOURCES = 20 * 512  # bytes of sources a box of p2p may hold at a time: 32 times a whole number of sources
CONVOLVE_WARPS = 16  # a block of convolve
DFT_THREADS = 512
DFT_BOXES, DFT_LENGTH = 10000, 32  # largest grid, and length along an axis, that is not left to cuFFT
GATHER_BLOCK = 256


@dataclass(frozen=True)
class Device:
    """What the launches depend on.

    Attributes:
        multiprocessors: their number.
        shared: bytes of dynamic shared memory a block may ask for.
    """

    multiprocessors: int
    shared: int


@dataclass(frozen=True)
class Interface:
    """OpenMM's arrays, between which a program inside its CUDA context works.

    Attributes:
        precision: of the Context: "single", "mixed" or "double".
        padded: length of the arrays.
    """

    precision: str
    padded: int


@dataclass(frozen=True)
class Kernel:
    """An entry point of a kernel file; ``shared`` bytes of dynamic shared memory a block."""

    file: str
    shared: int = 0


@dataclass(frozen=True)
class Buffer:
    """Device memory of a shape and type, with initial contents or without; ``external`` if the executor has it already."""

    shape: tuple[int, ...]
    dtype: np.dtype
    data: np.ndarray | None = field(default=None, repr=False)
    external: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


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
    """A kernel; arguments are buffers (:class:`At`) and NumPy scalars."""

    kernel: str
    grid: tuple[int, int]
    block: int
    arguments: tuple


@dataclass(frozen=True)
class Memset(Step):
    """Zeros all of a buffer."""

    buffer: str


@dataclass(frozen=True)
class Transform(Step):
    """A batch of three-dimensional real FFTs, unnormalised: ``forward`` real (batch, shape) to half-complex, else back."""

    forward: bool
    source: str
    target: str


@dataclass(frozen=True)
class Record(Step):
    """Marks this point of the stream with the event of a name."""

    event: str


@dataclass(frozen=True)
class Wait(Step):
    """Holds the stream until the event of a name, if it was recorded, has passed."""

    event: str


@dataclass
class Program:
    """Kernels, buffers and steps of a pipeline.

    Attributes:
        macros: of all kernel files.
        kernels, buffers: by name.
        steps: in the order in which they are queued.
    """

    macros: dict[str, object] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def steps_of(self, stage: str) -> list[Step]:
        """The steps of one stage."""
        return [step for step in self.steps if step.stage == stage]

    @property
    def streams(self) -> int:
        """Number of streams, the caller's included."""
        return 1 + max(step.stream for step in self.steps)


class _Builder:
    """What the stage functions are given: the facts of the problem, and ways to add buffers, kernels and steps.

    Attributes:
        n, boxes, terms, parts: numbers of particles, of boxes, of terms of an expansion, and of parts at most.
        corners: parts a particle has at most.
        usual_parts: number of parts of evenly spread particles.
        real, complex: types of the far and near field.
    """

    def __init__(self, lattice: BoxLattice, order: int, smoothing: float, n: int, dtype, device: Device):
        self.lattice, self.order, self.smoothing, self.device = lattice, order, smoothing, device
        self.n, self.boxes, self.terms = n, lattice.size, (order + 1) ** 2
        self.corners = 8 if smoothing > 0 else 1
        self.parts = n * self.corners
        self.usual_parts = n * (1 + 2 * smoothing) ** 3
        self.real = np.dtype(dtype)
        self.complex = np.result_type(self.real, np.complex64)
        self.program = Program()
        self._stage = ""

    def stage(self, name: str, file: str | None = None, **shared: int) -> None:
        """Begin a stage: following steps belong to it, and its file has these kernels, with their dynamic shared memory."""
        self._stage = name
        self.program.kernels |= {kernel: Kernel(file or name, size) for kernel, size in shared.items()}

    def macros(self, **values) -> None:
        self.program.macros |= values

    def buffer(self, name: str, shape, dtype, external: bool = False) -> None:
        """A buffer that steps write before they read it, or one that belongs to OpenMM."""
        shape = (shape,) if np.isscalar(shape) else shape
        self.program.buffers[name] = Buffer(tuple(map(int, shape)), np.dtype(dtype), external=external)

    def table(self, name: str, values, dtype) -> None:
        """A buffer with initial contents."""
        data = np.ascontiguousarray(values, dtype)
        self.program.buffers[name] = Buffer(data.shape, data.dtype, data)

    def launch(self, kernel: str, grid, block: int, *arguments, stream: int = 0) -> None:
        """Arguments: names of buffers, :class:`At`, NumPy scalars."""
        grid = (grid, 1) if np.isscalar(grid) else grid
        arguments = tuple(At(a) if isinstance(a, str) else a for a in arguments)
        self._add(Launch, stream, kernel, tuple(map(int, grid)), block, arguments)

    def memset(self, buffer: str) -> None:
        self._add(Memset, 0, buffer)

    def transform(self, source: str, target: str) -> None:
        """Of a real buffer (batch, shape) to its half-complex one, or back."""
        self._add(Transform, 0, self.program.buffers[source].dtype == self.real, source, target)

    def record(self, event: str, stream: int = 0) -> None:
        self._add(Record, stream, event)

    def wait(self, event: str, stream: int = 0) -> None:
        self._add(Wait, stream, event)

    def _add(self, kind, *arguments) -> None:
        self.program.steps.append(kind(self._stage, *arguments))


def build(
    lattice: BoxLattice,
    order: int,
    smoothing: float,
    charges,
    pairs,
    minimum_image: bool,
    dtype,
    device: Device,
    interface: Interface | None = None,
) -> Program:
    """The program of one evaluation; arguments as for ``ReferenceStages``, the device's facts, and OpenMM's arrays if it is to
    run between these."""
    b = _Builder(lattice, order, smoothing, len(charges), dtype, device)
    _shared(b, charges, minimum_image)
    _operator(b)
    ticket = _sort(b, interface)
    _p2m(b)
    _lattice(b)
    _l2p(b)
    _p2p(b, pairs)
    _gather(b, ticket)
    if interface:
        _export(b, interface)
    return b.program


def parameter_block(counts: np.ndarray, boxes: np.ndarray, width: float) -> np.ndarray:
    """``Parameters`` of ``kernels/common/types.cuh``, shape (38,).

    Args:
        counts: integer matrix of the box lattice, shape (3, 3).
        boxes: box vectors over the mean box width, shape (3, 3).
        width: mean box width, nm.
    """
    inverse = np.linalg.inv(boxes)
    scales = [COULOMB_CONSTANT / width, COULOMB_CONSTANT / width**2]
    return np.concatenate(
        [(inverse / width).ravel(), boxes.ravel(), inverse.ravel(), scales, (counts @ boxes).ravel()]
    )  # fmt: skip


# what several stages use


def _shared(b: _Builder, charges, minimum_image: bool) -> None:
    counts = b.lattice.counts
    b.macros(
        REAL="float" if b.real == np.float32 else "double",
        POSITION="double",
        ORIGIN=ORIGIN,
        ORDER=b.order,
        SMOOTHED=int(b.smoothing > 0),
        SMOOTHING=repr(float(b.smoothing)),
        MINIMUM_IMAGE=int(minimum_image),
        NEAR=len(b.lattice.near),
        **{f"N{k}": int(counts[k, k]) for k in range(3)},
        **{f"C{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
    )
    b.buffer("parameters", 38, np.float64)
    b.table("charges", charges, b.real)
    b.table("slots", b.lattice.slots, np.int32)


# the stages


def _operator(b: _Builder) -> None:
    tables = OperatorTables.of(b.lattice, b.order, 1e-5 if b.real == np.float32 else 1e-12)
    waves, offsets, aliases = tables.waves, len(tables.offsets), len(tables.aliases)
    b.stage(SETUP, operator_weights=0, operator_terms=0)
    b.macros(ALPHA=float(tables.alpha), CUT=float(tables.cut), OPERATOR_WAVES=OPERATOR_WAVES, OFFSET_TILE=OFFSET_TILE)
    b.table("operator_offsets", tables.offsets, np.int32)
    b.table("operator_aliases", tables.aliases, np.int32)
    b.table("operator_group", tables.group, np.int32)
    b.buffer("operator_weights", (b.order + 1, offsets, 2 * b.order + 4, 2), np.float64)
    b.buffer("operator_vectors", (aliases, 3), np.float64)
    b.buffer("operator", ((2 * b.order + 1) ** 2, waves), b.real)
    b.buffer("shifts", (len(b.lattice.near), 4), b.real)
    threads = max((b.order + 1) * offsets, aliases, len(b.lattice.near))
    sizes = np.int32(offsets), np.int32(aliases)
    b.launch(
        "operator_weights", -(-threads // 64), 64, *sizes, "operator_offsets", "operator_aliases", "offsets", "parameters",
        "operator_weights", "operator_vectors", "shifts",
    )  # fmt: skip
    b.launch(
        "operator_terms", (-(-waves // OPERATOR_WAVES), b.order + 1), OPERATOR_WAVES, np.int32(waves), *sizes, "operator_group",
        "operator_offsets", "operator_weights", "operator_vectors", "parameters", "operator",
    )  # fmt: skip


def _sort(b: _Builder, interface: Interface | None) -> At:
    tiles = -(-b.boxes // SCAN_TILE)
    state = b.boxes + b.boxes % 2  # 64-bit words
    b.stage("sort", locate=0, scan=0, scatter=0)
    if interface:
        _openmm_arrays(b, interface)
    else:
        b.buffer("positions", (b.n, 3), np.float64)
    # zeroed together: the boxes' counts, the scan's states, the tickets of scan and gather
    b.buffer("zeroed", state + 2 * tiles + 4, np.int32)
    scan_ticket, gather_ticket = (At("zeroed", state + 2 * tiles + k) for k in range(2))
    b.buffer("located", (b.n, 4), np.int32)
    b.buffer("fraction", (b.n, 4), b.real)
    b.buffer("start", b.boxes + 1, np.int32)
    b.buffer("cursor", b.boxes, np.int32)
    b.buffer("number", b.parts, np.int32)
    particles = -(-b.n // 128)
    b.memset("zeroed")
    results = "parameters", "located", "fraction", "zeroed"
    if interface:
        b.launch("locate_atoms", particles, 128, np.int32(b.n), "posq", "posq_correction", "atom_index", *results)
    else:
        b.launch("locate", particles, 128, np.int32(b.n), "positions", *results)
    b.launch("scan", tiles, 1024, "zeroed", "start", "cursor", At("zeroed", state), scan_ticket)
    b.launch("scatter", particles, 128, np.int32(b.n), "located", "cursor", "number")
    return gather_ticket


def _p2m(b: _Builder) -> None:
    b.stage("p2m", p2m=0)
    b.buffer("sorted", b.parts, np.int32)
    b.buffer("place", b.parts, np.int32)
    b.buffer("slot_of", b.parts, np.int32)
    b.buffer("xq", (b.parts + 1, 4), b.real)
    b.buffer("moments", (b.terms, *b.lattice.fft_shape), b.real)
    lanes = 1 if b.boxes >= 64 * b.device.multiprocessors else 4
    blocks = -(-b.boxes * lanes // 32)
    b.macros(P2M_LANES=lanes)
    b.buffer("square", blocks, np.float64)
    b.launch(
        "p2m", blocks, 128, "start", "number", "located", "fraction", "charges", "slots", "parameters", "sorted", "place",
        "slot_of", "xq", "moments", "square",
    )  # fmt: skip
    b.record("sorted")


def _lattice(b: _Builder) -> None:
    shape = b.lattice.fft_shape
    half = (*shape[:2], shape[2] // 2 + 1)
    waves = int(np.prod(half))
    operator_terms = (2 * b.order + 1) ** 2
    size = b.real.itemsize * 32
    staged = (2 * b.terms + operator_terms) * size <= b.device.shared
    b.stage("lattice", convolve=(2 * b.terms + staged * operator_terms) * size, trace=0)
    b.macros(STAGED=int(staged), CONVOLVE_WARPS=CONVOLVE_WARPS, DFT_THREADS=DFT_THREADS)
    b.macros(**{f"D{k}": shape[k] for k in range(3)})
    b.buffer("spectrum", (b.terms, *half), b.complex)
    b.buffer("local_spectrum", (b.terms, *half), b.complex)
    b.buffer("local", (b.terms, *shape), b.real)
    b.buffer("sums", 5, np.float64)
    blocks, pairs = -(-waves // 32), (b.order + 1) * (b.order + 2) // 2
    share = min(-(-pairs // CONVOLVE_WARPS), max(1, -(-2 * b.device.multiprocessors // blocks)))
    dft = (2 * waves + sum(shape)) * b.complex.itemsize
    small = b.boxes <= DFT_BOXES and max(shape) <= DFT_LENGTH and dft <= b.device.shared
    if small:
        b.stage("lattice", file="dft", forward=dft, inverse=dft)
        b.launch("forward", b.terms, DFT_THREADS, "moments", "spectrum")
    else:
        b.transform("moments", "spectrum")
    b.record("transformed")
    b.wait("transformed", TRACE_SIDE)
    squares = np.int32(b.program.buffers["square"].shape[0])
    b.launch("trace", 1, 1024, "spectrum", np.int32(waves), "square", squares, "sums", stream=TRACE_SIDE)
    b.record("traced", TRACE_SIDE)
    b.launch(
        "convolve", (blocks, share), 32 * CONVOLVE_WARPS, np.int32(waves), "spectrum", "operator", "local_spectrum"
    )  # fmt: skip
    if small:
        b.launch("inverse", b.terms, DFT_THREADS, "local_spectrum", "local")
    else:
        b.transform("local_spectrum", "local")


def _l2p(b: _Builder) -> None:
    b.stage("l2p", l2p=0)
    b.buffer("far", (b.parts, 4), b.real)
    b.wait("traced")
    warps = 1 if b.n >= 512 * b.device.multiprocessors else 4
    b.macros(L2P_WARPS=warps)
    blocks = -(-b.usual_parts * warps // 128)  # the kernel goes on if there are more parts
    b.launch("l2p", blocks, 128, "start", "xq", "slot_of", "local", "sums", "far")


def _p2p(b: _Builder, pairs) -> None:
    lattice = b.lattice
    table, reach = near_table(lattice)
    start, partner = partners(pairs, b.n)
    # nearest boxes first: excluded partners are there
    order = np.argsort(np.linalg.norm(lattice.near @ lattice.boxes, axis=1), kind="stable")
    row_of = np.append(np.argsort(order), -1)[table]
    b.stage("p2p", p2p=0)
    b.macros(**{f"REACH{k}": int(reach[k]) for k in range(3)})
    # the sources of nearly every box at once, or in equal shares
    expected = len(lattice.near) * b.usual_parts / b.boxes
    many, most = expected + 2.5 * expected**0.5, P2P_SOURCES // (4 * b.real.itemsize)
    b.macros(P2P_WARPS=P2P_WARPS, WINDOW=32 * int(np.ceil(many / np.ceil(many / most) / 32)))
    b.table("offsets", np.pad(lattice.near[order], ((0, 0), (0, 1))), np.int32)
    b.table("row_of", row_of.transpose(2, 1, 0), np.int16)
    b.table("partner_start", start, np.int32)
    b.table("partner", partner, np.int32)
    b.buffer("near", (b.parts, 4), b.real)
    b.wait("sorted", NEAR_SIDE)
    b.launch(
        "p2p", -(-b.boxes // P2P_WARPS), 32 * P2P_WARPS, "start", "xq", "sorted", "place", "located", "fraction", "offsets",
        "shifts", "row_of", "partner_start", "partner", "parameters", "near", stream=NEAR_SIDE,
    )  # fmt: skip
    b.record("near", NEAR_SIDE)
    b.wait("near")


def _gather(b: _Builder, ticket: At) -> None:
    blocks = -(-b.n // GATHER_BLOCK)
    b.stage("gather", gather=0)
    b.buffer("potentials", b.n, b.real)
    b.buffer("fields", (b.n, 3), b.real)
    b.buffer("forces", (b.n, 3), b.real)
    b.buffer("partial", blocks, np.float64)
    b.buffer("energy", 1, np.float64)
    b.launch(
        "gather", blocks, GATHER_BLOCK, np.int32(b.n), "located", "fraction", "place", "charges", "far", "near", "parameters",
        "potentials", "fields", "forces", "partial", ticket, "energy",
    )  # fmt: skip


def _openmm_arrays(b: _Builder, interface: Interface) -> None:
    real = np.float64 if interface.precision == "double" else np.float32
    b.stage("sort", "openmm", locate_atoms=0, export_forces=0)
    b.macros(POSQ="double" if real == np.float64 else "float", CORRECTED=int(interface.precision == "mixed"))
    b.buffer("posq", (interface.padded, 4), real, external=True)
    b.buffer("posq_correction", (interface.padded, 4), real, external=True)
    b.buffer("atom_index", interface.padded, np.int32, external=True)
    b.buffer("force_buffer", (3, interface.padded), np.int64, external=True)


def _export(b: _Builder, interface: Interface) -> None:
    b.stage("export")
    b.launch(
        "export_forces", -(-b.n // 128), 128, np.int32(b.n), np.int32(interface.padded), "forces", "atom_index", "force_buffer"
    )  # fmt: skip


# serialisation


def serialise(program: Program) -> bytes:
    """A program as bytes, little-endian; integers are int64, strings and blocks have their length before them.

    ::

        magic, version
        sources:  count, then for each the file's name and its complete text
        kernels:  count, then for each its name, the number of its source, bytes of dynamic shared memory
        buffers:  count, then for each its name, bytes (0: the executor has it), and the block of its initial contents (empty:
                  none)
        streams, events:  counts
        steps:    count, then for each its kind, its phase, its stream and
                  0 launch     kernel, grid x, grid y, block, argument count, then for each argument
                               buffer and byte offset, or -1 and the scalar's bytes
                  1 memset     buffer
                  2 transform  forward, double, batch, three lengths, source, target
                  3 record     event
                  4 wait       event

    :data:`PHASES` tells the phases.
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
    kernels, buffers = list(program.kernels), list(program.buffers)
    events = sorted({step.event for step in program.steps if isinstance(step, Record)})
    put(VERSION, len(sources))
    for stage in sources:
        put(stage.encode(), source_of(stage, program.macros).encode())
    put(len(kernels))
    for name, kernel in program.kernels.items():
        put(name.encode(), sources.index(kernel.file), kernel.shared)
    put(len(buffers))
    for name, buffer in program.buffers.items():
        put(name.encode(), 0 if buffer.external else buffer.nbytes, b"" if buffer.data is None else buffer.data.tobytes())
    put(program.streams, len(events), len(program.steps))
    for step in program.steps:
        put((Launch, Memset, Transform, Record, Wait).index(type(step)), PHASES.get(step.stage, 0), step.stream)
        if isinstance(step, Launch):
            put(kernels.index(step.kernel), *step.grid, step.block, len(step.arguments))
            for argument in step.arguments:
                if isinstance(argument, At):
                    itemsize = program.buffers[argument.buffer].dtype.itemsize
                    put(buffers.index(argument.buffer), argument.element * itemsize)
                else:
                    put(-1, argument.tobytes())
        elif isinstance(step, Memset):
            put(buffers.index(step.buffer))
        elif isinstance(step, Transform):
            real = program.buffers[step.source if step.forward else step.target]
            put(step.forward, real.dtype.itemsize == 8, *real.shape)
            put(buffers.index(step.source), buffers.index(step.target))
        else:
            put(events.index(step.event))
    return b"".join(out)
