"""The CPU backend's kernels are compiled before they are needed, once, and by several processes."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cpu import compilation
from fmm_openmm.backends.cpu.compilation import _signature, compile_named
from fmm_openmm.backends.cpu.direct import DirectSum
from fmm_openmm.backends.cpu.threads import kernels_in, signatures
from fmm_openmm.distributed import DistributedSolver
from fmm_openmm.literature.treecode.cpu import Treecode
from tests.systems import SKEWED

NEEDS_MPI = "needs MPI: pip install 'fmm_openmm[mpi]'"
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@pytest.mark.slow
def test_declared_signatures_are_all_there_are():
    """Whatever is computed: none is compiled for other types, during an evaluation."""
    rng = np.random.default_rng(3)
    x, q = rng.random((400, 3)), rng.choice([-1.0, 1.0], 400)
    pairs = np.array([[0, 1], [2, 5]])
    for precision in ("single", "double"):
        for options in (
            {},
            {"smoothing": 0.05},
            {"levels": 1},
            {"levels": 1, "m2l": "rotation", "order": 9},
        ):
            solver = fmm.CoulombSolver(
                q, SKEWED, precision=precision, backend="cpu", exclusions=pairs, **options
            )
            solver.compute(x @ SKEWED)  # the virial is computed without levels
            solver.compute(x @ SKEWED, points=x[:3] + 0.01, virial=True)
            solver.compute(x @ SKEWED, charges=[q, q], points=x[:3] + 0.01, virial=True)
            size = 200 if "levels" in options else 3  # with levels, a far field for each group
            solver.interaction_energies(x @ SKEWED, np.arange(400) // size)
    for dtype in DTYPES:
        DirectSum(q, pairs, dtype).evaluate(x)
        Treecode(q, pairs, dtype, 6, 0.5).evaluate(x)
    check_declared(signatures.keys() - set(kernels_in("share")))


@pytest.mark.slow
def test_declared_signatures_of_many_ranks():
    comm = pytest.importorskip("mpi4py.MPI", reason=NEEDS_MPI).COMM_SELF
    x, q = np.random.default_rng(3).random((400, 3)), np.resize([1.0, -1.0], 400)
    pairs = np.array([[0, 1], [2, 5]])
    DistributedSolver(comm, q, SKEWED, pairs, precision="single").compute(x @ SKEWED)
    check_declared(kernels_in("share"))


def check_declared(kernels):
    """The kernels have been called, with declared types only."""
    for kernel in kernels:
        assert kernel.signatures, kernel.py_func
        assert set(kernel.signatures) <= {_signature(kernel, dtype) for dtype in DTYPES}, (
            kernel.py_func
        )


def test_a_kernel_is_compiled_by_one_process(tmp_path, monkeypatch):
    """Whoever comes first claims it."""
    kernels, compiled = kernels_in("exclusions"), []
    names = [(kernel.py_func.__module__, kernel.py_func.__name__) for kernel in kernels]
    monkeypatch.setattr(type(kernels[0]), "compile", lambda self, signature: compiled.append(self))
    compile_named(names[:1], "float32", tmp_path)
    compile_named(names, "float32", tmp_path)
    assert len(kernels) > 1 and compiled == list(kernels)


@pytest.mark.parametrize(("kernels", "outcome"), [(9, 0), (1, -signal.SIGKILL)])
def test_a_process_may_take_long_but_not_for_a_kernel(kernels, outcome, tmp_path, monkeypatch):
    """On a busy computer all take minutes, and code that is compiled here at its first call may
    round otherwise than what later processes load. A process claims kernels for longer than the
    limit, or claims one and hangs."""
    program = (
        "import pathlib, sys, time\n"
        "for kernel in sys.argv[2:]:\n"
        "    (pathlib.Path(sys.argv[1]) / kernel).touch()\n"
        "    time.sleep(0.3)\n"
        "time.sleep(60 if kernel == '0' else 0)\n"
    )
    names = map(str, range(kernels))
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), *names])
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    monkeypatch.setattr(compilation, "SECONDS", 2.0)
    compilation._wait(process, tmp_path)
    process.kill()
    assert process.wait() == outcome


SCRIPT = """
import logging, subprocess, sys
import numpy as np
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
from fmm_openmm.backends.cpu import compilation
from fmm_openmm.backends.cpu.threads import kernels_in
started = subprocess.Popen
class Counted(started):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        print("started")
compilation.subprocess.Popen = Counted
if sys.argv[1]:
    compilation.sys.executable = sys.argv[1]
kernels = kernels_in("exclusions")
compilation.prepare(kernels, np.dtype(np.float32))
print([compilation._is_cached(kernel, np.dtype(np.float32)) for kernel in kernels])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "executable", "first"),
    [
        (2, "", ["compiling kernels (once per precision)", "started", "started"]),
        (1, "", ["compiling kernels (once per precision)", "started"]),
        (
            1,
            "/no/such/python",
            ["compiling kernels (once per precision)", "kernels are compiled as they are called: "],
        ),
        (1, "/bin/false", ["compiling kernels (once per precision)", "started"]),
    ],
    ids=["two processes", "one thread", "no Python", "a process that fails"],
)
def test_kernels_are_compiled_once(tmp_path, threads, executable, first):
    """A second process finds them; those of a process that failed are left to their first call."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": str(threads)}

    def lines():
        command = [sys.executable, "-c", SCRIPT, executable]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    *announced, kept = lines()
    assert len(announced) == len(first) and all(
        line.startswith(start) for line, start in zip(announced, first, strict=True)
    )
    assert kept == str([not executable] * 2)
    if not executable:
        assert lines() == [kept]


@pytest.mark.slow
def test_two_processes_at_once_compile_once(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, ""]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [line for process in both for line in process.communicate()[0].splitlines()]
    assert lines.count("started") == 1 and lines.count("[True, True]") == 2


@pytest.mark.parametrize("limit", [0.3, 60.0])
def test_a_lock_that_stays_is_ignored_after_a_while(limit, tmp_path, monkeypatch):
    """And one that is released is not waited for any longer."""
    monkeypatch.setattr(compilation, "SECONDS", limit)
    start = time.monotonic()
    with compilation._lock(tmp_path) as first:
        if limit > 1:
            threading.Timer(0.3, first.close).start()
        with compilation._lock(tmp_path):
            assert 0.2 < time.monotonic() - start < 10
