r"""What makes PME's sum over three directions that of a slab: vacuum, and the correction of Yeh and
Berkowitz.

The slabs of a periodic stack interact as sheets of dipoles. With the dipole moment M along the
normal of a neutral slab, and the volume V of the cell,

.. math:: \Delta U = \frac{2 \pi k_e}{V} M^2, \qquad
          \Delta F_i = -\frac{4 \pi k_e}{V} q_i M \hat z

What is left of the interaction decays as :math:`e^{-2 \pi h / L}` with the vacuum h between the
slabs and the longest period L.

I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155 (1999), doi:10.1063/1.479595.
"""

import numpy as np

from fmm_openmm.units import COULOMB_CONSTANT

VACUUM = 2.5
"""Vacuum over the longest period: what is left then is 1e-7 of the interaction."""


def vacuum_cell(positions: np.ndarray, cell: np.ndarray, vacuum: float = VACUUM) -> np.ndarray:
    """A periodic cell of a slab whose third vector is normal to the others, shape (3, 3), nm.

    Args:
        positions: of the whole slab, shape (n, 3), nm.
        cell: box vectors, shape (3, 3), nm, of which the third is replaced.
        vacuum: between slabs, over the longest period.
    """
    height = np.ptp(positions[:, 2]) + vacuum * np.linalg.norm(cell[:2], axis=1).max()
    return np.array([cell[0], cell[1], [0.0, 0.0, height]])


def slab_term(
    positions: np.ndarray, charges: np.ndarray, cell: np.ndarray
) -> tuple[float, np.ndarray]:
    """The correction of the energy, kJ/mol, and of the forces, shape (n, 3), kJ/mol/nm, of a
    periodic cell, shape (3, 3), nm."""
    factor = 2.0 * np.pi * COULOMB_CONSTANT / np.prod(np.diag(cell))
    moment = float(charges @ positions[:, 2])
    forces = np.zeros_like(positions)
    forces[:, 2] = -2.0 * factor * moment * charges
    return float(factor * moment**2), forces
