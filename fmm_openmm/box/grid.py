"""The counts of boxes in a cell: what a user may give, and the choice of them."""

from functools import lru_cache
from itertools import product

import numpy as np

from fmm_openmm.box.group import row_cycle, smith_normal_form

ROWLESS = 0.1
"""Added to the score of :func:`choose_counts` where no :func:`row_cycle` keeps neighbours
together in memory."""


def box_width(cell: np.ndarray, counts: np.ndarray) -> float:
    """Mean width of a box, ``h = (V / number of boxes)^(1/3)``, in the unit of ``cell``."""
    (a, b, c), (i, j, k) = cell.diagonal().tolist(), counts.diagonal().tolist()
    return float(np.cbrt(a * b * c / (i * j * k)))


def counts_matrix(grid) -> np.ndarray:
    """The counts matrix of a ``grid`` given as three integers or as a lower-triangular 3x3 integer
    matrix.

    Raises:
        ValueError: any other shape, non-integers, a diagonal below 1, or entries above the
            diagonal.
    """
    try:
        counts = np.array(grid)
    except ValueError as error:
        raise ValueError(
            f"`grid` must be three integers or a 3x3 integer matrix, got {grid!r:.80}"
        ) from error
    if counts.shape == (3,):
        counts = np.diag(counts)
    if counts.shape != (3, 3) or counts.dtype.kind not in "iu":
        raise ValueError(f"`grid` must be three integers or a 3x3 integer matrix, got {grid!r}")
    if np.triu(counts, 1).any() or np.diag(counts).min() < 1:
        raise ValueError(
            f"`grid` must be lower triangular with a diagonal of at least 1, got {counts.tolist()}"
        )
    return counts.astype(np.int64)


def deformation(cell: np.ndarray, counts: np.ndarray) -> float:
    """Half the longest diagonal of a box over that of a cube of its volume: 1 for cubes,
    larger otherwise."""
    return float(
        _deformation(np.linalg.solve(counts.astype(float), cell)) / box_width(cell, counts)
    )


def _deformation(boxes: np.ndarray) -> np.ndarray:
    """The longest diagonals of boxes, shape (..., 3, 3), over that of a cube of unit edge."""
    signs = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]])
    return np.linalg.norm(signs @ boxes, axis=-1).max(-1) / np.sqrt(3.0)


def choose_counts(cell: np.ndarray, width: float) -> np.ndarray:
    """The counts matrix whose boxes are nearly cubes of about the given width and whose FFT lengths
    are products of 2, 3, 5 and 7. Along an infinite axis there is one box, of the given width.

    Args:
        cell: box vectors in reduced form, shape (3, 3).
        width: wanted box width, in the unit of ``cell``.
    """
    ranges, infinite = [], np.isinf(np.diag(cell))
    cell = np.where(infinite[:, None], width * np.eye(3), cell)
    for n, free in zip(np.diag(cell) / width, infinite, strict=True):
        numbers = np.arange(max(1, int(np.floor(0.87 * n))), max(1, int(np.ceil(1.13 * n))) + 1)
        nearest = numbers[np.argsort(np.abs(np.log(numbers / n)), kind="stable")].tolist()
        smooth = [number for number in nearest if is_smooth(number)]
        found = sorted([number for number in smooth if number in nearest[:7]] or smooth[:3])
        ranges.append([1] if free else found)
    diagonals = np.array(list(product(*ranges)))
    widths = np.diag(cell) / diagonals
    candidates = np.rint(np.tril(cell, -1) / widths[:, None, :]).astype(np.int64)
    candidates[:, range(3), range(3)] = diagonals
    boxes = np.linalg.solve(candidates.astype(float), np.broadcast_to(cell, candidates.shape))
    size = np.cbrt(widths.prod(1))
    scores = 4.0 * (_deformation(boxes) / size - 1.0) + np.abs(np.log(size / width))
    best, best_score = candidates[0], np.inf
    for k in np.argsort(scores.round(12), kind="stable"):
        if scores[k] >= best_score:
            break
        score = scores[k] + _slowness_of(candidates[k].tobytes())
        if score < best_score:
            best, best_score = candidates[k], score
    return best


@lru_cache(4096)
def _slowness_of(counts: bytes) -> float:
    """What the cycles of a counts matrix add to the score of :func:`choose_counts`."""
    matrix = np.frombuffer(counts, np.int64).reshape(3, 3)
    lengths = smith_normal_form(matrix)[2].tolist()
    return sum(map(_slowness, lengths)) + ROWLESS * (row_cycle(matrix) is None)


def is_smooth(n: int) -> bool:
    for f in (2, 3, 5, 7):
        while n % f == 0:
            n //= f
    return n == 1


def _slowness(n: int) -> float:
    """Rough extra cost of an FFT of this length over one of a power of two, in the score of
    :func:`choose_counts`."""
    return 0.01 * (n % 5 == 0) + 0.015 * (n % 7 == 0) + 0.01 * (n % 2)
