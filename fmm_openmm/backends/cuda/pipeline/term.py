"""What a dipole moment adds, or what neutralises a slab, inside OpenMM: the stage "term", and steps
at the end of the stages "gather" and "export"."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.program import Interface
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.neutralization import Neutralization, Sheets

Term = DipoleTerm | Neutralization

BLOCK = 256

DIPOLE, SHEETS = 0, 1
"""As in ``kernels/term.cu``."""


def term_moments(b: Builder, term: Term) -> None:
    """The sums over the charges that the term depends on.

    A dipole moment is that of positions without the box vectors that OpenMM has added to them. The
    executor fills "cell_offsets" with the numbers of these vectors, (n, 4), the last of which is
    not used.
    """
    blocks = -(-b.n // BLOCK)
    if isinstance(term, DipoleTerm):
        b.stage("term", "openmm", bring_unwrapped=0)
        b.buffer("cell_offsets", (b.n, 4), np.int32)
        b.buffer("unwrapped", (b.n, 3), np.float64)
        b.launch(
            "bring_unwrapped", -(-b.n // 128), 128, np.int32(b.n), "posq", "posq_correction",
            "atom_index", "cell_offsets", "parameters", "unwrapped",
        )  # fmt: skip
        along = [term.strengths.get(axis, 0.0) for axis in range(3)]
        kind, numbers, places = DIPOLE, [*along, term.constant, 0.0], []
    elif isinstance(term, Sheets):
        places = term.heights.tolist()
        kind, numbers = SHEETS, [0.0, 0.0, 0.0, term.mean_distance, 1.0 / len(places)]
    else:
        raise UnsupportedError(f"`{term}` is computed on the host bridge")
    b.stage("term", "term", term_moments=0, add_term=0)
    b.macros(TERM=kind, PLACES=len(places))
    b.table("term_numbers", [*(2.0 * np.pi * np.array(numbers)), *places], np.float64)
    b.buffer("term_partial", (blocks, 5), np.float64)
    b.table("term_ticket", [0], np.int32)
    b.buffer("term_moments", 5, np.float64)
    b.launch(
        "term_moments", blocks, BLOCK, np.int32(b.n), _positions(term), "charges", "parameters",
        "term_numbers", "term_partial", "term_ticket", "term_moments",
    )  # fmt: skip


def add_term(b: Builder, term: Term, interface: Interface, forces: bool) -> None:
    """Add the term to the results of the present stage."""
    b.launch(
        "add_term", -(-b.n // BLOCK), BLOCK, np.int32(b.n), _positions(term), "charges",
        "parameters", "term_numbers", "term_moments", "potentials", "sums", "atom_index",
        "force_buffer", np.int32(interface.padded), np.int32(forces), "potentials_wanted", "share",
    )  # fmt: skip


def _positions(term: Term) -> str:
    return "unwrapped" if isinstance(term, DipoleTerm) else "positions"
