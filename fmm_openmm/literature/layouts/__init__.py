r"""P2P with several memory layouts of the sources, chosen by name, for parts in a periodic lattice
of boxes.

    Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3
    j: all parts but i in the near boxes of i's box

``indexed``     sources stay in place and are found through the list of near boxes
                (``kernels/literature/p2p_indexed.cu``)
``replicated``  the sources of every box are first copied into one contiguous stream
                (``kernels/literature/p2p_replicated.cu``)

Both share one loop over targets (``kernels/literature/targets.cuh``), and both are reproducible bit
for bit. This module describes the layouts and needs no GPU; ``measure`` runs them through CuPy and
times them, ``model`` predicts their times.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fmm_openmm.backends.cuda.program import At, Buffer, Kernel, Launch, Memset, Program
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import BoxLattice, index_grid
from fmm_openmm.errors import UnsupportedError

LAYOUTS = ("indexed", "replicated")

PASS_TARGETS = 4
"""Maximum targets that a warp keeps in registers."""

PASS_WARPS = 4
"""Warps per block of P2P."""

COPY_WARPS, COPY_BOXES = 8, 16
"""Warps and maximum boxes per block of ``replicate``."""

PARTS_PER_COPY_BLOCK = 64
"""Approximate number of parts in the boxes of a block of ``replicate``, so that each thread copies
several sources: seven with 27 near boxes."""

MOST_NEAR = (48 * 1024 // (4 * COPY_BOXES) - 3) // 2
"""Maximum boxes in the near stencil, whose lists must fit into shared memory."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Boxes with parts, and their near boxes.

    Attributes (m parts, b boxes):
        start: parts of box i are ``start[i]:start[i + 1]``, shape (b + 1,) int32.
        near: numbers of the near boxes of every box, its own first, shape (b, k) int32.
        shift: their displacements from the box, shape (k, 3) float64, box widths; 0 first.
    """

    start: np.ndarray
    near: np.ndarray
    shift: np.ndarray

    @classmethod
    def from_lattice(cls, lattice: BoxLattice, start: np.ndarray) -> "Neighbourhood":
        """Make the neighbourhood of a periodic lattice with parts as in
        :attr:`fmm_openmm.stages.Parts.start`.

        Raises:
            UnsupportedError: the lattice is not periodic, or its near stencil too large.
        """
        if lattice.is_padded:
            raise UnsupportedError("layouts of P2P need a periodic lattice, got an open one")
        if len(lattice.near) > MOST_NEAR:
            raise UnsupportedError(
                f"layouts of P2P support at most {MOST_NEAR} near boxes, got {len(lattice.near)}"
            )
        offsets = lattice.near[np.argsort(lattice.near.any(1), kind="stable")]
        return cls(start.astype(np.int32), _numbers(lattice, offsets), offsets @ lattice.boxes)

    @property
    def parts(self) -> int:
        return int(self.start[-1])

    @property
    def boxes(self) -> int:
        return len(self.near)

    @property
    def density(self) -> float:
        """Mean number of parts per box."""
        return self.parts / self.boxes

    @cached_property
    def sources(self) -> int:
        """Number of sources, summed over the boxes: the total length of all streams."""
        return int(np.diff(self.start)[self.near].sum(dtype=np.int64))


def _numbers(lattice: BoxLattice, offsets: np.ndarray) -> np.ndarray:
    """Numbers of the boxes at each offset from each box, shape (boxes, offsets) int32, from slices
    of a grid with margins."""
    n, margin = np.diag(lattice.counts), np.abs(offsets).max(0)
    grid = lattice.linear(index_grid(-margin, n + margin)).astype(np.int32)
    out = np.empty((lattice.size, len(offsets)), np.int32)
    for k, begin in enumerate(offsets + margin):
        out[:, k] = grid[
            tuple(slice(b, b + m) for b, m in zip(begin[::-1], n[::-1], strict=True))
        ].ravel()
    return out


def program(layout: str, neighbourhood: Neighbourhood, dtype) -> Program:
    """A program for P2P with a layout.

    It reads the buffer "xq", shape (m, 4) of the dtype: positions relative to box centres, box
    widths, and charges, e, of whole particles. It overwrites "results", of the same shape and
    dtype: potentials in e per box width, fields in e per square box width. Stages: "copy", unless
    there is nothing to copy, and "p2p".

    Raises:
        ValueError: there is no layout of that name.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    real = np.dtype(dtype)
    boxes, near = neighbourhood.near.shape
    share = max(1, int(np.ceil(neighbourhood.density / PASS_TARGETS)))

    def table(values, dtype):
        data = np.ascontiguousarray(values, dtype)
        return Buffer(data.shape, data.dtype, data)

    kernel = f"p2p_{layout}"
    macros = {"NEAR": near, "PASS_TARGETS": PASS_TARGETS, "PASS_WARPS": PASS_WARPS}
    macros |= {"REAL": real_type(real), "COPY_WARPS": COPY_WARPS, "COPY_BOXES": COPY_BOXES}
    built = Program(macros, {kernel: Kernel(kernel)})
    built.buffers |= {
        "start": table(neighbourhood.start, np.int32),
        "near": table(neighbourhood.near, np.int32),
        "shift": table(np.pad(neighbourhood.shift, ((0, 0), (0, 1))), real),
        "xq": Buffer((neighbourhood.parts, 4), real),
        "results": Buffer((neighbourhood.parts, 4), real),
    }
    if layout == "indexed":
        sources: tuple[str, ...] = ("near", "shift")
    else:
        built.kernels["replicate"] = Kernel(kernel)
        built.buffers |= {
            "taken": Buffer((1,), np.dtype(np.uint64)),
            "begin": Buffer((boxes,), np.dtype(np.int64)),
            "length": Buffer((boxes,), np.dtype(np.int32)),
            "stream": Buffer((neighbourhood.sources, 4), real),
        }
        group = 2 ** int(
            np.log2(np.clip(PARTS_PER_COPY_BLOCK / max(neighbourhood.density, 1.0), 1, COPY_BOXES))
        )
        names = "start", "near", "shift", "xq", "taken", "begin", "length", "stream"
        arguments = np.int32(boxes), np.int32(group), *map(At, names)
        built.steps += [
            Memset("copy", 0, "taken"),
            Launch("copy", 0, "replicate", (-(-boxes // group), 1, 1), 32 * COPY_WARPS, arguments),
        ]
        sources = "begin", "length", "stream"
    arguments = np.int32(boxes), np.int32(share), *map(At, ("start", *sources, "xq", "results"))
    built.steps.append(
        Launch(
            "p2p", 0, kernel, (-(-boxes * share // PASS_WARPS), 1, 1), 32 * PASS_WARPS, arguments
        )
    )
    return built
