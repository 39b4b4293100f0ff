"""However the frames of a trajectory are shared among workers, the results are the same to the last
bit; what is done before an executor fails is not lost."""

import multiprocessing
import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest

import fmm_openmm as fmm
from tests.integration.trajectories import TRAJECTORIES, Backwards, liquid
from tests.support.ranks import MPIRUN, run

QUANTITIES = ("energy", "forces")


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def are_equal(found, expected):
    return all(np.array_equal(found[name], expected[name]) for name in QUANTITIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAJECTORIES)
def test_any_split_gives_the_same_bits(name, processes):
    frames, solver = TRAJECTORIES[name]()
    expected = fmm.analyse(frames, solver, QUANTITIES)
    assert len(expected["energy"]) == len(frames)
    assert are_equal(fmm.analyse(frames, solver, QUANTITIES, processes, threads=1), expected)
    assert are_equal(fmm.analyse(frames, solver, QUANTITIES, Backwards()), expected)
    assert are_equal(fmm.analyse(iter(frames), solver, QUANTITIES, processes), expected)
    later = fmm.analyse([frames[0], *frames[3:]], solver, QUANTITIES)
    assert are_equal(
        {key: values[1:] for key, values in later.items()},
        {key: values[3:] for key, values in expected.items()},
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["droplet in a cell", "close ions"])
def test_a_solver_remembers_frames(name):
    """Otherwise the tests above would show nothing."""
    frames, solver = TRAJECTORIES[name](backend="cpu")

    def compute(frame):
        return solver.compute(*(frame if isinstance(frame, tuple) else [frame])).energy

    forwards = [compute(frame) for frame in frames]
    backwards = [compute(frame) for frame in frames[::-1]]
    assert forwards != backwards[::-1]


@pytest.mark.parametrize("workers", [ThreadPoolExecutor, Backwards])
def test_arrays_that_a_source_uses_again(workers):
    solver = fmm.CoulombSolver([1.0, -1.0], 2.0 * np.eye(3), backend="reference")
    cells = [(2.0 + 0.1 * number) * np.eye(3) for number in range(4)]

    def overwritten():
        positions, box = np.zeros((2, 3)), np.empty((3, 3))
        for number, cell in enumerate(cells):
            positions[1, 0], box[:] = 0.3 + 0.1 * number, cell
            yield positions, box

    expected = fmm.analyse(overwritten(), solver)["energy"]
    assert len(set(expected)) == 4
    found = fmm.analyse(overwritten(), solver, executor=workers())["energy"]
    assert np.array_equal(found, expected)


def test_frames_in_one_cell_share_its_array():
    """By which a GPU's worker recognises the cell."""
    boxes = []

    class Recording(ThreadPoolExecutor):
        def submit(self, work, task):
            boxes.extend(box for *_, box in task)
            return super().submit(work, task)

    solver = fmm.CoulombSolver([1.0, -1.0], 2.0 * np.eye(3), backend="reference")
    x, cells = np.array([[0.0, 0, 0], [0.3, 0, 0]]), (2.0 * np.eye(3), 2.5 * np.eye(3))
    frames = [(x, cell) for cell in cells for _ in range(3)]
    fmm.analyse(frames, solver, executor=Recording())
    assert len(boxes) == 6
    assert len({id(box) for box in boxes}) == 2


def killing(frames, processes, at):
    """The frames; after so many a process is killed."""
    for number, frame in enumerate(frames):
        if number == at:
            os.kill(processes()[0], signal.SIGKILL)
        yield frame


@pytest.mark.slow
@pytest.mark.parametrize("name", ["droplet in a cell", "close ions"])
def test_what_the_solver_has_evaluated_does_not_matter(name):
    frames, solver = TRAJECTORIES[name]()
    expected = fmm.analyse(frames, solver, QUANTITIES)
    for frame in frames[::-1]:
        solver.compute(*(frame if isinstance(frame, tuple) else [frame]))
    assert are_equal(fmm.analyse(frames, solver, QUANTITIES), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["liquid", "droplet in a cell"])
def test_virials_of_any_split(name):
    """In nearly empty cells another solver computes them, which has a memory of its own."""
    frames, solver = TRAJECTORIES[name]()
    frames = frames[:4]
    expected = fmm.analyse(frames, solver, ["virial"])["virial"]
    found = fmm.analyse(frames, solver, ["virial"], Backwards())["virial"]
    assert np.array_equal(found, expected)


@pytest.mark.slow
def test_a_worker_of_dask_that_is_killed():
    distributed = pytest.importorskip(
        "distributed", reason="needs Dask: pip install 'dask[distributed]'"
    )
    frames, solver = liquid(200)
    expected = fmm.analyse(frames, solver, QUANTITIES)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        before = client.run(os.getpid)

        def pids():
            return [*before.values()]

        given = killing(frames, pids, 100)
        found = fmm.analyse(given, solver, QUANTITIES, client.get_executor(), threads=1)
        client.wait_for_workers(2, timeout=60)
        assert client.run(os.getpid) != before
    assert are_equal(found, expected)


SCRIPT = """
import sys

import numpy as np
from mpi4py.futures import MPIPoolExecutor

import fmm_openmm as fmm
from tests.integration.trajectories import liquid

if __name__ == "__main__":
    frames, solver = liquid(10)
    with MPIPoolExecutor() as executor:
        assert executor.num_workers == 2
        found = fmm.analyse(frames, solver, ("energy", "forces"), executor, threads=1)
    np.savez(sys.argv[1], **found)
"""


@pytest.mark.slow
def test_mpi(tmp_path):
    pytest.importorskip("mpi4py", reason="needs MPI: pip install mpi4py mpich")
    if not MPIRUN.exists():
        pytest.skip("needs MPI: pip install mpich")
    script, out = tmp_path / "script.py", tmp_path / "found.npz"
    script.write_text(SCRIPT)
    done = run(3, "-m", "mpi4py.futures", script, out)
    assert done.returncode == 0, done.stderr
    frames, solver = liquid(10)
    assert are_equal(np.load(out), fmm.analyse(frames, solver, QUANTITIES))


class Failing(Executor):
    """Runs two tasks, then fails."""

    def __init__(self):
        self.count = 0

    def submit(self, function, /, *arguments):
        self.count += 1
        future = Future()
        if self.count < 3:
            future.set_result(function(*arguments))
        else:
            future.set_exception(BrokenProcessPool("a process has ended"))
        return future


def test_an_executor_that_fails_keeps_what_is_done():
    frames, solver = liquid(5)
    expected = fmm.analyse(frames, solver, QUANTITIES)
    with pytest.raises(fmm.AnalysisError) as caught:
        fmm.analyse(frames, solver, QUANTITIES, Failing())
    assert str(caught.value) == (
        "the executor has failed (BrokenProcessPool: a process has ended): 2 of 5 frames are done"
    )
    assert caught.value.frames.tolist() == [0, 1]
    assert are_equal(caught.value.arrays, {key: values[:2] for key, values in expected.items()})


@pytest.mark.slow
def test_a_process_that_is_killed():
    frames, solver = liquid(200)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        given = killing(frames, lambda: [*executor._processes], 100)
        with pytest.raises(fmm.AnalysisError, match=r"the executor has failed \(BrokenProcess"):
            fmm.analyse(given, solver, QUANTITIES, executor)


@pytest.mark.slow
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no processes are forked here"
)
def test_processes_forked_after_an_evaluation():
    """They lack the threads of this one."""
    frames, solver = liquid(5, backend="cpu")
    expected = fmm.analyse(frames, solver, QUANTITIES)  # starts the threads of this process
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        assert are_equal(fmm.analyse(frames, solver, QUANTITIES, executor), expected)
