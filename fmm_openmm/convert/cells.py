"""Cells of other packages in OpenMM's reduced form.

Rows a, b, c of a reduced cell satisfy ``a = (ax, 0, 0)``, ``b = (bx, by, 0)``, positive diagonal,
``2 |bx| <= ax``, ``2 |cx| <= ax``, ``2 |cy| <= by``.
"""

import numpy as np

NO_CELL = 0.1 * np.eye(3)
"""Cell that CRYST1 holds in a PDB file of a system that is not a crystal, nm."""


def is_no_cell(box) -> bool:
    """Whether box vectors, shape (3, 3), nm, stand for no box: None, zeros, or a cube of one
    Angstrom."""
    return box is None or not np.any(box) or np.allclose(box, NO_CELL)


def reduced(cell: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """The same lattice in reduced form; ``cell`` (3, 3) must be lower triangular with a positive
    diagonal.

    Where a tilt is half a vector, as in hexagonal cells, two reduced forms are equally good. With a
    relative ``slack``, of which the solver allows 1e-6, a tiny strain does not take one to the
    other.

    >>> reduced(np.array([[2.0, 0, 0], [1.5, 2, 0], [0, 0, 3]])).tolist()
    [[2.0, 0.0, 0.0], [-0.5, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    a, b, c = np.array(cell, dtype=np.float64)
    c = c - b * np.round(c[1] / b[1] / (1.0 + slack))
    c = c - a * np.round(c[0] / a[0] / (1.0 + slack))
    b = b - a * np.round(b[0] / a[0] / (1.0 + slack))
    return np.array([a, b, c])


def standard_orientation(cell: np.ndarray, name: str = "cell") -> tuple[np.ndarray, np.ndarray]:
    """Rotate a cell so that a lies along x and b in the x-y plane.

    Args:
        cell: any three independent rows, shape (3, 3). A left-handed cell has its c replaced by -c,
            which spans the same lattice.
        name: of the cell, for the error.

    Returns:
        turned: shape (3, 3), lower triangular with a positive diagonal,
            ``turned = cell @ rotation``.
        rotation: proper rotation, shape (3, 3), to apply as ``positions @ rotation``. Exactly the
            identity if the cell is lower triangular already.

    Raises:
        ValueError: the three vectors span no volume.
    """
    cell = np.array(cell, dtype=np.float64)
    size = np.abs(cell).max()
    if not np.isfinite(size) or abs(np.linalg.det(cell)) <= 1e-9 * size**3:
        raise ValueError(f"`{name}` must span a positive volume, got {cell.tolist()}")
    if np.linalg.det(cell) < 0:
        cell[2] = -cell[2]
    if np.diag(cell).min() > 0 and np.abs(np.triu(cell, 1)).max() <= 1e-6 * size:
        return np.tril(cell), np.eye(3)
    rotation, triangle = np.linalg.qr(cell.T)
    signs = np.sign(np.diag(triangle))
    return np.tril((triangle * signs[:, None]).T), rotation * signs
