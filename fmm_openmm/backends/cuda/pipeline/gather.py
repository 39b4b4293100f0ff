"""The stage gather: from the results of parts to those of particles."""

from ctypes import sizeof

import numpy as np

from fmm_openmm.backends.cuda.abi import Sums
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.term import Term, add_term
from fmm_openmm.backends.cuda.pipeline.virial import virial
from fmm_openmm.backends.cuda.program import At, Interface, Phase
from fmm_openmm.expansions.operators.derivatives import GENERATORS
from fmm_openmm.stages import Parts

GATHER_BLOCK = 256


def gather(
    b: Builder,
    parts: Parts[str],
    out: list[str],
    interface: Interface | None,
    term: Term | None = None,
) -> tuple[str, str]:
    """Sum the results of the parts to those of the particles. Inside OpenMM the stage "export"
    takes its place in steps that need forces, and adds these to OpenMM's, by way of a buffer if
    they are in other coordinates. ``term`` is added to the results. All
    :class:`fmm_openmm.backends.cuda.abi.Sums` are computed with the energy."""
    blocks, ticket = -(-b.n // GATHER_BLOCK), At("count", b.boxes)  # zeroed with the counts
    b.stage("gather", "gather", Phase.GATHER, **{"gather_atoms" if interface else "gather": 0})
    b.buffer("potentials", b.n, b.real)
    number = sizeof(Sums) // 8
    strain = virial(b, parts) if b.virial else ()
    b.buffer("partial", (blocks, number + (len(GENERATORS) if b.virial else 0)), np.float64)
    common = (
        np.int32(b.n), parts.box, parts.weight, "place", *out, "parameters", "charges",
        "potentials", "partial", ticket,
    )  # fmt: skip
    if interface:
        b.buffer("sums", number, np.float64)
        padded = np.int32(interface.padded)
        added = "turned_forces" if interface.turned else "force_buffer"
        ours = *common, "sums", "atom_index", added, padded
        last = "potentials_wanted", parts.start, "share"
        for forces in (False, True):
            if forces:
                b.stage("export", "export", Phase.EXPORT)
                if interface.turned:
                    b.memset(added)
            b.launch("gather_atoms", blocks, GATHER_BLOCK, *ours, np.int32(forces), *last)
            if term:
                add_term(b, term, added, padded, forces)
        if interface.turned:
            b.stage("export", "openmm", turn_forces=0)
            b.buffer(added, (3, interface.padded), np.int64)
            b.launch(
                "turn_forces", -(-b.n // 128), 128, np.int32(b.n), "placement", added,
                "force_buffer", padded,
            )  # fmt: skip
    else:
        b.buffer("energy", 1, np.float64)
        b.flag("force_sums", number - 1, np.float64)
        b.buffer("fields", (b.n, 3), b.real)
        b.buffer("forces", (b.n, 3), b.real)
        b.launch(
            "gather", blocks, GATHER_BLOCK, *common, "energy", "force_sums", "fields", "forces",
            *strain, parts.start, "share",
        )  # fmt: skip
    return "potentials", "fields"
