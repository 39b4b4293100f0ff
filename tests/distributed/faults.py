"""Rank 1 fails as ``python -m tests.distributed.faults KIND`` says; the others wait for it, unless
something ends them."""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

from fmm_openmm.backends.cuda.pipeline import description
from fmm_openmm.distributed import DistributedSolver
from fmm_openmm.distributed import solver as solver_module
from fmm_openmm.distributed.stages import DistributedStages
from fmm_openmm.errors import UnsupportedError
from tests.distributed.evaluate import choose_device


def fail(*arguments):
    raise MemoryError("no memory left")


def refused(call) -> None:
    """Print what a call refuses."""
    try:
        call()
    except (ValueError, UnsupportedError) as error:
        print(error, flush=True)


def refuse_on_gpu(comm, backend: str, *kernels: str) -> None:
    """Positions on the GPU of which one is not a number, among charges, then among particles
    without charge."""
    x = np.random.default_rng(1).random((200, 3))
    if backend == "cuda":
        import cupy

        x = cupy.asarray(x)
    else:
        solver_module.is_on_device = lambda array: True
    backend = choose_device(comm, backend, list(kernels))
    charges = np.where(np.arange(200) % 2, 1.0, -1.0)
    solver = DistributedSolver(comm, charges, np.eye(3), backend=backend, order=3, tolerance=0.05)
    solver.compute(x)
    x[7, 1] = np.nan
    for factor in 1.0, 0.0:
        solver.set_charges(factor * charges)
        refused(lambda: solver.compute(x))


def main() -> None:
    comm, kind = MPI.COMM_WORLD, sys.argv[1]
    if kind == "same GPU":
        refused(lambda: DistributedSolver(comm, [1.0, -1.0], np.eye(3), backend="cuda"))
        return
    if kind == "not finite":
        refuse_on_gpu(comm, *sys.argv[2:])
        return
    x = np.random.default_rng(comm.rank).random((50, 3))
    charges = np.where(np.arange(50) % 2, 1.0, -1.0)
    solver = DistributedSolver(comm, charges, np.eye(3), order=3, tolerance=0.05)
    solver.compute(x)
    if kind == "refused":
        refused(lambda: solver.compute(x[comm.rank :]))
        numbers = 50 * comm.rank + np.arange(50)
        refused(lambda: solver.compute(x, ids=numbers - comm.rank))
        refused(lambda: solver.compute(x, ids=numbers + 50))
        backend = ("cpu", "reference")[comm.rank]
        refused(lambda: DistributedSolver(comm, charges, np.eye(3), backend=backend))
        pairs = np.ma.array([[0, 1], [2, 3]], mask=comm.rank)
        refused(lambda: DistributedSolver(comm, charges, np.eye(3), pairs))
        line = {"neutralization": [[0.0, 0.0, 0.0]], "order": 3, "tolerance": 0.05}
        wire = DistributedSolver(comm, charges + 0.01, np.eye(3), boundary="c", **line)
        refused(lambda: wire.compute(np.vstack([x[:-1], [[0.0, comm.rank - 1.0, 0.3]]])))
        crossing = {"neutralization": [[0, 0, 0, 1], [0, 1 - comm.rank, 0, 1]], "boundary": "c"}
        refused(lambda: DistributedSolver(comm, charges, np.eye(3), **crossing))
        solver.compute(x)
        choose_device(comm, "emulated", ["without kernels"])
        if comm.rank == 1:
            description.MOST_PARTICLES = 10
        on_gpus = DistributedSolver(comm, charges, np.eye(3), backend="cuda")
        refused(lambda: on_gpus.compute(x))
        return
    if comm.rank == 1:
        if kind == "raised":
            DistributedStages.l2p = fail
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    solver.compute(x)
    solver.compute(x)


if __name__ == "__main__":
    main()
