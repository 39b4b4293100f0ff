"""``fmm-openmm bench md``: rows, the cutoffs of PME, and failures."""

from types import SimpleNamespace

import numpy as np
import openmm
import pytest

from fmm_openmm.bench import md
from fmm_openmm.bench.systems import Size, nonbonded
from fmm_openmm.convert.nonbonded import particle_parameters
from fmm_openmm.integration import find_fmm
from tests.bench.cases import CPU, EDGE, SIZES


@pytest.mark.slow
def test_md(bench):
    """Rows, their order, and what follows from the time of a step."""
    options = "--tolerance", "5e-4", "5e-5", "--smoothing", "auto", "0", "0.03", "--platform", "CPU"
    table, result = bench("md", *SIZES, *options)
    methods = [row["method"] for row in result["rows"]]
    assert methods == 4 * ["PME", "FMM", "FMM, smoothing 0", "FMM, smoothing 0.03", "charges zero"]
    assert [row["method"].removesuffix(", host bridge") for row in table] == methods
    assert [row["tolerance"] for row in result["rows"]] == 2 * (5 * [5e-4] + 5 * [5e-5])
    for first in range(0, 20, 5):
        pme, *fmm, neutral = result["rows"][first : first + 5]
        for row in (pme, *fmm, neutral):
            assert row["ns_per_day"] * row["step_seconds"] == pytest.approx(86400 * 2e-6)
            assert row["over_pme"] == pytest.approx(row["step_seconds"] / pme["step_seconds"])
            assert (row["steps"] >= 10, row["cutoff"], row["over_best_pme"]) == (True, 0.9, None)
            assert row["marginal_seconds"] == pytest.approx(
                row["step_seconds"] - neutral["step_seconds"]
            )
            assert row["marginal_over_pme"] == pytest.approx(
                row["marginal_seconds"] / pme["marginal_seconds"]
            )
        for row in (pme, *fmm):
            assert 1e-3 < row["force_error"] / row["tolerance"] < (2 if row is pme else 1)
        assert "force_error" not in neutral and pme["marginal_seconds"] != 0
        assert [row["smoothing"] for row in fmm[1:]] == [0.0, 0.03]
        assert all(
            (row["bridge"], row["lennard_jones"]) == ("host", "openmm") and row["order"] > 1
            for row in fmm
        )


@pytest.mark.slow
def test_md_of_water_whose_every_atom_is_a_site(bench):
    """Steps of water in which hydrogens are sites, without force errors."""
    chosen = (
        "--sizes",
        str(EDGE),
        "--tolerance",
        "5e-4",
        "--platform",
        "CPU",
        "--every-atom",
        "--no-errors",
    )
    (pme, *_), result = bench("md", *chosen)
    assert result["system"] == "rigid TIP3P water, every atom a Lennard-Jones site"
    assert pme["force error"] == "-" and not any("force_error" in row for row in result["rows"])
    usual, other = (
        md.Case.from_size(Size(EDGE), every_atom=chosen).sample.system for chosen in (False, True)
    )
    usual, other = (particle_parameters(nonbonded(system)) for system in (usual, other))
    assert np.array_equal(other[::3], usual[::3])
    assert (
        len(other) == len(usual)
        and (other[1::3] == [0.417, 0.04, 0.192]).all()
        and (other[2::3] == other[1::3]).all()
    )


@pytest.mark.slow
def test_md_of_a_slab(bench):
    """Whole molecules within walls, in a box three times as high."""
    chosen = "--sizes", str(EDGE), "--tolerance", "5e-4", "--platform", "CPU", "--slab"
    _, result = bench("md", *chosen, "--no-marginal")
    assert [row["method"] for row in result["rows"]] == ["PME", "FMM"]
    assert result["system"] == "rigid TIP3P water, between vacuum"
    case = md.Case.from_size(Size(EDGE)).as_slab()
    x, box = case.sample.positions, case.sample.system.getDefaultPeriodicBoxVectors()
    assert [vector[k]._value for k, vector in enumerate(box)] == [EDGE, EDGE, 3 * EDGE]
    assert np.ptp(x.reshape(-1, 3, 3), axis=1).max() < 0.2
    assert -1.5 < x[:, 2].min() < x[:, 2].max() < EDGE + 1.5
    assert (
        case.boundary == "slab" and not nonbonded(case.sample.system).getUseDispersionCorrection()
    )


class Clockwork:
    """A Context whose steps take ``seconds`` each, and waiting 1/64 s, on a clock of its own.

    Notes its calls.
    """

    def __init__(self, seconds, properties):
        self.seconds, self.properties, self.now, self.calls = seconds, properties, 0.0, []

    def getPlatform(self):
        return SimpleNamespace(getPropertyNames=lambda: self.properties)

    def getIntegrator(self):
        return self

    def setPositions(self, _):
        self.calls.append("positions")

    def setVelocities(self, _):
        self.calls.append("velocities")

    def step(self, steps):
        self.calls.append(steps)
        self.now += steps * self.seconds

    def getState(self, **_):
        self.now += 1 / 64


@pytest.mark.parametrize(
    ("properties", "atoms", "seconds", "expected"),
    [
        (("Precision",), 1000, 1 / 1024, [307, 3072]),  # as many as fill the budget
        (("Precision",), 1000, 1 / 64, [200, 2000]),  # the fewest
        (("Precision",), 300_000, 1 / 64, [100, 500]),
        (("Threads",), 1000, 1 / 16, [4, 48]),
        (("Threads",), 1000, 2, [1, 10]),
    ],
)
def test_md_times_one_long_run(properties, atoms, seconds, expected, monkeypatch):
    context = Clockwork(seconds, properties)
    monkeypatch.setattr(md, "BUDGET", 3.0)
    monkeypatch.setattr(md, "time", SimpleNamespace(perf_counter=lambda: context.now))
    found = md.timed_steps(context, SimpleNamespace(positions=range(atoms), velocities=None))
    assert found == (seconds, expected[1])
    assert context.calls == ["positions", "velocities", 1, 5, *expected]


def test_precisions():
    cpu, gpu = (
        openmm.Platform.getPlatformByName("CPU"),
        SimpleNamespace(getPropertyNames=lambda: ("Precision",)),
    )
    assert [md.precision_of(gpu, tolerance) for tolerance in (5e-4, 1e-6)] == ["mixed", "double"]
    assert [md.precision_of(gpu, 1e-6, "single"), md.precision_of(cpu, 1e-5)] == ["single", None]


@pytest.mark.parametrize(
    ("accepted", "slower", "best"), [(3.0, -1, 0.95), (3.0, 1, None), (0.1, 1, 0.95)]
)
def test_md_takes_the_best_cutoff_of_pme(accepted, slower, best, monkeypatch):
    """The fastest, or, if the force errors are too large, the most accurate."""

    def timed(context, sample, evaporates):
        context.setPositions(sample.positions)
        return nonbonded(context.getSystem()).getCutoffDistance()._value ** slower, 10

    errors = iter((2e-5, 1e-5, 3e-6))
    monkeypatch.setattr(md, "CUTOFFS", (0.9, 0.95, 1.5))
    monkeypatch.setattr(md, "ACCEPTED", accepted)
    monkeypatch.setattr(md, "timed_steps", timed)
    monkeypatch.setattr(md.Comparison, "_force_error", lambda *_: {"force_error": next(errors)})
    rows = list(md.Comparison(md.Case.from_size(Size(EDGE)), CPU).rows(5e-5, None))
    assert [row["method"] for row in rows] == [
        "PME",
        *["PME, best cutoff"] * (best is not None),
        "FMM",
        "charges zero",
    ]
    assert rows[0]["cutoff"] == rows[-2]["cutoff"] == rows[-1]["cutoff"] == 0.9
    if best is not None:
        assert rows[1]["cutoff"] == best
        assert rows[1]["cutoffs_seconds_and_errors"] == {
            0.9: [0.9**slower, 2e-5],
            0.95: [0.95**slower, 1e-5],
        }
        assert rows[1]["over_pme"] == pytest.approx((best / 0.9) ** slower)
        assert rows[2]["over_best_pme"] == pytest.approx((0.9 / best) ** slower)


@pytest.mark.slow
def test_md_also_has_openmm_compute_lennard_jones(monkeypatch):
    """A row with Lennard-Jones by OpenMM is added where the plugin computes it otherwise."""
    usual = md.Comparison._fmm

    def with_sites(comparison, precision, **options):
        return usual(comparison, precision, **options) | {
            "lennard_jones": options.get("lennard_jones", "sites")
        }

    monkeypatch.setattr(md.Comparison, "_fmm", with_sites)
    rows = md.Comparison(md.Case.from_size(Size(EDGE)), CPU).rows(5e-4, None)
    found = [(row["method"], row.get("lennard_jones")) for row in rows]
    assert found[1:3] == [("FMM", "sites"), ("FMM, LJ by OpenMM", "openmm")]


@pytest.mark.slow
def test_md_leaves_the_system_as_it_was():
    comparison = md.Comparison(md.Case.from_size(Size(EDGE)), CPU)
    comparison._force.setEwaldErrorTolerance(1e-3)
    before = openmm.XmlSerializer.serialize(comparison._system)
    assert len(list(comparison.rows(5e-4, None))) == 3
    assert openmm.XmlSerializer.serialize(comparison._system) == before


@pytest.mark.parametrize("broken", ["FMM", "PME"])
def test_md_reports_a_failure(broken, bench, monkeypatch):
    usual = md.timed_steps

    def timed(context, sample, evaporates):
        system = context.getSystem()
        is_pme = nonbonded(system).getNonbondedMethod() == openmm.NonbondedForce.PME
        if (broken == "FMM" and find_fmm(system)) or (broken == "PME" and is_pme):
            raise openmm.OpenMMException("no memory\nleft")
        return usual(context, sample)

    monkeypatch.setattr(md, "timed_steps", timed)
    table, result = bench("md", "--sizes", str(EDGE), "--tolerance", "5e-4", "--platform", "CPU")
    for row, shown in zip(result["rows"], table, strict=True):
        if row["method"] == broken:
            assert (row["failure"], shown["cutoff, nm"]) == ("no memory\nleft", "no memory left")
            assert "step_seconds" not in row and shown["step, ms"] == "-"
        else:
            assert row["step_seconds"] > 0
            assert (row["over_pme"] is None) == (broken == "PME")
