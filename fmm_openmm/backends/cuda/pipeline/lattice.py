"""The stage lattice: from moments to local expansions, by the lattice operator in Fourier space."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import TRACE_SIDE, Builder
from fmm_openmm.backends.cuda.pipeline.fft import Fourier
from fmm_openmm.backends.cuda.pipeline.setup_tables import mirrored, operator_shape
from fmm_openmm.backends.cuda.pipeline.virial import lattice_work
from fmm_openmm.backends.cuda.program import At
from fmm_openmm.errors import UnsupportedError

TRACE_TERMS = 7
"""Coefficients of the trace term, :func:`fmm_openmm.expansions.background.polynomial`."""

CONVOLVE_WARPS = 16
"""Warps of a block of convolve."""

MIRRORED_WARPS, MIRRORED_TILES = 8, 7
"""Warps of a block of convolve_mirrored, and maximum row tiles of a warp."""


def lattice_m2l(b: Builder) -> str:
    """Local expansions from the moments, and the sums of the trace term."""
    fourier = transform_moments(b)
    b.buffer("local", (b.sets, b.terms, *fourier.shape), b.real)
    if b.virial:
        lattice_work(b, "spectrum")
    if not b.levels:  # else the sums are over the leaves
        trace(b, "spectrum", int(np.prod(fourier.half)))
    convolve(b, "spectrum", "local_spectrum")
    if fourier.sums:  # which overwrite the spectrum of the moments
        b.wait("traced")
        if b.virial:
            b.wait("lattice worked")
    fourier.inverse(b)
    return "local"


def transform_moments(b: Builder) -> Fourier:
    """Queue the transform of the moments to "spectrum", of the same size as "local_spectrum"."""
    fourier = Fourier.from_builder(b)
    for name in ("spectrum", "local_spectrum"):
        b.buffer(name, (b.sets, b.terms, *fourier.half), b.complex)
    fourier.forward(b)
    return fourier


def trace(b: Builder, spectrum: str, waves: int, target: At | str = "trace") -> None:
    """Add the buffer of the trace term's sums, and queue the sums. Records the event "traced".

    Args:
        spectrum: spectrum of the moments; wave vector 0 comes first.
        waves: number of wave vectors of each term in it; 0 where another rank has wave vector 0.
        target: where the sums go.
    """
    if b.lattice.background == 0.0:
        b.table("trace", np.zeros((b.sets, TRACE_TERMS)), np.float64)
        b.record("traced")
        return
    b.stage("lattice", "trace", trace=0)
    b.buffer("trace", (b.sets, TRACE_TERMS), np.float64)
    b.record("transformed")
    b.wait("transformed", TRACE_SIDE)
    squares = np.int32(b.program.buffers["square"].shape[-1])
    b.launch(
        "trace", b.sets, 1024, spectrum, np.int32(waves), "square", squares, "background",
        target, stream=TRACE_SIDE,
    )  # fmt: skip
    b.record("traced", TRACE_SIDE)


def convolve(b: Builder, source: str, target: str) -> None:
    """Queue the convolution at the builder's wave vectors, of which the spectra consist."""
    if mirrored(b.root):
        _convolve_mirrored(b, source, target)
    else:
        _convolve(b, source, target)


def _convolve(b: Builder, source: str, target: str) -> None:
    """Queue convolve. Blocks share the rows of the matrices where there are few wave vectors."""
    size, operator_terms = 32 * b.real.itemsize, (2 * b.order + 1) ** 2
    staged = (2 * b.terms + operator_terms) * size <= b.device.shared
    b.stage("lattice", convolve=_held(b, (2 * b.terms + staged * operator_terms) * size))
    b.macros(STAGED=int(staged), CONVOLVE_WARPS=CONVOLVE_WARPS)
    waves = int(np.prod(operator_shape(b)))
    blocks, pairs = -(-waves // 32), (b.order + 1) * (b.order + 2) // 2
    share = min(-(-pairs // CONVOLVE_WARPS), max(1, -(-2 * b.device.multiprocessors // blocks)))
    b.launch(
        "convolve",
        (blocks, share, b.sets),
        32 * CONVOLVE_WARPS,
        np.int32(waves),
        source,
        "operator",
        target,
    )


def _convolve_mirrored(b: Builder, source: str, target: str) -> None:
    """Few wave vectors a block where there are few, or where more leave no room for two blocks
    or take many registers."""
    stored = int(np.prod(operator_shape(b)))
    pairs = (b.order + 1) * (b.order + 2) // 2
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
    b.stage("lattice", "mirrored", convolve_mirrored=_held(b, per_block * each))
    b.macros(MIRRORED_WARPS=MIRRORED_WARPS, MIRRORED_WAVES=per_block)
    b.launch(
        "convolve_mirrored",
        (-(-stored // per_block), b.sets),
        32 * MIRRORED_WARPS,
        source,
        "operator",
        target,
    )


def _held(b: Builder, wanted: int) -> int:
    """``wanted``, bytes of shared memory for a block, if the device has as many."""
    if wanted > b.device.shared:
        raise UnsupportedError(
            f"`order={b.order}` needs {wanted:,} bytes of shared memory a block in a cell of this "
            f"shape, the device has {b.device.shared:,}: a larger `near_radius` needs a lower order"
        )
    return wanted
