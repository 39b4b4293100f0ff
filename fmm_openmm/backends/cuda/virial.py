"""Derivatives of the lattice operator on the GPU, for the virial."""

from collections.abc import Iterator

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.virial import azimuth_program, operator_program, strained
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.operators.derivatives import GENERATORS, STEP, operator_derivatives


def fill_derivatives(out, lattice: BoxLattice, order: int, first: int = 0) -> None:
    """Write :func:`fmm_openmm.expansions.operators.derivatives.operator_derivatives`, over the
    number of points of the Fourier grid, to ``out`` on the device, shape (5, rows, .., .., .., 2):
    as functions of the azimuth, see ``kernels/setup/azimuths.cu``, for the half grid of wave
    vectors or the octant that begins it, from the index ``first`` along the last axis on.

    Those of periodic cells are computed in float64 by the kernels that build the operator, and
    queued on the current stream; others on the host.
    """
    shape = out.shape[2:5]
    azimuths = Run(azimuth_program(order, shape, out.dtype), {"rows": out[0]})
    for rows, derivative in zip(out, _derivatives(lattice, order, shape, first), strict=True):
        azimuths.buffers["derivative"][...] = derivative
        azimuths.replace({"rows": rows}, SETUP)
        azimuths.queue(SETUP)


def _derivatives(lattice: BoxLattice, order: int, shape: tuple[int, ...], first: int) -> Iterator:
    """The derivatives along the generators in turn, of the first wave vectors of the half grid
    along each axis, from ``first`` on along the last, shape (terms, *shape), float64, on the
    device."""
    waves = slice(first, first + shape[2])
    stored = (slice(None), *map(slice, shape[:2]))
    if lattice.is_padded:
        for derivative in operator_derivatives(lattice, order):
            yield cupy.asarray(derivative[(*stored, waves)] / np.prod(lattice.fft_shape))
        return
    run = Run(operator_program(lattice, order, current_device(), waves))
    for generator in GENERATORS:
        built = []
        for sign in (1.0, -1.0):
            run.buffers["parameters"].set(parameter_block(strained(lattice, generator, sign), 1.0))
            run.queue(SETUP)
            built.append(run.buffers["operator"][stored].copy())
        yield (built[0] - built[1]) / (2 * STEP)
