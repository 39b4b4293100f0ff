"""Times of M2L on one level of a periodic octree: each operator as a function of order and depth,
and in relation to the limits of the device.

The moments of a level repeat those of depth 3 periodically, and so do its local expansions. Hence
each time is accompanied by the error relative to ``p4`` at depth 3 in float64. ``fft`` is the stage
lattice of a root grid of as many boxes, with a near stencil of the same extent: it sums over *all*
boxes that are not near and all their images, and no error is reported for it.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import cupy
import numpy as np

from fmm_openmm.backends.cuda.evaluator import CudaEvaluator
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device, set_up
from fmm_openmm.bench import device
from fmm_openmm.bench.device import DTYPES
from fmm_openmm.bench.solver import gpu_limits
from fmm_openmm.box import BoxLattice
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular, term_count
from fmm_openmm.literature.operators.level import OPERATORS, Level, program
from fmm_openmm.specification import Specification

BASE_DEPTH = 3
CHARGES = 5
"""Charges per box that the moments represent."""

COUNT = {1: 189, 2: 875}
"""Boxes in an interaction list, by separation."""

FFT_RADIUS = {1: 1.75, 2: 3.5}
"""Near radius of the root grid, by separation: 27 and 179 boxes."""

NAMES = (*OPERATORS, "fft")

ROTATION_OVER_P4 = {
    "claim": (
        "at increased precision a far field by rotation is 2.47 times as fast as an O(p^4) one, "
        "and its lead grows with p"
    ),
    "source": "Lengvenis et al., IPDPS 2025, doi:10.1109/IPDPS64566.2025.00075",
}
COMPUTE_BOUND = {
    "claim": (
        "with symmetries the O(p^4) operator is compute-bound, "
        "at 0.3 of the bound or more for 3 <= p <= 20"
    ),
    "source": (
        "Kohnke et al., Int. J. High Perform. Comput. Appl. 35, 97 (2021), "
        "doi:10.1177/1094342020964857"
    ),
}


def multiply_adds(name: str, order: int) -> int:
    """Multiply-adds per pair of boxes: the number of matrix entries that do not vanish by
    symmetry."""
    if name != "rotation":
        return term_count(order) ** 2
    swaps = sum(
        (l + m + k) % 2 == imaginary for l in range(order + 1) for imaginary in (0,
        1) for m in range(imaginary, l + 1)
        for k in range(imaginary, l + 1)
    )  # fmt: skip
    rotations = sum(4 * l for l in range(order + 1))
    columns = sum((1 if m == 0 else 2) * (order + 1 - m) ** 2 for m in range(order + 1))
    return 4 * (swaps + rotations) + columns


def make_run(name: str, level: Level) -> Run:
    """Make a run of an operator, without moments yet."""
    return set_up(program(name, level, current_device()))


def compile_all(levels, names) -> None:
    """Fill CuPy's cache of compiled kernels, on all cores."""
    small = {Level(level.order, 2, level.separation, level.dtype) for level in levels}
    longest_first = sorted(
        itertools.product(small, set(names) - {"fft"}), key=lambda case: -case[0].order
    )
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda case: make_run(case[1], case[0]), longest_first))


@cache
def _base_moments(order: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = CHARGES, 8**BASE_DEPTH
    return (regular(rng.uniform(-0.5, 0.5, (*shape, 3)), order) * rng.normal(size=shape)).sum(1)


@cache
def _base_local(order: int, separation: int) -> np.ndarray:
    run = make_run("p4", Level(order, 2**BASE_DEPTH, separation, np.float64))
    run.buffers["moments"].set(_base_moments(order))
    run.queue()
    return run.buffers["local"].get()


def _repeated(base: np.ndarray, depth: int) -> cupy.ndarray:
    """Expansions (terms, boxes) of depth 3, repeated along each axis."""
    side, times = 2**BASE_DEPTH, 2 ** (depth - BASE_DEPTH)
    grid = cupy.asarray(base).reshape(-1, side, side, side)
    return cupy.ascontiguousarray(cupy.tile(grid, (1, times, times, times)).reshape(len(base), -1))


def _error(found: cupy.ndarray, order: int, depth: int, separation: int) -> float:
    """Maximum over degrees of the error relative to the norm of that degree, with terms weighted by
    the norms of their harmonics."""
    expected = _repeated(_base_local(order, separation), depth)
    weight = 1.0 / irregular_norm(order)
    wrong, right = (
        np.bincount(degrees(order),
        weight * (values**2).sum(1).get()) for values in (found - expected, expected)
    )  # fmt: skip
    return float(np.sqrt(wrong / right).max())


def measure(name: str, order: int, depth: int, precision: str, separation: int = 1) -> dict:
    """One row: time in seconds, error, and work against the device's limits.

    ``compute_share`` is the rate of the literature's multiply-adds relative to a loop of nothing
    else. ``p4_parity`` performs 56 of 189 of them (189 of 875 for separation 2) and sums moments
    instead, so that its share may exceed 1; ``rotation`` performs about two thirds.
    ``memory_share`` is the bytes of moments and local expansions divided by the time and by the
    bandwidth of a copy. A row that cannot be measured has a ``failure`` instead: "memory", or
    "order" if the harmonics of ``fft`` exceed the range of floats.
    """
    row = {
        "operator": name,
        "order": order,
        "depth": depth,
        "precision": precision,
        "separation": separation,
    }
    level = Level(order, 2**depth, separation, DTYPES[precision])
    try:
        seconds, error = _fft(level) if name == "fft" else _operator(name, level, depth)
    except (MemoryError, cupy.cuda.memory.OutOfMemoryError):
        return row | {"failure": "memory"}
    except UnsupportedError:
        return row | {"failure": "order"}
    finally:
        cupy.get_default_memory_pool().free_all_blocks()
    best = gpu_limits(precision)
    work = None if name == "fft" else multiply_adds(name, order) * COUNT[separation] * level.boxes
    return row | {
        "seconds": seconds,
        "error": error,
        "compute_share": work and work / seconds / best.multiply_adds,
        "memory_share": 2
        * level.terms
        * level.boxes
        * np.dtype(level.dtype).itemsize
        / seconds
        / best.bandwidth,
    }


def _operator(name: str, level: Level, depth: int) -> tuple[float, float]:
    run = make_run(name, level)
    run.buffers["moments"][...] = _repeated(_base_moments(level.order), depth)
    run.queue()
    error = _error(run.buffers["local"], level.order, depth, level.separation)
    return device.median_seconds(run.queue), error


def _fft(level: Level) -> tuple[float, None]:
    counts = np.diag([level.side] * 3)
    lattice = BoxLattice.from_cell(np.eye(3) * level.side, counts, FFT_RADIUS[level.separation])
    rng = np.random.default_rng(0)
    positions = cupy.asarray(rng.uniform(0, level.side, (level.boxes, 3)))
    charges, no_pairs = rng.normal(size=level.boxes), np.empty((0, 2), np.int64)
    evaluator = CudaEvaluator(
        Specification(lattice, level.order, 0.0, charges, no_pairs, False, level.dtype)
    )
    evaluator.compute(positions, 1.0)
    return device.median_seconds(lambda: evaluator.run.queue("lattice")), None


def rows(orders, depths, precisions, names=NAMES, separation: int = 1):
    """Rows of :func:`measure` for all combinations."""
    for precision, depth, order, name in itertools.product(precisions, depths, orders, names):
        yield measure(name, order, depth, precision, separation)


def crossovers(found: list[dict]) -> list[dict]:
    """The order from which on an operator is faster than another at all higher orders, for all
    pairs for which this is not the lowest order."""
    times: dict = {}
    for row in found:
        if "seconds" in row:
            key = row["precision"], row["depth"]
            times.setdefault(key, {}).setdefault(row["operator"], {})[row["order"]] = row["seconds"]
    out = []
    for (precision, depth), seconds in times.items():
        for fast, slow in itertools.permutations(seconds, 2):
            orders = sorted(set(seconds[fast]) & set(seconds[slow]))
            wins = [order for order in orders if seconds[fast][order] < seconds[slow][order]]
            from_on = next(
                (order for n, order in enumerate(orders) if set(orders[n:]) <= set(wins)), None
            )
            if from_on is not None and from_on != orders[0]:
                out.append(
                    {
                        "precision": precision,
                        "depth": depth,
                        "faster": fast,
                        "than": slow,
                        "from_order": from_on,
                    }
                )
    return out


def claims(found: list[dict]) -> list[dict]:
    """Claims of the literature about the operators, with the measured values."""
    done = {
        (row["operator"], row["order"], row["depth"], row["precision"]): row
        for row in found
        if "seconds" in row
    }
    out = []
    for (name, order, depth, precision), row in done.items():
        where = {"operator": name, "order": order, "depth": depth, "precision": precision}
        symmetric = done.get(("p4_symmetric", order, depth, precision))
        if name == "rotation" and symmetric:
            out.append(
                ROTATION_OVER_P4 | where | {"measured": symmetric["seconds"] / row["seconds"]}
            )
        if name in ("p4_symmetric", "p4_parity") and 3 <= order <= 20:
            out.append(COMPUTE_BOUND | where | {"measured": row["compute_share"]})
    return out
