"""Between parts and expansions: the stages p2m and l2p."""

import numpy as np

from fmm_openmm.backends.cuda.program import Builder

L2P_SHARED = 24 * 1024
"""Bytes of expansions a block of l2p may hold."""


def p2m(b: Builder) -> None:
    """Moments of the boxes, and the parts of each box in order."""
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
        "p2m", blocks, 128, np.int32(b.n), "count", regions, "arrived", "next", "located",
        "fraction", "slots", "parameters", "number", "start", "sorted", "place", "xq",
        b.of_leaves("moments"), "square",
    )  # fmt: skip
    b.record("sorted")


def l2p(b: Builder) -> None:
    """The far field at the parts."""
    b.stage("l2p", l2p=0)
    b.buffer("far", (b.parts, 4), b.real)
    b.wait("traced")
    small = b.n < 512 * b.device.multiprocessors
    boxes, warps = (8, 4) if small else (32, 1)
    while boxes * b.terms * b.real.itemsize > L2P_SHARED:
        boxes //= 2
    b.macros(L2P_WARPS=warps, L2P_BOXES=boxes)
    b.launch(
        "l2p",
        -(-b.boxes // boxes),
        128 * warps,
        "start",
        "xq",
        "slots",
        b.of_leaves("local"),
        "sums",
        "far",
    )
