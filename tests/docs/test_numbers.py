"""Every measured number has one home, a file in docs/numbers: the tables of the pages are written
from these files, and sentences say what the tables say."""

import datetime
import importlib.util
import json
import re
import runpy

import numpy as np
import pytest

from fmm_openmm import cli
from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FRONT_PAGE = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
MAKE = runpy.run_path(str(ROOT / "docs" / "figures" / "make.py"))
table, number = MAKE["table"], MAKE["number"]
MEASURE = runpy.run_path(str(ROOT / "docs" / "numbers" / "measure.py"))
NUMBERS = runpy.run_path(str(ROOT / "docs" / "numbers" / "tables.py"))

MEMBRANES = table("reference/plugin.md", "system", "atoms", "step, ms", "over PME's")
WATER = table("reference/plugin.md", "method", "tolerance", "step, ms", "force error")
TOLERANCES = {"0.0005": "5e-4", "1e-05": "1e-5"}
"""As tables have them, and as texts do."""


def select(rows, **values):
    """The only row with these values."""
    (found,) = [row for row in rows if all(row[name] == value for name, value in values.items())]
    return found


def one_line(text):
    return " ".join(text.split())


def interval(values):
    return f"{min(values):.2f} to {max(values):.2f}"


@pytest.mark.parametrize("page", sorted({table.page for table in NUMBERS["TABLES"].values()}))
def test_tables_show_the_stored_numbers(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {name for name, table in NUMBERS["TABLES"].items() if table.page == page}
    assert {name for _, name, _ in NUMBERS["TABLE"].findall(text)} == names
    assert NUMBERS["written"](text) == text, "run docs/numbers/tables.py"


@pytest.mark.parametrize("name", MEASURE["PARTS"])
def test_every_part_is_stored_with_its_origin(name):
    stored = json.loads((ROOT / "docs" / "numbers" / f"{name}.json").read_text(encoding="utf-8"))
    assert stored["hardware"]
    assert {"fmm_openmm", "OpenMM"} <= set(stored["versions"])
    assert datetime.date.fromisoformat(stored["date"])
    assert [run["command"] for run in stored["runs"]] == list(MEASURE["PARTS"][name].commands)
    tables = [table for table in NUMBERS["TABLES"].values() if name in table.parts]
    assert tables
    shown = " ".join((ROOT / table.page).read_text(encoding="utf-8") for table in tables)
    if name != "grids":  # which gives its options apart
        for run in stored["runs"]:
            assert run["command"].replace("fmm_openmm ", "fmm-openmm ") in one_line(
                shown.replace("\\\n", " ")
            )


def test_summary_of_membranes():
    measured = [row for row in MEMBRANES if row["method"] == "FMM" and "water" not in row["system"]]
    loose, tight = (
        interval([number(row["over PME's"]) for row in measured if row["tolerance"] == tolerance])
        for tolerance in TOLERANCES
    )
    sentence = (
        f"takes {loose} of PME's time at OpenMM's default tolerance of 5e-4, and {tight} at 1e-5"
    )
    assert sentence in one_line(README)
    assert sentence in one_line(FRONT_PAGE)


def test_summary_of_water():
    rows = [row for row in WATER if row["method"] == "FMM"]
    loose, tight = (
        interval([number(row["over PME's"]) for row in rows if row["tolerance"] == tolerance])
        for tolerance in TOLERANCES
    )
    assert f"A step of pure water takes {loose} and {tight} of PME's time" in one_line(README)
    gains = [
        number(
            select(WATER, **{k: row[k] for k in ("atoms", "tolerance")}, method="PME")[
                "force error"
            ]
        )
        / number(row["force error"])
        for row in rows
        if row["force error"]
    ]
    sentence = f"{min(gains):.0f} to {max(gains):.0f} times as accurate as PME's"
    assert sentence in one_line(README)
    assert sentence in one_line(FRONT_PAGE)


def test_protein():
    rows = table("reference/plugin.md", "method", "ns/day", "force error")
    speeds = [select(rows, method=method)["ns/day"] for method in ("PME", "FMM")]
    assert "{} ns a day with PME, {} with FMM".format(*speeds) in one_line(README)


def test_largest_error():
    rows = table("explanation/accuracy.md", "system", "atoms", "0.0005")
    ratios = [number(row[name]) for row in rows for name in row if re.fullmatch(r"[\d.e-]+", name)]
    assert f"at most {max(ratios)}" in README
    assert f"{len(rows)} test systems" in README


def test_ten_million_atoms():
    rows = table("reference/plugin.md", "memory, MB")
    pme, fmm = (select(rows, method=method) for method in ("PME", "FMM"))
    assert (
        f"A step of {pme['atoms']} atoms of water in single precision takes {pme['step, ms']} ms "
        f"with PME at 5e-4 and {fmm['step, ms']} with FMM"
    ) in one_line(README)


def test_tight_fmm_and_loose_pme():
    """Time and error of a step with FMM at 1e-5, compared with PME at 5e-4."""
    page = (ROOT / "docs" / "reference" / "plugin.md").read_text(encoding="utf-8")
    shares, gains = [], []
    for atoms in dict.fromkeys(row["atoms"] for row in WATER):
        pme = select(WATER, atoms=atoms, method="PME", tolerance="0.0005")
        fmm = select(WATER, atoms=atoms, method="FMM", tolerance="1e-05")
        shares.append(f"{number(fmm['step, ms']) / number(pme['step, ms']):.2f}")
        if fmm["force error"]:
            gains.append(10 * round(number(pme["force error"]) / number(fmm["force error"]) / 10))
    share = f"{', '.join(shares[:-1])} and {shares[-1]} of one with PME at 5e-4"
    accuracy = f"{min(gains)} to {max(gains)} times as accurate"
    assert f"{share}, with forces that are {accuracy}" in one_line(page)
    summary = (
        f"takes about {np.mean([float(share) for share in shares]):.1f} of the time of one with "
        f"PME at 5e-4, with forces that are about {100 * round(np.mean(gains) / 100)} times"
    )
    assert summary in one_line(README)


def test_other_rows_of_readme():
    residuals = table("reference/plugin.md", "method", "drift, kT/ns/dof", "residual, kJ/mol")
    pme, fmm = (number(row["residual, kJ/mol"]) for row in residuals[:2])
    assert f"| {fmm:.1f} kJ/mol; PME {pme:.1f} |" in README
    times = table("explanation/accuracy.md", "measured error", "evaluation, ms", "new shape, ms")
    assert f"| {number(select(times, tolerance='0.0005')['evaluation, ms']):.0f} ms |" in README


def test_model_of_many_ranks():
    """How far the model is from what was measured, and where levels replace transforms."""
    page = one_line((ROOT / "docs" / "explanation" / "many-ranks.md").read_text(encoding="utf-8"))
    rows = [row for row in NUMBERS["rows_of"]("distributed") if row["ranks"] > 1]
    sent = max(abs(NUMBERS["sent"](row) / row["sent"] - 1) for row in rows)
    rows = NUMBERS["rows_of"]("distributed")
    times, sizes = (
        max(
            abs(value / row[name] - 1) for row, value in zip(rows, NUMBERS[model]()[1], strict=True)
        )
        for name, model in (("compute_seconds", "computing"), ("memory", "memory"))
    )
    assert (
        f"within {100 * sent:.0f} % of the measured ones, the times within {100 * times:.0f} %, "
        f"and the memory within {100 * sizes:.0f} %"
    ) in page
    water = select(NUMBERS["rows_of"]("solver"), atoms=922752, tolerance=5e-4, smoothing=0.0)
    boxes = np.prod(np.diag(water["grid"]))
    moved = 2 * 4 * (water["order"] + 1) ** 2 * boxes / water["atoms"]
    levels = NUMBERS["LEVELS"]
    assert f"two levels add {1e9 * levels:.2f} ns per particle" in page
    assert f"The transforms move {moved:.1f} bytes per particle" in page
    assert f"transforms less than {1e-9 * moved * 63 / 64 / levels:.1f} GB/s" in page


@pytest.mark.parametrize("name", MEASURE["PARTS"])
def test_commands_that_measure_are_understood(name):
    for command in MEASURE["PARTS"][name].commands:
        module, *words = command.split()
        if module == "fmm_openmm":
            assert cli.parse([*words, "--json=result.json"]).benchmark == words[1]
        else:
            assert importlib.util.find_spec(module)


def test_a_part_that_cannot_be_measured_says_what_it_needs():
    part = MEASURE["PARTS"]["protein"]
    assert MEASURE["lacking"](part, False, "none.pdb") == (
        "a CUDA device that OpenMM can use and --dhfr FILE"
    )
    assert MEASURE["lacking"](part, True, __file__) == ""


@pytest.mark.parametrize(
    ("page", "pattern", "part"),
    [
        ("README.md", r"on one (NVIDIA \w+) at 5e-4", "protein"),
        ("README.md", r"21,384 atoms of water, (NVIDIA \w+)", "energy"),
        ("README.md", r"5e-4, (AMD EPYC), two virtual cores", "cpu"),
        ("README.md", r"\(\[one (NVIDIA \w+)\]\(#measured", "membranes"),
        ("README.md", r"\(\[one (NVIDIA \w+)\]\(#measured", "water"),
        ("docs/index.md", r"\[one (NVIDIA \w+)\]", "membranes"),
        ("docs/quickstart.md", r"On one (NVIDIA \w+) a step", "water"),
    ],
)
def test_hardware_in_sentences(page, pattern, part):
    (name,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert NUMBERS["part"](part)["hardware"].startswith(name)


def test_quickstart():
    page = one_line((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))
    times = [
        number(select(WATER, atoms="21,384", method=method, tolerance=tolerance)["step, ms"])
        for tolerance in TOLERANCES
        for method in ("FMM", "PME")
    ]
    sentence = (
        "takes {:.3f} ms with FMM and {:.3f} with PME at 5e-4, and {:.3f} and {:.3f} ms at 1e-5"
    )
    assert sentence.format(*times) in page
