"""Derivatives of the lattice operator on the GPU, for the virial."""

import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.virial import operator_program, strained
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.operators.derivatives import GENERATORS, STEP, operator_derivatives


def fill_derivatives(out, lattice: BoxLattice, order: int) -> None:
    """Write :func:`fmm_openmm.expansions.operators.derivatives.operator_derivatives`, over the
    number of points of the Fourier grid, to ``out`` on the device: the half grid of wave vectors or
    the octant that begins it, shape (5, terms, .., .., ..).

    Those of periodic cells are computed in float64 by the kernels that build the operator, and
    queued on the current stream; others on the host.
    """
    stored = (slice(None), *(slice(length) for length in out.shape[2:]))
    if lattice.is_padded:
        found = operator_derivatives(lattice, order)[(slice(None), *stored)]
        out.set(np.ascontiguousarray(found / np.prod(lattice.fft_shape), out.dtype))
        return
    run = Run(operator_program(lattice, order, current_device()))
    for derivative, generator in zip(out, GENERATORS, strict=True):
        built = []
        for sign in (1.0, -1.0):
            run.buffers["parameters"].set(parameter_block(strained(lattice, generator, sign), 1.0))
            run.queue(SETUP)
            built.append(run.buffers["operator"][stored].copy())
        derivative[...] = (built[0] - built[1]) / (2 * STEP)
