"""Measured and predicted times of P2P with indexed and with replicated sources as functions of the
density of particles.

Particles are placed at random in a periodic cube of cubic boxes. Each time is accompanied by an
error, the deviation from ``indexed`` in float64. The costs of the model are measured at densities
between those of the predictions.
"""

from collections.abc import Iterator

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, set_up
from fmm_openmm.backends.cuda.execute.cupy.loader import device_name
from fmm_openmm.bench import device
from fmm_openmm.bench.device import DTYPES
from fmm_openmm.bench.solver import INSTRUCTIONS
from fmm_openmm.box import BoxLattice
from fmm_openmm.literature.layouts import LAYOUTS, Neighbourhood, program
from fmm_openmm.literature.layouts.model import (
    KEPT,
    WARP,
    Costs,
    choose,
    fit,
    key,
    predict,
    predict_layout,
)

CALIBRATION = (0.7, 1.5, 4.0, 10.0, 28.0, 80.0, 150.0)
"""Densities at which the costs are measured."""

CALIBRATION_PARTICLES = 5e5
CALIBRATION_RADIUS = 1.75
"""Box widths: the 27 boxes that touch are near."""

CLAIM = {
    "claim": "with replicated sources the kernel of P2P alone is up to 7 times as fast",
    "source": "Sadeghi, arXiv:2511.21535",
}


def random_boxes(density: float, particles: float, near_radius: float) -> Neighbourhood:
    """A cube of boxes with approximately the given number of particles at random positions."""
    side = max(1, round(np.cbrt(particles / density)))
    lattice = BoxLattice.from_cell(np.eye(3) * side, np.diag([side] * 3), near_radius)
    box = np.random.default_rng(1).integers(0, lattice.size, round(density * lattice.size))
    return Neighbourhood.from_lattice(
        lattice, np.append(0, np.cumsum(np.bincount(box, minlength=lattice.size)))
    )


def make_run(layout: str, neighbourhood: Neighbourhood, precision: str) -> Run:
    """Make a run of a layout with random positions and charges, which are the same for all layouts
    and precisions."""
    run = set_up(program(layout, neighbourhood, DTYPES[precision]))
    xq = run.buffers["xq"]
    xq[...] = cupy.random.default_rng(1).random(xq.shape, np.float32) - np.float32(0.5)
    return run


def make_runs(neighbourhood: Neighbourhood, precision: str) -> dict[str, Run]:
    """Make runs of all layouts, by name."""
    return {layout: make_run(layout, neighbourhood, precision) for layout in LAYOUTS}


def kernel_seconds(runs: dict[str, Run]) -> dict[str, float]:
    """Median time of each kernel, s."""
    return {
        "p2p_indexed": device.median_seconds(lambda: runs["indexed"].queue("p2p")),
        "replicate": device.median_seconds(lambda: runs["replicated"].queue("copy")),
        "p2p_replicated": device.median_seconds(lambda: runs["replicated"].queue("p2p")),
    }


def load_costs(precision: str, remeasure: bool = False) -> Costs:
    """Costs on this GPU from the cache; if there are none, or on request, measured and cached."""
    name = key(device_name(), DTYPES[precision])
    costs = None if remeasure else KEPT.read().get(name)
    if costs is None:
        costs = measure_costs(precision)
        if KEPT.path:
            KEPT.store({name: costs})
    return costs


def measure_costs(precision: str) -> Costs:
    """Measure the costs on this GPU."""
    pair = WARP * INSTRUCTIONS[precision] / device.fma_rate(precision)
    measured = []
    for density in CALIBRATION:
        neighbourhood = random_boxes(density, CALIBRATION_PARTICLES, CALIBRATION_RADIUS)
        for kernel, seconds in kernel_seconds(make_runs(neighbourhood, precision)).items():
            measured.append(
                (
                    kernel,
                    neighbourhood.density,
                    neighbourhood.near.shape[1],
                    neighbourhood.boxes,
                    seconds,
                )
            )
    return fit(pair, measured)


def measure(neighbourhood: Neighbourhood, precision: str, costs: Costs) -> dict:
    """One row: measured and predicted time of each layout and of each kernel, seconds, error,
    the faster layout and the one that the model picks. If memory does not suffice, the row has a
    ``failure`` instead."""
    near = neighbourhood.near.shape[1]
    row = {
        "precision": precision,
        "density": neighbourhood.density,
        "near": near,
        "parts": neighbourhood.parts,
        "boxes": neighbourhood.boxes,
    }
    try:
        runs = make_runs(neighbourhood, precision)
        kernels, wrong = kernel_seconds(runs), error(runs, neighbourhood)
        seconds = {
            "indexed": kernels["p2p_indexed"],
            "replicated": device.median_seconds(runs["replicated"].queue),
        }
    except (MemoryError, cupy.cuda.memory.OutOfMemoryError):
        return row | {"failure": "memory"}
    finally:
        cupy.get_default_memory_pool().free_all_blocks()
    return row | {
        "seconds": seconds,
        "predicted": {
            layout: predict_layout(layout, neighbourhood.density, near, neighbourhood.boxes, costs)
            for layout in LAYOUTS
        },
        "kernel_seconds": kernels,
        "kernel_predicted": {
            kernel: predict(kernel, neighbourhood.density, near, neighbourhood.boxes, costs)
            for kernel in kernels
        },
        "error": wrong,
        "faster": min(seconds, key=lambda layout: seconds[layout]),
        "picked": choose(neighbourhood.density, near, costs),
    }


def error(runs: dict[str, Run], neighbourhood: Neighbourhood) -> float:
    """Relative deviation from ``indexed`` in float64: the maximum over layouts, potentials and
    fields."""
    double = make_run("indexed", neighbourhood, "double")
    double.queue()
    exact = double.buffers["results"]
    return max(
        float(
            cupy.linalg.norm((run.buffers["results"] - exact)[:, c]) / cupy.linalg.norm(exact[:, c])
        )
        for run in runs.values()
        for c in (slice(0, 1), slice(1, 4))
    )


def rows(
    densities, precisions, particles: float, near_radius: float, costs: dict[str, Costs]
) -> Iterator[dict]:
    """Rows of :func:`measure` for all combinations."""
    for density in densities:
        neighbourhood = random_boxes(density, particles, near_radius)
        for precision in precisions:
            yield measure(neighbourhood, precision, costs[precision])


def summary(found: list[dict]) -> list[dict]:
    """For each precision: how often the model picks the faster layout, the largest relative loss by
    a wrong pick, the largest relative error of a prediction, and the literature's claim with the
    measured value."""
    out = []
    for precision in dict.fromkeys(row["precision"] for row in found):
        done = [row for row in found if row["precision"] == precision and "seconds" in row]
        if not done:
            continue
        off = [
            row["predicted"][layout] / row["seconds"][layout] - 1
            for row in done
            for layout in LAYOUTS
        ]
        kernels = [row["kernel_seconds"] for row in done]
        out.append(
            CLAIM
            | {
                "precision": precision,
                "right": sum(row["picked"] == row["faster"] for row in done),
                "of": len(done),
                "loss": max(
                    row["seconds"][row["picked"]] / row["seconds"][row["faster"]] for row in done
                )
                - 1,
                "off": max(off, key=abs),
                "measured": max(each["p2p_indexed"] / each["p2p_replicated"] for each in kernels),
            }
        )
    return out
