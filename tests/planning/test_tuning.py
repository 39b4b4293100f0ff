"""Parameters found by timing: what is kept, when it is used, and what becomes of a damaged file.

Needs no GPU.
"""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, backends, cache
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.bench import tune as bench_tune
from fmm_openmm.bench.solver import Evaluation
from fmm_openmm.bench.systems import Size
from fmm_openmm.cli import main
from fmm_openmm.planning.cost import CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import Request
from fmm_openmm.planning.search import candidates, choose_parameters
from fmm_openmm.planning.tuning import KEPT, Winner, choose_tuned, key

DEVICE = "Abacus 9000"
CELL = 3 * np.eye(3)
LOAD = Load(2700, 1.0, 0.0)
REQUEST = Request(1e-4)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """The file, in a folder that does not exist yet."""
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_reported", set())
    return tmp_path / "cache" / "tuning.json"


def nth(k, request=REQUEST, load=LOAD, cell=CELL):
    return candidates(request, cell, load, CUDA_COST)[k]


def tuned(request=REQUEST, load=LOAD, cell=CELL, device=DEVICE):
    return choose_tuned(device, request, cell, load, CUDA_COST)


def keep(parameters, request=REQUEST, load=LOAD, cell=CELL):
    KEPT.store(
        {key(DEVICE, request, cell, load): Winner.from_parameters(parameters, load.particles, 1e-4)}
    )


def test_candidates_are_sorted_and_meet_the_tolerance():
    found = candidates(REQUEST, CELL, LOAD, CUDA_COST)
    assert len(found) > 20
    assert found[0] == choose_parameters(REQUEST, CELL, LOAD, CUDA_COST)
    assert max(each.expected_error for each in found) <= REQUEST.tolerance
    out_of_reach = Request(1e-6, order=2, near_radius=1.87)
    with pytest.warns(UserWarning, match="with the `order` and `near_radius` given"):
        (best,) = candidates(out_of_reach, CELL, LOAD, CUDA_COST)
    assert best.expected_error > 1e-6


@pytest.mark.slow
def test_the_winner_is_used():
    assert tuned() == nth(0)
    keep(nth(5))
    assert tuned() == nth(5) != nth(0)


@pytest.mark.slow
def test_the_winner_serves_its_class_only():
    winner = nth(5)
    keep(winner)
    size = replace(LOAD, particles=2600)
    assert (tuned(load=size).near_radius, tuned(load=size).smoothing) == (
        winner.near_radius,
        winner.smoothing,
    )
    assert tuned(load=size) != nth(0, load=size)
    assert tuned(device="Abacus 9001") == nth(0)
    for load in (replace(LOAD, particles=1000), replace(LOAD, filled=0.25)):
        assert tuned(load=load) == nth(0, load=load)
    for request in (
        Request(2e-4),
        Request(1e-4, precision="double"),
        Request(1e-4, smoothing=0.05),
    ):
        assert tuned(request) == nth(0, request)
    flat = CELL * [[1.3], [1.3], [1 / 1.69]]
    assert tuned(cell=flat) == nth(0, cell=flat)
    assert tuned(cell=1.01 * CELL) == nth(5, cell=1.01 * CELL)


@pytest.mark.slow
def test_the_winner_is_left_where_it_would_miss_the_tolerance():
    keep(nth(5))
    ionic = replace(LOAD, ionic=1.0)
    assert tuned(load=ionic).expected_error <= REQUEST.tolerance
    keep(replace(nth(5), order=2))
    assert tuned() == nth(0)


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [{"order": 8}, {"near_radius": 2.91}, {"grid": (7, 7, 7)}])
def test_explicit_parameters_are_obeyed(fixed):
    keep(nth(5))
    request = replace(REQUEST, **fixed)
    assert tuned(request) == choose_parameters(request, CELL, LOAD, CUDA_COST)


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        '{"some": "thing"}',
        '{"format": "fmm_openmm tuning 99", "winners": {}}',
        '{"format": "fmm_openmm tuning 1", "winners": [3]}',
        '{"format": "fmm_openmm tuning 1", "winners": {"a": {"order": 5}}}',
        '{"format": "fmm_openmm tuning 1", "winners": {"a": {"order": "5", "near_radius": 2, '
        '"smoothing": 0, "per_box": 3, "seconds": 1}}}',
        '{"format": "fmm_openmm tuning 1", "winners": {"a": {"order": 5, "near_radius": 2, '
        '"smoothing": 0, "per_box": -3, "seconds": NaN}}}',
        b"\xff\xfe\x00",
        "[" * 100_000,
    ],
    ids=lambda content: str(content)[:30],
)
def test_a_damaged_file_is_ignored_with_one_warning(file, content):
    file.parent.mkdir()
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.warns(
        UserWarning, match=r"tuning\.json is ignored .*: delete it, or tune again$"
    ) as caught:
        assert tuned() == nth(0)
        assert tuned() == nth(0)
    assert len(caught) == 1
    keep(nth(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned() == nth(5)


@pytest.mark.slow
def test_a_folder_that_cannot_be_read(file):
    file.mkdir(parents=True)
    with pytest.warns(UserWarning, match="is ignored"):
        assert tuned() == nth(0)


@pytest.mark.slow
def test_killed_while_writing(file, monkeypatch):
    keep(nth(5))
    before = file.read_text()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(nth(6))
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == ["tuning.json"]


@pytest.mark.slow
def test_several_writers_at_once(file):
    code = "import sys; from fmm_openmm.planning.tuning import KEPT, Winner\n"
    code += (
        "for k in range(30): KEPT.store({f'{sys.argv[1]} {k}': Winner(5, 2.64, 0.05, 7.5, 1e-4)})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(k)]) for k in range(3)]
    while any(writer.poll() is None for writer in writers):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            KEPT.read()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(KEPT.read()) == 90 or sys.platform == "win32"
    assert [path.name for path in file.parent.iterdir()] == ["tuning.json"]


@pytest.mark.slow
def test_turned_off(file, monkeypatch):
    keep(nth(5))
    monkeypatch.setenv("FMM_OPENMM_CACHE", "off")
    assert tuned() == nth(0)
    with pytest.raises(OSError, match="FMM_OPENMM_CACHE is 'off'"):
        keep(nth(5))


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x"),
        ("linux", {"HOME": "/h"}, "/h/.cache"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l"),
    ],
)
def test_where_the_file_is(monkeypatch, platform, variables, folder):
    for name in ("FMM_OPENMM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert KEPT.path.as_posix() == f"{folder}/fmm_openmm/tuning.json"


@pytest.mark.slow
def test_a_user_without_a_home(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("FMM_OPENMM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", nowhere)
    assert tuned() == nth(0)
    with pytest.raises(OSError, match=r"no folder to keep winners in: FMM_OPENMM_CACHE is None$"):
        keep(nth(5))


class Fake(ReferenceStages):
    """Stands for the GPU's stages."""

    @classmethod
    def device(cls):
        return DEVICE


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which high orders are fast."""
    monkeypatch.setattr(backends, "_cuda", lambda: Fake)
    monkeypatch.setattr("fmm_openmm.bench.timing.hardware", lambda: f"{DEVICE}; 1 threads")
    monkeypatch.setattr(bench_tune, "seconds_of", lambda charges, p, tolerance: 1e-4 / p.order)


@pytest.mark.slow
def test_a_solver_uses_what_was_tuned(gpu):
    cell = bench_tune.cell_of(Size(3.0), "cube")
    charges = bench_tune.water_like(cell)
    plain = CoulombSolver(charges.charges, cell, charges.exclusions, backend="cuda").parameters
    row = bench_tune.tune(Size(3.0), Request())
    assert row["winner"].order == max(each["order"] for each in row["candidates"]) > plain.order
    assert row["winner"].seconds < row["model_seconds"]
    KEPT.store({row["key"]: row["winner"]})

    def used(backend):
        found = CoulombSolver(charges.charges, cell, charges.exclusions, backend=backend).parameters
        return Winner.from_parameters(found, len(charges), row["winner"].seconds)

    assert used("cuda") == row["winner"] != used("cpu")


def test_water_like_charges():
    cell = bench_tune.cell_of(Size(2.0, (1, 2, 1)), "dodecahedron")
    charges = bench_tune.water_like(cell)
    volume = np.prod(np.diag(cell))
    assert volume == pytest.approx(16)
    assert len(charges) / volume == pytest.approx(100, rel=0.1)
    assert abs(charges.charges.sum()) < 1e-9
    assert len(charges.exclusions) == len(charges)


def test_candidates_are_timed(monkeypatch):
    made = []

    def on_the_cpu(charges, **options):
        made.append(Evaluation(charges, **options | {"backend": "cpu"}))
        return made[-1]

    monkeypatch.setattr("fmm_openmm.bench.timing.BUDGET", 0.01)
    monkeypatch.setattr(bench_tune, "Evaluation", on_the_cpu)
    charges = bench_tune.water_like(2.2 * np.eye(3))
    load = Load.from_charges(charges.charges, charges.exclusions)
    chosen = nth(1, load=load, cell=charges.box_vectors)
    assert 0 < bench_tune.seconds_of(charges, chosen, REQUEST.tolerance) < 10
    # a CPU rounds less
    errors = {name: getattr(chosen, name) for name in ("expected_error", "expected_largest_error")}
    assert replace(made[0].solver.parameters, **errors) == chosen


def test_memory_may_not_suffice(gpu, monkeypatch):
    monkeypatch.setattr(bench_tune, "seconds_of", lambda charges, p, tolerance: np.inf)
    with pytest.raises(MemoryError, match="device memory does not suffice for 2187 atoms"):
        bench_tune.tune(Size(2.8), Request())


@pytest.mark.slow
def test_the_command(gpu, file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--sizes",
        "2.8",
        "3",
        "--tolerance",
        "1e-3",
        "--cells",
        "cube",
        "octahedron",
        "--json=out.json",
    ]
    assert main(["bench", "tune", *arguments]) == 0, capsys.readouterr().err
    assert str(file) in capsys.readouterr().out
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 4
    assert {row["key"] for row in rows} == set(KEPT.read())
    assert all(row["seconds"] <= row["model_seconds"] for row in rows)


def test_the_command_refuses(gpu, monkeypatch, capsys):
    monkeypatch.setenv("FMM_OPENMM_CACHE", "off")
    assert main(["bench", "tune"]) == 2
    assert "FMM_OPENMM_CACHE is 'off'" in capsys.readouterr().err
