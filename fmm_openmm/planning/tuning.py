"""Parameters found by timing on a GPU (``fmm-openmm bench tune``), and the file that stores them.

A winner is stored by GPU model, version of this package, size class (the number of particles
rounded to a power of 2), shape of the cell, tolerance, precision and smoothing. It takes precedence
over the cost model if it is one of the candidates that satisfy the tolerance for the system at
hand. It can therefore change the speed of a run, but not make it less accurate.

The file is ``tuning.json`` in the user's cache folder, or in the folder that the environment
variable ``FMM_OPENMM_CACHE`` names; the value "off" disables it.
"""

from dataclasses import asdict, dataclass

import numpy as np

from fmm_openmm.cache import Entries
from fmm_openmm.planning.cost import CUDA_COST, CostModel
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import FMMParameters, Request
from fmm_openmm.planning.search import candidates, choose_parameters
from fmm_openmm.version import __version__

MAX_OCCUPANCY_RATIO = 1.25
"""Largest ratio of the numbers of particles in a box at which a winner matches a candidate: the
systems of a size class differ."""


@dataclass(frozen=True)
class Winner:
    """The fastest parameters.

    Attributes:
        order: expansion order.
        near_radius: in box widths.
        smoothing: in box widths.
        per_box: mean number of particles in a box.
        seconds: time of an evaluation.
    """

    order: int
    near_radius: float
    smoothing: float
    per_box: float
    seconds: float

    @classmethod
    def from_parameters(cls, parameters: FMMParameters, particles: int, seconds: float) -> "Winner":
        """The winner with these parameters, timed on a number of particles."""
        p = parameters
        return cls(p.order, p.near_radius, p.smoothing, _per_box(p, particles), seconds)

    def among(self, found: list[FMMParameters], particles: int) -> FMMParameters | None:
        """The candidate that matches the winner, of an order that differs by at most one; None if
        there is none."""

        def distance(p: FMMParameters) -> float:
            return abs(np.log(_per_box(p, particles) / self.per_box))

        alike = [
            p
            for p in found
            if (p.near_radius, p.smoothing) == (self.near_radius, self.smoothing)
            and abs(p.order - self.order) <= 1
            and distance(p) <= np.log(MAX_OCCUPANCY_RATIO)
        ]
        return min(alike, key=distance, default=None)


def choose_tuned(
    device: str | None, request: Request, cell: np.ndarray, load: Load, cost: CostModel
) -> FMMParameters:
    """The winner of a timing on this model of GPU if there is one; else as
    :func:`fmm_openmm.planning.search.choose_parameters`.

    Timings are used only where the request leaves order, near radius, grid and levels free, and
    only for filled cells, in which they are made.

    Args:
        device: model of the GPU; None on the host.
    """
    fixed = request.order, request.near_radius, request.grid, request.levels or None
    free = fixed == (None,) * 4 and load.filled == 1.0
    if device is None or not free:
        return choose_parameters(request, cell, load, cost)
    found = candidates(request, cell, load, cost)
    if request.expected(found[0]) > request.tolerance:
        return found[0]
    winner = KEPT.read().get(key(device, request, cell, load))
    return (winner and winner.among(found, load.particles)) or found[0]


def key(device: str, request: Request, cell: np.ndarray, load: Load) -> str:
    """The key that a winner is stored under.

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
        raise ValueError("an entry is not numeric")
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
"""All winners, in the file of the user's cache folder."""
