"""The gallery has every example, and the error bars of the examples are right."""

import json
import runpy

import matplotlib
import numpy as np
import pytest
from scipy.signal import lfilter

from tests.docs.pages import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("[0-9]*.py"))
GALLERY = ROOT / "docs" / "gallery"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_gallery_has_every_example(script):
    stored = json.loads((GALLERY / f"{script.stem}.json").read_text(encoding="utf-8"))
    assert stored["output"] and stored["hardware"] and stored["date"]
    assert all(stored["versions"][name] for name in ("fmm_openmm", "OpenMM"))
    assert (GALLERY / f"{script.stem}.svg").stat().st_size < 200_000


def test_the_gallery_has_nothing_else():
    assert {path.stem for path in GALLERY.iterdir()} == {script.stem for script in SCRIPTS}


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_standard_errors_of_correlated_samples(correlation):
    """Means of an autoregressive series scatter as their standard errors say."""
    with matplotlib.rc_context():
        common = runpy.run_path(str(ROOT / "examples" / "common.py"))
    random = np.random.default_rng(1)
    results = []
    for _ in range(300):
        series = lfilter([1], [1, -correlation], random.normal(size=3000))[1000:]
        results.append(common["mean_and_error"](series))
    means, errors = np.transpose(results)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.15)
