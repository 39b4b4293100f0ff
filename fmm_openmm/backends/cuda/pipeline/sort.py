"""The stage sort: from particles to parts listed by box."""

from ctypes import sizeof

import numpy as np

from fmm_openmm.backends.cuda.abi import Placement
from fmm_openmm.backends.cuda.pipeline.builder import TRACE_SIDE, Builder
from fmm_openmm.backends.cuda.program import SETUP, At, Interface, Phase
from fmm_openmm.expansions.error import leaders
from fmm_openmm.stages import Parts

REGIONS = 2048
"""Maximum number of counts that a block of p2m adds up to find where its parts begin."""


def clears_counts_late(b: Builder, interface: Interface | None) -> bool:
    """Whether counts are zeroed after their last use, concurrently with other stages, instead of at
    the beginning of an evaluation. This requires that evaluations are queued as a whole: no stage
    is repeated, left out or queued alone."""
    return interface is not None and not b.lattice.is_padded and not b.share


def clear_counts(b: Builder) -> None:
    """Zero the counts, which p2m has read, after the trace term and before gather. In a graph a
    memset has no priority: it waits until all blocks of p2p have begun, for which the trace term
    must not wait."""
    b.wait("sorted", TRACE_SIDE)
    b.memset("count", TRACE_SIDE)
    b.record("cleared", TRACE_SIDE)
    b.wait("cleared")


def sort(b: Builder, pairs, minimum_image: bool, interface: Interface | None) -> Parts[str]:
    """Parts of particles, listed by box; p2m puts them in order.

    Where boxes cover only the particles, the flag "outside" tells whether a particle lies in no
    box. Inside OpenMM the executor reads it.
    """
    is_padded = b.lattice.is_padded
    b.stage(SETUP)
    b.memset("arrived")  # a box's last entry is read before it is written, though not used then
    if clears_counts_late(b, interface):
        b.memset("count")
    b.stage("sort", survey=0, **{"locate_inside" if is_padded else "locate": 0})
    if interface:
        _openmm_arrays(b, interface)
    if is_padded or not interface:
        b.buffer("positions", (b.n, 3), np.float64)
    lists(b)
    particles = -(-b.n // 128)
    if not clears_counts_late(b, interface):
        b.memset("count")
    n, atoms = np.int32(b.n), ("posq", "posq_correction", "atom_index")
    results = "charges", "parameters", "located", "fraction", "count", "arrived", "next"
    if is_padded:
        b.table("leaders", leaders(b.n, pairs, minimum_image), np.int32)
        if interface:
            b.stage("sort", "sort", Phase.AHEAD)
            b.flag("outside")
            if b.lattice.boundary.is_partial:
                b.launch(
                    "bring_together", particles, 128, n, *atoms, "placement", "positions", "outside"
                )
            else:
                b.launch("bring_positions", particles, 128, n, *atoms, "positions")
        outside = "outside" if interface else At("count", b.boxes + 1)
        b.launch("locate_inside", particles, 128, n, "positions", "leaders", *results, outside)
    elif interface:
        b.launch("locate_atoms", particles, 128, n, *atoms, *results)
    else:
        b.launch("locate", particles, 128, n, "positions", *results)
    return survey(b)


def lists(b: Builder) -> None:
    """Add the buffers of located particles and of the lists of parts."""
    listed = max(32, 8 * int(np.ceil((b.crowd + 4 * b.crowd**0.5) / 8)))
    b.macros(REGION=_region(b), LISTED=listed)
    # the last ones are the ticket of gather, and whether a particle is outside
    b.buffer("count", b.boxes + 2, np.int32)
    b.buffer("located", (b.n, 4), np.int32)
    b.buffer("fraction", (b.n, 4), b.real)
    b.buffer("arrived", (b.boxes, listed), np.int32)
    b.buffer("next", b.parts, np.int32)


def survey(b: Builder) -> Parts[str]:
    """Count the parts of regions of boxes. Returns the parts."""
    if _region(b) > 1:
        regions = -(-b.boxes // _region(b))
        b.buffer("region_count", regions, np.int32)
        b.launch("survey", -(-regions // 4), 128, "count", "region_count")
    return Parts(
        particle="sorted", x="xq", charge="xq", weight="fraction", slope="fraction", box="located",
        start="start",
    )  # fmt: skip


def _region(b: Builder) -> int:
    """Boxes whose parts are counted together."""
    return 1 if b.boxes <= REGIONS else 32 * -(-b.boxes // (32 * REGIONS))


def _openmm_arrays(b: Builder, interface: Interface) -> None:
    real = np.float64 if interface.precision == "double" else np.float32
    if not b.lattice.is_padded:
        kernel = "locate_atoms"
    elif not b.lattice.boundary.is_partial:
        kernel = "bring_positions"
    else:
        kernel = "bring_together"
        b.buffer("placement", sizeof(Placement) // 8, np.float64)
    b.stage("sort", "openmm", **{kernel: 0})
    b.macros(
        POSQ="double" if real == np.float64 else "float",
        CORRECTED=int(interface.precision == "mixed"),
    )
    b.buffer("posq", (interface.padded, 4), real, external=True)
    b.buffer("posq_correction", (interface.padded, 4), real, external=True)
    b.buffer("atom_index", interface.padded, np.int32, external=True)
    b.buffer("force_buffer", (3, interface.padded), np.int64, external=True)
