"""lattice: convolves the moments of all boxes with the lattice operator."""

import numpy as np
import scipy.fft

from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import coupling, degrees
from fmm_openmm.stages import Moments

PHASE = np.array([1, 1j, -1, -1j])  # i^l


def lattice_m2l(
    moments: Moments, operator: np.ndarray, lattice: BoxLattice, order: int
) -> np.ndarray:
    """See :meth:`fmm_openmm.stages.Stages.lattice_m2l`; ``operator`` as
    :func:`fmm_openmm.expansions.operators.lattice_operator`."""
    index, weight = coupling(order)
    phase = PHASE[degrees(order) % 4][:, None]
    grid = np.zeros((moments.boxes.shape[1], lattice.size))
    grid[:, lattice.slots] = moments.boxes.T
    axes, operator = (1, 2, 3), operator.reshape(len(operator), -1)
    transform = scipy.fft.rfftn(grid.reshape(-1, *lattice.fft_shape), axes=axes)
    half, m = transform.shape, phase * transform.reshape(len(grid), -1)
    local = np.empty_like(m)
    for a in range(len(m)):
        matrix_row = (
            weight[a, :, 0, None] * operator[index[a, :, 0]]
            + weight[a, :, 1, None] * operator[index[a, :, 1]]
        )
        local[a] = (matrix_row * m).sum(0)
    local *= phase.conj()
    return (
        scipy.fft.irfftn(local.reshape(half), lattice.fft_shape, axes=axes)
        .reshape(len(grid), -1)[:, lattice.slots]
        .T
    )
