"""Speed of the solver on this machine's CPU, beside OpenMM's PME.

``python -m fmm_openmm.bench.speed`` prints three Markdown tables: the time of an evaluation at several tolerances with the
measured force error; the time of an MD step with all charges zero, with PME and with FMM; and the time of an evaluation in
cells of other shapes with the same volume.
"""

import argparse
import copy
import json
import resource
import time

import numpy as np
import openmm
from numba import get_num_threads

from fmm_openmm.bench.systems import Sample, fastest_platform, water_box
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.integration import use_fmm
from fmm_openmm.oracle import ewald_sum

CASES = ((5e-4, {}), (5e-4, {"smoothing": 0.0}), (1e-4, {}), (1e-5, {}), (1e-6, {}), (1e-8, {}))

SHAPES = {  # rows a, b, c of cells of volume 1, before reduction of the edge
    "cube": np.eye(3),
    "rhombic dodecahedron": np.array([[1.0, 0, 0], [0, 1, 0], [0.5, 0.5, np.sqrt(0.5)]]),
    "truncated octahedron": np.array([[1.0, 0, 0], [1 / 3, np.sqrt(8 / 9), 0], [-1 / 3, np.sqrt(2 / 9), np.sqrt(2 / 3)]]),
    "skewed": np.array([[1.0, 0, 0], [0.31, 1.12, 0], [-0.27, 0.43, 0.94]]),
}


def median_seconds(function, repeats: int) -> float:
    """Median wall time of ``function()`` after one call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def evaluations(sample: Sample, cases=CASES, repeats: int = 15):
    """One row a case: tolerance, parameters, measured force error, milliseconds of an evaluation and of the operator."""
    charges = ChargeSystem.from_openmm(sample.system, sample.positions)
    reference = ewald_sum(charges.positions, charges.charges, charges.box_vectors, charges.exclusions).forces
    stretched = charges.box_vectors * [[1.0], [1.0], [1.0 + 1e-6]]
    for tolerance, options in cases:
        solver = charges.solver(tolerance=tolerance, **options)
        seconds = median_seconds(lambda solver=solver: solver.compute(charges.positions), repeats)
        error = np.linalg.norm(solver.compute(charges.positions).forces - reference) / np.linalg.norm(reference)
        begin = time.perf_counter()
        solver.compute(charges.positions, stretched)
        rebuilt = time.perf_counter() - begin
        chosen = solver.parameters
        yield {
            "tolerance": tolerance,
            "smoothing": chosen.smoothing,
            "order": chosen.order,
            "near_radius": chosen.near_radius,
            "grid": np.diag(chosen.counts).tolist(),
            "precision": chosen.precision,
            "error": float(error),
            "milliseconds": 1e3 * seconds,
            "operator_milliseconds": 1e3 * (rebuilt - seconds),
        }


def step_milliseconds(sample: Sample, system: openmm.System, steps: int) -> float:
    """Median time of a Langevin step of 2 fs from the sample's state, over five runs."""
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002)
    context = openmm.Context(system, integrator, fastest_platform())
    context.setPositions(sample.positions)
    context.setVelocities(sample.velocities)

    def run():
        integrator.step(steps)
        context.getState(energy=True)

    return 1e3 * median_seconds(run, 5) / steps


def md_steps(sample: Sample, tolerance: float = 5e-4, steps: int = 20) -> dict:
    """Milliseconds of a step with all charges zero, with PME and with FMM, and what PME and FMM add."""
    neutral, fmm = copy.deepcopy(sample.system), copy.deepcopy(sample.system)
    for force in neutral.getForces():
        if isinstance(force, openmm.NonbondedForce):
            force.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
            for i in range(force.getNumParticles()):
                _, sigma, epsilon = force.getParticleParameters(i)
                force.setParticleParameters(i, 0.0, sigma, epsilon)
            for i in range(force.getNumExceptions()):
                a, b, _, sigma, epsilon = force.getExceptionParameters(i)
                force.setExceptionParameters(i, a, b, 0.0, sigma, epsilon)
    use_fmm(fmm, tolerance=tolerance)
    base, pme, with_fmm = (step_milliseconds(sample, s, steps) for s in (neutral, sample.system, fmm))
    return {"charges zero": base, "PME": pme, "FMM": with_fmm, "PME adds": pme - base, "FMM adds": with_fmm - base}


def shapes(volume: float, tolerance: float = 5e-4, repeats: int = 15):
    """One row a cell shape of the same volume: atoms, parameters, error and milliseconds of an evaluation."""
    for name, shape in SHAPES.items():
        vectors = shape * np.cbrt(volume / np.prod(np.diag(shape)))
        row = next(evaluations(water_box(vectors, picoseconds=0.2), [(tolerance, {})], repeats))
        yield {"cell": name, **row}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fmm_openmm.bench.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--edge", type=float, default=6.0, help="box length, nm (default 6: about 21,000 atoms)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args(arguments)
    sample = water_box(options.edge, picoseconds=1.0)
    results = {"atoms": len(sample.positions), "threads": get_num_threads()}
    print(f"{results['atoms']} atoms of water, {results['threads']} threads\n")

    header = "| tolerance | smoothing | order, radius, boxes | precision | measured error | evaluation, ms | operator, ms |"
    print(header + "\n|---|---|---|---|---|---|---|")
    results["evaluations"] = []
    for row in evaluations(sample):
        results["evaluations"].append(row)
        print(
            f"| {row['tolerance']:g} | {row['smoothing']:g} | {row['order']}, {row['near_radius']:g}, {row['grid']} | "
            f"{row['precision']} | {row['error']:.1e} | {row['milliseconds']:.1f} | {row['operator_milliseconds']:.0f} |"
        )
    results["md"] = md_steps(sample)
    print(f"\n| {' | '.join(results['md'])} |\n|{'---|' * len(results['md'])}")
    print(f"| {' | '.join(f'{value:.1f}' for value in results['md'].values())} |\n")

    print("| cell | measured error | evaluation, ms | over the cube |\n|---|---|---|---|")
    results["shapes"] = list(shapes(options.edge**3))
    for row in results["shapes"]:
        ratio = row["milliseconds"] / results["shapes"][0]["milliseconds"]
        print(f"| {row['cell']} | {row['error']:.1e} | {row['milliseconds']:.1f} | {ratio:.2f} |")
    results["peak memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
