"""The place of a slab or wire in OpenMM's box."""

import numpy as np

from fmm_openmm.boundary import Boundary

FROM_CUT = 0.1
"""Distance from the middle of the vacuum, nm, within which the place of a slab or wire is
determined anew. No particle moves as far between two evaluations."""


class Placement:
    """Where a slab or wire lies along the box vectors without images, the free ones. From this the
    plugin finds the images of its particles that lie together, which OpenMM may have wrapped.

    Args:
        boundary: of the slab or wire.
        box_vectors: shape (3, 3), nm.
        positions: of particles that lie together, shape (n, 3), nm; the origin if there are none.
    """

    def __init__(
        self, boundary: Boundary, box_vectors: np.ndarray, positions: np.ndarray | None = None
    ):
        free = np.array(boundary.free)[:, None]
        self._vectors, self._normals = box_vectors * free, np.linalg.inv(box_vectors).T * free
        self._middle = np.zeros(3) if positions is None else self._middle_of(positions)
        heights = FROM_CUT * np.linalg.norm(self._normals, axis=1)
        self._farthest = np.where(boundary.free, 0.5 - heights, 1.0)

    def next_to(self, other: "Placement", positions: np.ndarray) -> np.ndarray:
        """Positions that lie together, moved by the free vectors to the image nearest to another
        place."""
        away = (other._middle @ other._vectors) @ self._normals.T - self._middle_of(positions)
        return positions + np.rint(away) @ self._vectors

    def holds(self, positions: np.ndarray) -> bool:
        """Whether particles that lie together do so in the images that the plugin finds. A slab
        that has parted in two may have its widest gap inside."""
        away = np.abs(positions @ self._normals.T - self._middle)
        return bool((away <= self._farthest).all())

    def packed(self, axes: np.ndarray) -> np.ndarray:
        """``Placement`` of :mod:`fmm_openmm.backends.cuda.abi`, for boxes along unit vectors in
        columns, shape (3, 3)."""
        parts = self._middle, self._farthest, self._normals, self._vectors, axes
        return np.concatenate([part.ravel() for part in parts])

    def _middle_of(self, positions: np.ndarray) -> np.ndarray:
        fractions = positions @ self._normals.T
        return (fractions.min(0) + fractions.max(0)) / 2
