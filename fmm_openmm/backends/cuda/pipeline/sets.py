"""Several sets of charges of the same particles as one program: the particles are sorted once, and
what depends on distances alone is computed once for all sets."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.description import Description, builder, described
from fmm_openmm.backends.cuda.pipeline.gather import GATHER_BLOCK
from fmm_openmm.backends.cuda.pipeline.lattice import convolve, transform_moments
from fmm_openmm.backends.cuda.pipeline.p2m import p2m
from fmm_openmm.backends.cuda.pipeline.p2p import list_near
from fmm_openmm.backends.cuda.program import BACKGROUND, Device, Program
from fmm_openmm.specification import Specification

MOST_SETS = 8
"""Sets of charges that are evaluated together: their sums fill the registers of p2p."""

SORTING = ("sort", "p2m")
"""The stages that depend on the positions alone."""

SUMMING = ("p2m_sets", "lattice", "l2p", "p2p")
"""The stages that depend on the charges, too, before "gather" writes the results."""

RESULTS = {
    "matrix": ("matrix",),
    "potentials": ("potentials", "fields", "forces"),
    "fields": ("potentials", "fields", "forces"),
}
"""Buffers of the results, by what is wanted."""

P2M_BYTES = 76 * 1024
"""Bytes of shared memory of a block of p2m_sets, as far as that is possible: three of them fit on a
multiprocessor."""


class SetsDescription(Description):
    """The stages for the sets of charges in "sets", shape (n, sets), e.

    Args:
        fields: whether fields are computed, or potentials alone.
    """

    def __init__(self, b: Builder, specification: Specification, fields: bool = False):
        super().__init__(b, specification, None)
        self._quads, self._results = -(-b.sets // 4), b.sets * (4 if fields else 1)
        b.macros(FIELDS=int(fields))
        b.buffer("sets", (b.n, b.sets), b.real)

    def p2m(self, parts):
        b = self._b
        moments = p2m(b, parts)
        boxes, chunk, shared = self._p2m_shape()
        b.macros(SETS_BOXES=boxes, SETS_CHUNK=chunk)
        b.stage("p2m_sets", share_charges=0, p2m_sets=shared)
        b.buffer("part_charges", (self._quads, b.parts + 1, 4), b.real)
        b.buffer("square", (b.sets, b.boxes), np.float64)
        b.launch(
            "share_charges", -(-(b.parts + 1) // 128), 128, np.int32(b.n), parts.start,
            parts.particle, parts.box, parts.weight, "parameters", "sets", "part_charges",
        )  # fmt: skip
        b.record("sorted")
        b.launch(
            "p2m_sets", -(-b.boxes // boxes), 256, np.int32(b.n), parts.start, parts.x,
            "part_charges", "slots", "background", moments, "square",
        )  # fmt: skip
        return moments

    def _p2m_shape(self) -> tuple[int, int, int]:
        """Boxes of a block of p2m_sets, parts whose harmonics it holds, and bytes of both."""
        b, shapes = self._b, [(8, 64), (8, 32), (4, 32), (4, 16), (2, 16), (2, 8), (1, 8), (1, 4)]
        for boxes, chunk in shapes:
            values = b.terms * (b.sets * boxes + chunk + 1) + 4 * self._quads * chunk
            if values * b.real.itemsize <= P2M_BYTES:
                break
        return boxes, chunk, values * b.real.itemsize

    def p2p(self, parts, near, out):
        b = self._b
        b.stage("p2p", "p2p_sets", p2p_sets=0)
        list_near(b, 4 * (1 + self._quads))
        b.buffer("near", (b.parts, self._results), b.real)
        b.wait("sorted", BACKGROUND)
        b.launch(
            "p2p_sets", b.boxes, 64, np.int32(b.n), parts.start, parts.x, "part_charges",
            parts.particle, "place", parts.box, parts.weight, "offsets", "shifts", near.offset,
            near.start, near.part, "parameters", "near", stream=BACKGROUND,
        )  # fmt: skip
        b.record("near", BACKGROUND)
        b.wait("near")
        out.append("near")

    def gather(self, parts, out):
        b = self._b
        b.stage("gather", "gather_sets", gather_sets=0)
        results = RESULTS["fields"]
        for name, shape in zip(results, ((), (3,), (3,)), strict=True):
            b.buffer(name, (b.sets, b.n, *shape), b.real)
        b.launch(
            "gather_sets", -(-b.n // 32), 32 * b.sets, np.int32(b.n), parts.start, parts.box,
            parts.weight, "place", *out, "parameters", "sets", *results,
        )  # fmt: skip
        return "potentials", "fields"


class MatrixDescription(SetsDescription):
    """The stages for the matrix of the sets alone: no potential of the far field is needed."""

    def lattice_m2l(self, moments):
        transform_moments(self._b)
        convolve(self._b, "spectrum", "local_spectrum")
        return "local_spectrum"

    def l2p(self, parts, moments, local):
        return [local]

    def gather(self, parts, out):
        b, (local, near) = self._b, out
        values = int(np.prod(b.program.buffers[local].shape[1:]))
        blocks = min(2 * b.device.multiprocessors, -(-values // GATHER_BLOCK))
        b.stage("gather", "gather_matrix", gather_matrix=0)
        b.table("limit", [np.inf], np.float64)
        b.table("ticket", [0], np.int32)
        b.buffer("partial", (blocks, b.sets * (b.sets + 3) // 2), np.float64)
        b.buffer("matrix", (b.sets, b.sets), np.float64)
        b.launch(
            "gather_matrix", blocks, GATHER_BLOCK, np.int32(b.n), parts.start, "part_charges", near,
            "limit", "spectrum", local, "square", "background", "parameters", "partial", "ticket",
            "matrix",
        )  # fmt: skip
        return "matrix", "matrix"


def build_sets(specification: Specification, device: Device, sets: int, wanted: str) -> Program:
    """The program for a number of sets of charges, without levels below the root grid.

    Args:
        wanted: "matrix", "potentials", or "fields" with potentials; the results are in the buffers
            :data:`RESULTS`. Of the matrix, potentials of the near field beyond the buffer "limit",
            e per box width, are NaN.

    Raises:
        UnsupportedError: see :func:`fmm_openmm.backends.cuda.pipeline.description.build`.
    """
    b = builder(specification, device, sets)
    if wanted == "matrix":
        return described(b, MatrixDescription(b, specification))
    return described(b, SetsDescription(b, specification, wanted == "fields"))
