"""Choice among the candidates of the cost model by timing on the GPU."""

import numpy as np

from fmm_openmm.backends import backend_class
from fmm_openmm.bench.solver import Evaluation
from fmm_openmm.bench.systems import DENSITY, SITES, Size, cell_of, in_cell
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.planning import tuning
from fmm_openmm.planning.cost import CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import FMMParameters, Request
from fmm_openmm.planning.search import candidates

CANDIDATES = 12
"""Number of the cheapest candidates that are timed."""


def water_like(cell: np.ndarray) -> ChargeSystem:
    """Charges of TIP3P water at the density of the liquid, with random orientations, only for
    timing.

    Args:
        cell: box vectors in reduced form, shape (3, 3), nm.
    """
    rng = np.random.default_rng(1)
    spacing = np.cbrt(SITES / DENSITY)
    counts = np.maximum(1, np.rint(np.diag(cell) / spacing)).astype(int)
    sites = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(-1, 3)
    oxygen = (sites + rng.uniform(-0.3, 0.3, sites.shape)) / counts @ cell
    bonds = rng.normal(size=(len(oxygen), 2, 3))
    bonds *= 0.0957 / np.linalg.norm(bonds, axis=-1, keepdims=True)
    positions = np.concatenate([oxygen[:, None], oxygen[:, None] + bonds], 1).reshape(-1, 3)
    first = 3 * np.arange(len(oxygen))[:, None, None]
    exclusions = (first + np.array([[0, 1], [0, 2], [1, 2]])).reshape(-1, 2)
    return ChargeSystem(np.tile([-0.834, 0.417, 0.417], len(oxygen)), positions, cell, exclusions)


def seconds_of(charges: ChargeSystem, parameters: FMMParameters, tolerance: float) -> float:
    """Median time of an evaluation with the given parameters, s; infinite if memory does not
    suffice."""
    p = parameters
    options = {
        "order": p.order,
        "near_radius": p.near_radius,
        "grid": p.counts,
        "smoothing": p.smoothing,
    }
    try:
        return Evaluation(
            charges, tolerance=tolerance, precision=p.precision, backend="cuda", **options
        ).seconds()
    except MemoryError:
        return np.inf


def tune(size: Size, request: Request, shape: str = "cube", most: int = CANDIDATES) -> dict:
    """One row: the candidates with their times, the winner, and the key to store it under."""
    charges = water_like(cell_of(size, shape))
    _, cell = in_cell(charges)
    load = Load.from_charges(charges.charges, charges.exclusions)
    found = candidates(request, cell, load, CUDA_COST)
    if request.expected(found[0]) > request.tolerance:
        reachable = request.expected(found[0])
        raise ValueError(
            f"`tolerance` {request.tolerance:g} is out of reach here: "
            f"the best estimate is {reachable:.1e}"
        )
    times = [seconds_of(charges, each, request.tolerance) for each in found[:most]]
    best = int(np.argmin(times))
    if not np.isfinite(times[best]):
        raise MemoryError(f"device memory does not suffice for {len(charges)} atoms")
    return {
        "atoms": len(charges),
        "cell": shape,
        "tolerance": request.tolerance,
        "precision": found[0].precision,
        "key": tuning.key(backend_class("cuda").device(), request, cell, load),
        "winner": tuning.Winner.from_parameters(found[best], len(charges), times[best]),
        "grid": found[best].grid,
        "model_seconds": times[0],
        "candidates": [
            {
                "order": p.order,
                "near_radius": p.near_radius,
                "smoothing": p.smoothing,
                "grid": p.grid,
                "seconds": seconds,
            }
            for p, seconds in zip(found, times, strict=False)
        ],
    }
