"""Box vectors: their checks, and the strain between two cells."""

import math

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.checks import MAX_COORDINATE, check_numbers

MAX_STRAIN = 0.02
"""Largest :func:`strain` of a cell in which its boxes keep their near stencil, and all that was
chosen for them.

Lengths then change by less than 4.8 %: the spectral norm of a lower triangular matrix is at most
2.25 times its largest component.
"""


SAME_SHAPE = 1e-12
"""Components of box vectors, over their width, and of strains that are rounding."""


def check_box_vectors(box_vectors, boundary: Boundary | None = None) -> np.ndarray:
    """Box vectors as a (3, 3) float64 array of rows a, b, c in nm, in OpenMM's reduced form.

    With a boundary only the vectors of its images must be reduced, by each other: one reduced by a
    vector without images would be that of another lattice.

    Raises:
        ValueError: wrong shape, not finite, zero or negative volume, longer than
            ``MAX_COORDINATE``, not in reduced form, or a ``Quantity`` of another dimension.
    """
    return check_reduced(check_numbers(box_vectors, "nanometer", "box_vectors"), boundary)


def check_reduced(box: np.ndarray, boundary: Boundary | None = None) -> np.ndarray:
    """The checks of :func:`check_box_vectors` for a float64 array in nm, which is changed in
    place."""
    if box.shape != (3, 3):
        raise ValueError(f"`box_vectors` must have shape (3, 3), got {box.shape}")
    rows = box.tolist()  # NumPy takes microseconds a number
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = rows
    if not all(map(math.isfinite, (ax, ay, az, bx, by, bz, cx, cy, cz))):
        raise ValueError(f"`box_vectors` must be finite, got {rows}")
    slack_a, slack_b = (1e-6 * max(map(abs, row)) for row in rows[:2])
    if max(abs(ay), abs(az)) > slack_a or abs(bz) > slack_b:
        raise ValueError(
            "`box_vectors` must be in reduced form: the first periodic box vector must be parallel "
            f"to x and the second in the x-y plane, got {box.tolist()}"
        )
    box[0, 1] = box[0, 2] = box[1, 2] = 0.0
    if min(ax, by, cz) <= 0.0 or ax * by * cz == 0.0:
        raise ValueError(f"`box_vectors` must span a positive volume, got {box.tolist()}")
    if max(map(max, rows)) > MAX_COORDINATE:
        raise ValueError(f"`box_vectors` must be at most {MAX_COORDINATE:g} nm, got {box.tolist()}")
    periodic = (boundary or Boundary()).periodic
    for row, axis, tilt, length in (1, 0, bx, ax), (2, 0, cx, ax), (2, 1, cy, by):
        reducible = periodic[row] and periodic[axis]
        if reducible and 2 * abs(tilt) > (1.0 + 1e-6) * length:
            raise ValueError(
                f"`box_vectors`: periodic box vectors must be in reduced form, got {box.tolist()}"
            )
    return box


def check_cell_vectors(box_vectors, boundary: Boundary) -> np.ndarray | None:
    """Box vectors of a cell with a boundary, see :func:`check_box_vectors`; None in free space.

    Raises:
        ValueError: there are none although the boundary has images, there are some although it has
            not, or they are invalid.
    """
    if boundary.is_open:
        if box_vectors is not None:
            raise ValueError("`box_vectors` must be None with `boundary='open'`")
        return None
    if box_vectors is None:
        raise ValueError(
            f"`box_vectors` must be given with `boundary={boundary.name!r}`: "
            "use `boundary='open'` for free space"
        )
    return check_box_vectors(box_vectors, boundary)


def strain(cell: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Strain by which one cell becomes another, apart from a uniform scaling:
    ``other = f cell (1 + e)``, ``f^3`` the ratio of their volumes. Cells of one shape have none,
    and those that differ by the choice of their periodic vectors a large one.

    Args:
        cell, other: lower triangular, rows are vectors, shape (3, 3), in any unit.

    Returns:
        e, lower triangular, shape (3, 3).
    """
    deformation = np.linalg.solve(cell, other)
    return np.tril(deformation / np.cbrt(np.prod(np.diag(deformation)))) - np.eye(3)
