"""The set-up: the lattice operator, and the arguments of ``kernels/setup/operator.cu`` and
``slab.cu``, which build it: the splitting of the Ewald sums, and their integer tables.

Tables hold indices of boxes, not lengths, and reach somewhat further than needed: they serve all
cells with the same counts and near stencil that are strained by up to
:data:`fmm_openmm.box.MAX_STRAIN`.
"""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.p2p import nearest_first
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import BoxLattice, PaddedLattice, within
from fmm_openmm.expansions.operators import lattice_operator, slab
from fmm_openmm.expansions.splitting import truncation_radii
from fmm_openmm.specification import Specification

SLACK = 0.05
"""Relative change of lengths that the tables allow for: more than a strain of
:data:`fmm_openmm.box.MAX_STRAIN` makes."""

OFFSET_TILE = 32
"""Offsets per tile of ``operator.cu``; a new row of offsets starts with each tile."""

OPERATOR_WAVES = 64
"""Wave vectors per block of ``operator.cu``."""

ALIAS_COST = 4.0
"""Work of an alias relative to that of an offset."""

CANCELLATION = 4.5
"""Largest alpha times the distance of the nearest far boxes; with more the halves of the sum
cancel by over four digits."""


@dataclass(frozen=True)
class OperatorTables:
    """Ewald's splitting parameter, its cut-off in reciprocal space, and the tables of
    ``kernels/setup/operator.cu``.

    Attributes:
        alpha: splitting parameter, over the box width.
        cut: aliases count up to this length, over the box width.
        offsets: one of each pair of opposite offsets, if :func:`mirrored` one of all that mirroring
            gives, in rows along the first axis, shape (m, 4) int32; the last column is 1 for near
            offsets, and 2 more where a row starts.
        aliases: reciprocal lattice vectors of the boxes, shape (k, 4) int32.
        group: V and d of the lattice's cycles and :func:`stored_shape`, shape (15,) int32.
    """

    alpha: float
    cut: float
    offsets: np.ndarray
    aliases: np.ndarray
    group: np.ndarray

    @property
    def waves(self) -> int:
        """Number of wave vectors for which the operator is stored."""
        return int(np.prod(self.group[12:]))

    @classmethod
    def from_lattice(cls, lattice: BoxLattice, order: int, accuracy: float) -> "OperatorTables":
        """Tables for the lattice and for every lattice that is strained from the same boxes. Sums
        are truncated where terms fall below ``accuracy`` times S at the nearest far boxes."""
        images, boxes = 8 if mirrored(lattice) else 2, lattice.unstrained.boxes
        alpha, real_cut, cut = _split(2 * order, accuracy, lattice.unstrained.nearest_far, images)
        near_cut = np.linalg.norm(lattice.near @ boxes, axis=1).max() * (1 + 1e-9)
        offsets = within(boxes, max(real_cut * (1 + SLACK), near_cut))
        # those after the origin: its opposites come before it
        offsets = offsets[len(offsets) // 2 + 1 :]
        if images == 8:
            offsets = offsets[(offsets >= 0).all(1)]
        place = np.arange(len(offsets))
        previous = np.roll(offsets, 1, 0) + np.array([1, 0, 0])
        start = (place % OFFSET_TILE == 0) | (offsets != previous).any(1)
        reciprocal = 2 * np.pi * np.linalg.inv(boxes).T
        corner = float(np.linalg.norm(np.abs(reciprocal).sum(0))) / 2
        aliases = within(reciprocal, (cut + corner) * (1 + SLACK))
        v, d = lattice.cycles
        return cls(
            alpha,
            cut,
            np.column_stack([offsets, lattice.is_near(offsets) + 2 * start]).astype(np.int32),
            np.column_stack([aliases, np.zeros(len(aliases))]).astype(np.int32),
            np.array([*v.ravel(), *d, *stored_shape(lattice)], np.int32),
        )


def mirrored(lattice: BoxLattice) -> bool:
    """Whether mirroring x, y or z leaves the boxes and their periodic images as they are: in
    rectangular cells.

    The operator is then the same at mirrored wave vectors, up to the signs in
    ``expansions/operators/free_space.py``.
    """
    return lattice.are_cuboids and not any(
        np.tril(matrix, -1).any() for matrix in (lattice.counts, lattice.cell)
    )


def stored_shape(lattice: BoxLattice) -> tuple[int, int, int]:
    """Lengths of the grid of wave vectors for which the operator is stored: an octant if
    :func:`mirrored`, else the half grid.

    The octant has half of every length and one more, so that its wave vectors are the first of the
    half grid along each axis.
    """
    d1, d2, d3 = lattice.fft_shape
    return (d1 // 2 + 1, d2 // 2 + 1, d3 // 2 + 1) if mirrored(lattice) else (d1, d2, d3 // 2 + 1)


def operator_shape(b: Builder) -> tuple[int, int, int]:
    """:func:`stored_shape` for the wave vectors of a program."""
    return *stored_shape(b.root)[:2], b.waves.stop - b.waves.start


def serves(made_for: Specification, wanted: Specification) -> bool:
    """Whether a program, its tables and compiled kernels, serves another lattice and other charges
    with the same exclusions."""
    before, lattice = made_for.lattice, wanted.lattice
    return (
        made_for.has_expansions_of(wanted)
        and np.array_equal(before.counts, lattice.counts)
        and before.padded == lattice.padded
        and np.array_equal(before.span, lattice.span)
        # else the operator comes with the program
        and (built_lattice(before) is not None or np.array_equal(before.cell, lattice.cell))
        # what is mirrored, and operators of levels that need cuboids
        and before.are_cuboids <= lattice.are_cuboids
        and np.array_equal(before.near, lattice.near)
        and before.unstrained.is_strained_to(lattice.boxes)
    )


def built_lattice(lattice: BoxLattice) -> BoxLattice | None:
    """The periodic lattice whose operator the kernels build for these boxes: the lattice itself or,
    for a slab, that of a stack of slabs, if it has as many wave vectors. None if the operator comes
    with the program."""
    if not isinstance(lattice, PaddedLattice):
        return lattice
    if lattice.padded != (False, False, True):
        return None
    stack = slab.stacked(lattice)
    return stack if stack.fft_shape == lattice.fft_shape else None


def setup_tables(b: Builder) -> None:
    """Terms of the lattice operator in Fourier space, and the near boxes' places."""
    built, accuracy = built_lattice(b.root), 1e-5 if b.real == np.float32 else 1e-12
    if built is None:
        _from_host(b)
    else:
        build_operator(b, built, accuracy)
    if b.root.is_padded:
        if built:
            _remove_images(b, built, accuracy)
        b.stage(SETUP)
        b.memset("moments")  # those outside the span stay zero


def _from_host(b: Builder) -> None:
    """Add the operator, computed on the host, as a table of the program."""
    accuracy = 1e-10 if b.real == np.float32 else 1e-17
    operator = lattice_operator(b.root, b.order, accuracy, octant=mirrored(b.root))
    operator = operator.reshape(-1, *stored_shape(b.root))[..., b.waves]
    b.table("operator", operator / b.root.size, b.real)  # which the FFTs leave out
    b.table("shifts", np.pad(nearest_first(b.lattice) @ b.lattice.boxes, ((0, 0), (0, 1))), b.real)


def _remove_images(b: Builder, stack: BoxLattice, accuracy: float) -> None:
    """Steps that take the images along z out of the operator of a stack of slabs."""
    boxes, layers, period = stack.boxes, int(b.root.span[2]), int(stack.counts[2, 2])
    distance = (period - layers + 1) * boxes[2, 2] * (1 - SLACK)
    cut = slab.longest_wave(distance, 2 * b.order, accuracy)
    reciprocal = np.zeros((3, 3))
    reciprocal[:2, :2] = 2 * np.pi * np.linalg.inv(boxes[:2, :2]).T
    corner = float(np.linalg.norm(np.abs(reciprocal).sum(0))) / 2
    reach = (cut + corner) * (1 + SLACK)
    reciprocal[2, 2] = 2 * reach
    aliases = within(reciprocal, reach)[:, :2]
    waves = int(np.prod(operator_shape(b)))
    b.stage(SETUP, "slab", slab_images=0)
    b.table("slab_aliases", aliases, np.int32)
    if waves:
        b.launch(
            "slab_images", (-(-waves // OPERATOR_WAVES), 2 * b.order + 1), OPERATOR_WAVES,
            np.int32(waves), np.int32(layers), np.int32(period), np.float64(cut),
            np.int32(len(aliases)), "operator_group", "slab_aliases", "parameters", "operator",
        )  # fmt: skip


def build_operator(b: Builder, lattice: BoxLattice, accuracy: float) -> None:
    """Steps that build the operator of a periodic lattice, with sums truncated below
    ``accuracy``."""
    tables = OperatorTables.from_lattice(lattice, b.order, accuracy)
    offsets, aliases = len(tables.offsets), len(tables.aliases)
    shape = operator_shape(b)
    waves = int(np.prod(shape))
    b.stage(SETUP, operator_weights=0, operator_terms=0)
    b.macros(
        OPERATOR_WAVES=OPERATOR_WAVES,
        OFFSET_TILE=OFFSET_TILE,
        MIRRORED=int(mirrored(lattice)),
        FIRST2=b.waves.start,
    )
    b.table("operator_offsets", tables.offsets, np.int32)
    b.table("operator_aliases", tables.aliases, np.int32)
    b.table("operator_group", [*tables.group[:12], *shape], np.int32)
    b.buffer("operator_weights", (b.order + 1, offsets, 2 * b.order + 4, 2), np.float64)
    b.buffer("operator_vectors", (aliases, 3), np.float64)
    b.buffer("operator", ((2 * b.order + 1) ** 2, *shape), b.real)
    b.buffer("shifts", (len(b.lattice.near), 4), b.real)
    threads = max((b.order + 1) * offsets, aliases, len(b.lattice.near))
    alpha, cut = np.float64(tables.alpha), np.float64(tables.cut)
    sizes = np.int32(offsets), np.int32(aliases)
    b.launch(
        "operator_weights", -(-threads // 64), 64, alpha, *sizes, "operator_offsets",
        "operator_aliases", "offsets", "parameters", "operator_weights", "operator_vectors",
        "shifts",
    )  # fmt: skip
    if waves:
        b.launch(
            "operator_terms", (-(-waves // OPERATOR_WAVES), b.order + 1), OPERATOR_WAVES, alpha,
            cut, np.int32(waves), *sizes, "operator_group", "operator_offsets",
            "operator_weights", "operator_vectors", "parameters", "operator",
        )  # fmt: skip


def _split(top: int, accuracy: float, reach: float, images: int) -> tuple[float, float, float]:
    """The splitting parameter of least work, and its cutoffs in real and reciprocal space.

    Args:
        images: number of mirrored offsets that are added up as one.
    """

    def work(split):
        _, real_cut, cut = split
        return (
            4 / 3 * np.pi * real_cut**3 / images
            + ALIAS_COST * 4 / 3 * np.pi * ((cut + np.pi) / (2 * np.pi)) ** 3
        )

    alphas = np.arange(0.4, min(1.45, CANCELLATION / reach), 0.05)
    return min(
        ((alpha, *truncation_radii(top, accuracy, alpha, reach)) for alpha in alphas), key=work
    )
