"""The solver on several ranks of MPI against the solver of one process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.distributed.stages import Links
from tests.systems import build, charge_arrays

pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
LIMIT = 300
"""Seconds that the ranks may take."""


def run(ranks, *arguments):
    """The ended ranks of ``python ARGUMENTS``, on one thread each."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [MPIRUN, "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def water(boundary, name="water", **options):
    case = charge_arrays(build(name))
    vectors = None if boundary == "open" else case.box_vectors
    return case.charges, case.positions, vectors, case.exclusions, {"boundary": boundary, **options}


def ions(boundary, cell, net=0.0, **options):
    """600 ions at random in a cell; their exclusions reach far beyond near boxes."""
    rng = np.random.default_rng(7)
    charges = np.where(np.arange(600) % 2, 1.0, -1.0)
    charges[0] += net
    x = rng.random((600, 3)) @ cell
    pairs = np.sort(rng.permutation(600)[:80].reshape(-1, 2), axis=1)
    vectors = None if boundary == "open" else cell
    return charges, x, vectors, pairs, {"boundary": boundary, **options}


CUBE = 2.7 * np.eye(3)
SKEWED = np.array([[2.8, 0.0, 0.0], [0.9, 2.6, 0.0], [-0.8, 1.1, 2.4]])
LONG = np.diag([1.5, 1.5, 7.5])

CASES = {
    "water": lambda: water("periodic"),
    "water_single": lambda: water("periodic", tolerance=5e-4, precision="auto"),
    "charged": lambda: ions("periodic", CUBE, net=3.0),
    "skewed": lambda: ions("periodic", SKEWED, exclusions_periodic=True),
    "long": lambda: ions("periodic", LONG),
    "open": lambda: ions("open", SKEWED, net=-2.0),
    **{name: lambda name=name: ions(name, SKEWED) for name in ("ab", "bc", "ac", "a", "b", "c")},
}


def write(folder, name):
    """Write a system and what one process finds."""
    charges, x, vectors, pairs, given = CASES[name]()
    options = {"tolerance": 1e-6, "precision": "double", "exclusions_periodic": False, **given}
    solver = fmm.CoulombSolver(charges, vectors, pairs, backend="cpu", **options)
    solver.compute(x)
    result = solver.compute(x + 0.01, virial=True)
    np.savez(
        folder / f"{name}.npz",
        charges=charges,
        positions=x,
        box_vectors=[] if vectors is None else vectors,
        exclusions=pairs,
        energy=result.energy,
        virial=result.virial,
        forces=result.forces,
        potentials=result.potentials,
        **options,
    )


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    for name in CASES:
        write(folder, name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_find_what_one_process_finds(ranks, cases):
    ended = run(ranks, "-m", "tests.distributed.evaluate", str(cases))
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = map(str.split, ended.stdout.splitlines())
    found = {name: list(map(float, rest)) for name, *rest in lines}
    assert found.keys() == CASES.keys()
    for name, differences in found.items():
        limit = 2e-5 if name == "water_single" else 1e-11
        assert max(differences) < limit, (name, differences)


def test_what_one_rank_refuses_all_ranks_refuse():
    ended = run(2, "-m", "tests.distributed.faults", "refused")
    assert ended.returncode == 0, ended.stderr[-3000:]
    for message in (
        "rank 1: `positions` must have shape (n, 3) with n = 50",
        "rank 0: `ids` must name each particle once, on one rank: 49 is named 2 times",
        "rank 1: `ids` must be those given at creation, got 100",
    ):
        assert ended.stdout.count(message) == 2, ended.stdout


def test_a_rank_that_raises_ends_all():
    ended = run(3, "-m", "tests.distributed.faults", "raised")
    assert ended.returncode != 0
    message = "rank 1 of 3 failed with MemoryError: no memory left. All ranks end."
    assert ended.stderr.count("All ranks end.") == ended.stderr.count(message) == 1


@pytest.mark.slow
def test_a_rank_that_dies_ends_all():
    ended = run(3, "-m", "tests.distributed.faults", "died")
    assert ended.returncode != 0
    assert "signal 9" in ended.stdout + ended.stderr


def test_links_of_every_rank():
    """Both directions of each pair, with ranks that have no particle."""
    pairs = np.array([[0, 4], [3, 1], [4, 3]])
    first, empty, last = Links.by_rank(pairs, np.array([0, 3, 3, 5]))
    assert len(empty.particle) == 0
    assert {*zip(first.particle, first.partner, first.rank, strict=True)} == {(0, 1, 2), (1, 0, 2)}
    expected = {(1, 0, 0), (0, 1, 0), (1, 0, 2), (0, 1, 2)}
    assert {*zip(last.particle, last.partner, last.rank, strict=True)} == expected
