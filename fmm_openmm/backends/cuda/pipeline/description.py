"""The pipeline as a program: what every stage queues, and the buffers between them."""

from functools import lru_cache

import numpy as np

from fmm_openmm.backends.cuda.abi import Parameters
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.gather import gather
from fmm_openmm.backends.cuda.pipeline.l2l import l2l
from fmm_openmm.backends.cuda.pipeline.l2p import l2p
from fmm_openmm.backends.cuda.pipeline.lattice import lattice_m2l
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, LevelTables, slots
from fmm_openmm.backends.cuda.pipeline.m2l import m2l
from fmm_openmm.backends.cuda.pipeline.m2m import m2m
from fmm_openmm.backends.cuda.pipeline.p2m import p2m
from fmm_openmm.backends.cuda.pipeline.p2p import exclusions, p2p
from fmm_openmm.backends.cuda.pipeline.setup_tables import setup_tables
from fmm_openmm.backends.cuda.pipeline.sort import clear_counts, clears_counts_late, sort
from fmm_openmm.backends.cuda.pipeline.term import Term, term_moments
from fmm_openmm.backends.cuda.program import SETUP, Device, Interface, Phase, Program, Share
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.driver import evaluate
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.background import coefficients
from fmm_openmm.expansions.operators import check_range
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Stages
from fmm_openmm.units import COULOMB_CONSTANT

MOST_PARTICLES = 2**28 - 1
"""Maximum number of particles, since their parts, 8 for each, have numbers of 32 bits."""

BLOCK = np.dtype(Parameters)
"""The parameter block as an array of one element."""

NOT_FAR = {SETUP, "sort", "term", "p2m", "p2p", "gather", "export"}
"""Stages that do not belong to :attr:`Phase.FAR`, the far field after the moments."""


class Description(Stages):
    """The stages on a GPU. Each appends its steps to a program, and returns names of buffers where
    other backends return arrays; for an ``Accumulator``, the names of the buffers that gather adds
    up."""

    _term: Term | None = None

    def __init__(
        self, builder: Builder, specification: Specification, interface: Interface | None,
        term: Term | None = None
    ):  # fmt: skip
        self._term = term
        self._b, self._pairs = builder, specification.exclusions
        self._minimum_image, self._interface = specification.minimum_image, interface
        setup_tables(builder)
        self._tables = LevelTables(builder, specification.m2l) if builder.levels else None

    def sort(self, positions, width):
        return sort(self._b, self._pairs, self._minimum_image, self._interface)

    def p2m(self, parts):
        return p2m(self._b, parts)

    def m2m(self, targets, moments):
        return m2m(self._b, self._tables) if self._tables else [moments]

    def lattice_m2l(self, moments):
        return lattice_m2l(self._b)

    def l2l(self, local, level):
        return l2l(self._b, self._tables, local, level)

    def m2l(self, moments, local, level):
        return m2l(self._b, self._tables, moments, local, level)

    def l2p(self, parts, moments, local):
        return l2p(self._b, parts, local)

    def exclusions(self, parts, out):
        return exclusions(self._b, self._pairs)

    def p2p(self, parts, near, out):
        p2p(self._b, parts, near, out)
        if clears_counts_late(self._b, self._interface):
            clear_counts(self._b)
        if self._b.virial:
            self._b.wait("lattice worked")
        self._b.wait("near")

    def gather(self, parts, out):
        if self._term:
            term_moments(self._b, self._term)
        return gather(self._b, parts, out, self._interface, self._term)


def build(
    specification: Specification, device: Device, interface: Interface | None = None,
    with_virial: bool = False, share: Share | None = None, term: Term | None = None
) -> Program:  # fmt: skip
    """The program of one evaluation on a device.

    Args:
        interface: OpenMM's arrays, from which positions are read and to which forces are added;
            None for the program of a solver.
        with_virial: also compute the virial, shape (3, 3), kJ/mol, into the buffer "virial"; not
            with levels.
        share: boxes whose parts get results; None for all. Inside OpenMM the steps of
            :attr:`Phase.FAR` may be left out where "share" has no boxes with a far field.
        term: added to the results on OpenMM's arrays, by the program whose share of the near field
            has the first box.

    Raises:
        UnsupportedError: too many particles, levels that the kernels cannot do, or an order whose
            harmonics the type or whose expansions the device's shared memory do not hold; or the
            virial of a share.
    """
    if share and with_virial:
        raise UnsupportedError("the virial is computed for all boxes, not for a share")
    b = builder(specification, device, virial=with_virial, share=share)
    program = described(b, Description(b, specification, interface, term))
    if share and interface:
        far = {step.stage for step in program.steps} - NOT_FAR
        program.phases |= dict.fromkeys(far, Phase.FAR) | {"p2p": Phase.NEAR}
    return program


def described(b: Builder, stages: Description) -> Program:
    """The program of a builder's stages."""
    evaluate(stages, "positions", "parameters")
    return b.program


def builder(
    specification: Specification, device: Device, sets: int = 1, virial: bool = False,
    share: Share | None = None
) -> Builder:  # fmt: skip
    """A builder with the macros and buffers that all stages share, for a program for ``sets`` sets
    of charges, with the virial, or for a share of the boxes.

    Raises:
        UnsupportedError: see :func:`build`.
    """
    spec, particles = specification, len(specification.charges)
    if particles > MOST_PARTICLES:
        raise UnsupportedError(
            f"a GPU takes at most {MOST_PARTICLES:,} particles, got {particles:,}"
        )
    check_range(spec.lattice, spec.order, spec.dtype)
    b = Builder(
        spec.lattice,
        spec.order,
        spec.smoothing,
        particles,
        spec.dtype,
        device,
        spec.levels,
        sets,
        virial,
        share,
    )
    _shared(b, spec)
    return b


def parameter_block(lattice: BoxLattice, width: float, origin=(0.0, 0.0, 0.0)) -> np.ndarray:
    """``Parameters`` of ``kernels/common/parameters.cuh``, shape (41,).

    Args:
        lattice: the boxes.
        width: their mean width, nm.
        origin: what open boxes take for the origin, shape (3,), nm.
    """
    values = _matrices(lattice).copy()
    block = values.view(BLOCK)
    block["inverse"] /= width
    block["potential"] = COULOMB_CONSTANT / width
    block["field"] = COULOMB_CONSTANT / width**2
    block["origin"] = origin
    return values


@lru_cache(maxsize=4)
def _matrices(lattice: BoxLattice) -> np.ndarray:
    """``Parameters`` with the matrices of boxes that are 1 nm wide, shape (41,)."""
    cell = lattice.cell
    if not np.isfinite(cell).all():
        cell = np.nan_to_num(cell)  # inf, times zeros of a strain, would be nan
    block = np.zeros(1, BLOCK)
    block["inverse"] = block["slope"] = lattice.inverse.ravel()
    block["boxes"], block["cell"] = lattice.boxes.ravel(), cell.ravel()
    return block.view(np.float64)


def _shared(b: Builder, specification: Specification) -> None:
    counts, span = b.lattice.counts, b.lattice.span
    places = slots(b) if b.levels else b.lattice.slots_of(span)
    b.macros(
        REAL=real_type(b.real),
        POSITION="double",
        ORIGIN=ORIGIN,
        ORDER=b.order,
        SMOOTHED=int(b.smoothing > 0),
        SMOOTHING=repr(float(b.smoothing)),
        MINIMUM_IMAGE=int(specification.minimum_image),
        ORDERED=int(np.array_equal(places, np.arange(b.boxes))),
        NEAR=len(b.lattice.near),
        SETS=b.sets,
        FIELDS=1,
        VIRIAL=int(b.virial),
        HAS_SHARE=int(b.share is not None),
        COPIES=0,
        IMAGES=int(any(b.lattice.has_images)),
        STRIDE=WARP if b.levels else int(np.prod(b.lattice.fft_shape)),
        **{f"N{k}": int(span[k]) for k in range(3)},
        **{f"PADDED{k}": int(b.lattice.padded[k]) for k in range(3)},
        **{f"C{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
    )
    b.buffer("parameters", 41, np.float64)
    b.table("background", coefficients(b.lattice), np.float64)
    boxes = [b.share.first, b.share.end] if b.share else [0, b.boxes]
    b.table("share", [boxes, boxes], np.int32)
    b.table("charges", specification.charges, b.real)
    b.table("slots", places, np.int32)
    b.buffer("moments", (b.sets, b.terms, *b.root.fft_shape), b.real)
