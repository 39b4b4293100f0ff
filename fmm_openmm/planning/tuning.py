"""Parameters found by timing on a GPU (``fmm-openmm bench tune``): the file that keeps them, and
their use.

A winner is kept for a GPU model, a version of this package, a size class (the number of particles
as a rounded power of 2), a shape of the cell, a tolerance, a precision and a smoothing. It takes
precedence over the cost model where it is among what meets the tolerance for the system at hand; so
it can make a run slower or faster, never less accurate.

The file is ``tuning.json`` in the user's cache folder, or in that of the environment variable
``FMM_OPENMM_CACHE``; with the value "off" there is none.
"""

from dataclasses import asdict, dataclass

import numpy as np

from fmm_openmm.cache import Entries
from fmm_openmm.planning.cost import CUDA_COST, CostModel
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import FMMParameters, Request
from fmm_openmm.planning.search import candidates
from fmm_openmm.version import __version__

ALIKE = 1.25
"""Largest ratio of particles a box at which a winner still stands for a candidate: systems of a
size class differ."""


@dataclass(frozen=True)
class Winner:
    """What won: order, near radius (box widths), smoothing (box widths) and particles a box; and
    its time, seconds."""

    order: int
    near_radius: float
    smoothing: float
    per_box: float
    seconds: float

    @classmethod
    def of(cls, parameters: FMMParameters, particles: int, seconds: float) -> "Winner":
        """Parameters that were timed on so many particles."""
        p = parameters
        return cls(p.order, p.near_radius, p.smoothing, _per_box(p, particles), seconds)

    def among(self, found: list[FMMParameters], particles: int) -> FMMParameters | None:
        """The candidate that it stands for, an order higher or lower at most;
        None if there is none."""

        def distance(p: FMMParameters) -> float:
            return abs(np.log(_per_box(p, particles) / self.per_box))

        alike = [
            p
            for p in found
            if (p.near_radius, p.smoothing) == (self.near_radius, self.smoothing)
            and abs(p.order - self.order) <= 1
            and distance(p) <= np.log(ALIKE)
        ]
        return min(alike, key=distance, default=None)


def choose_tuned(
    device: str | None, request: Request, cell: np.ndarray, load: Load, cost: CostModel
) -> FMMParameters:
    """As :func:`fmm_openmm.planning.search.choose_parameters`, but the winner of a timing on this
    model of GPU, where there is one; None for the host.

    What the request fixes is obeyed: timings count only where order, near radius and grid are all
    free. They are made in filled cells, and count only there.
    """
    found = candidates(request, cell, load, cost)
    fixed = request.order, request.near_radius, request.grid, request.levels or None
    free = device is not None and fixed == (None,) * 4 and load.filled == 1.0
    if not free or found[0].expected_error > request.tolerance:
        return found[0]
    winner = KEPT.read().get(key(device, request, cell, load))
    return (winner and winner.among(found, load.particles)) or found[0]


def key(device: str, request: Request, cell: np.ndarray, load: Load) -> str:
    """What a winner is kept under.

    Args:
        device: model of the GPU.
        cell: box vectors in reduced form, shape (3, 3).
    """
    shape = np.abs(cell[np.tril_indices(3)]) / np.cbrt(np.prod(np.diag(cell)))
    smoothing = "auto" if request.smoothing is None else f"{request.smoothing:g}"
    return ", ".join(
        [
            device,
            f"fmm_openmm {__version__}",
            f"2^{round(np.log2(load.particles))} particles",
            f"cell {' '.join(f'{length:.1f}' for length in shape)}",
            f"tolerance {request.tolerance:.3g}",
            request.resolve_precision(load.ionic, CUDA_COST.rounding),
            f"smoothing {smoothing}",
        ]
    )


def _checked(order, near_radius, smoothing, per_box, seconds) -> Winner:
    values = near_radius, smoothing, per_box, seconds
    if type(order) is not int or not all(
        type(value) in (int, float) and np.isfinite(value) for value in values
    ):
        raise ValueError("an entry is not of numbers")
    if not (order > 0 and per_box > 0):
        raise ValueError("an entry is out of range")
    return Winner(order, *map(float, values))


def _per_box(parameters: FMMParameters, particles: int) -> float:
    return particles / float(np.prod(np.diag(parameters.counts)))


KEPT = Entries(
    "tuning.json",
    "winners",
    "fmm_openmm tuning 1",
    "tune again",
    lambda entry: _checked(**entry),
    asdict,
)
"""All winners: the file in the user's cache folder."""
