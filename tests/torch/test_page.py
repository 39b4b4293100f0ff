"""What the page about PyTorch tells a user to run is run."""

import pytest

from tests.docs.pages import ROOT, blocks

for package in ("torch", "torch_sim", "metatomic_ase"):
    pytest.importorskip(package, reason=f"needs {package}, as the page says")


def test_what_the_page_says_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "howto" / "pytorch.md"
    names = {"__name__": "__main__"}
    code = [each for each in blocks(page.read_text("utf-8")) if each.language == "python torch"]
    assert len(code) > 4
    for block in code:
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
