"""Between parts and expansions: the stages p2m and l2p."""

import numpy as np

from fmm_openmm.backends.cuda.program import Builder


def p2m(b: Builder) -> None:
    """Moments of the boxes, and the parts of each box in order."""
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


def l2p(b: Builder) -> None:
    """The far field at the parts."""
    b.stage("l2p", l2p=0)
    b.buffer("far", (b.parts, 4), b.real)
    b.wait("traced")
    warps = 1 if b.n >= 512 * b.device.multiprocessors else 4
    b.macros(L2P_WARPS=warps)
    blocks = -(-b.usual_parts * warps // 128)  # the kernel goes on if there are more parts
    b.launch("l2p", blocks, 128, "start", "xq", "slot_of", "local", "sums", "far")
