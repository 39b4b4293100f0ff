"""What a dipole moment adds, or what neutralises a slab or wire, inside OpenMM: the stage "term",
and steps at the end of the stages "gather" and "export"."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.neutralization import Cylinders, Sheets

Term = DipoleTerm | Sheets | Cylinders

BLOCK = 256

DIPOLE, SHEETS, CYLINDERS = 0, 1, 2
"""As in ``kernels/term.cu``."""

AXIS = np.array([1.0, 0.0, 0.0])
"""Direction of a wire in the coordinates of its boxes."""


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
    kind, numbers, places = _numbers(term)
    b.stage("term", "term", term_moments=0, add_term=0)
    b.macros(TERM=kind, PLACES=len(places))
    b.table("term_numbers", [*numbers, *places.ravel()], np.float64)
    b.buffer("term_partial", (blocks, 5), np.float64)
    b.table("term_ticket", [0], np.int32)
    b.buffer("term_moments", 5, np.float64)
    b.launch(
        "term_moments", blocks, BLOCK, np.int32(b.n), _positions(term), "charges", "parameters",
        "term_numbers", "term_partial", "term_ticket", "term_moments",
    )  # fmt: skip


def add_term(b: Builder, term: Term, added: str, padded: np.int32, forces: bool) -> None:
    """Add the term to the results of the present stage, and to the forces in a buffer of padded
    length."""
    b.launch(
        "add_term", -(-b.n // BLOCK), BLOCK, np.int32(b.n), _positions(term), "charges",
        "parameters", "term_numbers", "term_moments", "potentials", "sums", "atom_index",
        added, padded, np.int32(forces), "potentials_wanted", "share",
    )  # fmt: skip


def _numbers(term: Term) -> tuple[int, list[float], np.ndarray]:
    """Kind of the term, ``Numbers`` of ``kernels/term.cu``, and the places that follow them."""
    circle, none = 2.0 * np.pi, [0.0, 0.0, 0.0]
    if isinstance(term, DipoleTerm):
        along = [circle * term.strengths.get(axis, 0.0) for axis in range(3)]
        return DIPOLE, [*along, circle * term.constant, 0.0, 0.0], np.zeros(0)
    if isinstance(term, Sheets):
        count = len(term.heights)
        return SHEETS, [*none, circle * term.mean_distance, 0.0, circle / count], term.heights
    count = len(term.radii)
    logarithms = 2.0 / count**2 * np.log(term.distances(AXIS))
    numbers = [*none, logarithms.sum(), 2.0 / count**2 * len(logarithms), 2.0 / count]
    return CYLINDERS, numbers, np.column_stack([term.points[:, 1:], term.radii**2])


def _positions(term: Term) -> str:
    return "unwrapped" if isinstance(term, DipoleTerm) else "positions"
