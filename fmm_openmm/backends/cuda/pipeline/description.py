"""The pipeline as a program: what every stage queues, and the buffers between them."""

import numpy as np

from fmm_openmm.backends.cuda.pipeline.gather import gather
from fmm_openmm.backends.cuda.pipeline.l2l import l2l
from fmm_openmm.backends.cuda.pipeline.l2p import l2p
from fmm_openmm.backends.cuda.pipeline.lattice import convolution
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP, LevelTables, slots
from fmm_openmm.backends.cuda.pipeline.m2l import m2l as add_m2l
from fmm_openmm.backends.cuda.pipeline.m2m import m2m
from fmm_openmm.backends.cuda.pipeline.p2m import p2m
from fmm_openmm.backends.cuda.pipeline.p2p import p2p
from fmm_openmm.backends.cuda.pipeline.setup_tables import setup_tables
from fmm_openmm.backends.cuda.pipeline.sort import sort
from fmm_openmm.backends.cuda.program import Builder, Device, Interface, Program
from fmm_openmm.backends.cuda.source import real_type
from fmm_openmm.box import ORIGIN, BoxLattice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.lattice import check_range
from fmm_openmm.units import COULOMB_CONSTANT

MOST_PARTICLES = 2**28 - 1
"""Parts of particles have numbers of 32 bits, 8 to a particle."""


def build(
    lattice: BoxLattice,
    order: int,
    smoothing: float,
    charges,
    pairs,
    minimum_image: bool,
    dtype,
    device: Device,
    interface: Interface | None = None,
    levels: int = 0,
    m2l: str = "rotation",
) -> Program:
    """The program of one evaluation; arguments as for ``ReferenceStages``, the device's facts, and
    OpenMM's arrays if it is to run between these.

    Raises:
        UnsupportedError: too many particles, levels that the kernels cannot do, or an order whose
            harmonics the type or whose expansions the device's shared memory do not hold.
    """
    if len(charges) > MOST_PARTICLES:
        raise UnsupportedError(
            f"a GPU takes at most {MOST_PARTICLES:,} particles, got {len(charges):,}"
        )
    b = Builder(lattice, order, smoothing, len(charges), dtype, device, levels)
    check_range(lattice, order, dtype)
    _shared(b, charges, minimum_image)
    setup_tables(b)
    tables = LevelTables(b, m2l) if levels else None
    ticket = sort(b, pairs, minimum_image, interface)
    p2m(b)
    if tables:
        m2m(b, tables)
    convolution(b)
    for level in range(1, levels + 1):
        l2l(b, tables, level)
        add_m2l(b, tables, level)
    l2p(b)
    p2p(b, pairs)
    gather(b, ticket, interface)
    return b.program


def parameter_block(lattice: BoxLattice, width: float, origin=(0.0, 0.0, 0.0)) -> np.ndarray:
    """``Parameters`` of ``kernels/common/parameters.cuh``, shape (41,).

    Args:
        lattice: the boxes.
        width: their mean width, nm.
        origin: what open boxes take for the origin, shape (3,), nm.
    """
    inverse = np.linalg.inv(lattice.boxes)
    scales = [COULOMB_CONSTANT / width, COULOMB_CONSTANT / width**2]
    return np.concatenate(
        [
            (inverse / width).ravel(),
            lattice.boxes.ravel(),
            inverse.ravel(),
            scales,
            lattice.cell.ravel(),
            origin,
        ]
    )


def _shared(b: Builder, charges, minimum_image: bool) -> None:
    counts, span = b.lattice.counts, b.lattice.span
    places = slots(b) if b.levels else b.lattice.slots_of(span)
    b.macros(
        REAL=real_type(b.real),
        POSITION="double",
        ORIGIN=ORIGIN,
        ORDER=b.order,
        SMOOTHED=int(b.smoothing > 0),
        SMOOTHING=repr(float(b.smoothing)),
        MINIMUM_IMAGE=int(minimum_image),
        ORDERED=int(np.array_equal(places, np.arange(b.boxes))),
        NEAR=len(b.lattice.near),
        OPEN=int(b.lattice.is_open),
        IMAGES=int(np.isfinite(b.lattice.cell).all()),
        STRIDE=WARP if b.levels else int(np.prod(b.lattice.fft_shape)),
        **{f"N{k}": int(span[k]) for k in range(3)},
        **{f"C{i}{j}": int(counts[i, j]) for i, j in ((1, 0), (2, 0), (2, 1))},
    )
    b.buffer("parameters", 41, np.float64)
    b.table("charges", charges, b.real)
    b.table("slots", places, np.int32)
    b.buffer("moments", (b.terms, *b.root.fft_shape), b.real)
