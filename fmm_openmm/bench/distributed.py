"""Time, error, communication and memory of an evaluation that the ranks of MPI share."""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.bench.systems import Size, tiled_charges, water
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.distributed import DistributedSolver
from fmm_openmm.distributed.communication import shared_fate
from fmm_openmm.openmp import at_most_threads
from fmm_openmm.planning.request import FMMParameters
from fmm_openmm.solver import CoulombSolver

REPEATS = 5
"""Evaluations that are timed."""

THREADS = 1
"""Threads of each rank."""

Value = TypeVar("Value")


class CommunicationClock:
    """A communicator that records what its collective operations take.

    Args:
        comm: the communicator.

    Attributes:
        seconds: CPU time spent in them, most of it waiting, s.
        sent: size of the arrays sent to other ranks, bytes.
    """

    def __init__(self, comm):
        self._comm, self.size, self.rank = comm, comm.size, comm.rank
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded."""
        self.seconds, self.sent = 0.0, 0

    def __getattr__(self, name):
        operation = getattr(self._comm, name)

        def timed(*arguments, **options):
            begin = time.thread_time()
            result = operation(*arguments, **options)
            self.seconds += time.thread_time() - begin
            return result

        return timed

    def Alltoallv(self, outgoing, incoming) -> None:
        """Exchange arrays."""
        array, counts = outgoing
        self.sent += array.itemsize * int(counts.sum() - counts[self.rank])
        self.__getattr__("Alltoallv")(outgoing, incoming)


class Host:
    """Arrays and their memory on the host."""

    @staticmethod
    def upload(array: np.ndarray) -> np.ndarray:
        """The array."""
        return array

    @staticmethod
    def wait() -> None:
        """Nothing is queued."""

    @staticmethod
    def peak_memory(evaluate: Callable[[], Value]) -> tuple[Value, int]:
        """The result of ``evaluate`` and the peak memory of its arrays and other objects, bytes."""
        tracemalloc.start()
        try:
            return evaluate(), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def _place(backend: str, rank: int) -> Any:
    """Where arrays are: :class:`Host`, or a module with its functions for the GPU of a rank."""
    if backend == "cpu":
        return Host
    from fmm_openmm.bench import device

    device.use(rank)
    return device


def measure_among(
    comm,
    ranks: int,
    size: Size,
    tolerance: float,
    backend: str = "cpu",
    scattered: bool = False,
) -> dict | None:
    """The row of :func:`measure` for the first so many ranks while the others are idle; None on the
    others."""
    some = comm.Split(int(comm.rank >= ranks), comm.rank)
    with shared_fate(comm):
        row = measure(some, size, tolerance, backend, scattered) if comm.rank < ranks else None
        _wait_idle(comm)
    some.Free()
    return row


def measure(
    comm, size: Size, tolerance: float, backend: str = "cpu", scattered: bool = False
) -> dict:
    """One row for water of a size, which the ranks share by its copies, with :data:`THREADS` each:
    atoms, ranks, seconds of an evaluation, also by ``CoulombSolver`` on rank 0 while the others are
    idle, the ratio of the latter to the product of ranks and seconds, the relative RMS force error,
    and what an evaluation costs a rank at most: seconds of CPU time without communication, bytes
    sent to other ranks, and the memory of the solver and its first evaluation, bytes.

    A rank gives layers of copies along the last box vector, as it has layers of boxes; if they are
    ``scattered``, layers along the first one, most of whose particles have to be sent.

    With ``backend="cuda"`` each rank has a GPU, on which positions and results stay and whose
    memory is measured; seconds without communication and bytes are None.
    """
    place = _place(backend, comm.rank)
    with shared_fate(comm):
        system = _base(size.edge) if comm.rank == 0 else None  # by all threads
        _wait_idle(comm)
        base, exact = comm.bcast(system)
    with shared_fate(comm), at_most_threads(THREADS):
        charges, positions, exclusions = _copies_of(comm, base, size, scattered)
        x = place.upload(positions)
        cell = base.box_vectors * np.array(size.copies)[:, None]
        clock = CommunicationClock(comm)

        def first() -> tuple[DistributedSolver, np.ndarray]:
            solver = DistributedSolver(clock, charges, cell, exclusions, tolerance, backend=backend)
            return solver, to_host(solver.compute(x).forces).reshape(-1, *exact.shape)

        (solver, forces), peak = place.peak_memory(first)
        seconds = _median_seconds(partial(solver.compute, x), place.wait, comm.Barrier)
        compute = sent = None
        if backend == "cpu":
            costs = [_costs(clock, partial(solver.compute, x)) for _ in range(REPEATS)]
            compute, sent = np.max(comm.allgather(np.median(costs, axis=0)), axis=0).tolist()
        squares = comm.allreduce(float(((forces - exact) ** 2).sum()))
        copies = int(np.prod(size.copies))
        alone = None
        if comm.rank == 0:
            alone = _one_rank(tiled_charges(base, size.copies), tolerance, backend, place)
        _wait_idle(comm)
        alone_seconds, alone_memory = comm.bcast(alone)
        return {
            "atoms": copies * len(base),
            "ranks": comm.size,
            "threads": THREADS,
            "backend": backend,
            "tolerance": tolerance,
            **_boxes(solver.parameters),
            "seconds": seconds,
            "one_rank_seconds": alone_seconds,
            "efficiency": alone_seconds / (comm.size * seconds),
            "compute_seconds": compute,
            "sent": sent,
            "force_error": float(np.sqrt(squares / copies) / np.linalg.norm(exact)),
            "memory": max(comm.allgather(peak)),
            "one_rank_memory": alone_memory,
        }


def _costs(clock: CommunicationClock, evaluate: Callable) -> tuple[float, int]:
    """CPU seconds of an evaluation without communication, and bytes sent to other ranks."""
    clock.reset()
    begin = time.thread_time()
    evaluate()
    return time.thread_time() - begin - clock.seconds, clock.sent


def _boxes(parameters: FMMParameters | None) -> dict:
    """Order, near radius and boxes."""
    if parameters is None:
        return {}
    grid = np.array(parameters.grid).tolist()
    return {"order": parameters.order, "near_radius": parameters.near_radius, "grid": grid}


@cache
def _base(edge: float) -> tuple[ChargeSystem, np.ndarray]:
    """Charges and exact forces of one copy."""
    found = water(edge)
    return found.charges, found.exact


def _copies_of(
    comm, base: ChargeSystem, size: Size, scattered: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Charges, positions and exclusions of the copies of this rank, see :func:`measure`, with
    particles numbered through all ranks."""
    along = 1 if scattered else -1  # the last index changes fastest
    shifts = np.array(list(np.ndindex(*size.copies[::along])))[:, ::along] @ base.box_vectors
    first, last = (len(shifts) * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    numbers = len(base) * np.arange(first, last)
    return (
        np.tile(base.charges, last - first),
        (np.asarray(base.positions) + shifts[first:last, None]).reshape(-1, 3),
        (base.exclusions + numbers[:, None, None]).reshape(-1, 2),
    )


def _one_rank(charges: ChargeSystem, tolerance: float, backend: str, place) -> tuple[float, int]:
    """Seconds and memory of an evaluation by ``CoulombSolver``."""
    x = place.upload(np.asarray(charges.positions))

    def first() -> CoulombSolver:
        solver = charges.solver(positions=None, tolerance=tolerance, backend=backend)
        solver.compute(x)
        return solver

    solver, peak = place.peak_memory(first)
    return _median_seconds(partial(solver.compute, x), place.wait), peak


def _median_seconds(evaluate: Callable, wait: Callable, barrier: Callable = lambda: None) -> float:
    """Median wall time of an evaluation, after one to warm up, seconds.

    Args:
        wait: waits until the device has finished.
        barrier: waits for the other ranks.
    """
    evaluate()
    wait()
    times = []
    for _ in range(REPEATS):
        barrier()
        begin = time.perf_counter()
        evaluate()
        wait()
        barrier()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _wait_idle(comm) -> None:
    """Wait for all ranks without using a core for it, as a barrier of MPI does."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
