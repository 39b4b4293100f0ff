"""The stage p2m: from parts, sorted by it, to moments of the boxes."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.stages import Parts


def p2m(b: Builder, parts: Parts[str]) -> str:
    """Moments of the boxes, and the parts of each box in order."""
    moments = f"moments{b.levels}" if b.levels else "moments"
    b.stage("p2m", p2m=0)
    b.buffer("number", b.parts, np.int32)
    b.buffer("start", b.boxes + 1, np.int32)
    b.buffer("sorted", b.parts, np.int32)
    b.buffer("place", b.parts, np.int32)
    b.buffer("xq", (b.parts + 1, 4), b.real)
    lanes = 2 if b.boxes >= 64 * b.device.multiprocessors else 8
    blocks = -(-b.boxes * lanes // 32)
    b.macros(P2M_LANES=lanes)
    b.buffer("square", blocks, np.float64)
    # regions of one box
    regions = "region_count" if "region_count" in b.program.buffers else "count"
    b.launch(
        "p2m", blocks, 128, np.int32(b.n), "count", regions, "arrived", "next", parts.box,
        parts.weight, "slots", "parameters", "background", "number", parts.start, parts.particle,
        "place", parts.x, moments, "square",
    )  # fmt: skip
    b.record("sorted")
    return moments
