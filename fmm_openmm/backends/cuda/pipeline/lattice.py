"""From moments to local expansions: the lattice operator, and the stage lattice that applies it."""

import numpy as np

from fmm_openmm.backends.cuda.operator import (
    OFFSET_TILE,
    OPERATOR_WAVES,
    OperatorTables,
    mirrored,
    stored_shape,
)
from fmm_openmm.backends.cuda.pipeline.dft import Fourier
from fmm_openmm.backends.cuda.pipeline.near import nearest_first
from fmm_openmm.backends.cuda.program import SETUP, Builder
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.free_space import free_space_octant, free_space_operator

TRACE_SIDE = 2
"""Stream of the trace term, which needs only the moments."""

CONVOLVE_WARPS = 16
"""A block of convolve."""

MIRRORED_WARPS, MIRRORED_TILES = 8, 7
"""A block of convolve_mirrored, and the row tiles of a warp at most."""


def operator(b: Builder) -> None:
    """Terms of the lattice operator in Fourier space, and the near boxes' places."""
    if b.root.is_open:
        _from_host(b)
    else:
        _periodic(b)


def _from_host(b: Builder) -> None:
    """Changes with the boxes only, so it comes with the program.

    Moments outside the span stay zero.
    """
    terms = free_space_octant if mirrored(b.root) else free_space_operator
    accuracy = 1e-10 if b.real == np.float32 else 1e-17
    # which the FFTs leave out
    b.table("operator", terms(b.root, 2 * b.order, accuracy) / b.root.size, b.real)
    b.table("shifts", np.pad(nearest_first(b.lattice), ((0, 0), (0, 1))), b.real)
    b.stage(SETUP)
    b.memset("moments")


def _periodic(b: Builder) -> None:
    tables = OperatorTables.of(b.root, b.order, 1e-5 if b.real == np.float32 else 1e-12)
    waves, offsets, aliases = tables.waves, len(tables.offsets), len(tables.aliases)
    b.stage(SETUP, operator_weights=0, operator_terms=0)
    b.macros(OPERATOR_WAVES=OPERATOR_WAVES, OFFSET_TILE=OFFSET_TILE, MIRRORED=int(mirrored(b.root)))
    b.table("operator_offsets", tables.offsets, np.int32)
    b.table("operator_aliases", tables.aliases, np.int32)
    b.table("operator_group", tables.group, np.int32)
    b.buffer("operator_weights", (b.order + 1, offsets, 2 * b.order + 4, 2), np.float64)
    b.buffer("operator_vectors", (aliases, 3), np.float64)
    b.buffer("operator", ((2 * b.order + 1) ** 2, *stored_shape(b.root)), b.real)
    b.buffer("shifts", (len(b.lattice.near), 4), b.real)
    threads = max((b.order + 1) * offsets, aliases, len(b.lattice.near))
    alpha, cut, sizes = (
        np.float64(tables.alpha),
        np.float64(tables.cut),
        (np.int32(offsets), np.int32(aliases)),
    )
    b.launch(
        "operator_weights", -(-threads // 64), 64, alpha, *sizes, "operator_offsets",
        "operator_aliases", "offsets", "parameters", "operator_weights", "operator_vectors",
        "shifts",
    )  # fmt: skip
    b.launch(
        "operator_terms", (-(-waves // OPERATOR_WAVES), b.order + 1), OPERATOR_WAVES, alpha, cut,
        np.int32(waves), *sizes, "operator_group", "operator_offsets", "operator_weights",
        "operator_vectors", "parameters", "operator",
    )  # fmt: skip


def convolution(b: Builder) -> None:
    """Local expansions from the moments, and the sums of the trace term."""
    fourier = Fourier.of(b)
    half, shape = fourier.half, fourier.shape
    waves = int(np.prod(half))
    b.buffer("spectrum", (b.terms, *half), b.complex)
    b.buffer("local_spectrum", (b.terms, *half), b.complex)
    b.buffer("local", (b.terms, *shape), b.real)
    fourier.forward(b)
    if b.levels:
        pass  # the sums are over the leaves
    elif b.lattice.background == 0.0:
        b.table("sums", np.zeros(5), np.float64)
        b.record("traced")
    else:
        b.stage("lattice", file="trace", trace=0)
        b.buffer("sums", 5, np.float64)
        b.record("transformed")
        b.wait("transformed", TRACE_SIDE)
        squares = np.int32(b.program.buffers["square"].shape[0])
        share = np.float64(b.boxes * b.lattice.background)
        b.launch(
            "trace",
            1,
            1024,
            "spectrum",
            np.int32(waves),
            "square",
            squares,
            share,
            "sums",
            stream=TRACE_SIDE,
        )
        b.record("traced", TRACE_SIDE)
    if mirrored(b.root):
        _convolve_mirrored(b)
    else:
        _convolve(b, waves)
    if fourier.sums:
        b.wait("traced")
    fourier.inverse(b)


def _convolve(b: Builder, waves: int) -> None:
    """Rows of the matrices are shared among blocks where there are few wave vectors."""
    size, operator_terms = 32 * b.real.itemsize, (2 * b.order + 1) ** 2
    staged = (2 * b.terms + operator_terms) * size <= b.device.shared
    b.stage("lattice", convolve=_held(b, (2 * b.terms + staged * operator_terms) * size))
    b.macros(STAGED=int(staged), CONVOLVE_WARPS=CONVOLVE_WARPS)
    blocks, pairs = -(-waves // 32), (b.order + 1) * (b.order + 2) // 2
    share = min(-(-pairs // CONVOLVE_WARPS), max(1, -(-2 * b.device.multiprocessors // blocks)))
    b.launch(
        "convolve",
        (blocks, share),
        32 * CONVOLVE_WARPS,
        np.int32(waves),
        "spectrum",
        "operator",
        "local_spectrum",
    )


def _convolve_mirrored(b: Builder) -> None:
    """Few wave vectors a block where there are few, or where more leave no room for two blocks
    or take many registers."""
    stored, pairs = int(np.prod(stored_shape(b.root))), (b.order + 1) * (b.order + 2) // 2
    row_tiles = -(-pairs // 8)
    each = ((2 * b.order + 1) * (3 * b.order + 1) + 64 * row_tiles + 2) * b.complex.itemsize
    fits = [
        n
        for n in (8, 4, 2)
        if 2 * n * each <= b.device.shared
        and -(-row_tiles * n // MIRRORED_WARPS) <= MIRRORED_TILES
        and stored >= n * b.device.multiprocessors
    ]
    per_block = max(fits, default=1)
    b.stage("lattice", file="mirrored", convolve_mirrored=_held(b, per_block * each))
    b.macros(MIRRORED_WARPS=MIRRORED_WARPS, MIRRORED_WAVES=per_block)
    b.launch(
        "convolve_mirrored",
        -(-stored // per_block),
        32 * MIRRORED_WARPS,
        "spectrum",
        "operator",
        "local_spectrum",
    )


def _held(b: Builder, wanted: int) -> int:
    """So many bytes of shared memory for a block, if the device has them."""
    if wanted > b.device.shared:
        raise UnsupportedError(
            f"`order={b.order}` needs {wanted:,} bytes of shared memory a block in a cell of this "
            f"shape, the device has {b.device.shared:,}: a larger `near_radius` needs a lower order"
        )
    return wanted
