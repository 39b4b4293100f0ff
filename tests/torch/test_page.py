"""What the page about PyTorch tells a user to run is run."""

import pytest

from tests.docs.pages import ROOT, blocks

pytest.importorskip("torch", reason="needs PyTorch: pip install 'fmm_openmm[torch]'")


def test_what_the_page_says_is_run():
    page = ROOT / "docs" / "howto" / "pytorch.md"
    names = {"__name__": "__main__"}
    code = [each for each in blocks(page.read_text("utf-8")) if each.language == "python torch"]
    assert len(code) > 4
    for block in code:
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
