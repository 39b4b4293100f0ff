"""``fmm-openmm bench``: every benchmark but that of MD steps, on tiny systems, and bad usage."""

import json
import sys

import numpy as np
import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.bench.solver import Evaluation
from fmm_openmm.cli import main
from tests.bench.cases import EDGE, SIZES
from tests.systems import PEPTIDE


@pytest.mark.slow
def test_solver(bench):
    table, result = bench(
        "solver", *SIZES, "--tolerance", "1e-3", "--smoothing", "0", "0.05", "--backend", "cpu",
        "--groups", "8",
    )  # fmt: skip
    assert len(table) == len(result["rows"]) == 4
    for row, shown in zip(result["rows"], table, strict=True):
        assert row["force_error"] < row["tolerance"] == 1e-3
        assert row["seconds"] > 0
        assert row["new_shape_seconds"] > 0
        assert row["pairs_per_second"] == pytest.approx(row["pairs"] / row["stages"]["p2p"])
        assert row["p2p_share"] is row["far_share"] is None
        assert shown["atoms"] == str(row["atoms"])
        assert row["groups"] == 8 and shown["groups"] == f"{1e6 * row['groups_seconds']:.0f}"
    assert result["rows"][2]["atoms"] == 2 * result["rows"][0]["atoms"]
    assert [row["smoothing"] for row in result["rows"]] == [0.0, 0.05, 0.0, 0.05]


@pytest.mark.slow
def test_solver_in_another_cell(bench):
    table, result = bench(
        "solver",
        "--sizes",
        "2.6",
        "--cells",
        "dodecahedron",
        "--tolerance",
        "1e-3",
        "--smoothing",
        "0",
    )
    assert table[0]["cell"] == "dodecahedron"
    assert result["rows"][0]["force_error"] < 1e-3


@pytest.mark.slow
def test_solver_with_given_parameters(bench):
    fixed = "--order", "6", "--grid", "4", "3", "4", "--near-radius", "2.5"
    (shown,), result = bench(
        "solver",
        "--sizes",
        str(EDGE),
        "--tolerance",
        "0.1",
        "--smoothing",
        "0",
        "--backend",
        "cpu",
        *fixed,
    )
    assert shown["order, radius, boxes"] == "6, 2.5, [4, 3, 4]"
    assert result["rows"][0]["force_error"] < 0.1


@pytest.mark.slow
def test_nve(bench):
    table, result = bench(
        "nve", *SIZES, "--time", "0.1", "--smoothing", "auto", "0.01", "--platform", "CPU"
    )
    assert [row["method"] for row in table] == 2 * ["PME", "FMM", "FMM, smoothing 0.01"]
    assert all(0 < row["residual"] < 50 and abs(row["drift"]) < 100 for row in result["rows"])


@pytest.mark.slow
def test_scaling(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench(
        "scaling", "--max-atoms", "1.1e4", "--tolerance", "1e-3", "--backend", "cpu"
    )
    assert len(table) == len(result["rows"]) > 1
    assert np.isfinite(result["exponent"])
    assert all(row["force_error"] < 1e-3 for row in result["rows"])


@pytest.mark.slow
def test_distributed(bench):
    """On one rank."""
    pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")
    table, result = bench("distributed", *SIZES, "--tolerance", "1e-3")
    assert [row["atoms"] for row in table] == [str(row["atoms"]) for row in result["rows"]]
    for row in result["rows"]:
        assert row["ranks"] == 1 and row["force_error"] < 1e-3
        assert 0.1 < row["efficiency"] < 2 and row["memory"] > 0
        assert 0 < row["compute_seconds"] and row["sent"] == 0


@pytest.fixture
def device():
    """The module of the GPU."""
    try:
        backend_class("cuda")
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    from fmm_openmm.bench import device

    return device


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("number", [0, 1])
def test_memory_of_the_current_gpu(device, number):
    if device.cupy.cuda.runtime.getDeviceCount() <= number:
        pytest.skip("needs another GPU")
    with device.cupy.cuda.Device(number):
        array, taken = device.peak_memory(lambda: device.upload(np.zeros(2**26, np.uint8)))
    assert array.nbytes <= taken < array.nbytes + 2**22


@pytest.mark.gpu
@pytest.mark.usefixtures("device")
def test_distributed_on_a_gpu(bench):
    """On one rank; other processes may release memory of the GPU meanwhile."""
    pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")
    table, result = bench("distributed", "--backend", "cuda", *SIZES, "--tolerance", "1e-3")
    assert len(table) == len(result["rows"])
    for row in result["rows"]:
        assert row["ranks"] == 1 and row["force_error"] < 1e-3 and row["seconds"] > 0
        assert isinstance(row["memory"], int) and row["compute_seconds"] is None


def test_more_ranks_than_there_are(capsys):
    pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")
    assert main(["bench", "distributed", "--ranks", "1", "2"]) == 2
    assert "--ranks must lie between 1 and 1, got 2" in capsys.readouterr().err


@pytest.mark.slow
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


@pytest.mark.slow
def test_open_in_a_cell(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    _, result = bench(
        "open", "--cell", "20", "--max-atoms", "1000", "--tolerance", "1e-3", "--backend", "cpu"
    )
    assert [row["system"] for row in result["rows"]] == [
        "filled cube",
        "droplet in free space",
        "droplet in a cube of 20 nm",
    ]
    for row in result["rows"]:
        assert min(row["seconds"], row["call_seconds"]) > 0
        assert row["force_error"] <= 1e-3


@pytest.mark.slow
def test_slab(bench):
    table, result = bench("slab", "--edge", "2.2", "--tolerance", "1e-3", "--backend", "cpu")
    names = [row["system"] for row in result["rows"]]
    assert names[:2] == ["periodic cube", "slab"] and names[2].startswith("PME, ")
    assert len(table) == 3 and len({row["atoms"] for row in result["rows"]}) == 1
    for row in result["rows"]:
        assert row["seconds"] > 0 and 0 < row["force_error"] <= 1e-3
    seconds = [row["seconds"] for row in result["rows"]]
    assert result["ratio"] == seconds[1] / seconds[0]


def test_scaling_stops_where_memory_ends(bench, monkeypatch):
    def full(*_, **__):
        raise MemoryError("32 GB")

    monkeypatch.setattr("fmm_openmm.bench.scaling.Evaluation", full)
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench("scaling", "--max-atoms", "1.1e4", "--backend", "cpu")
    assert table == result["rows"] == []
    assert result["stopped"] == "out of memory: 32 GB"


@pytest.mark.slow
def test_open_stops_where_memory_ends(bench, monkeypatch):
    """Rows measured before the error are kept."""

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


@pytest.mark.slow
def test_json_alone(capsys):
    assert (
        main(
            ["bench", "nve", "--sizes", str(EDGE), "--time", "0.05", "--platform", "CPU", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["benchmark"] == "nve"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: BENCHMARK"),
        (["sort"], "BENCHMARK must be one of solver, md, "),
        (
            ["solver", "--sizes", "6x6"],
            "a size is an edge of at least 2 nm, or this and copies, as 6 or 6:3x3x5, got 6x6",
        ),
        (["solver", "--sizes", "1"], "a size is an edge of at least 2 nm"),
        (["solver", "--sizes", "3:0x1x1"], "a size is an edge of at least 2 nm"),
        (["solver", "--tolerance", "2"], "--tolerance must lie between 1e-10 and 0.1, got 2"),
        (["solver", "--smoothing", "0.5"], "--smoothing must lie between 0 and 0.2, got 0.5"),
        (["solver", "--cells", "sphere"], "--cells must be one of "),
        (["md", "--platform", "Abacus"], "--platform must be one of"),
        (
            ["md", "--platform", "CPU", "--tolerance", "1e-6"],
            "needs double precision, which the CPU platform lacks",
        ),
        (
            ["md", "--platform", "CPU", "--precision", "mixed"],
            "the CPU platform has one precision only: leave out --precision",
        ),
        (
            ["md", "--platform", "CPU", "--forcefield", "x.xml"],
            "--forcefield applies only with --system: leave it out",
        ),
        (
            ["md", "--platform", "CPU", "--box", "3", "3", "3"],
            "--box applies only with --system: leave it out",
        ),
        (
            ["md", "--platform", "CPU", "--system", "x.pdb", "--every-atom"],
            "--sizes, --every-atom and --slab are for water",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--sizes", "3"],
            "--sizes, --every-atom and --slab are for water",
        ),
        (
            ["md", "--platform", "CPU", "--slab", "--ensemble", "npt"],
            "--slab is for NVT",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--system", "x.pdb"],
            "--preset and --system: give one of them",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--box", "3", "3", "3"],
            "--box applies only with --system",
        ),
        (
            ["md", "--platform", "CPU", "--tile", "2x2"],
            "--tile applies only with --system or --preset: leave it out",
        ),
        (["md", "--preset", "butter"], "--preset must be one of "),
        (["md", "--tile", "2x0"], "a tile is copies along a, b (and c), as 2x2 or 2x2x3, got 2x0"),
        (["md", "--platform", "CPU", "--system", "x.pdb"], "no such file: x.pdb"),
        (
            ["md", "--platform", "CPU", "--system", str(PEPTIDE)],
            "the System must use PME, in a periodic box",
        ),
        (
            ["md", "--platform", "CPU", "--timestep", "2"],
            "--timestep must lie between 0.0001 and 0.01, got 2",
        ),
        (["nve", "--time", "0"], "--time must lie between 0.05 and 1e5 (ps), got 0"),
        (["scaling", "--max-atoms", "1e4"], "--max-atoms must be at least 10002, got 10000"),
        (["open", "--max-atoms", "10"], "--max-atoms must be at least 1000, got 10"),
        (["nve", "--json=."], ". is a folder: give the name of a file"),
        (
            ["open", "--cell", "5"],
            "--cell must lie between 15.1 and 10000 (nm) for 21480 atoms, got 5",
        ),
        (["scaling", "--plot", "out.doc"], "--plot must name a file ending in"),
        (["scaling", "--json=nowhere/out.json"], "no such folder: nowhere"),
        (
            ["nve", "--smoothing", "0", "wide"],
            "fmm-openmm: --smoothing must be a number, got wide",
        ),
        (["md", "--smoothing", "0.5"], "--smoothing must lie between 0 and 0.2, got 0.5"),
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
