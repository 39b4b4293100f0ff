"""Where a slab or wire lies in the frames of a trajectory, which programs wrap at all box
vectors."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import unwrap
from fmm_openmm.checks import check_positions
from fmm_openmm.convert.cells import is_reduced, reduce_box
from fmm_openmm.neutralization import Neutralization


@dataclass(frozen=True)
class FramePlacement:
    """Translations by the box vectors without images, after which the particles of a frame lie
    together, as near as possible to those of the first frame.

    Attributes:
        boundary: along which vectors there are images.
        centre: mean position in the first frame of a slab or wire, shape (3,), nm.
        neutralization: what neutralises it, next to which it lies instead; None if nothing does.
    """

    boundary: Boundary
    centre: np.ndarray
    neutralization: Neutralization | None = None

    @classmethod
    def from_first(
        cls,
        boundary: Boundary,
        positions: Any,
        box_vectors: Any,
        neutralization: Neutralization | None = None,
    ) -> "FramePlacement":
        """The placement for a first frame, most of whose particles stay where they are.

        Args:
            boundary: along which vectors there are images.
            positions: shape (n, 3), nm.
            box_vectors: shape (3, 3), nm; None if no particle has been wrapped.
            neutralization: what neutralises the slab or wire.
        """
        if neutralization is not None or not boundary.is_partial:
            return cls(boundary, np.zeros(3), neutralization)
        positions = check_positions(to_host(positions), len(positions))
        if box_vectors is None:
            return cls(boundary, positions.mean(0))
        box = reduce_box(box_vectors, boundary)
        moved = unwrap(positions, box, boundary)
        periods = np.rint((moved - positions) @ np.linalg.inv(box))
        return cls(boundary, moved.mean(0) - np.rint(np.median(periods, axis=0)) @ box)

    def place(self, positions: Any, box_vectors: Any) -> tuple[Any, Any]:
        """Positions, shape (n, 3), nm, and box vectors, shape (3, 3), nm, of which those with
        images are in reduced form. Without box vectors, and if :attr:`boundary` is not that of a
        slab or wire, the positions are not changed.

        Raises:
            ValueError: as :func:`fmm_openmm.convert.cells.reduce_box`,
                :func:`fmm_openmm.box.unwrap` and
                :meth:`fmm_openmm.neutralization.Neutralization.place`.
        """
        if box_vectors is None or self.boundary.is_open:
            return positions, box_vectors
        box = _reduced(box_vectors, self.boundary)
        if self.boundary.fills_space:
            return positions, box
        moved = unwrap(to_host(positions), box, self.boundary)
        if self.neutralization is not None:
            return self.neutralization.place(moved, box), box
        periods = np.rint((self.centre - moved.mean(0)) @ np.linalg.inv(box))
        return moved + (periods * self.boundary.free) @ box, box


def _reduced(box_vectors, boundary: Boundary) -> np.ndarray:
    """See :func:`fmm_openmm.convert.cells.reduce_box`; the same array for frames in the same
    box."""
    if type(box_vectors) is not np.ndarray or box_vectors.dtype != np.float64:
        return reduce_box(box_vectors, boundary)
    return _reduced_again(box_vectors.tobytes(), box_vectors.shape, boundary)


@lru_cache(maxsize=4)
def _reduced_again(data: bytes, shape: tuple[int, ...], boundary: Boundary) -> np.ndarray:
    box = np.frombuffer(data).reshape(shape)
    if shape != (3, 3) or not is_reduced(box):
        box = reduce_box(box, boundary)
        box.flags.writeable = False
    return box
