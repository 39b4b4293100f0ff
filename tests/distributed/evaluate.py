"""What the ranks of ``test_distributed.py`` run:
``python -m tests.distributed.evaluate FOLDER BACKEND [KERNELS]``.

The files ``*.npz`` of the folder hold a system each, and the results of one process. The particles
are shared at random; with three ranks and more, rank 1 has none. Rank 0 writes to the file
``differences.json`` of the folder, for each system, the largest differences of energy, forces and
potentials and of the virial, relative to the largest of each; for the virial relative to the
energy. Forces and potentials are compared again with the virial, after other charges and after the
particles have changed their ranks, and on GPUs for positions that are there.

The backend is "cpu", "cuda", or "emulated": the programs of GPUs on the host, with kernels compiled
in the folder KERNELS.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fmm_openmm import CoulombResult
from fmm_openmm.distributed import DistributedSolver
from fmm_openmm.distributed import solver as solver_module

OPTIONS = ("tolerance", "boundary", "precision", "exclusions_periodic")
OPTIONS += ("order", "near_radius", "grid", "smoothing")
OPTIONS += ("slab_correction", "surface_dielectric", "neutralization")
"""Arguments of the solvers that a file may have."""


def shares(particles: int, ranks: int) -> list[np.ndarray]:
    order = np.random.default_rng(5).permutation(particles)
    if ranks < 3:
        return np.array_split(order, ranks)
    first, *others = np.array_split(order, ranks - 1)
    return [first, order[:0], *others]


def differences(comm, case, backend: str) -> list[float]:
    parts = shares(len(case["charges"]), comm.size)
    mine, others = parts[comm.rank], parts[comm.rank - 1]
    vectors = case["box_vectors"] if len(case["box_vectors"]) else None
    options = {name: case[name].tolist() for name in OPTIONS if name in case}
    solver = DistributedSolver(
        comm,
        case["charges"][mine],
        vectors,
        case["exclusions"][comm.rank :: comm.size],
        ids=mine,
        backend=backend,
        **options,
    )
    # so that what the solver has made for the first positions has no room for the second ones, and
    # the ranks have boxes with different numbers of the third ones
    for height in (0.7, 0.2):
        squeezed = np.diag([1.0, 1.0, height if options["boundary"] == "periodic" else 1.0])
        solver.compute(case["positions"][mine] @ squeezed)
    x = case["positions"][mine] + 0.01
    result = solver.compute(x)
    found = [abs(result.energy - case["energy"]) / abs(case["energy"])]
    with_virial = solver.compute(x, virial=True)
    found.append(np.abs(with_virial.virial - case["virial"]).max() / abs(case["energy"]))
    results = [(result, mine), (with_virial, mine)]
    if cupy_is_used():
        results.append((on_host(solver, x), mine))
    solver.set_charges(0.5 * case["charges"][mine])
    solver.compute(x)
    solver.set_charges(case["charges"][others], ids=others)
    results.append((solver.compute(case["positions"][others] + 0.01, ids=others), others))
    for name in ("forces", "potentials"):
        for each, numbers in results:
            difference = np.abs(getattr(each, name) - case[name][numbers]).max(initial=0.0)
            found.append(max(comm.allgather(difference)) / np.abs(case[name]).max())
    return list(map(float, found))


def cupy_is_used() -> bool:
    """Whether the GPU is a real one."""
    return "cupy" in sys.modules


def on_host(solver, x) -> CoulombResult:
    """The result for positions on the GPU, copied from there."""
    import cupy

    result = solver.compute(cupy.asarray(x))
    arrays = {name: getattr(result, name) for name in ("energy", "forces", "potentials", "fields")}
    assert all(isinstance(array, cupy.ndarray) for array in arrays.values())
    return replace(result, **{name: array.get() for name, array in arrays.items()})


def choose_device(comm, backend: str, kernels: list[str]) -> str:
    """Let this rank use the GPU of its number, or an emulated one. Returns the backend."""
    if backend == "cuda":
        import cupy

        cupy.cuda.Device(comm.rank).use()
    if backend == "emulated":
        from tests.distributed.emulated import EmulatedGpu

        solver_module.CUDA_COST = solver_module.CPU_COST  # for the parameters of one process
        solver_module.backend_class = lambda name: None
        solver_module.connected_gpu = lambda comm: EmulatedGpu(comm, Path(*kernels))
        return "cuda"
    return backend


def main() -> None:
    comm, (folder, name, *kernels) = MPI.COMM_WORLD, sys.argv[1:]
    backend, found = choose_device(comm, name, kernels), {}
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as case:
            found[path.stem] = differences(comm, case, backend)
    if comm.rank == 0:
        Path(folder, "differences.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
