"""Any three independent cell vectors as a cell in OpenMM's reduced form, and back."""

from functools import lru_cache

import numpy as np

from fmm_openmm.convert.cells import reduced

SLACK = 9e-7
"""See :func:`fmm_openmm.convert.cells.reduced`."""


@lru_cache(maxsize=64)
def _orient(data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    cell = np.frombuffer(data).reshape(3, 3)
    lengths = np.linalg.norm(cell, axis=1)
    volume = abs(np.linalg.det(cell))
    if not np.isfinite(cell).all() or not volume > 1e-9 * lengths.prod():
        raise ValueError(f"`cell` must be finite and span a volume, got {cell.tolist()}")
    if np.diag(cell).min() > 0 and not np.triu(cell, 1).any():
        return reduced(cell, SLACK), None
    rotation, triangle = np.linalg.qr(cell.T)
    signs = np.sign(np.diag(triangle))
    return reduced(np.tril((triangle * signs[:, None]).T), SLACK), rotation * signs


def orient_cell(cell: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """A reduced cell that spans the same lattice up to a rotation or reflection.

    Coulomb energies are invariant under both, so that a left-handed cell needs no other treatment
    than a right-handed one. Entries above the diagonal are never rounded off, which would hide them
    from finite differences.

    Args:
        cell: rows are any three independent vectors, shape (3, 3), float64, nm.

    Returns:
        box_vectors: in reduced form, shape (3, 3), nm.
        rotation: orthogonal, shape (3, 3); ``positions @ rotation`` are the positions in the
            reduced cell. None if the cell is lower triangular already.

    Raises:
        ValueError: the vectors are not finite or span no volume.
    """
    return _orient(np.ascontiguousarray(cell, dtype=np.float64).tobytes())


def periodic_first(cell: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """The periodic vectors of a cell, and vectors perpendicular to them and to each other in place
    of the others, as long as the first, shape (3, 3).

    Args:
        cell: rows are the cell vectors, shape (3, 3).
        periodic: which of them have images, at least one, shape (3,) bool.
    """
    if periodic.all():
        return cell
    vectors = cell[periodic]
    free = free_directions(cell, periodic)
    return np.concatenate([vectors, free * np.linalg.norm(vectors[0])])


def free_directions(cell: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Unit vectors perpendicular to the periodic vectors of a cell and to each other, one for each
    other vector, as close to the Cartesian axes of the same numbers as these allow, shape (k, 3).

    Args:
        cell: rows are the cell vectors, shape (3, 3).
        periodic: which of them have images, at least one, shape (3,) bool.
    """
    perpendicular = np.linalg.svd(cell[periodic])[2][periodic.sum() :]
    # orthogonal Procrustes problem: P. H. Schoenemann, Psychometrika 31, 1 (1966),
    # doi:10.1007/BF02289451
    left, _, right = np.linalg.svd(perpendicular[:, ~periodic])
    return (left @ right).T @ perpendicular
