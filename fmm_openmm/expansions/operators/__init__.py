r"""The lattice operator: irregular harmonics summed over every periodic image that is not near, in
Fourier space. How the sum is done depends on the axes along which there are images, with one
module for each kind.

For the displacement i between two boxes (an index vector of the box lattice) let

    T_t(i) = sum over images n of S_t(i @ boxes + n @ cell),
             images in the near stencil left out.

The far field is the circular convolution of the moments with T, so only its discrete Fourier
transform is needed. Because stencil and lattice are symmetric under inversion the transform of T_t
is real for even and imaginary for odd degree; what is stored is the real number

    operator_t(k) = (-1)^floor(l/2) * (T^_t(k) for even l,  T^_t(k) / i for odd l)

with which ``(i^-l Lambda^)_a = sum_b sum_t C[a, b, t] operator_t (i^j M^)_b`` up to the signs that
:func:`fmm_openmm.expansions.harmonics.coupling` documents: real arithmetic throughout.

Everything is in units of the mean box width, so the operator depends on the shape of the cell only.

Source: FFT on multipoles, W. D. Elliott and J. A. Board, SIAM J. Sci. Comput. 17, 398 (1996),
doi:10.1137/S1064827594264259.
"""

from collections.abc import Callable

import numpy as np

from fmm_openmm.box import BoxLattice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import irregular_in_range
from fmm_openmm.expansions.operators.free_space import free_space_operator
from fmm_openmm.expansions.operators.periodic import harmonic_sums, periodic_operator
from fmm_openmm.expansions.operators.slab import slab_operator
from fmm_openmm.expansions.operators.wire import wire_operator

OPERATORS: dict[tuple[bool, ...], Callable[..., np.ndarray]] = {
    (False, False, False): periodic_operator,
    (False, False, True): slab_operator,
    (False, True, True): wire_operator,
    (True, True, True): free_space_operator,
}
"""What computes the operator, by the axes along which the lattice is padded; along the others boxes
have images among the boxes. Arguments as in :func:`lattice_operator`, with the highest degree of
the terms in place of the order. Slabs and wires also take a ``gradient``, shape (3, 3), lower
triangular with determinant 1: the operator is then that of boxes and cell under
``x -> x @ gradient``, with the near stencil kept."""


def check_range(lattice: BoxLattice, order: int, dtype) -> None:
    """Refuse an order whose operator is beyond the range of its type.

    Raises:
        UnsupportedError: the order is too high.
    """
    if not irregular_in_range(2 * order, lattice.nearest_far, dtype):
        raise UnsupportedError(
            f"`order` {order} is too high for single precision: ask for `precision='double'`"
        )


def lattice_operator(
    lattice: BoxLattice,
    order: int,
    accuracy: float = 1e-17,
    sums: Callable = harmonic_sums,
    octant: bool = False,
) -> np.ndarray:
    """The operator of the module's formula for expansions of the given order.

    Args:
        lattice: box lattice.
        order: expansion order p.
        accuracy: size of the terms left out of the Ewald sums, relative to S at the distance of the
            nearest far boxes.
        sums: :func:`harmonic_sums`, or what computes the same.
        octant: whether to leave out wave numbers above half the length of each axis. The others
            give all where mirroring x, y or z leaves the boxes and their images as they are.

    Returns:
        shape ``((2 order + 1)^2, d1, d2, d3 // 2 + 1)`` float64: terms up to degree 2 order on the
        half grid of ``scipy.fft.rfftn`` over ``lattice.fft_shape``; of an octant ``d // 2 + 1``
        along every axis.
    """
    return OPERATORS[lattice.padded](lattice, 2 * order, accuracy, sums, octant)
