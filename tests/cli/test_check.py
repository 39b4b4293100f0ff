"""``fmm-openmm check`` passes, and fails where an answer is wrong or missing."""

import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.cli import check


@pytest.mark.slow
def test_check_passes(succeed, tmp_path):
    result = succeed("check", "--json", "--plot", str(tmp_path / "check.png"))
    assert result["passed"] is True
    assert {entry["verdict"] for entry in result["checks"]} <= {"passed", "skipped"}
    names = [entry["name"] for entry in result["checks"]]
    assert any("Madelung" in name for name in names)
    assert any("platform CPU" in name for name in names)
    compared = [entry for entry in result["checks"] if "water" in entry["name"]]
    assert all(
        entry["error"] < entry["largest"] < 6 * entry["limit"]
        for entry in compared
        if entry["verdict"] == "passed"
    )
    assert (tmp_path / "check.png").stat().st_size > 1000


@pytest.mark.slow
def test_check_fails_when_an_answer_is_wrong(succeed, monkeypatch):
    monkeypatch.setattr(check, "MADELUNG_ROCK_SALT", 1.7476)
    monkeypatch.setattr(check, "WATER_TOLERANCES", ())
    monkeypatch.setattr(check, "platform_names", list)
    result = succeed("check", "--json", code=1)
    assert result["passed"] is False
    assert {entry["verdict"] for entry in result["checks"]} == {"failed"}
    assert "SOME CHECKS FAILED" in succeed("check", code=1)


def test_check_fails_where_the_fmm_does(succeed, monkeypatch):
    """A platform is skipped where PME fails only; what the FMM raised is shown."""

    def forces_on(platform, system, positions):
        if platform == "Broken" or fmm.find_fmm(system):
            raise openmm.OpenMMException(f"no forces on {platform}")
        return positions

    monkeypatch.setattr(check, "BACKENDS", ())
    monkeypatch.setattr(check, "platform_names", lambda: ["CPU", "Broken"])
    monkeypatch.setattr(check, "forces_on", forces_on)
    cpu, broken = succeed("check", "--json", code=1)["checks"]
    assert (cpu["verdict"], cpu["error"], cpu["failure"]) == (
        "failed",
        None,
        "OpenMMException: no forces on CPU",
    )
    assert (broken["verdict"], broken["skipped"]) == ("skipped", "no forces on Broken")
    assert "platform CPU: OpenMMException: no forces on CPU" in succeed("check", code=1)
