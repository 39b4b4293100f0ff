"""The figures show what the tables of the pages say."""

import re
import runpy

import matplotlib
import pytest

from tests.docs.pages import ROOT

FIGURES = ROOT / "docs" / "figures"
MAKE = runpy.run_path(str(FIGURES / "make.py"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    with matplotlib.rc_context():
        MAKE["main"](folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE["FIGURES"])
def test_figures_are_up_to_date(name, drawn):
    stored = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    version = re.search(r"Matplotlib v([\w.]+)", stored)[1]
    if version != matplotlib.__version__:
        pytest.skip(f"drawn with Matplotlib {version}, this is {matplotlib.__version__}")
    assert (drawn / f"{name}.svg").read_text(encoding="utf-8") == stored, "run docs/figures/make.py"


def test_every_figure_is_shown():
    shown = {
        name
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"figures/(\w+)\.svg", page.read_text(encoding="utf-8"))
    }
    assert shown == set(MAKE["FIGURES"]) == {path.stem for path in FIGURES.glob("*.svg")}
