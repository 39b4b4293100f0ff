"""Time of an evaluation of ten small systems, with the error over the tolerance:
``python -m tests.small_systems [--backend cuda] [--tolerance 1e-5]``.

Droplets and clusters in free space, a droplet and a slab in a cell, and boxes of ions, of 500 to
3,000 particles. Times on a CPU are of the processor, with the threads that ``NUMBA_NUM_THREADS``
names.
"""

import argparse
import itertools
import statistics
import time

import numpy as np

from fmm_openmm import ChargeSystem
from fmm_openmm.bench import systems
from fmm_openmm.bench.open import describe
from fmm_openmm.bench.solver import Evaluation, relative_error
from fmm_openmm.oracle import direct_sum
from tests.expected_errors import crystal, of_system
from tests.systems import build

EVALUATIONS = 15


def gas(particles: int) -> ChargeSystem:
    """Ions at random in free space, 30 a nm^3."""
    x = np.random.default_rng(1).random((particles, 3)) * (particles / 30) ** (1 / 3)
    return ChargeSystem(1.0 - 2.0 * (np.arange(particles) % 2), x)


def salt_cluster() -> ChargeSystem:
    """12 x 12 x 12 ions of warm rock salt in free space."""
    sites = np.array(list(itertools.product(range(12), repeat=3)))
    x = 0.282 * sites + np.random.default_rng(1).normal(0.0, 0.01, sites.shape)
    return ChargeSystem(1.0 - 2.0 * (sites.sum(1) % 2), x)


def charges_of(case, is_open: bool = False) -> ChargeSystem:
    cell = None if is_open else case.cell
    return ChargeSystem(case.charges, case.positions, cell, case.exclusions)


SMALL = {
    "water droplet": lambda: charges_of(of_system(build("droplet")), is_open=True),
    "500 ions": lambda: gas(500),
    "3,000 ions": lambda: gas(3000),
    "salt cluster": salt_cluster,
    "water droplet in a cell": lambda: charges_of(of_system(build("droplet"))),
    "water slab": lambda: charges_of(of_system(build("slab"))),
    "rock salt": lambda: charges_of(of_system(build("nacl"))),
    "caesium chloride": lambda: charges_of(of_system(build("cscl"))),
    "molten salt": lambda: charges_of(of_system(build("melt"))),
    "fluorite": lambda: charges_of(crystal("fluorite", 0.07)),
}


def exact_forces(charges: ChargeSystem) -> np.ndarray:
    c = charges
    if c.box_vectors is None:
        return direct_sum(c.positions, c.charges, c.exclusions).forces
    return systems.exact_forces(c)


def seconds(evaluation: Evaluation, charges: ChargeSystem) -> float:
    if evaluation.solver.backend == "cuda":
        return evaluation.call_seconds()
    times = []
    for _ in range(EVALUATIONS):
        start = time.process_time()
        evaluation.solver.compute(charges.positions)
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tolerance", type=float, default=1e-5)
    args = parser.parse_args()
    print("| system | particles | ms | error / tolerance | parameters |\n|---|---|---|---|---|")
    for name, make in SMALL.items():
        charges = make()
        options = {} if charges.box_vectors is not None else {"boundary": "open"}
        evaluation = Evaluation(
            charges,
            tolerance=args.tolerance,
            backend=args.backend,
            positions=charges.positions,
            **options,
        )
        error = relative_error(evaluation.forces, exact_forces(charges)) / args.tolerance
        used = evaluation.solver.parameters
        print(
            f"| {name} | {len(charges)} | {1e3 * seconds(evaluation, charges):.3g} | {error:.2g} "
            f"| {describe(used)}, {used.precision} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
