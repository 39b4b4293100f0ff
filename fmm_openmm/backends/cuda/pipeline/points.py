"""Points that are not particles as a program: they are sorted like particles, and then take the
local expansions and the sources that the program of the particles has left."""

from dataclasses import replace

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.description import Description, builder, described
from fmm_openmm.backends.cuda.pipeline.lattice import TRACE_TERMS
from fmm_openmm.backends.cuda.pipeline.p2p import list_near
from fmm_openmm.backends.cuda.program import BACKGROUND, Device, Program
from fmm_openmm.specification import Specification
from fmm_openmm.stages import NearExclusions

SOURCES = {"source_start": "start", "source_xq": "xq"} | {
    name: name for name in ("local", "trace", "shifts")
}
"""Buffers of the particles' program that the points' program takes, by their names in it."""

THREADS = 128
"""Threads of a block of p2p_points."""


class PointsDescription(Description):
    """The stages at points, without levels; those of the moments are left out."""

    def __init__(self, b: Builder, specification: Specification, particles: int):
        self._b, self._pairs, self._interface = b, specification.exclusions, None
        self._minimum_image, self._tables = False, None
        b.buffer("source_start", b.boxes + 1, np.int32, external=True)
        b.buffer("source_xq", (particles * b.corners + 1, 4), b.real, external=True)
        b.buffer("local", (1, b.terms, *b.root.fft_shape), b.real, external=True)
        b.buffer("trace", (1, TRACE_TERMS), np.float64, external=True)
        b.buffer("shifts", (len(b.lattice.near), 4), b.real, external=True)

    def lattice_m2l(self, moments):
        self._b.record("traced")
        return "local"

    def exclusions(self, parts, out):
        return NearExclusions(start="", part="", offset="")

    def p2p(self, parts, near, out):
        b = self._b
        b.stage("p2p", "p2p_points", p2p_points=0)
        list_near(b, 4)
        reach = np.abs(b.lattice.near).max(0)
        b.macros(**{f"REACH{axis}": int(reach[axis]) for axis in range(3)})
        b.buffer("near", (b.parts, 4), b.real)
        b.wait("sorted", BACKGROUND)
        b.launch(
            "p2p_points", b.boxes, THREADS, parts.start, parts.x, "source_start", "source_xq",
            "offsets", "shifts", "near", stream=BACKGROUND,
        )  # fmt: skip
        b.record("near", BACKGROUND)
        b.wait("near")
        out.append("near")


def build_points(specification: Specification, device: Device, points: int) -> Program:
    """The program for a number of points among the particles of an evaluator without levels.

    Raises:
        UnsupportedError: see :func:`fmm_openmm.backends.cuda.pipeline.description.build`.
    """
    wanted = replace(specification, charges=np.zeros(points), exclusions=np.zeros((0, 2), int))
    b = builder(wanted, device)
    return described(b, PointsDescription(b, wanted, len(specification.charges)))
