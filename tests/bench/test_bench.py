"""``fmm-openmm bench``: every benchmark on tiny systems, what it writes,
and the systems it measures on."""

import argparse
import gzip
import io
import json
import sys
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import openmm
import pytest
from openmm import app, unit

from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.bench import md, nve, scaling, systems, timing
from fmm_openmm.bench import open as free_space
from fmm_openmm.bench.open import crossover
from fmm_openmm.bench.scaling import copies_near, growth_exponent
from fmm_openmm.bench.solver import (
    Evaluation,
    Limits,
    compulsory_bytes,
    measure,
    near_pairs,
    relative_error,
)
from fmm_openmm.bench.systems import (
    BOLTZMANN,
    TERMS,
    Sample,
    Size,
    degrees_of_freedom,
    nonbonded,
    scaled,
    tiled,
    tiled_charges,
    water,
)
from fmm_openmm.box import BoxLattice
from fmm_openmm.cli import inputs, main
from fmm_openmm.cli.bench import md as md_command
from fmm_openmm.cli.bench.presets import BILAYERS, FORCE_FIELDS, PRESETS, Preset
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.nonbonded import particle_parameters
from fmm_openmm.integration import find_fmm
from fmm_openmm.oracle import ewald_sum
from tests.convert.small_water import FORCE_FIELD, small_water
from tests.systems import PEPTIDE

EDGE = 2.2
COPIES = (1, 2, 1)
CPU = openmm.Platform.getPlatformByName("CPU")
PEPTIDE_BOX = ("--box", "4", "4", "4")


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


SIZES = ("--sizes", str(EDGE), f"{EDGE}:{'x'.join(map(str, COPIES))}")


# the systems


def potential_energy(system, positions):
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


@pytest.mark.slow
def test_tiles_have_the_energy_of_so_many_boxes(base):
    many = tiled(base.sample, COPIES)
    assert many.system.getNumParticles() == 2 * base.sample.system.getNumParticles()
    assert many.system.getNumConstraints() == 2 * base.sample.system.getNumConstraints()
    for system in (base.sample.system, many.system):
        nonbonded(system).setEwaldErrorTolerance(1e-6)
    one = potential_energy(base.sample.system, base.sample.positions)
    assert potential_energy(many.system, many.positions) == pytest.approx(2 * one, rel=2e-5)


def test_tiles_repeat_every_term():
    sample = with_every_term()
    assert {type(force) for force in sample.system.getForces()} == TERMS.keys() - {
        openmm.MonteCarloMembraneBarostat
    }
    many = tiled(sample, (1, 2, 2))
    one = potential_energy(sample.system, sample.positions)
    assert potential_energy(many.system, many.positions) == pytest.approx(4 * one, rel=1e-5)


def with_every_term():
    """Particles with a term of every kind that can be repeated, and with parameters."""
    rng = np.random.default_rng(3)
    edge, map_size = 2.5, 4
    positions = (
        edge / 2
        + 0.25 * np.stack(np.unravel_index(np.arange(8), (2, 2, 2)), axis=1)
        + rng.uniform(0, 0.05, (8, 3))
    )
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*edge * np.eye(3))
    for _ in range(8):
        system.addParticle(10.0)
    forces = {
        kind.__name__: kind()
        for kind in TERMS
        if not kind.__name__.startswith(("Custom", "MonteCarlo"))
    }
    for name in ("Bond", "Angle", "Torsion"):
        kind = f"Custom{name}Force"
        forces[kind] = getattr(openmm, kind)(
            {"Bond": "k*r^2", "Angle": "k*theta^2", "Torsion": "k*cos(theta)"}[name]
        )
        getattr(forces[kind], f"addPer{name}Parameter")("k")
    pairs = forces["CustomNonbondedForce"] = openmm.CustomNonbondedForce("a1*a2/r^6")
    pairs.addPerParticleParameter("a")
    pairs.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    forces["MonteCarloBarostat"] = openmm.MonteCarloBarostat(1.0, 300.0)
    forces["NonbondedForce"].setNonbondedMethod(openmm.NonbondedForce.PME)
    forces["NonbondedForce"].setEwaldErrorTolerance(1e-6)
    forces["HarmonicBondForce"].addBond(0, 1, 0.1, 1000.0)
    forces["HarmonicAngleForce"].addAngle(1, 2, 3, 1.0, 100.0)
    forces["PeriodicTorsionForce"].addTorsion(0, 1, 2, 3, 3, 0.5, 10.0)
    forces["RBTorsionForce"].addTorsion(1, 2, 3, 4, *rng.normal(size=6))
    forces["CMAPTorsionForce"].addMap(map_size, rng.normal(size=map_size**2))
    forces["CMAPTorsionForce"].addTorsion(0, 0, 1, 2, 3, 4, 5, 6, 7)
    forces["CustomBondForce"].addBond(5, 6, [20.0])
    forces["CustomAngleForce"].addAngle(5, 6, 7, [30.0])
    forces["CustomTorsionForce"].addTorsion(4, 5, 6, 7, [40.0])
    for k in range(8):
        forces["NonbondedForce"].addParticle((-1) ** k * 0.4, 0.2, 0.5)
        pairs.addParticle([1e-3 * k])
    for i, j in ((0, 1), (2, 3)):
        forces["NonbondedForce"].addException(i, j, 0.1 * i, 0.2, 0.3)
        pairs.addExclusion(i, j)
    for force in forces.values():
        system.addForce(force)
    return Sample(system, positions, np.zeros((8, 3)))


def test_what_cannot_be_tiled_is_refused():
    def refusal(change):
        sample = with_every_term()
        change(sample.system, nonbonded(sample.system))
        with pytest.raises(ValueError) as error:
            tiled(sample, COPIES)
        return str(error.value)

    def add_offset(_, force):
        force.addGlobalParameter("scale", 1.0)
        force.addParticleParameterOffset("scale", 0, 0.1, 0.0, 0.0)

    site = openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5)
    assert (
        refusal(lambda system, _: system.setVirtualSite(7, site))
        == "cannot repeat a System with virtual sites"
    )
    assert (
        refusal(lambda system, _: system.addForce(openmm.GBSAOBCForce()))
        == "cannot repeat a System with a GBSAOBCForce"
    )
    assert refusal(add_offset) == "cannot repeat a NonbondedForce with a ParticleParameterOffset"


@pytest.mark.slow
def test_tiled_charges_have_the_forces_of_the_box(base):
    charges = tiled_charges(base.charges, COPIES)
    found = ewald_sum(
        charges.positions, charges.charges, charges.box_vectors, charges.exclusions
    ).forces
    assert relative_error(found, base.exact) < 1e-9
    assert np.array_equal(charges.positions, tiled(base.sample, COPIES).positions)
    sheared = water(2.6, "dodecahedron")
    charges = tiled_charges(sheared.charges, (1, 1, 2))
    found = ewald_sum(
        charges.positions, charges.charges, charges.box_vectors, charges.exclusions
    ).forces
    assert relative_error(found, sheared.exact) < 1e-9


def test_scaled():
    """Exceptions are scaled too, exclusions are not, and everything is restored."""
    force = openmm.NonbondedForce()
    for parameters in ((0.5, 0.3, 0.7), (-0.25, 0.2, 0.1), (0.1, 0.4, 0.0)):
        force.addParticle(*parameters)
    for pair in ((0, 1, 0.0, 1.0, 0.0), (0, 2, -0.2, 0.3, 0.4)):
        force.addException(*pair)
    before = openmm.XmlSerializer.serialize(force)
    with scaled(force, charge=0.0):
        assert [value._value for value in force.getParticleParameters(1)] == [0.0, 0.2, 0.1]
        assert force.getExceptionParameters(1)[2]._value == -0.2
    with scaled(force, epsilon=0.0, exceptions=0.0):
        assert [value._value for value in force.getParticleParameters(0)] == [0.5, 0.3, 0.0]
        assert [value._value for value in force.getExceptionParameters(1)[2:]] == [0.0, 0.3, 0.0]
    assert openmm.XmlSerializer.serialize(force) == before


def test_sizes():
    assert Size.parse("6") == Size(6.0)
    assert Size.parse("4.5:1x2x3") == Size(4.5, (1, 2, 3))
    assert str(Size(4.5, (1, 2, 3))) == "4.5:1x2x3"


# what is derived from times


def test_pairs_are_counted():
    lattice = BoxLattice.from_cell(
        np.array([[3.0, 0, 0], [0.8, 3.3, 0], [0.2, -1.1, 4.0]]), np.diag([5, 6, 7]), 2.3
    )
    count = np.random.default_rng(3).integers(0, 4, lattice.size)
    index = np.stack(np.unravel_index(np.arange(lattice.size), (7, 6, 5)), -1)[:, ::-1]
    expected = sum(count @ count[lattice.linear(index + offset)] for offset in lattice.near)
    assert near_pairs(lattice, count) == expected


def test_bytes_of_the_far_field():
    lattice = BoxLattice.from_cell(np.eye(3), np.diag([4, 4, 4]), 1.8)
    boxes, waves, terms = 64, 4 * 4 * 3, 9
    moments = local = terms * boxes
    spectrum = local_spectrum = 2 * terms * waves
    expected = 4 * (2 * (moments + local + spectrum + local_spectrum) + 25 * waves + 12 * 100)
    assert compulsory_bytes(lattice, 2, 100, 4) == expected


def test_growth_exponent():
    rows = [{"atoms": n, "seconds": 1e-9 * n**1.1} for n in (1e4, 1e5, 1e6)]
    assert growth_exponent(rows) == pytest.approx(1.1)
    assert growth_exponent(rows[:1]) is None
    assert [int(np.prod(copies_near(k))) for k in (1, 10, 100, 1000)] == [1, 8, 100, 1000]


@pytest.mark.slow
def test_stage_clock_changes_nothing(base):
    solver = base.charges.solver(
        tolerance=1e-3, backend="reference", order=2, grid=(3, 3, 3), near_radius=1.8
    )
    solver.compute(base.charges.positions)
    stages = solver.evaluation.used[0]
    assert isinstance(stages, ReferenceStages)
    seconds = timing.stage_seconds(stages, base.charges.positions, EDGE / 3)
    assert list(seconds) == list(timing.STAGES)
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed(base):
    solver = base.charges.solver(
        tolerance=1e-3, backend="cpu", order=2, grid=(2, 2, 2), near_radius=1.8, levels=1
    )
    solver.compute(base.charges.positions)
    seconds = timing.stage_seconds(solver.evaluation.used[0], base.charges.positions, EDGE / 4)
    assert list(seconds) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed_on_a_gpu(base):
    """The clock counts what is queued."""
    evaluation = Evaluation(
        base.charges, backend="cpu", order=2, grid=(1, 1, 1), near_radius=1.8, levels=2
    )
    assert list(evaluation.stage_seconds()) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    evaluation._device = SimpleNamespace(median_seconds=lambda run: run())
    evaluation.evaluator = SimpleNamespace(run=SimpleNamespace(queue=lambda *stages: [*stages]))
    single = {name: [name] for name in timing.STAGES}
    assert evaluation.stage_seconds() == single | {
        "m2m": ["m2m"],
        "m2l": ["m2l1", "m2l2"],
        "l2l": ["l2l1", "l2l2"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "tolerance", "instructions"), [("single", 1e-3, 14), ("double", 1e-6, 18)]
)
def test_share_of_the_limits(monkeypatch, precision, tolerance, instructions):
    monkeypatch.setattr("fmm_openmm.bench.solver.limits", lambda *_: Limits(1e12, 1e10))
    row = measure(Size(EDGE), tolerance, 0.0, backend="cpu")
    assert row["precision"] == precision
    assert row["p2p_share"] == pytest.approx(instructions * row["pairs_per_second"] / 1e12)


# the commands


@pytest.mark.slow
def test_solver(bench):
    table, result = bench(
        "solver", *SIZES, "--tolerance", "1e-3", "--smoothing", "0", "0.05", "--backend", "cpu"
    )
    assert len(table) == len(result["rows"]) == 4
    for row, shown in zip(result["rows"], table, strict=True):
        assert row["force_error"] < row["tolerance"] == 1e-3
        assert row["seconds"] > 0
        assert row["new_shape_seconds"] > 0
        assert row["pairs_per_second"] == pytest.approx(row["pairs"] / row["stages"]["p2p"])
        assert row["p2p_share"] is row["far_share"] is None
        assert shown["atoms"] == str(row["atoms"])
    assert result["rows"][2]["atoms"] == 2 * result["rows"][0]["atoms"]
    assert [row["smoothing"] for row in result["rows"]] == [0.0, 0.05, 0.0, 0.05]


@pytest.mark.slow
def test_solver_in_another_cell(bench):
    table, result = bench(
        "solver",
        "--sizes",
        "2.6",
        "--cells",
        "dodecahedron",
        "--tolerance",
        "1e-3",
        "--smoothing",
        "0",
    )
    assert table[0]["cell"] == "dodecahedron"
    assert result["rows"][0]["force_error"] < 1e-3


@pytest.mark.slow
def test_solver_with_given_parameters(bench):
    fixed = "--order", "6", "--grid", "4", "3", "4", "--near-radius", "2.5"
    (shown,), result = bench(
        "solver",
        "--sizes",
        "2.6",
        "--tolerance",
        "0.1",
        "--smoothing",
        "0",
        "--backend",
        "cpu",
        *fixed,
    )
    assert shown["order, radius, boxes"] == "6, 2.5, [4, 3, 4]"
    assert result["rows"][0]["force_error"] < 0.1


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


@pytest.mark.slow
def test_md_of_files(bench, tmp_path):
    """Systems from files, one of them with bonded forces and with exceptions that are no
    exclusions. Marginal costs are left out.

    Marginal costs are left out.
    """
    (tmp_path / "peptide.pdb.gz").write_bytes(gzip.compress(PEPTIDE.read_bytes()))
    table, result = bench(
        "md", "--system", "peptide.pdb.gz", *PEPTIDE_BOX, "--tolerance", "5e-4", "--platform", "CPU"
    )
    pme, fmm = result["rows"]
    assert (result["system"], result["timestep"], pme["atoms"]) == ("peptide.pdb.gz", 0.004, 113)
    assert (pme["marginal_seconds"], "marginal, ms" in table[0], table[1]["system"]) == (
        None,
        False,
        "peptide.pdb.gz",
    )
    assert pme["ns_per_day"] * pme["step_seconds"] == pytest.approx(86400 * 4e-6)
    assert fmm["force_error"] < 5e-4 < 2e-3 > pme["force_error"]


@pytest.mark.slow
def test_files_are_set_up_as_in_the_benchmark_of_openmm(monkeypatch):
    monkeypatch.setattr(md, "RELAXATION", 2.0)
    (case,) = cases_of("--system", str(PEPTIDE), *PEPTIDE_BOX)
    system, topology = case.sample.system, app.PDBFile(str(PEPTIDE)).topology
    assert {
        system.getParticleMass(atom.index)._value
        for atom in topology.atoms()
        if atom.element.symbol == "H"
    } == {1.5}
    assert system.getNumConstraints() == sum(
        "H" in (a.element.symbol, b.element.symbol) for a, b in topology.bonds()
    )
    assert nonbonded(system).getCutoffDistance()._value == 0.9
    assert 250 < 2 * kinetic_energy(case) / degrees_of_freedom(system) / BOLTZMANN < 350


@pytest.mark.slow
def test_hydrogens_are_heavy_in_long_time_steps_only():
    (case,) = cases_of("--system", str(PEPTIDE), *PEPTIDE_BOX, "--timestep", "0.002")
    assert min(case.sample.system.getParticleMass(i)._value for i in range(113)) == pytest.approx(
        1.008, abs=1e-3
    )


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


@pytest.mark.slow
def test_md_of_presets(bench, small_preset, monkeypatch):
    """Each relaxed once for all its tiles."""
    relaxed, usual = [], md.equilibrated
    monkeypatch.setattr(md, "equilibrated", lambda *args: relaxed.append(args) or usual(*args))
    monkeypatch.setattr(systems, "BAROSTAT_INTERVAL", 5)
    options = "--preset", "small", "--tile", "1x1", "2x1", "--ensemble", "npt", "--platform", "CPU"
    table, result = bench("md", *options, "--tolerance", "5e-4", "5e-5")
    assert len(relaxed) == 1
    assert (result["system"], result["ensemble"]) == (
        f"small ({FORCE_FIELD}, cutoff 0.8 nm)",
        "npt",
    )
    assert (result["timestep"], {row["system"] for row in table}) == (0.002, {"small"})
    assert [row["atoms"] for row in result["rows"]] == sorted(
        row["atoms"] for row in result["rows"]
    )
    methods = {(row["atoms"], row["tolerance"], row["method"]) for row in result["rows"]}
    always = {
        (n, t, method) for n in (768, 1536) for t in (5e-4, 5e-5) for method in ("PME", "FMM")
    }
    assert always <= methods <= always | {(n, 5e-5, "PME, best cutoff") for n in (768, 1536)}
    assert all(
        row["force_error"] < 3 * row["tolerance"] and row["over_pme"] > 0 for row in result["rows"]
    )


@pytest.mark.slow
def test_md_keeps_the_cutoff_of_a_force_field(small_preset, capsys):
    """PME is measured at one cutoff where Lennard-Jones is switched off."""
    options = (
        "--preset",
        "small",
        "--switch",
        "0.7",
        "--tolerance",
        "5e-5",
        "--platform",
        "CPU",
        "--no-errors",
    )
    assert main(["bench", "md", *options]) == 0
    text = capsys.readouterr().out
    assert f"small ({FORCE_FIELD}, cutoff 0.8 nm, switched off from 0.7 nm)" in text
    assert text.splitlines()[-1] == "PME at no other cutoff, a parameter of the force field: small"
    methods = [
        line.split("|")[5].strip() for line in text.splitlines() if line.startswith("| small")
    ]
    assert methods == ["PME", "FMM, host bridge"]


@pytest.mark.slow
def test_presets_and_files_are_relaxed(small_preset, monkeypatch, tmp_path):
    monkeypatch.setattr(md, "RELAXATION", 0.5)
    for argv in (
        ("--preset", "small"),
        ("--system", str(tmp_path / "small.pdb"), "--forcefield", FORCE_FIELD),
    ):
        (case,) = cases_of(*argv)
        before, after = (
            potential_energy(case.sample.system, x) for x in (small_preset, case.sample.positions)
        )
        assert after < before - 1000
        assert (
            250
            < 2 * kinetic_energy(case) / degrees_of_freedom(case.sample.system) / BOLTZMANN
            < 350
        )


@pytest.mark.parametrize("ensemble", ["nvt", "npt"])
def test_ensembles(ensemble, small_preset, tmp_path):
    """The barostat of the ensemble replaces the baths of a System from a file."""
    _, system, _ = small_water()
    system.addForce(openmm.AndersenThermostat(300.0, 1.0))
    (tmp_path / "system.xml").write_text(openmm.XmlSerializer.serialize(system))
    expected = {
        ("--preset", "small"): "MonteCarloMembraneBarostat",
        ("--system", "system.xml", "small.pdb"): "MonteCarloBarostat",
        ("--sizes", str(EDGE)): "MonteCarloBarostat",
    }
    for argv, kind in expected.items():
        (case,) = cases_of(*argv, "--ensemble", ensemble)
        baths = [
            force
            for force in case.sample.system.getForces()
            if type(force).__name__.endswith("stat")
        ]
        assert [type(force).__name__ for force in baths] == [kind] * (ensemble == "npt")
        assert [force.getFrequency() for force in baths] == [25] * (ensemble == "npt")
        for force in baths[: kind == "MonteCarloMembraneBarostat"]:
            assert (force.getXYMode(), force.getZMode()) == (force.XYIsotropic, force.ZFree)
            assert (force.getDefaultPressure()._value, force.getDefaultSurfaceTension()._value) == (
                1.0,
                0.0,
            )


@pytest.mark.parametrize("name", ["dlpc", pytest.param("dlpc-charmm36", marks=pytest.mark.slow)])
def test_presets(name):
    molecules = inputs.load(PRESETS[name].arguments(arguments("--preset", name)))
    system, force = molecules.system, nonbonded(molecules.system)
    assert system.getNumParticles() == 25_088
    assert md.has_own_cutoff(system) == force.getUseSwitchingFunction() == name.endswith("charmm36")
    expected = (
        (1.2, 1.0) if name.endswith("charmm36") else (0.9, force.getSwitchingDistance()._value)
    )
    assert (force.getCutoffDistance()._value, force.getSwitchingDistance()._value) == expected
    hydrogens = [atom.element.symbol == "H" for atom in molecules.topology.atoms()]
    assert system.getNumConstraints() == sum(hydrogens) + sum(
        r.name == "HOH" for r in molecules.topology.residues()
    )


def test_options_come_before_the_numbers_of_a_preset():
    found = PRESETS["dlpc-charmm36"].arguments(
        arguments("--preset", "dlpc-charmm36", "--cutoff", "1.1")
    )
    assert (found.cutoff, found.switch, found.forcefield) == (
        1.1,
        1.0,
        ["charmm36.xml", "charmm36/water.xml"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("bilayer", BILAYERS)
def test_force_fields_have_the_residues_of_every_preset(bilayer):
    """Tried on the first of each kind."""
    lines = PRESETS[bilayer.lower()].structure.read_text().splitlines()
    atoms, first = (line for line in lines if line.startswith(("ATOM", "HETATM"))), {}
    for residue, its_atoms in groupby(atoms, lambda line: line[17:27]):  # name, chain and number
        first.setdefault(residue[:3], list(its_atoms))
    atoms = [line for its_atoms in first.values() for line in its_atoms]
    serials = {line[6:11] for line in atoms}
    bonds = [line for line in lines if line.startswith("CONECT") and line[6:11] in serials]
    box = [line for line in lines if line.startswith("CRYST1")]
    topology = app.PDBFile(io.StringIO("\n".join([*box, *atoms, *bonds]))).topology
    assert topology.getPeriodicBoxVectors() is not None and topology.getNumResidues() == 2
    for ending in FORCE_FIELDS:
        system = app.ForceField(*PRESETS[bilayer.lower() + ending].forcefield).createSystem(
            topology
        )
        assert system.getNumParticles() == len(atoms)


def cases_of(*argv):
    """The cases that ``bench md`` measures, without exact forces."""
    return [
        make()
        for make in md_command.chosen_cases(arguments(*argv, "--no-errors"), on_gpu=False)[
            2
        ].values()
    ]


def arguments(*argv):
    """The parsed command line of ``bench md``."""
    parser = argparse.ArgumentParser()
    md_command.add_arguments(parser)
    return parser.parse_args(argv)


def kinetic_energy(case):
    masses = [
        case.sample.system.getParticleMass(i)._value for i in range(len(case.sample.positions))
    ]
    return 0.5 * np.array(masses) @ (case.sample.velocities**2).sum(1)


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


@pytest.mark.slow
def test_nve(bench):
    table, result = bench(
        "nve", *SIZES, "--time", "0.1", "--smoothing", "auto", "0.01", "--platform", "CPU"
    )
    assert [row["method"] for row in table] == 2 * ["PME", "FMM", "FMM, smoothing 0.01"]
    assert all(0 < row["residual"] < 50 and abs(row["drift"]) < 100 for row in result["rows"])


def test_scaling(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench(
        "scaling", "--max-atoms", "1.1e4", "--tolerance", "1e-3", "--backend", "cpu"
    )
    assert len(table) == len(result["rows"]) > 1
    assert np.isfinite(result["exponent"])
    assert all(row["force_error"] < 1e-3 for row in result["rows"])


@pytest.mark.slow
def test_distributed(bench):
    """On one rank."""
    pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")
    table, result = bench("distributed", *SIZES, "--tolerance", "1e-3")
    assert [row["atoms"] for row in table] == [str(row["atoms"]) for row in result["rows"]]
    for row in result["rows"]:
        assert row["ranks"] == 1 and row["force_error"] < 1e-3
        assert 0.1 < row["efficiency"] < 2 and row["memory"] > 0
        assert 0 < row["compute_seconds"] and row["sent"] == 0


def test_more_ranks_than_there_are(capsys):
    pytest.importorskip("mpi4py.MPI", reason="needs MPI: pip install 'fmm_openmm[mpi]'")
    assert main(["bench", "distributed", "--ranks", "1", "2"]) == 2
    assert "--ranks must lie between 1 and 1, got 2" in capsys.readouterr().err


@pytest.mark.slow
def test_open(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    monkeypatch.setattr("fmm_openmm.bench.open.PATIENCE", 0.0)
    table, result = bench("open", "--max-atoms", "3e3", "--tolerance", "1e-3", "--backend", "cpu")
    assert [(row["atoms"], row["method"]) for row in result["rows"]] == [
        (999, "fmm"), (999, "direct"), (999, "treecode"), (3000, "fmm"), (3000, "treecode"),
    ]  # fmt: skip
    assert len(table) == 5
    for row in result["rows"]:
        assert row["seconds"] > 0
        assert row["force_error"] is None or row["force_error"] <= 1e-3
    assert result["rows"][0]["force_error"] is not None


@pytest.mark.slow
def test_open_in_a_cell(bench, monkeypatch):
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    _, result = bench(
        "open", "--cell", "20", "--max-atoms", "1000", "--tolerance", "1e-3", "--backend", "cpu"
    )
    assert [row["system"] for row in result["rows"]] == [
        "filled cube",
        "droplet in free space",
        "droplet in a cube of 20 nm",
    ]
    for row in result["rows"]:
        assert min(row["seconds"], row["call_seconds"]) > 0
        assert row["force_error"] <= 1e-3


@pytest.mark.slow
def test_slab(bench):
    table, result = bench("slab", "--edge", "2.2", "--tolerance", "1e-3", "--backend", "cpu")
    names = [row["system"] for row in result["rows"]]
    assert names[:2] == ["periodic cube", "slab"] and names[2].startswith("PME, ")
    assert len(table) == 3 and len({row["atoms"] for row in result["rows"]}) == 1
    for row in result["rows"]:
        assert row["seconds"] > 0 and 0 < row["force_error"] <= 1e-3
    seconds = [row["seconds"] for row in result["rows"]]
    assert result["ratio"] == seconds[1] / seconds[0]


def test_where_one_method_overtakes_another():
    def rows(method, *times):
        return [
            {"method": method, "atoms": atoms, "seconds": t}
            for atoms, t in zip((10, 100, 1000), times, strict=True)
        ]

    found = crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 8.0, 64.0), "fmm", "direct")
    assert found == pytest.approx(10 ** (1 + np.log(4) / np.log(8)))
    assert (
        crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 2.0, 3.0), "fmm", "direct")
        is None
    )
    assert (
        crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 5.0, 6.0, 7.0), "fmm", "direct") == 10
    )


def test_scaling_stops_where_memory_ends(bench, monkeypatch):
    def full(*_, **__):
        raise MemoryError("32 GB")

    monkeypatch.setattr("fmm_openmm.bench.scaling.Evaluation", full)
    monkeypatch.setattr("fmm_openmm.bench.scaling.EDGE", EDGE)
    table, result = bench("scaling", "--max-atoms", "1.1e4", "--backend", "cpu")
    assert table == result["rows"] == []
    assert result["stopped"] == "out of memory: 32 GB"


@pytest.mark.slow
def test_open_stops_where_memory_ends(bench, monkeypatch):
    """Rows measured before the error are kept."""

    class Full(Evaluation):
        def __init__(self, charges, **options):
            if len(charges) > 1000:
                raise MemoryError("32 GB")
            super().__init__(charges, **options)

    monkeypatch.setattr("fmm_openmm.bench.open.Evaluation", Full)
    monkeypatch.setattr("fmm_openmm.bench.open.EDGE", EDGE)
    table, result = bench("open", "--max-atoms", "3e3", "--tolerance", "1e-3", "--backend", "cpu")
    assert [row["atoms"] for row in result["rows"]] == 3 * [999]
    assert len(table) == 3
    assert result["stopped"] == "out of memory: 32 GB"


@pytest.mark.slow
def test_the_smallest_system_of_scaling():
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(
        app.ForceField("amber14/tip3p.xml"),
        boxSize=openmm.Vec3(*3 * [scaling.EDGE]) * unit.nanometer,
    )
    assert modeller.topology.getNumAtoms() == scaling.ATOMS


def test_an_evaluation_is_of_all_that_its_charges_are(base):
    """Pairs excluded at their nearest image are taken into account."""
    c = base.charges
    wrapped = c.positions % np.diag(c.box_vectors)
    broken = ChargeSystem(c.charges, wrapped, c.box_vectors, c.exclusions, exclusions_periodic=True)
    assert (
        relative_error(Evaluation(broken, tolerance=1e-3, backend="cpu").forces, base.exact) < 1e-3
    )


@pytest.mark.slow
def test_json_alone(capsys):
    assert (
        main(
            ["bench", "nve", "--sizes", str(EDGE), "--time", "0.05", "--platform", "CPU", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["benchmark"] == "nve"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: BENCHMARK"),
        (["sort"], "invalid choice: 'sort'"),
        (
            ["solver", "--sizes", "6x6"],
            "a size is an edge of at least 2 nm, or this and copies, as 6 or 6:3x3x5, got 6x6",
        ),
        (["solver", "--sizes", "1"], "a size is an edge of at least 2 nm"),
        (["solver", "--sizes", "3:0x1x1"], "a size is an edge of at least 2 nm"),
        (["solver", "--tolerance", "2"], "`tolerance` must lie between 1e-10 and 0.1, got 2"),
        (["solver", "--smoothing", "0.5"], "`smoothing` must lie between 0 and 0.2, got 0.5"),
        (["solver", "--cells", "sphere"], "invalid choice: 'sphere'"),
        (["md", "--platform", "Abacus"], "--platform must be one of"),
        (
            ["md", "--platform", "CPU", "--tolerance", "1e-6"],
            "needs double precision, which the CPU platform lacks",
        ),
        (
            ["md", "--platform", "CPU", "--precision", "mixed"],
            "the CPU platform has one precision only: leave out --precision",
        ),
        (
            ["md", "--platform", "CPU", "--forcefield", "x.xml"],
            "--forcefield applies only with --system: leave it out",
        ),
        (
            ["md", "--platform", "CPU", "--box", "3", "3", "3"],
            "--box applies only with --system: leave it out",
        ),
        (
            ["md", "--platform", "CPU", "--system", "x.pdb", "--every-atom"],
            "--sizes, --every-atom and --slab are for water",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--sizes", "3"],
            "--sizes, --every-atom and --slab are for water",
        ),
        (
            ["md", "--platform", "CPU", "--slab", "--ensemble", "npt"],
            "--slab is for NVT",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--system", "x.pdb"],
            "--preset and --system: give one of them",
        ),
        (
            ["md", "--platform", "CPU", "--preset", "popc", "--box", "3", "3", "3"],
            "--box applies only with --system",
        ),
        (
            ["md", "--platform", "CPU", "--tile", "2x2"],
            "--tile applies only with --system or --preset: leave it out",
        ),
        (["md", "--preset", "butter"], "invalid choice: 'butter'"),
        (["md", "--tile", "2x0"], "a tile is copies along a, b (and c), as 2x2 or 2x2x3, got 2x0"),
        (["md", "--platform", "CPU", "--system", "x.pdb"], "no such file: x.pdb"),
        (
            ["md", "--platform", "CPU", "--system", str(PEPTIDE)],
            "the System must use PME, in a periodic box",
        ),
        (
            ["md", "--platform", "CPU", "--timestep", "2"],
            "`timestep` must lie between 0.0001 and 0.01, got 2",
        ),
        (["nve", "--time", "0"], "--time must lie between 0.05 and 1e5 (ps), got 0"),
        (["scaling", "--max-atoms", "1e4"], "--max-atoms must be at least 10002, got 10000"),
        (["open", "--max-atoms", "10"], "--max-atoms must be at least 1000, got 10"),
        (["nve", "--json=."], "is a folder: ."),
        (
            ["open", "--cell", "5"],
            "--cell must lie between 15.1 and 10000 (nm) for 21480 atoms, got 5",
        ),
        (["scaling", "--plot", "out.doc"], "--plot must name a file ending in"),
        (["scaling", "--json=nowhere/out.json"], "no such folder: nowhere"),
        (
            ["nve", "--smoothing", "0", "wide"],
            "argument --smoothing: could not convert string to float: 'wide'",
        ),
        (["md", "--smoothing", "0.5"], "`smoothing` must lie between 0 and 0.2, got 0.5"),
    ],
)
def test_bad_usage(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line


def test_plot_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "nve", "--plot", "out.png"]) == 2
    assert "--plot needs matplotlib: pip install 'fmm_openmm[plot]'" in capsys.readouterr().err


def test_the_loop_of_multiply_adds_compiles(nvrtc):
    from fmm_openmm.bench.device import CHAINS, FMA_LOOP, ROUNDS

    for real in ("float", "double"):
        program = nvrtc.createProgram(FMA_LOOP, "fma_loop.cu", [], [])
        options = [f"-DREAL={real}", f"-DCHAINS={CHAINS}", f"-DROUNDS={ROUNDS}", "-arch=sm_90"]
        nvrtc.compileProgram(program, options)
        assert nvrtc.getProgramLog(program).strip() == ""


@pytest.mark.slow
def test_a_droplet_is_a_ball(monkeypatch):
    """Its radius follows from its volume at the density of water."""
    monkeypatch.setattr(free_space, "EDGE", 2.0)
    oxygens = free_space.droplet(6000).positions[:: systems.SITES]
    radius = np.linalg.norm(oxygens - oxygens.mean(0), axis=1).max()
    assert radius == pytest.approx(np.cbrt(3 * 6000 / (4 * np.pi * systems.DENSITY)), rel=0.03)
