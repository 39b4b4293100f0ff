"""From particles to parts sorted by box, and back: the stages sort and gather, and OpenMM's arrays on both sides."""

import numpy as np

from fmm_openmm.backends.cuda.program import At, Builder, Interface

SCAN_TILE = 4096
"""Boxes a block of the scan."""

GATHER_BLOCK = 256


def sort(b: Builder, interface: Interface | None) -> At:
    """Parts of particles, by box. Returns the ticket of gather, which is zeroed here."""
    tiles = -(-b.boxes // SCAN_TILE)
    state = b.boxes + b.boxes % 2  # 64-bit words
    b.stage("sort", locate=0, scan=0, scatter=0)
    if interface:
        _openmm_arrays(b, interface)
    else:
        b.buffer("positions", (b.n, 3), np.float64)
    # zeroed together: the boxes' counts, the scan's states, the tickets of scan and gather
    b.buffer("zeroed", state + 2 * tiles + 4, np.int32)
    scan_ticket, gather_ticket = (At("zeroed", state + 2 * tiles + k) for k in range(2))
    b.buffer("located", (b.n, 4), np.int32)
    b.buffer("fraction", (b.n, 4), b.real)
    b.buffer("start", b.boxes + 1, np.int32)
    b.buffer("cursor", b.boxes, np.int32)
    b.buffer("number", b.parts, np.int32)
    particles = -(-b.n // 128)
    b.memset("zeroed")
    results = "parameters", "located", "fraction", "zeroed"
    if interface:
        b.launch("locate_atoms", particles, 128, np.int32(b.n), "posq", "posq_correction", "atom_index", *results)
    else:
        b.launch("locate", particles, 128, np.int32(b.n), "positions", *results)
    b.launch("scan", tiles, 1024, "zeroed", "start", "cursor", At("zeroed", state), scan_ticket)
    b.launch("scatter", particles, 128, np.int32(b.n), "located", "cursor", "number")
    return gather_ticket


def gather(b: Builder, ticket: At) -> None:
    """The results of the parts to those of the particles."""
    blocks = -(-b.n // GATHER_BLOCK)
    b.stage("gather", gather=0)
    b.buffer("potentials", b.n, b.real)
    b.buffer("fields", (b.n, 3), b.real)
    b.buffer("forces", (b.n, 3), b.real)
    b.buffer("partial", blocks, np.float64)
    b.buffer("energy", 1, np.float64)
    b.launch(
        "gather", blocks, GATHER_BLOCK, np.int32(b.n), "located", "fraction", "place", "charges", "far", "near", "parameters",
        "potentials", "fields", "forces", "partial", ticket, "energy",
    )  # fmt: skip


def export(b: Builder, interface: Interface) -> None:
    """The forces to OpenMM's."""
    b.stage("export")
    b.launch(
        "export_forces", -(-b.n // 128), 128, np.int32(b.n), np.int32(interface.padded), "forces", "atom_index", "force_buffer"
    )  # fmt: skip


def _openmm_arrays(b: Builder, interface: Interface) -> None:
    real = np.float64 if interface.precision == "double" else np.float32
    b.stage("sort", "openmm", locate_atoms=0, export_forces=0)
    b.macros(POSQ="double" if real == np.float64 else "float", CORRECTED=int(interface.precision == "mixed"))
    b.buffer("posq", (interface.padded, 4), real, external=True)
    b.buffer("posq_correction", (interface.padded, 4), real, external=True)
    b.buffer("atom_index", interface.padded, np.int32, external=True)
    b.buffer("force_buffer", (3, interface.padded), np.int64, external=True)
