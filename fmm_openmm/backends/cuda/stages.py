"""The stages on the GPU: buffers, launches, and the graph that replays them.

All work of an evaluation is queued without waiting for the device. The first evaluation launches the stages one by one
through ``driver.evaluate``; the same calls, captured once, are then replayed as a CUDA graph. p2p needs only the sorted parts
and runs on a stream of its own beside the far field.
"""

from contextlib import contextmanager

import cupy
import numpy as np
from cupy.cuda import cufft

from fmm_openmm.backends.cpu.exclusions import near_table, partners
from fmm_openmm.backends.cuda.loader import load
from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.driver import evaluate
from fmm_openmm.expansions.harmonics import gradient
from fmm_openmm.expansions.lattice import lattice_operator
from fmm_openmm.stages import Stages
from fmm_openmm.units import COULOMB_CONSTANT

SCAN_TILE = 4096  # boxes a block of the scan
STATIC_SHARED = 48 * 1024  # bytes of static shared memory a block may have
P2P_WARPS = 4  # boxes a block in p2p
GATHER_BLOCK = 256


def gradient_table(order: int) -> np.ndarray:
    """For every axis and term b the two terms a with ``d R_a / d axis = factor R_b + ...``, and the factors.

    Returns:
        shape (3, order^2, 4) int32: two terms, two factors as float32 bits.
    """
    matrix = gradient(order)
    terms, factors = np.zeros((3, order * order, 2), np.int32), np.zeros((3, order * order, 2), np.float32)
    for axis in range(3):
        for b in range(order * order):
            for k, a in enumerate(np.flatnonzero(matrix[axis, :, b])):
                terms[axis, b, k], factors[axis, b, k] = a, matrix[axis, a, b]
    return np.concatenate([terms, factors.view(np.int32)], -1)


class CudaStages(Stages):
    """See :class:`fmm_openmm.stages.Stages`; arguments as for ``ReferenceStages``. Results stay on the device.

    Made for the current device; ``compute`` queues on the current stream and copies its argument to ``positions``.
    """

    def __init__(self, lattice: BoxLattice, order: int, smoothing: float, charges, pairs, minimum_image: bool, dtype):
        self.lattice, self.order, self.dtype = lattice, order, np.dtype(dtype)
        self.n, self.boxes, self.terms = len(charges), lattice.size, (order + 1) ** 2
        self.corners = 8 if smoothing > 0 else 1
        self.device = cupy.cuda.Device()
        self._multiprocessors = self.device.attributes["MultiProcessorCount"]
        self._compile(smoothing, minimum_image)
        self._allocate(charges, pairs)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._sorted, self._transformed = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._near_side, self._trace_side = (
            (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)) for _ in range(2)
        )
        self._graph = None
        self._width = None

    def _compile(self, smoothing, minimum_image):
        counts = self.lattice.counts
        self._row_of, reach = near_table(self.lattice)
        operator_terms = (2 * self.order + 1) ** 2
        size = self.dtype.itemsize * 32
        limit = self.device.attributes["MaxSharedMemoryPerBlockOptin"]
        staged = (2 * self.terms + operator_terms) * size <= limit
        self._convolve_shared = (2 * self.terms + (operator_terms if staged else 0)) * size
        expansion = (self.terms + 3 * self.order**2 + 1) * self.dtype.itemsize
        self._groups = next(groups for groups in (16, 8, 4) if groups * expansion <= STATIC_SHARED)
        macros = {
            "GROUPS": self._groups,
            "REAL": "float" if self.dtype == np.float32 else "double",
            "POSITION": "double",
            "ORIGIN": ORIGIN,
            "ORDER": self.order,
            "SMOOTHED": int(smoothing > 0),
            "SMOOTHING": repr(float(smoothing)),
            "STAGED": int(staged),
            "MINIMUM_IMAGE": int(minimum_image),
            "NEAR": len(self.lattice.near),
            **{f"N{k}": int(counts[k, k]) for k in range(3)},
            **{f"REACH{k}": int(reach[k]) for k in range(3)},
            **{f"C{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
        }
        kernels = {"sort": ("locate", "scan", "scatter"), "p2m": ("p2m",), "lattice": ("convolve", "trace")}
        kernels |= {"l2p": ("l2p",), "p2p": ("p2p",), "gather": ("gather",)}
        self._kernel = {}
        for stage, names in kernels.items():
            module = load(stage, macros)
            self._kernel |= {name: module.get_function(name) for name in names}
        self._kernel["convolve"].max_dynamic_shared_size_bytes = self._convolve_shared

    def _allocate(self, charges, pairs):
        n, boxes, real = self.n, self.boxes, self.dtype
        parts = n * self.corners
        start, partner = partners(pairs, n)
        accuracy = 1e-10 if real == np.float32 else 1e-17
        operator = lattice_operator(self.lattice, self.order, accuracy).reshape((2 * self.order + 1) ** 2, -1) / boxes
        tiles = -(-boxes // SCAN_TILE)
        self.positions = cupy.empty((n, 3))
        self._charges = cupy.asarray(charges, real)
        self._parameters = cupy.empty(38)
        self._partner_start, self._partner = cupy.asarray(start, np.int32), cupy.asarray(partner, np.int32)
        near = np.zeros((len(self.lattice.near), 4))
        near[:, :3] = self.lattice.near
        self._offsets = cupy.asarray(near, np.int32)
        near[:, :3] = self.lattice.near @ self.lattice.boxes
        self._shifts = cupy.asarray(near, real)
        self._row_of = cupy.asarray(np.ascontiguousarray(self._row_of.transpose(2, 1, 0)), np.int16)
        self._gradient = cupy.asarray(gradient_table(self.order))
        self._operator = cupy.asarray(operator, real)
        self._slots = cupy.asarray(self.lattice.slots, np.int32)
        self._located, self._fraction = cupy.empty((n, 4), np.int32), cupy.empty((n, 4), real)
        # zeroed together at the start of every evaluation: the boxes' counts, the scan's states, two tickets and padding
        self._zeroed = cupy.empty(boxes + boxes % 2 + 2 * tiles + 4, np.int32)
        self._count = self._zeroed[:boxes]
        self._scan_state = self._zeroed[boxes + boxes % 2 : boxes + boxes % 2 + 2 * tiles]
        self._scan_ticket, self._gather_ticket = self._zeroed[-4:-3], self._zeroed[-3:-2]
        self._start, self._cursor = cupy.empty(boxes + 1, np.int32), cupy.empty(boxes, np.int32)
        self._number, self._order_of = cupy.empty(parts, np.int32), cupy.empty(parts, np.int32)
        self._place = cupy.empty(parts, np.int32)
        self._xq, self._far, self._near = (cupy.empty((parts, 4), real) for _ in range(3))
        self._square, self._sums = cupy.empty(boxes), cupy.empty(5)
        complex_type = np.complex64 if real == np.float32 else np.complex128
        shape = self.lattice.fft_shape
        self._moments = cupy.empty((self.terms, *shape), real)
        half_shape = (self.terms, *shape[:2], shape[2] // 2 + 1)
        self._spectrum, self._local_spectrum = cupy.empty(half_shape, complex_type), cupy.empty(half_shape, complex_type)
        self._local = cupy.empty_like(self._moments)
        single = real == np.float32
        half = half_shape[1:]
        sizes = (int(np.prod(shape)), int(np.prod(half)))
        self._forward = cufft.PlanNd(
            shape, shape, 1, sizes[0], half, 1, sizes[1], cufft.CUFFT_R2C if single else cufft.CUFFT_D2Z,
            self.terms, "C", 3, half[2],
        )  # fmt: skip
        self._inverse = cufft.PlanNd(
            shape, half, 1, sizes[1], shape, 1, sizes[0], cufft.CUFFT_C2R if single else cufft.CUFFT_Z2D,
            self.terms, "C", 3, shape[2],
        )  # fmt: skip
        self._potentials, self._fields = cupy.empty(n, real), cupy.empty((n, 3), real)
        self._forces, self._energy = cupy.empty((n, 3), real), cupy.empty(1)
        self._partial = cupy.empty(-(-n // GATHER_BLOCK))

    def set_charges(self, charges):
        self._charges.set(np.asarray(charges, self.dtype))

    def compute(self, positions, width: float):
        """Queue an evaluation on the current stream.

        Args:
            positions: shape (n, 3), nm, on the device.
            width: mean box width, nm.

        Returns:
            energy (1,), forces (n, 3), potentials (n,), fields (n, 3) in OpenMM units, on the device; overwritten by the
            next evaluation.
        """
        if width != self._width:
            self._set_width(width)
        self.positions[...] = positions
        if self._graph is None:
            evaluate(self, self.positions, width)  # compiles, and sets up what must not happen during capture
            with self._stream:
                self._stream.begin_capture()
                evaluate(self, self.positions, width)
                self._graph = self._stream.end_capture()
        self.replay()
        return self._energy, self._forces, self._potentials, self._fields

    def replay(self):
        """Queue an evaluation of ``positions`` as they are, once :meth:`compute` has made the graph."""
        self._graph.launch(cupy.cuda.get_current_stream())

    def evaluate(self, positions, width):
        """See :meth:`fmm_openmm.stages.Stages.evaluate`; positions and results are on the host."""
        _, _, potentials, fields = self.compute(cupy.asarray(positions), width)
        scale = width / COULOMB_CONSTANT
        return potentials.get().astype(np.float64) * scale, fields.get().astype(np.float64) * (scale * width)

    def _set_width(self, width):
        boxes = self.lattice.boxes
        inverse = np.linalg.inv(boxes)
        scale = [COULOMB_CONSTANT / width, COULOMB_CONSTANT / width**2]
        cell = self.lattice.counts @ boxes
        self._parameters.set(np.concatenate([(inverse / width).ravel(), boxes.ravel(), inverse.ravel(), scale, cell.ravel()]))
        self._width = width

    def _launch(self, name, blocks, threads, *arguments, shared=0):
        self._kernel[name]((int(blocks),), (threads,), arguments, shared_mem=shared)

    # the stages

    def sort(self, positions, width):
        n, blocks = np.int32(self.n), -(-self.n // 128)
        self._zeroed.data.memset_async(0, self._zeroed.nbytes)
        self._launch("locate", blocks, 128, n, positions, self._parameters, self._located, self._fraction, self._count)
        tiles = -(-self.boxes // SCAN_TILE)
        self._launch(
            "scan", tiles, 1024, self._count, self._start, self._cursor, self._scan_state, self._scan_ticket
        )  # fmt: skip
        self._launch("scatter", blocks, 128, n, self._located, self._cursor, self._number)

    def p2m(self, parts):
        self._launch(
            "p2m", -(-self.boxes // self._groups), 8 * self._groups, self._start, self._number, self._located,
            self._fraction, self._charges, self._slots, self._parameters, self._order_of, self._place, self._xq,
            self._moments, self._square,
        )  # fmt: skip
        self._sorted.record()

    def lattice_m2l(self, moments):
        waves = self._operator.shape[1]
        blocks, pairs = -(-waves // 32), (self.order + 1) * (self.order + 2) // 2
        share = min(-(-pairs // 8), max(1, -(-2 * self._multiprocessors // blocks)))
        self._forward.fft(self._moments, self._spectrum, cufft.CUFFT_FORWARD)
        self._transformed.record()
        with self._beside(self._transformed, self._trace_side):
            self._launch("trace", 1, 1024, self._spectrum, np.int32(waves), self._square, self._sums)
        self._kernel["convolve"](
            (blocks, share), (256,), (np.int32(waves), self._spectrum, self._operator, self._local_spectrum),
            shared_mem=self._convolve_shared,
        )  # fmt: skip
        self._inverse.fft(self._local_spectrum, self._local, cufft.CUFFT_INVERSE)

    def l2p(self, parts, moments, local):
        cupy.cuda.get_current_stream().wait_event(self._trace_side[1])
        self._launch(
            "l2p", -(-self.boxes // self._groups), 8 * self._groups, self._start, self._xq, self._slots, self._local,
            self._gradient, self._sums, self._far,
        )  # fmt: skip

    def exclusions(self, parts, out):
        """Part of p2p, which has the segments at hand that say where an excluded partner comes up."""

    def p2p(self, parts, near, out):
        with self._beside(self._sorted, self._near_side):
            self._launch(
                "p2p", -(-self.boxes // P2P_WARPS), 32 * P2P_WARPS, self._start, self._xq, self._order_of, self._place,
                self._located, self._fraction, self._offsets, self._shifts, self._row_of, self._partner_start, self._partner,
                self._parameters, self._near,
            )  # fmt: skip
        cupy.cuda.get_current_stream().wait_event(self._near_side[1])

    @contextmanager
    def _beside(self, after, side):
        """Launches inside run on the stream of ``side``, once the event ``after`` has passed; its event marks their end."""
        stream, done = side
        with stream:
            stream.wait_event(after)
            yield
            done.record(stream)

    def gather(self, parts, out):
        blocks = -(-self.n // GATHER_BLOCK)
        self._launch(
            "gather", blocks, GATHER_BLOCK, np.int32(self.n), self._located, self._fraction, self._place, self._charges,
            self._far, self._near, self._parameters, self._potentials, self._fields, self._forces, self._partial,
            self._gather_ticket, self._energy,
        )  # fmt: skip
        return self._potentials, self._fields
