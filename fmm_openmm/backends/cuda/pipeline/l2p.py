"""The stage l2p: from local expansions to the far field at the parts."""

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.stages import Parts

L2P_SHARED = 24 * 1024
"""Bytes of expansions a block of l2p may hold."""


def l2p(b: Builder, parts: Parts[str], local: str) -> list[str]:
    """The far field at the parts."""
    b.stage("l2p", l2p=0)
    b.buffer("far", (b.sets, b.parts, 4), b.real)
    b.wait("traced")
    small = b.n < 512 * b.device.multiprocessors
    boxes, warps = (8, 4) if small else (32, 1)
    while boxes * b.terms * b.real.itemsize > L2P_SHARED:
        boxes //= 2
    b.macros(L2P_WARPS=warps, L2P_BOXES=boxes)
    b.launch(
        "l2p", (-(-b.targets // boxes), b.sets), 128 * warps, parts.start, parts.x, "slots", local,
        "trace", "far", "share",
    )  # fmt: skip
    return ["far"]
