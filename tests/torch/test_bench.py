"""``fmm-openmm bench torch`` on small systems."""

import json

import pytest

from fmm_openmm.cli import main
from tests.torch.systems import torch

pytest.importorskip("torchpme", reason="needs torch-pme: pip install torch-pme")

from fmm_openmm.bench.torch import CODES, measure, salt


def test_errors_meet_the_tolerance():
    rows = list(measure([8], 1e-4, "cpu", torch.float64))
    assert [row["code"] for row in rows][:2] == ["fmm_openmm", "torchpme"]
    assert rows[0]["force_error"] < 1e-4
    assert rows[1]["force_error"] < 1e-3
    assert all(row["seconds"] > 0 for row in rows)


def test_the_salt_is_neutral():
    x, q, box = salt(4)
    assert x.shape == (64, 3) and q.sum() == 0 and box[0, 0] == pytest.approx(1.12)


def test_command(capsys):
    assert main(["bench", "torch", "--max-atoms", "1e3", "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["atoms"] for row in result["rows"]} == {1000}
    assert result["rows"][0]["force_error"] < 5e-4


def test_a_code_without_memory_has_no_further_rows(monkeypatch):
    made = []

    def fails(x, *_):
        made.append(len(x))
        raise torch.OutOfMemoryError

    monkeypatch.setitem(CODES, "torchpme", fails)
    monkeypatch.delitem(CODES, "nvalchemiops")
    rows = list(measure([4, 6], 1e-2, "cpu", torch.float64))
    assert [(row["code"], row["atoms"]) for row in rows] == [
        ("fmm_openmm", 64),
        ("fmm_openmm", 216),
    ]
    assert made == [64]
