"""l2p: evaluates local expansions and the trace term at the parts: potentials and fields."""

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.background import polynomial
from fmm_openmm.expansions.harmonics import gradient, regular
from fmm_openmm.stages import Accumulator, Moments, Parts


def l2p(
    parts: Parts, moments: Moments, local: np.ndarray, lattice: BoxLattice, order: int
) -> Accumulator:
    """See :meth:`fmm_openmm.stages.Stages.l2p`."""
    box = np.repeat(np.arange(lattice.size), np.diff(parts.start))
    r = regular(parts.x, order)
    potentials = np.einsum("am,ma->m", r, local[box])
    fields = -np.einsum(
        "bm,xab,ma->mx", r[: order * order], gradient(order), local[box], optimize=True
    )

    trace = polynomial(lattice, moments.charge, moments.dipole, moments.square)
    potentials += parts.x**2 @ trace[:3] + parts.x @ trace[3:6] + trace[6]
    fields -= 2 * trace[:3] * parts.x + trace[3:6]
    return Accumulator(potentials, fields)
