"""Benchmarks that are short, and the small systems that they measure."""

import json

import pytest
from openmm import app, unit

from fmm_openmm.bench import md, nve, timing
from fmm_openmm.bench.systems import water
from fmm_openmm.cli import main
from fmm_openmm.cli.bench.presets import PRESETS, Preset
from tests.bench.cases import EDGE
from tests.convert.small_water import FORCE_FIELD, small_water


@pytest.fixture(scope="module")
def base():
    return water(EDGE)


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "BUDGET", 0.01)
    monkeypatch.setattr(md, "BUDGET", 0.01)
    monkeypatch.setattr(md, "MINIMIZATION", 50)
    monkeypatch.setattr(md, "RELAXATION", 0.02)
    monkeypatch.setattr(nve, "EQUILIBRATION", 1.0)
    monkeypatch.setattr(nve, "RELAXATION", 0.1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bench(capsys, tmp_path):
    """Runs a benchmark that must succeed; returns its table, each row a dict by column, and the
    JSON it wrote."""

    def command(*argv):
        assert main(["bench", *argv, "--json=out.json", "--plot", "out.png"]) == 0, (
            capsys.readouterr().err
        )
        text = capsys.readouterr().out
        assert text.splitlines()[0].endswith(("thread", "threads"))
        table = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines()
            if line[:1] == "|"
        ]
        assert set(table[1]) == {"---"}
        assert (tmp_path / "out.png").stat().st_size > 1000
        result = json.loads((tmp_path / "out.json").read_text())
        assert result["benchmark"] == argv[0]
        assert {"hardware", "versions"} <= set(result)
        return [dict(zip(table[0], row, strict=True)) for row in table[2:]], result

    return command


@pytest.fixture
def small_preset(monkeypatch, tmp_path):
    """A preset named "small": water whose Lennard-Jones interaction is truncated.

    Its positions, which are not relaxed.
    """
    topology, _, positions = small_water()
    with open(tmp_path / "small.pdb", "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)
    monkeypatch.setitem(PRESETS, "small", Preset(tmp_path / "small.pdb", (FORCE_FIELD,), 0.8))
    monkeypatch.setattr(md, "CUTOFFS", (0.8, 0.85))
    return positions
