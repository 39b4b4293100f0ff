"""Whatever README, quickstart and how-to pages tell a user to run is run, in the order of the page
and in a folder that holds the input which the page names."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fmm_openmm import cli
from tests.docs.inputs import INPUTS
from tests.docs.pages import PAGES, blocks
from tests.integration.boxes import usable_platforms

LANGUAGES = {
    "python": "run, in one namespace for the whole page",
    "python torch": "run by tests/torch, where PyTorch is installed",
    "bash": "run",
    "bash gpu": "run where OpenMM has a CUDA device",
    "python cluster": "compiled only, as it needs a cluster",
    "bash cluster": "needs a cluster",
    "console": "installation, which whoever runs the tests has done",
    "text": "output",
    "{toctree}": "",
}
INSTALLATION = ("pip install ", "git clone ", ".ci/wheel")

SLOW = {"README.md", "membranes.md"}


def prepare(page: Path, text: str, folder: Path) -> None:
    """Write the input that the page names."""
    for name, write in INPUTS.items():
        if f"`{name}`" in text:
            write(folder / name)


def run_python(page: Path, block, names: dict) -> None:
    exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


def run_bash(block) -> None:
    """Run a block: a single command of ``fmm-openmm`` in this process, which has imported what the
    command needs, any other in a shell with the ``fmm-openmm`` of this Python first on PATH."""
    line, *others = block.text.replace("\\\n", " ").splitlines()
    if not others and line.startswith("fmm-openmm "):
        assert cli.main(shlex.split(line)[1:]) == 0, line
        return
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        env=os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW else ())
        for page in PAGES
    ],
)
def test_what_a_page_says_is_run(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    prepare(page, text, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(text):
        if block.language == "python":
            run_python(page, block, names)
        elif block.language == "bash":
            run_bash(block)


def on_gpu(page: Path) -> list:
    """The commands of a page that need a GPU."""
    found = blocks(page.read_text(encoding="utf-8"))
    return [block for block in found if block.language == "bash gpu"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if on_gpu(page)], ids=lambda page: page.name
)
def test_what_a_page_says_is_run_on_a_gpu(page, tmp_path, monkeypatch):
    if "CUDA" not in usable_platforms():
        pytest.skip("OpenMM has no CUDA device here")
    prepare(page, page.read_text(encoding="utf-8"), tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in on_gpu(page):
        run_bash(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_of_a_page_is_left_out(page):
    found = blocks(page.read_text(encoding="utf-8"))
    for block in found:
        assert block.language in LANGUAGES, f"{page.name}:{block.line}: {block.language!r}"
        if block.language == "python cluster":
            compile(block.text, page.name, "exec")
        if block.language == "console":
            commands = [line for line in block.text.splitlines() if line]
            assert all(line.startswith(INSTALLATION) for line in commands), commands
