"""What the ranks of ``test_distributed.py`` run: ``python -m tests.distributed.evaluate FOLDER``.

The files ``*.npz`` of the folder hold a system each, and the results of one process. The particles
are shared at random; with three ranks and more, rank 1 has none. Rank 0 prints a line for each
system: its name, and the largest differences of energy, virial, forces and potentials, relative to
the largest of each; for the virial relative to the energy.
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
    mine = shares(len(case["charges"]), comm.size)[comm.rank]
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
    for name in ("forces", "potentials"):
        difference = np.abs(getattr(result, name) - case[name][mine]).max(initial=0.0)
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
