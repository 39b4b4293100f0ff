r"""Derivatives of the lattice operator with respect to the shape of the cell, of which the virial
consists in part.

With T(F) the operator of the boxes and the cell deformed by ``x -> x @ F``, det F = 1, and the near
stencil kept, the derivative along a traceless generator A is

    dT/dA = (T(exp(h A)) - T(exp(-h A))) / (2 h)

to a relative error of (l h)^2 for terms of degree l. The operator is in units of the box width, so
uniform scaling leaves it as it is; five generators span all others up to rotations, which leave
every energy as it is.
"""

from collections.abc import Callable

import numpy as np
import scipy

from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.operators.free_space import free_space_derivative
from fmm_openmm.expansions.operators.periodic import harmonic_sums, periodic_operator
from fmm_openmm.expansions.operators.slab import slab_operator
from fmm_openmm.expansions.operators.wire import wire_operator

PARTIAL = {(False, False, True): slab_operator, (False, True, True): wire_operator}
"""The operators of slabs and wires, by the axes along which the lattice is padded."""

STEP = 1e-4
"""h of the module's formula."""


def _generator(*entries: tuple[int, int, float]) -> np.ndarray:
    matrix = np.zeros((3, 3))
    for row, column, value in entries:
        matrix[row, column] = value
    return matrix


GENERATORS = np.array(
    [
        _generator((0, 0, 1.0), (1, 1, -1.0)),
        _generator((1, 1, 1.0), (2, 2, -1.0)),
        _generator((1, 0, 1.0)),
        _generator((2, 0, 1.0)),
        _generator((2, 1, 1.0)),
    ]
)
"""The generators A, lower triangular so that cells stay in reduced form, shape (5, 3, 3)."""


def traceless(work: np.ndarray) -> np.ndarray:
    """The symmetric traceless matrix W, shape (3, 3), with ``sum(W * A)`` equal to ``work`` (5,)
    for the :data:`GENERATORS` A."""
    first, second, yx, zx, zy = work
    x, z = (2 * first + second) / 3, -(first + 2 * second) / 3
    return np.array([[x, yx, zx], [yx, -x - z, zy], [zx, zy, z]])


def operator_derivatives(
    lattice: BoxLattice,
    order: int,
    accuracy: float = 1e-17,
    sums: Callable = harmonic_sums,
) -> np.ndarray:
    """Derivatives of :func:`fmm_openmm.expansions.operators.lattice_operator`, with its arguments,
    along the :data:`GENERATORS`.

    Returns:
        shape ``(5, (2 order + 1)^2, d1, d2, d3 // 2 + 1)`` float64.
    """
    top = 2 * order
    if lattice.padded == (True, True, True):
        return np.stack(
            [free_space_derivative(lattice, top, accuracy, a, STEP) for a in GENERATORS]  # type: ignore[arg-type]
        )

    def strained(strain: np.ndarray) -> np.ndarray:
        gradient = scipy.linalg.expm(strain)
        if not lattice.is_padded:
            return periodic_operator(lattice.deformed(gradient), top, accuracy, sums, False)
        partial = PARTIAL[lattice.padded]
        return partial(lattice, top, accuracy, sums, False, gradient)  # type: ignore[arg-type]

    return np.stack([(strained(STEP * a) - strained(-STEP * a)) / (2 * STEP) for a in GENERATORS])
