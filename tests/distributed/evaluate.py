"""What the ranks of ``test_distributed.py`` run: ``python -m tests.distributed.evaluate FOLDER``.

The files ``*.npz`` of the folder hold a system each, and the results of one process. The particles
are shared at random; with three ranks and more, rank 1 has none. Rank 0 prints a line for each
system: its name, and the largest differences of energy, virial, forces and potentials, relative to
the largest of each; for the virial relative to the energy. Forces and potentials are compared a
second time after other charges and after the particles have changed their ranks.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fmm_openmm.distributed import DistributedSolver


def shares(particles: int, ranks: int) -> list[np.ndarray]:
    order = np.random.default_rng(5).permutation(particles)
    if ranks < 3:
        return np.array_split(order, ranks)
    first, *others = np.array_split(order, ranks - 1)
    return [first, order[:0], *others]


def differences(comm, case) -> list[float]:
    parts = shares(len(case["charges"]), comm.size)
    mine, others = parts[comm.rank], parts[comm.rank - 1]
    vectors = case["box_vectors"] if len(case["box_vectors"]) else None
    options = {name: case[name].item() for name in ("tolerance", "boundary", "precision")}
    solver = DistributedSolver(
        comm,
        case["charges"][mine],
        vectors,
        case["exclusions"][comm.rank :: comm.size],
        ids=mine,
        exclusions_periodic=case["exclusions_periodic"].item(),
        **options,
    )
    solver.compute(case["positions"][mine])
    x = case["positions"][mine] + 0.01
    result, virial = solver.compute(x), solver.compute(x, virial=True).virial
    found = [
        np.abs(value - case[name]).max() / abs(case["energy"])
        for name, value in (("energy", result.energy), ("virial", virial))
    ]
    solver.set_charges(0.5 * case["charges"][mine])
    solver.compute(x)
    solver.set_charges(case["charges"][others], ids=others)
    moved = solver.compute(case["positions"][others] + 0.01, ids=others)
    for name in ("forces", "potentials"):
        for each, numbers in ((result, mine), (moved, others)):
            difference = np.abs(getattr(each, name) - case[name][numbers]).max(initial=0.0)
            found.append(max(comm.allgather(difference)) / np.abs(case[name]).max())
    return found


def main() -> None:
    comm = MPI.COMM_WORLD
    for path in sorted(Path(sys.argv[1]).glob("*.npz")):
        with np.load(path) as case:
            found = differences(comm, case)
        if comm.rank == 0:
            print(path.stem, *found, flush=True)


if __name__ == "__main__":
    main()
