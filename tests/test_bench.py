"""``fmm-openmm bench``: every benchmark on tiny systems, what it writes, and the systems it measures on."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import openmm
import pytest
from openmm import app, unit

from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.bench import md, nve, scaling, timing
from fmm_openmm.bench.open import crossover
from fmm_openmm.bench.scaling import copies_near, growth_exponent
from fmm_openmm.bench.solver import Evaluation, Limits, compulsory_bytes, measure, near_pairs, relative_error
from fmm_openmm.bench.systems import Size, nonbonded, scale_particles, tiled, tiled_charges, water
from fmm_openmm.box import BoxLattice
from fmm_openmm.cli import main
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.oracle import ewald_sum

EDGE = 2.2
COPIES = (1, 2, 1)


@pytest.fixture(scope="module")
def base():
    return water(EDGE)


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "BUDGET", 0.01)
    monkeypatch.setattr(md, "BUDGET", 0.01)
    monkeypatch.setattr(md, "REPEATS", (3, 3))
    monkeypatch.setattr(nve, "EQUILIBRATION", 1.0)
    monkeypatch.setattr(nve, "RELAXATION", 0.1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bench(capsys, tmp_path):
    """Runs a benchmark that must succeed; returns its table, each row a dict by column, and the JSON it wrote."""

    def command(*argv):
        assert main(["bench", *argv, "--json", "out.json", "--plot", "out.png"]) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        assert text.splitlines()[0].endswith("threads")
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
        assert set(table[1]) == {"---"}
        assert (tmp_path / "out.png").stat().st_size > 1000
        result = json.loads((tmp_path / "out.json").read_text())
        assert result["benchmark"] == argv[0]
        assert {"hardware", "versions"} <= set(result)
        return [dict(zip(table[0], row, strict=True)) for row in table[2:]], result

    return command


SIZES = ("--sizes", str(EDGE), f"{EDGE}:{'x'.join(map(str, COPIES))}")


# the systems


def potential_energy(system, positions):
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


def test_tiles_have_the_energy_of_so_many_boxes(base):
    many = tiled(base.sample, COPIES)
    assert many.system.getNumParticles() == 2 * base.sample.system.getNumParticles()
    assert many.system.getNumConstraints() == 2 * base.sample.system.getNumConstraints()
    for system in (base.sample.system, many.system):
        nonbonded(system).setEwaldErrorTolerance(1e-6)
    one = potential_energy(base.sample.system, base.sample.positions)
    assert potential_energy(many.system, many.positions) == pytest.approx(2 * one, rel=2e-5)


def test_tiled_charges_have_the_forces_of_the_box(base):
    charges = tiled_charges(base.charges, COPIES)
    found = ewald_sum(charges.positions, charges.charges, charges.box_vectors, charges.exclusions).forces
    assert relative_error(found, base.exact) < 1e-9
    assert np.array_equal(charges.positions, tiled(base.sample, COPIES).positions)
    sheared = water(2.6, "dodecahedron")
    charges = tiled_charges(sheared.charges, (1, 1, 2))
    found = ewald_sum(charges.positions, charges.charges, charges.box_vectors, charges.exclusions).forces
    assert relative_error(found, sheared.exact) < 1e-9


def test_scaled_particles(base):
    many = tiled(base.sample, COPIES)
    force = nonbonded(many.system)
    scale_particles(force, base.sample, charge=0.0, epsilon=0.5)
    last = force.getNumParticles() - 3
    charge, sigma, epsilon = force.getParticleParameters(last)
    original = nonbonded(base.sample.system).getParticleParameters(0)
    assert (charge._value, sigma, epsilon) == (0.0, original[1], 0.5 * original[2])


def test_sizes():
    assert Size.parse("6") == Size(6.0)
    assert Size.parse("4.5:1x2x3") == Size(4.5, (1, 2, 3))
    assert str(Size(4.5, (1, 2, 3))) == "4.5:1x2x3"


# what is derived from times


def test_pairs_are_counted():
    lattice = BoxLattice.from_cell(np.array([[3.0, 0, 0], [0.8, 3.3, 0], [0.2, -1.1, 4.0]]), np.diag([5, 6, 7]), 2.3)
    count = np.random.default_rng(3).integers(0, 4, lattice.size)
    index = np.stack(np.unravel_index(np.arange(lattice.size), (7, 6, 5)), -1)[:, ::-1]
    expected = sum(count @ count[lattice.linear(index + offset)] for offset in lattice.near)
    assert near_pairs(lattice, count) == expected


def test_bytes_of_the_far_field():
    lattice = BoxLattice.from_cell(np.eye(3), np.diag([4, 4, 4]), 1.8)
    boxes, waves, terms = 64, 4 * 4 * 3, 9
    moments = local = terms * boxes
    spectrum = local_spectrum = 2 * terms * waves
    expected = 4 * (2 * (moments + local + spectrum + local_spectrum) + 25 * waves + 12 * 100)
    assert compulsory_bytes(lattice, 2, 100, 4) == expected


def test_growth_exponent():
    rows = [{"atoms": n, "seconds": 1e-9 * n**1.1} for n in (1e4, 1e5, 1e6)]
    assert growth_exponent(rows) == pytest.approx(1.1)
    assert growth_exponent(rows[:1]) is None
    assert [int(np.prod(copies_near(k))) for k in (1, 10, 100, 1000)] == [1, 8, 100, 1000]


def test_stage_clock_changes_nothing(base):
    solver = base.charges.solver(tolerance=1e-3, backend="reference", order=2, grid=(3, 3, 3), near_radius=1.8)
    solver.compute(base.charges.positions)
    stages = solver._stages[0]
    assert isinstance(stages, ReferenceStages)
    seconds = timing.stage_seconds(stages, base.charges.positions, EDGE / 3)
    assert list(seconds) == list(timing.STAGES)
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed(base):
    solver = base.charges.solver(tolerance=1e-3, backend="cpu", order=2, grid=(2, 2, 2), near_radius=1.8, levels=1)
    solver.compute(base.charges.positions)
    seconds = timing.stage_seconds(solver._stages[0], base.charges.positions, EDGE / 4)
    assert list(seconds) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed_on_a_gpu(base):
    """With a clock that counts what is queued."""
    evaluation = Evaluation(base.charges, backend="cpu", order=2, grid=(1, 1, 1), near_radius=1.8, levels=2)
    assert list(evaluation.stage_seconds()) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    evaluation._device = SimpleNamespace(median_seconds=lambda run: run())
    evaluation.stages = SimpleNamespace(queue=lambda stage: stage)
    single = {name: [name] for name in timing.STAGES}
    assert evaluation.stage_seconds() == single | {"m2m": ["m2m"], "m2l": ["m2l1", "m2l2"], "l2l": ["l2l1", "l2l2"]}


@pytest.mark.parametrize(("precision", "tolerance", "instructions"), [("single", 1e-3, 14), ("double", 1e-6, 18)])
def test_share_of_the_limits(monkeypatch, precision, tolerance, instructions):
    monkeypatch.setattr("fmm_openmm.bench.solver.limits", lambda *_: Limits(1e12, 1e10))
    row = measure(Size(EDGE), tolerance, 0.0, backend="cpu")
    assert row["precision"] == precision
    assert row["p2p_share"] == pytest.approx(instructions * row["pairs_per_second"] / 1e12)


# the commands


def test_solver(bench):
    table, result = bench("solver", *SIZES, "--tolerance", "1e-3", "--smoothing", "0", "0.05", "--backend", "cpu")
    assert len(table) == len(result["rows"]) == 4
    for row, shown in zip(result["rows"], table, strict=True):
        assert row["force_error"] < row["tolerance"] == 1e-3
        assert row["seconds"] > 0
        assert row["new_shape_seconds"] > 0
        assert row["pairs_per_second"] == pytest.approx(row["pairs"] / row["stages"]["p2p"])
        assert row["p2p_share"] is row["far_share"] is None
        assert shown["atoms"] == str(row["atoms"])
    assert result["rows"][2]["atoms"] == 2 * result["rows"][0]["atoms"]
    assert [row["smoothing"] for row in result["rows"]] == [0.0, 0.05, 0.0, 0.05]


def test_solver_in_another_cell(bench):
    table, result = bench("solver", "--sizes", "2.6", "--cells", "dodecahedron", "--tolerance", "1e-3", "--smoothing", "0")
    assert table[0]["cell"] == "dodecahedron"
    assert result["rows"][0]["force_error"] < 1e-3


def test_solver_with_given_parameters(bench):
    fixed = "--order", "6", "--grid", "4", "3", "4", "--near-radius", "2.5"
    (shown,), result = bench("solver", "--sizes", "2.6", "--tolerance", "0.1", "--smoothing", "0", "--backend", "cpu", *fixed)
    assert shown["order, radius, boxes"] == "6, 2.5, [4, 3, 4]"
    assert result["rows"][0]["force_error"] < 0.1


def test_md(bench):
    table, result = bench("md", *SIZES, "--tolerance", "5e-4", "--smoothing", "auto", "0", "--platform", "CPU")
    assert [row["method"] for row in table[:2]] == ["charges zero", "PME"]
    rows = {(row["atoms"], row["method"]): row for row in result["rows"]}
    assert len(rows) == len(table)
    atoms = max(rows)[0]
    for name in ("bridge", "bridge, smoothing 0"):
        named, equal = (rows[atoms, f"FMM, {md.bridges()[0]} {name}{at}"] for at in ("", ", PME's error"))
        assert named["force_error"] < equal["force_error"] <= 1.01 * rows[atoms, "PME"]["force_error"]
        assert equal["fmm_options"]["tolerance"] > named["fmm_options"]["tolerance"] == 5e-4
    for (atoms, method), row in rows.items():
        assert "failure" not in row
        assert row["step_seconds"] > 0
        if method == "charges zero":
            continue
        assert row["marginal_seconds"] == pytest.approx(row["step_seconds"] - rows[atoms, "charges zero"]["step_seconds"])
        assert row["force_error"] < (1e-3 if "PME" in method else 5e-4)


def test_the_tolerance_that_matches_the_error_of_pme():
    charges, exact = water(EDGE).charges, water(EDGE).exact

    def error(tolerance):
        return relative_error(Evaluation(charges, tolerance=tolerance).forces, exact)

    allowed = 1.01 * error(1.6e-4)
    found = md.matching_tolerance(charges, exact, 1e-4, allowed)
    assert 1.25e-4 <= found <= 4e-4 and error(found) <= allowed
    assert md.matching_tolerance(charges, exact, 1e-4, 1.0) == pytest.approx(3.896e-4, rel=1e-4)
    assert md.matching_tolerance(charges, exact, 1e-4, 1e-7) is None


def test_md_takes_the_best_cutoff_of_pme(monkeypatch):
    monkeypatch.setattr(md, "CUTOFFS", (0.9, 0.95, 1.5))
    comparison = md.Comparison(Size(EDGE), openmm.Platform.getPlatformByName("CPU"))
    (row,) = [row for row in comparison.rows(5e-5) if row["method"] == "PME"]
    tried = row["cutoffs_seconds_and_errors"]
    assert set(tried) == {0.9, 0.95}
    assert tried[row["cutoff"]] == [row["step_seconds"], row["force_error"]]
    assert row["step_seconds"] == min(seconds for seconds, _ in tried.values())
    assert max(error for _, error in tried.values()) < 1.5e-4


def test_md_reports_a_failure(bench, monkeypatch):
    def broken(*_, **__):
        raise openmm.OpenMMException("no memory left")

    monkeypatch.setattr(md.Comparison, "_fmm", broken)
    table, result = bench("md", "--sizes", str(EDGE), "--tolerance", "5e-4", "--platform", "CPU")
    assert result["rows"][-1]["failure"] == table[-1]["cutoff, nm"] == "no memory left"


def test_nve(bench):
    table, result = bench("nve", *SIZES, "--time", "0.1", "--smoothing", "auto", "0.01", "--platform", "CPU")
    assert [row["method"] for row in table] == 2 * ["PME", "FMM", "FMM, smoothing 0.01"]
    assert all(0 < row["residual"] < 50 and abs(row["drift"]) < 100 for row in result["rows"])


def test_scaling(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench("scaling", "--max-atoms", "1.1e4", "--tolerance", "1e-3", "--backend", "cpu")
    assert len(table) == len(result["rows"]) > 1
    assert np.isfinite(result["exponent"])
    assert all(row["force_error"] < 1e-3 for row in result["rows"])


def test_open(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    monkeypatch.setattr("fmm_openmm.bench.open.PATIENCE", 0.0)
    table, result = bench("open", "--max-atoms", "3e3", "--tolerance", "1e-3", "--backend", "cpu")
    assert [(row["atoms"], row["method"]) for row in result["rows"]] == [
        (999, "fmm"), (999, "direct"), (999, "treecode"), (3000, "fmm"), (3000, "treecode"),
    ]  # fmt: skip
    assert len(table) == 5
    for row in result["rows"]:
        assert row["seconds"] > 0
        assert row["force_error"] is None or row["force_error"] <= 1e-3
    assert result["rows"][0]["force_error"] is not None


def test_open_in_a_cell(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    _, result = bench("open", "--cell", "20", "--max-atoms", "1000", "--tolerance", "1e-3", "--backend", "cpu")
    assert [row["system"] for row in result["rows"]] == ["filled cube", "droplet in empty space", "droplet in a cube of 20 nm"]
    for row in result["rows"]:
        assert min(row["seconds"], row["call_seconds"]) > 0
        assert row["force_error"] <= 1e-3


def test_where_one_method_overtakes_another():
    def rows(method, *times):
        return [{"method": method, "atoms": atoms, "seconds": t} for atoms, t in zip((10, 100, 1000), times, strict=True)]

    found = crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 8.0, 64.0), "fmm", "direct")
    assert found == pytest.approx(10 ** (1 + np.log(4) / np.log(8)))
    assert crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 2.0, 3.0), "fmm", "direct") is None
    assert crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 5.0, 6.0, 7.0), "fmm", "direct") == 10


def test_scaling_stops_where_memory_ends(bench, monkeypatch):
    def full(*_, **__):
        raise MemoryError("32 GB")

    monkeypatch.setattr("fmm_openmm.bench.scaling.Evaluation", full)
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench("scaling", "--max-atoms", "1.1e4", "--backend", "cpu")
    assert table == result["rows"] == []
    assert result["stopped"] == "out of memory: 32 GB"


def test_open_stops_where_memory_ends(bench, monkeypatch):
    """What was measured before is kept."""

    class Full(Evaluation):
        def __init__(self, charges, **options):
            if len(charges) > 1000:
                raise MemoryError("32 GB")
            super().__init__(charges, **options)

    monkeypatch.setattr("fmm_openmm.bench.open.Evaluation", Full)
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    table, result = bench("open", "--max-atoms", "3e3", "--tolerance", "1e-3", "--backend", "cpu")
    assert [row["atoms"] for row in result["rows"]] == 3 * [999]
    assert len(table) == 3
    assert result["stopped"] == "out of memory: 32 GB"


def test_the_smallest_system_of_scaling():
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(app.ForceField("amber14/tip3p.xml"), boxSize=openmm.Vec3(*3 * [scaling.EDGE]) * unit.nanometer)
    assert modeller.topology.getNumAtoms() == scaling.ATOMS


def test_an_evaluation_is_of_all_that_its_charges_are(base):
    """Of pairs excluded at their nearest image, too."""
    c = base.charges
    wrapped = c.positions % np.diag(c.box_vectors)
    broken = ChargeSystem(c.charges, wrapped, c.box_vectors, c.exclusions, exclusions_periodic=True)
    assert relative_error(Evaluation(broken, tolerance=1e-3, backend="cpu").forces, base.exact) < 1e-3


def test_json_alone(capsys):
    assert main(["bench", "nve", "--sizes", str(EDGE), "--time", "0.05", "--platform", "CPU", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["benchmark"] == "nve"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: BENCHMARK"),
        (["sort"], "invalid choice: 'sort'"),
        (["solver", "--sizes", "6x6"], "a size is an edge of at least 2 nm, or this and copies, as 6 or 6:3x3x5, got 6x6"),
        (["solver", "--sizes", "1"], "a size is an edge of at least 2 nm"),
        (["solver", "--sizes", "3:0x1x1"], "a size is an edge of at least 2 nm"),
        (["solver", "--tolerance", "2"], "`tolerance` must lie between 1e-10 and 0.1, got 2"),
        (["solver", "--smoothing", "0.5"], "`smoothing` must lie between 0 and 0.2, got 0.5"),
        (["solver", "--cells", "sphere"], "invalid choice: 'sphere'"),
        (["md", "--platform", "Abacus"], "--platform must be one of"),
        (["md", "--platform", "CPU", "--tolerance", "1e-6"], "needs double precision, which the CPU platform lacks"),
        (["nve", "--time", "0"], "--time must lie between 0.05 and 1e5 (ps), got 0"),
        (["scaling", "--max-atoms", "1e4"], "--max-atoms must be at least 10002, got 10000"),
        (["open", "--max-atoms", "10"], "--max-atoms must be at least 1000, got 10"),
        (["nve", "--json", "."], "is a folder: ."),
        (["open", "--cell", "5"], "--cell must lie between 15.1 and 10000 (nm) for 21480 atoms, got 5"),
        (["scaling", "--plot", "out.doc"], "--plot must name a file ending in"),
        (["scaling", "--json", "nowhere/out.json"], "no such folder: nowhere"),
        (["nve", "--smoothing", "0", "wide"], "argument --smoothing: could not convert string to float: 'wide'"),
        (["md", "--smoothing", "0.5"], "`smoothing` must lie between 0 and 0.2, got 0.5"),
    ],
)
def test_bad_usage(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line


def test_plot_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "nve", "--plot", "out.png"]) == 2
    assert "--plot needs matplotlib: pip install 'fmm_openmm[plot]'" in capsys.readouterr().err


def test_the_loop_of_multiply_adds_compiles():
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    from fmm_openmm.bench.device import CHAINS, FMA_LOOP, ROUNDS

    try:
        nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(f"needs the NVRTC library: {error}")
    for real in ("float", "double"):
        program = nvrtc.createProgram(FMA_LOOP, "fma_loop.cu", [], [])
        options = [f"-DREAL={real}", f"-DCHAINS={CHAINS}", f"-DROUNDS={ROUNDS}", "-arch=sm_90"]
        nvrtc.compileProgram(program, options)
        assert nvrtc.getProgramLog(program).strip() == ""
