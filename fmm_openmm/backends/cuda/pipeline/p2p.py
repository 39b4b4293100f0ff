"""The stage p2p: the near field, exclusions included."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.program import BACKGROUND
from fmm_openmm.backends.pairs import near_table, partners
from fmm_openmm.box import BoxLattice
from fmm_openmm.stages import NearExclusions, Parts

P2P_BLOCK = 64
"""Threads of a block of p2p, which owns a box: two warps."""

P2P_SOURCES, P2P_BYTES = 1024, 24 * 1024
"""Maximum number of sources that a block of p2p holds at a time, and their maximum bytes."""

WORK_SUMS = 6
"""Sums of a warp for the virial, as in ``kernels/common/p2p_work.cuh``."""


def nearest_first(lattice: BoxLattice) -> np.ndarray:
    """The near stencil by distance, shape (m, 3): excluded partners are in the first boxes."""
    return lattice.near[
        np.argsort(np.linalg.norm(lattice.near @ lattice.boxes, axis=1), kind="stable")
    ]


def exclusions(b: Builder, pairs) -> NearExclusions[str]:
    """Add the tables of excluded partners, for p2p, which also subtracts the pairs that are not
    near."""
    start, partner = partners(pairs, b.n, itself_first=True)
    list_offsets(b)
    b.table("partner_start", start, np.int32)
    b.table("partner", partner, np.int32)
    return NearExclusions(start="partner_start", part="partner", offset="row_of")


def list_offsets(b: Builder) -> None:
    """Add the table that finds an offset between boxes in the near stencil."""
    row_of, reach = near_table(nearest_first(b.lattice))
    b.macros(**{f"REACH{k}": int(reach[k]) for k in range(3)})
    b.table("row_of", row_of.transpose(2, 1, 0), np.int32)


def list_near(b: Builder, values: int) -> None:
    """Add the table of the near stencil, and choose the number of sources, of so many values each,
    that a block holds in shared memory: those of nearly every box, or equal shares of them."""
    stencil = nearest_first(b.lattice)
    expected = len(stencil) * b.crowd
    many = expected + 2.5 * expected**0.5
    most = min(P2P_SOURCES, P2P_BYTES // (values * b.real.itemsize))
    b.macros(WINDOW=32 * int(np.ceil(many / np.ceil(many / most) / 32)))
    b.table("offsets", np.pad(stencil, ((0, 0), (0, 1))), np.int32)


def p2p(
    b: Builder, parts: Parts[str], near: NearExclusions[str], out: list[str], copies: tuple = ()
) -> None:
    """The near field at the parts. Records the event "near". It needs only the parts, so it runs
    concurrently with the far field.

    Args:
        copies: with COPIES, the arguments of the kernel by which it finds excluded partners.
    """
    b.stage("p2p", p2p=0)
    list_near(b, 4)
    b.table("potentials_wanted", [1], np.int32)
    b.buffer("near", (b.parts, 4), b.real)
    if b.virial:
        b.buffer("near_work", (b.boxes, 2, WORK_SUMS), b.real)
    b.wait("sorted", BACKGROUND)
    b.launch(
        "p2p", b.targets, P2P_BLOCK, np.int32(b.n), parts.start, parts.x, parts.particle, "place",
        parts.box, parts.weight, "offsets", "shifts", near.offset, near.start, near.part,
        *copies, "parameters", "potentials_wanted", *["near_work"] * b.virial, "near", "share",
        stream=BACKGROUND,
    )  # fmt: skip
    b.record("near", BACKGROUND)
    out.append("near")
