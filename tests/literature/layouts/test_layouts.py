"""Layouts of P2P against the reference backend, through the emulator and on a GPU; the model of
their times; the benchmark."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.box import BoxLattice, PaddedLattice, box_width, counts_matrix
from fmm_openmm.cli import main
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.literature.layouts import LAYOUTS, MOST_NEAR, Neighbourhood, program
from fmm_openmm.literature.layouts.model import (
    KEPT,
    KERNELS,
    Costs,
    choose,
    fit,
    key,
    operations,
    predict,
    predict_layout,
)
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Accumulator
from tests.compiler import COMPILER
from tests.emulator import Emulator, compiled

ACCURACY = {np.float32: 1e-5, np.float64: 1e-12}
CASES = {  # cell, grid, near radius, particles
    "cube": (np.eye(3) * 3.0, (6, 6, 6), 1.75, 300),
    "skewed": (
        np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]]),
        [[6, 0, 0], [1, 5, 0], [-2, 2, 5]],
        2.3,
        150,
    ),
    "crowded": (np.diag([2.0, 1, 1]), (2, 1, 1), 1.75, 150),
    "one box": (np.eye(3), (1, 1, 1), 2.0, 7),
}


def case(name):
    """Lattice, ends of boxes, positions and charges in them, and what the reference backend's
    p2p makes of these."""
    cell, grid, radius, n = CASES[name]
    counts = counts_matrix(grid)
    lattice, rng = BoxLattice.from_cell(cell, counts, radius), np.random.default_rng(5)
    stages = ReferenceStages(
        Specification(lattice, 1, 0.0, rng.normal(size=n), np.empty((0, 2), np.int64), False)
    )
    parts = stages.sort(rng.uniform(-1, 4, (n, 3)), box_width(cell, counts))
    out = Accumulator(np.zeros(n), np.zeros((n, 3)))
    stages.p2p(parts, stages.exclusions(parts, out), out)
    neighbourhood, xq = (
        Neighbourhood.from_lattice(lattice, parts.start),
        np.column_stack([parts.x, parts.charge]),
    )
    return neighbourhood, xq, np.column_stack([out.potentials, out.fields])


def agree(found, expected, dtype):
    for columns in (slice(0, 1), slice(1, 4)):
        wrong = np.linalg.norm(found[:, columns] - expected[:, columns])
        assert wrong <= ACCURACY[dtype] * np.linalg.norm(expected[:, columns])


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference_backend(name, layout, dtype, folder):
    neighbourhood, xq, expected = case(name)
    machine = Emulator(program(layout, neighbourhood, dtype), folder)
    machine.buffers["xq"][...] = xq
    machine.run()
    agree(machine.buffers["results"], expected, dtype)


@pytest.mark.parametrize("name", CASES)
def test_near_boxes(name):
    cell, grid, radius, _ = CASES[name]
    lattice = BoxLattice.from_cell(cell, counts_matrix(grid), radius)
    neighbourhood = Neighbourhood.from_lattice(lattice, np.arange(lattice.size + 1))
    z, y, x = np.meshgrid(*[np.arange(m) for m in np.diag(lattice.counts)[::-1]], indexing="ij")
    index = np.stack([x, y, z], -1).reshape(-1, 1, 3)
    offsets = np.rint(neighbourhood.shift @ np.linalg.inv(lattice.boxes)).astype(int)
    np.testing.assert_array_equal(neighbourhood.near, lattice.linear(index + offsets))
    np.testing.assert_array_equal(neighbourhood.near[:, 0], np.arange(lattice.size))
    assert sorted(offsets.tolist()) == sorted(lattice.near.tolist())
    assert neighbourhood.sources == neighbourhood.parts * len(lattice.near)


def test_what_is_not_known_is_refused():
    with pytest.raises(UnsupportedError, match="need a periodic lattice, got an open one"):
        Neighbourhood.from_lattice(PaddedLattice(np.array([3, 3, 3]), 1.75), np.zeros(28, int))
    with pytest.raises(UnsupportedError, match=f"support at most {MOST_NEAR} near boxes, got 515"):
        Neighbourhood.from_lattice(BoxLattice(np.diag([2, 2, 2]), np.eye(3), 5.0), np.zeros(9, int))
    with pytest.raises(
        ValueError, match="`layout` must be one of indexed, replicated, got 'magic'"
    ):
        program("magic", case("cube")[0], np.float32)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_largest_near_stencil(folder):
    macros = program("replicated", case("cube")[0], np.float32).macros
    compiled("p2p_replicated", macros | {"NEAR": MOST_NEAR}, ["replicate"], folder)
    with pytest.raises(AssertionError, match="lists fit into shared memory"):
        compiled("p2p_replicated", macros | {"NEAR": MOST_NEAR + 1}, ["replicate"], folder)


# the model


COSTS = Costs(15e-12, 600e-12, 25e-12, 35e-12, 20e-12, 7e-12, 5e-12)


def test_operations_of_random_boxes():
    """Against boxes filled at random."""
    density, near, rng = 5.0, 27, np.random.default_rng(4)
    targets, sources = rng.poisson(density, 100_000), rng.poisson(density, (100_000, near))
    passes, steps = np.ceil(targets / 4), np.ceil(sources / 32).sum(1)
    streamed = np.ceil(sources.sum(1) / 32)
    expected = {
        "p2p_indexed": {
            "targets": passes,
            "row": near * passes,
            "gathered": passes * steps,
            "pair": targets * steps,
        },
        "p2p_replicated": {
            "targets": passes,
            "streamed": passes * streamed,
            "pair": targets * streamed,
        },
        "replicate": {"listed": np.array([near]), "copied": sources.sum(1)},
    }
    for kernel, each in expected.items():
        found = operations(kernel, density, near)
        assert found.keys() == each.keys()
        for name, counts in each.items():
            assert found[name] == pytest.approx(counts.mean(), rel=0.01), (kernel, name)


def test_costs_are_found_again():
    """The fit returns the costs from times that the model predicts."""
    kernels = [kernel for layout in LAYOUTS for kernel in KERNELS[layout]]
    cases = [
        (kernel, density, near, 1000)
        for kernel in kernels
        for density in (0.7, 3.0, 20.0, 90.0)
        for near in (27, 57)
    ]
    found = fit(COSTS.pair, [(*each, predict(*each, COSTS)) for each in cases])
    assert asdict(found) == pytest.approx(asdict(COSTS), rel=1e-6)


def test_the_choice_turns_with_the_density():
    """Few particles leave most lanes of an indexed step idle; many leave few, and copying costs
    more than that."""
    costs = replace(COSTS, copied=20e-12, gathered=COSTS.streamed)
    assert choose(1.0, 27, costs) == "replicated"
    assert choose(32_000.0, 27, costs) == "indexed"
    for density in (1.0, 30.0, 32_000.0):
        times = {layout: predict_layout(layout, density, 27, 10, costs) for layout in LAYOUTS}
        assert choose(density, 27, costs) == min(times, key=times.get)


def test_costs_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path))
    KEPT.store({key("Abacus 9000", np.float32): COSTS})
    assert KEPT.read() == {key("Abacus 9000", np.float32): COSTS}
    assert key("Abacus 9000", np.float64) not in KEPT.read()
    file = tmp_path / "layouts.json"
    file.write_text(file.read_text().replace(f": {COSTS.targets}", ": -1"))
    with pytest.warns(UserWarning, match=r"layouts\.json is ignored .*an entry is not of costs"):
        assert KEPT.read() == {}


# with CuPy


cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda.execute.cupy.executor import set_up  # noqa: E402
from fmm_openmm.backends.cuda.execute.cupy.loader import why_unusable  # noqa: E402
from fmm_openmm.literature.layouts import measure as bench  # noqa: E402

without_gpu = why_unusable()


def needs_gpu(test):
    """Marks a test that needs a GPU."""
    return pytest.mark.gpu(
        pytest.mark.skipif(without_gpu is not None, reason=f"no GPU to run on: {without_gpu}")(test)
    )


@needs_gpu
@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_agrees_on_the_gpu(name, layout, dtype):
    neighbourhood, xq, expected = case(name)
    run = set_up(program(layout, neighbourhood, dtype))
    run.buffers["xq"].set(xq.astype(dtype))
    run.queue()
    agree(run.buffers["results"].get(), expected, dtype)


@needs_gpu
def test_repeats_bit_for_bit():
    neighbourhood = bench.random_boxes(6.0, 2e4, 1.75)
    for layout in LAYOUTS:
        run = bench.make_run(layout, neighbourhood, "single")
        run.queue()
        first = run.buffers["results"].copy()
        run.buffers["results"][...] = cupy.nan
        run.queue()
        assert (run.buffers["results"] == first).all()


@needs_gpu
def test_measures_on_the_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path))
    monkeypatch.setattr(bench, "CALIBRATION", (1.0, 40.0))
    costs = bench.load_costs("single")
    assert bench.load_costs("single") == costs
    row = bench.measure(case("cube")[0], "single", costs)
    assert row["error"] < 1e-5
    assert row["picked"] == choose(300 / 216, 27, costs)


def test_random_boxes():
    neighbourhood = bench.random_boxes(3.0, 2e4, 1.75)
    assert neighbourhood.near.shape == (19**3, 27)
    assert neighbourhood.density == pytest.approx(3.0, rel=1e-3)
    counts = np.diff(neighbourhood.start)
    assert counts.var() == pytest.approx(3.0, rel=0.1)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_bench_measures(monkeypatch, tmp_path, folder):
    """Through the emulator, with a clock that ticks once a measurement; the costs are measured
    once and then kept."""

    class Emulated:
        def __init__(self, program):
            self.machine = Emulator(program, folder)
            self.buffers = self.machine.buffers

        def queue(self, *stages):
            self.machine.run(stages)

    class Pool:
        def free_all_blocks(self):
            pass

    def clock(launch):
        launch()
        ticks.append(None)
        return 1e-3 * len(ticks)

    ticks: list = []
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path))
    monkeypatch.setattr(bench, "cupy", np)
    monkeypatch.setattr(np, "get_default_memory_pool", Pool, raising=False)
    monkeypatch.setattr(np, "cuda", cupy.cuda, raising=False)
    monkeypatch.setattr(bench, "set_up", Emulated)
    monkeypatch.setattr(bench, "device_name", lambda: "Abacus 9000")
    monkeypatch.setattr(bench.device, "median_seconds", clock)
    monkeypatch.setattr(bench.device, "fma_rate", lambda precision: 1e9)
    monkeypatch.setattr(bench, "CALIBRATION", (1.0, 6.0))
    monkeypatch.setattr(bench, "CALIBRATION_PARTICLES", 60)
    costs = bench.load_costs("single")
    assert costs.pair == pytest.approx(32 * 14 / 1e9)
    assert (len(ticks), bench.load_costs("single"), len(ticks)) == (6, costs, 6)
    bench.load_costs("single", remeasure=True)
    assert len(ticks) == 12
    for row in bench.rows(
        [4.0], ["single", "double"], 100, 1.75, {"single": costs, "double": costs}
    ):
        assert 0 < row["error"] < (1e-5 if row["precision"] == "single" else 1e-12)
        assert row["faster"] == "indexed"  # timed first
        assert row["picked"] == choose(row["density"], 27, costs)
        assert row["predicted"]["replicated"] == pytest.approx(
            sum(list(row["kernel_predicted"].values())[1:])
        )


def made_up(neighbourhood, precision, costs):
    """A row: indexed takes 2 ms at any density, replicated 1 ms for 2 particles a
    box and in proportion."""
    row = {
        "precision": precision,
        "density": neighbourhood.density,
        "near": neighbourhood.near.shape[1],
    }
    if neighbourhood.density > 50:
        return row | {"failure": "memory"}
    times = {"indexed": 2e-3, "replicated": neighbourhood.density * 0.5e-3}
    kernels = {
        "p2p_indexed": 2e-3,
        "replicate": neighbourhood.density * 0.3e-3,
        "p2p_replicated": neighbourhood.density * 0.2e-3,
    }
    return row | {
        "seconds": times,
        "predicted": {"indexed": 1.8e-3, "replicated": neighbourhood.density * 0.55e-3},
        "kernel_seconds": kernels,
        "kernel_predicted": kernels,
        "error": 1e-7,
        "faster": min(times, key=times.get),
        "picked": "replicated",
    }


@pytest.mark.slow
def test_bench_prints_and_draws(monkeypatch, tmp_path, capsys):
    """The command, with times made up."""
    monkeypatch.setattr("fmm_openmm.backends.backend_class", lambda name: None)
    monkeypatch.setattr("fmm_openmm.bench.timing.hardware", lambda: "Abacus 9000; 1 threads")
    monkeypatch.setattr(bench, "load_costs", lambda precision, remeasure: COSTS)
    monkeypatch.setattr(bench, "measure", made_up)
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--densities", "2", "8", "64", "--particles", "4096"]
    assert main(["bench", "layouts", *arguments, f"--json={out}", "--plot", str(plot)]) == 0, (
        capsys.readouterr().err
    )
    text = re.sub(" +", " ", capsys.readouterr().out)  # columns are aligned
    assert (
        "| single | 2 | 27 | 2000 (1800) | 1000 (1100) | 600 (600) | 400 (400) | replicated "
        "| replicated | 1.0e-07 |" in text
    )
    assert "| double | 64 | 27 | memory | - | - | - | - | - | - |" in text
    assert (
        "single: the faster layout is picked in 1 of 2 cases; picks take at most 100 percent longer"
        in text
    )
    result = json.loads(out.read_text())
    assert result["costs"] == dict.fromkeys(("single", "double"), asdict(COSTS))
    assert len(result["rows"]) == 6
    for each in result["summary"]:
        assert (each["right"], each["of"], round(each["loss"], 6)) == (1, 2, 1.0)
        assert abs(each["off"]) == pytest.approx(0.1)
        assert each["measured"] == pytest.approx(5.0)
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--densities", "0"], "`--densities` must lie between 0.01 and 10000, got 0"),
        (["--particles", "10"], "`--particles` must lie between 1000 and 1e"),
        (["--near-radius", "9"], "`--near-radius` must lie between 1 and 4, got 9"),
    ],
)
def test_bench_refuses(monkeypatch, capsys, arguments, text):
    monkeypatch.setattr("fmm_openmm.backends.backend_class", lambda name: None)
    monkeypatch.setattr("fmm_openmm.bench.timing.hardware", lambda: "Abacus 9000; 1 threads")
    assert main(["bench", "layouts", *arguments]) != 0
    assert text in capsys.readouterr().err
