"""Files, presets and ensembles of ``fmm-openmm bench md``."""

import gzip
import io
from functools import cache
from itertools import groupby

import openmm
import pytest
from openmm import app, unit

from fmm_openmm.bench import md, systems
from fmm_openmm.bench.systems import BOLTZMANN, degrees_of_freedom, nonbonded
from fmm_openmm.cli import inputs, main
from fmm_openmm.cli.bench.presets import BILAYERS, FORCE_FIELDS, PRESETS
from tests.bench.cases import (
    EDGE,
    PEPTIDE_BOX,
    arguments,
    cases_of,
    kinetic_energy,
    potential_energy,
)
from tests.convert.small_water import FORCE_FIELD, small_water
from tests.systems import PEPTIDE


@pytest.mark.slow
def test_md_of_files(bench, tmp_path):
    """Systems from files, one of them with bonded forces and with exceptions that are no
    exclusions. Marginal costs are left out."""
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


def test_drude_particles_are_refused(tmp_path):
    """The thermostat would heat them to the temperature of the atoms."""
    topology, system, positions = small_water()
    system.addForce(openmm.DrudeForce())
    (tmp_path / "drude.xml").write_text(openmm.XmlSerializer.serialize(system))
    with open(tmp_path / "water.pdb", "w") as file:
        app.PDBFile.writeFile(topology, positions * unit.nanometer, file)
    with pytest.raises(ValueError, match=r"run openmm\.DrudeLangevinIntegrator in a script"):
        cases_of("--system", str(tmp_path / "drude.xml"), str(tmp_path / "water.pdb"))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlpc", "dlpc-charmm36"])
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


@cache
def force_field(*files: str) -> app.ForceField:
    return app.ForceField(*files)


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
    pdb = app.PDBFile(io.StringIO("\n".join([*box, *atoms, *bonds])))
    assert pdb.topology.getPeriodicBoxVectors() is not None and pdb.topology.getNumResidues() == 2
    for ending in FORCE_FIELDS:
        forcefield = force_field(*PRESETS[bilayer.lower() + ending].forcefield)
        modeller = app.Modeller(pdb.topology, pdb.positions)
        modeller.addExtraParticles(forcefield)
        system = forcefield.createSystem(modeller.topology)
        assert system.getNumParticles() == len(atoms) + (ending == "-opc")
