"""Images of particles along axes without images, where a periodic box has wrapped them."""

import numpy as np

from fmm_openmm.boundary import Boundary
from fmm_openmm.checks import check_positions

SMALLEST_GAP = 0.5
"""Smallest vacuum between a slab or wire and its wrapped part, nm: wider than the gaps among the
particles of a liquid."""

WIDEST_OVER_NEXT = 1.1
"""Smallest ratio of the widest gap to the next one. A molecule that crosses the vacuum shifts the
cut where both are the same; steps of a simulation are too short to miss that."""


def unwrap(positions: np.ndarray, box_vectors: np.ndarray, boundary: Boundary) -> np.ndarray:
    """Move particles by the box vectors along which there are no images, so that they lie together.

    A box is cut at the widest gap among its particles along each of these vectors. The result does
    not depend on the images that the positions are in, except for a translation of all particles.

    Args:
        positions: shape (n, 3), nm.
        box_vectors: all of them, in reduced form, shape (3, 3), nm.
        boundary: along which of them there are images.

    Returns:
        positions, shape (n, 3), nm; unchanged coordinates along vectors of the images.

    Raises:
        ValueError: the widest gap is not much wider than others, so that the images are ambiguous;
            or as :func:`fmm_openmm.checks.check_positions`.
    """
    positions = check_positions(positions, len(positions))
    inverse = np.linalg.inv(box_vectors)
    moved = positions.copy()
    for axis in np.flatnonzero(boundary.free):
        fractions = positions @ inverse[:, axis]
        height = float(1.0 / np.linalg.norm(inverse[:, axis]))
        cut = _cut(fractions, height, boundary, "abc"[axis])
        moved -= np.floor(fractions - cut)[:, None] * box_vectors[axis]
    return moved


def _cut(fractions: np.ndarray, height: float, boundary: Boundary, vector: str) -> float:
    """The middle of the widest gap between fractional coordinates, shape (n,), along a vector over
    which the box has the given height, nm."""
    ordered = np.sort(np.mod(fractions, 1.0))
    gaps = np.diff(ordered, append=ordered[0] + 1.0)
    widest = int(gaps.argmax())
    gap = gaps[widest] * height
    following = np.delete(gaps, widest).max(initial=0.0) * height
    if gap < max(SMALLEST_GAP, WIDEST_OVER_NEXT * following):
        raise ValueError(
            f"`boundary={boundary.name!r}` needs vacuum along box vector {vector}, at which OpenMM "
            f"wraps particles: the widest gap among these is {gap:.3g} nm and the next one "
            f"{following:.3g} nm. To show which images belong together it must be at least "
            f"{SMALLEST_GAP:g} nm and {WIDEST_OVER_NEXT:g} times the next one: lengthen the "
            f"vector, whose height is {height:.3g} nm"
        )
    return float(ordered[widest] + gaps[widest] / 2)
