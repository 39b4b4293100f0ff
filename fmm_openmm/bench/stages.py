"""Time of an evaluation on the GPU and of each of its stages, in water of several sizes.

``python -m fmm_openmm.bench.stages`` prints a Markdown table. An evaluation is one replay of the CUDA graph, with positions and
results on the device; stages are timed one by one, so their sum is larger: near and far field overlap, and a stage alone
shows its launch. Larger systems are copies of the smallest, whose forces, by an Ewald sum, are the reference for all.
"""

import argparse
import json

import cupy
import numpy as np

from fmm_openmm.backends import backend_class
from fmm_openmm.backends.cuda.program import STAGES
from fmm_openmm.bench.systems import water_box
from fmm_openmm.box import BoxLattice, box_width
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.solver import CoulombSolver

CASES = ((5e-4, {"smoothing": 0.0}), (5e-4, {}), (1e-5, {}), (1e-6, {}))
COPIES = ((1, 1, 1), (2, 2, 2), (3, 3, 5))


def microseconds(launch, repeats: int = 50) -> float:
    """Median device time of ``launch()``."""
    begin, end, times = cupy.cuda.Event(), cupy.cuda.Event(), []
    for _ in range(repeats + 3):
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times[3:]))


def tiled(system: ChargeSystem, copies) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions, charges, box vectors and exclusions of copies of a system along its box vectors."""
    n, count = len(system.charges), int(np.prod(copies))
    shifts = np.array(list(np.ndindex(*copies))) @ system.box_vectors
    positions = (system.positions[None] + shifts[:, None]).reshape(-1, 3)
    exclusions = (system.exclusions[None] + n * np.arange(count)[:, None, None]).reshape(-1, 2)
    return positions, np.tile(system.charges, count), system.box_vectors * np.array(copies)[:, None], exclusions


def measure(system: ChargeSystem, exact: np.ndarray, copies, tolerance: float, options: dict) -> dict:
    """One row: what was chosen, the measured error and the times in microseconds."""
    positions, charges, box_vectors, exclusions = tiled(system, copies)
    chosen = CoulombSolver(charges, box_vectors, exclusions, tolerance=tolerance, backend="cuda", **options).parameters
    lattice, width = BoxLattice.from_cell(box_vectors, chosen.counts, chosen.near_radius), box_width(box_vectors, chosen.counts)
    dtype = np.float32 if chosen.precision == "single" else np.float64
    stages = backend_class("cuda")(lattice, chosen.order, chosen.smoothing, charges, exclusions, False, dtype)
    _, forces, _, _ = stages.compute(cupy.asarray(positions), width)
    exact = np.tile(exact, (int(np.prod(copies)), 1))
    row = {
        "atoms": len(charges),
        "tolerance": tolerance,
        "smoothing": chosen.smoothing,
        "precision": chosen.precision,
        "order": chosen.order,
        "near_radius": chosen.near_radius,
        "grid": np.diag(chosen.counts).tolist(),
        "error": float(np.linalg.norm(forces.get() - exact) / np.linalg.norm(exact)),
        "evaluation": microseconds(stages.replay),
    }
    return row | {name: microseconds(lambda name=name: stages.queue(name)) for name in STAGES}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fmm_openmm.bench.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--edge", type=float, default=6.0, help="box length of the smallest system, nm (default 6)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args(arguments)
    sample = water_box(options.edge, picoseconds=1.0)
    system = ChargeSystem.from_openmm(sample.system, sample.positions)
    exact = ewald_sum(system.positions, system.charges, system.box_vectors, system.exclusions).forces
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    print(f"{device}, times in microseconds\n")
    columns = ("evaluation", *STAGES)
    print(f"| atoms | tolerance | smoothing | order, radius, boxes | error | {' | '.join(columns)} |")
    print("|---" * (5 + len(columns)) + "|")
    rows = []
    for copies in COPIES:
        for tolerance, choice in CASES:
            row = measure(system, exact, copies, tolerance, choice)
            rows.append(row)
            times = " | ".join(f"{row[name]:.0f}" for name in columns)
            parameters = f"{row['order']}, {row['near_radius']:g}, {row['grid']}"
            print(
                f"| {row['atoms']} | {tolerance:g} {row['precision']} | {row['smoothing']:g} | {parameters} | "
                f"{row['error']:.1e} | {times} |",
                flush=True,
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": device, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
