"""The vacuum that makes PME's sum over three directions that of a slab, once the dipole term
(:mod:`fmm_openmm.dipole_term`) has been added.

What is left of the interaction of the slabs decays as :math:`e^{-2 \\pi h / L}` with the vacuum h
between them and the longest period L.

I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155 (1999), doi:10.1063/1.479595.
"""

import numpy as np

VACUUM = 2.5
"""Vacuum over the longest period: what is left then is 1e-7 of the interaction."""


def vacuum_cell(positions: np.ndarray, cell: np.ndarray, vacuum: float = VACUUM) -> np.ndarray:
    """A periodic cell of a slab whose third vector is normal to the others, shape (3, 3), nm.

    Args:
        positions: positions of the whole slab, shape (n, 3), nm.
        cell: box vectors, shape (3, 3), nm, of which the third is replaced.
        vacuum: thickness of the vacuum between slabs, relative to the longest period.
    """
    height = np.ptp(positions[:, 2]) + vacuum * np.linalg.norm(cell[:2], axis=1).max()
    return np.array([cell[0], cell[1], [0.0, 0.0, height]])
