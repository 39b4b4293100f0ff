"""The virial: what the stages add to a program for it, and the program that builds derivatives of
the lattice operator. See :meth:`fmm_openmm.stages.HostStages.evaluate_with_virial`."""

import numpy as np
import scipy

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.p2p import nearest_first
from fmm_openmm.backends.cuda.pipeline.setup_tables import build_operator, mirrored, operator_shape
from fmm_openmm.backends.cuda.program import SETUP, Device, Program, ProgramBuilder
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.operators.derivatives import GENERATORS, STEP
from fmm_openmm.stages import Parts

WORK_SIDE = 3
"""The stream of lattice_work, which needs only the moments."""

BLOCK = 256
"""Threads of a block of lattice_work and of azimuths."""

ACCURACY = 1e-15
"""Size of the terms left out of the operators whose differences are taken, relative as in
:func:`fmm_openmm.expansions.operators.lattice_operator`."""


def lattice_work(b: Builder, spectrum: str) -> None:
    """Queue the work of the lattice operator at the builder's wave vectors, from the spectrum of
    the moments, concurrently with the convolution. Records the event "lattice worked". The executor
    fills "operator_derivatives": for each generator the buffer "rows" of
    :func:`azimuth_program`."""
    images, shape = 4 if mirrored(b.root) else 1, operator_shape(b)
    pairs, size = (b.order + 1) * (b.order + 2) // 2, 2 * b.complex.itemsize
    at_once = next((n for n in (32, 16, 8) if n * pairs * size <= b.device.shared), 4)
    blocks = -(-int(np.prod(shape)) * images // at_once)
    azimuths = 2 * (b.order + 1)
    # one block per multiprocessor leaves room for p2p
    most = b.device.multiprocessors // max(1, blocks)
    share = min(-(-azimuths * at_once // BLOCK), max(1, most))
    b.stage("lattice", "lattice_work", lattice_work=at_once * pairs * size)
    b.macros(WORK_WAVES=at_once, WORK_IMAGES=images)
    b.buffer("operator_derivatives", (len(GENERATORS), rows(b.order), *shape, 2), b.real)
    b.buffer("lattice_work", (blocks * share, len(GENERATORS)), np.float64)
    if not blocks:  # a rank without wave vectors
        b.record("lattice worked")
        return
    b.record("moments transformed")
    b.wait("moments transformed", WORK_SIDE)
    b.launch(
        "lattice_work", (blocks, share), BLOCK, spectrum, "operator_derivatives", "lattice_work",
        stream=WORK_SIDE,
    )  # fmt: skip
    b.record("lattice worked", WORK_SIDE)


def rows(order: int) -> int:
    """Number of rows of the derivative of the operator along a generator, see
    ``kernels/common/azimuths.cuh``."""
    return (order + 1) * (3 * order + 1)


def azimuth_program(order: int, shape: tuple[int, ...], dtype) -> Program:
    """A program whose set-up reads the derivative of the operator along a generator, for a grid of
    wave vectors of this shape, from the buffer "derivative", float64, and writes it as functions of
    the azimuth to the buffer "rows"; see ``kernels/setup/azimuths.cu``."""
    b, waves = ProgramBuilder(), int(np.prod(shape))
    b.macros(REAL=real_type(dtype), ORDER=order)
    b.stage(SETUP, "azimuths", azimuths=0)
    b.buffer("derivative", ((2 * order + 1) ** 2, *shape), np.float64)
    b.buffer("rows", (rows(order), *shape, 2), dtype)
    b.launch(
        "azimuths", (-(-waves // BLOCK), rows(order)), BLOCK, np.int32(waves), "derivative", "rows"
    )
    return b.program


def works(b: Builder) -> tuple:
    """Arguments of the kernels that sum the virial: number of the partial sums of the work of the
    lattice operator, these, and the work of the near field."""
    return np.int32(b.program.buffers["lattice_work"].shape[0]), "lattice_work", "near_work"


def virial(b: Builder, parts: Parts[str]) -> tuple:
    """Further arguments of the kernel gather, with which it also sums the virial: positions of the
    parts, :func:`works`, and the result."""
    b.buffer("virial", (3, 3), np.float64)
    return parts.x, *works(b), "virial"


def strained(lattice: BoxLattice, generator: np.ndarray, sign: float) -> BoxLattice:
    """The lattice after a strain of one step along a generator, in the direction of ``sign``."""
    return lattice.deformed(scipy.linalg.expm(sign * STEP * generator))


def operator_program(
    lattice: BoxLattice, order: int, device: Device, waves: slice | None = None
) -> Program:
    """A program that consists of the set-up, in float64 and for the half grid, or a range of its
    indices along the last axis. It computes the operator of the lattice in the buffer "parameters",
    which may be any that is :func:`strained` from the given one, and leaves it in the buffer
    "operator"."""
    skewed = strained(lattice, GENERATORS[2:].sum(0), 1.0)
    b = Builder(skewed, order, 0.0, 1, np.float64, device)
    b.waves = waves or b.waves
    counts, near = lattice.counts, nearest_first(lattice)
    b.macros(
        REAL="double",
        ORDER=order,
        SMOOTHED=0,
        NEAR=len(near),
        **{f"N{k}": int(counts[k, k]) for k in range(3)},
        **{f"PADDED{k}": 0 for k in range(3)},
        **{f"C{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
        **{f"D{k}": length for k, length in enumerate(lattice.fft_shape)},
    )
    b.buffer("parameters", 41, np.float64)
    b.table("offsets", np.pad(near, ((0, 0), (0, 1))), np.int32)
    build_operator(b, b.root, ACCURACY)
    return b.program
