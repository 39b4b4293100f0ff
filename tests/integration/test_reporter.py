"""``FMMReporter``: the lines it writes, against what the Context itself says."""

import io
import sys

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from tests.convert.small_water import small_water


def simulation(**options):
    """The water with its FMMForce in group 5, on the Reference platform."""
    topology, system, positions = small_water()
    force = fmm.use_fmm(system, backend="cpu", **options)
    force.setForceGroup(5)
    made = app.Simulation(
        topology,
        system,
        openmm.VerletIntegrator(0.0001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    made.context.setPositions(positions)
    return made, force


def read(text):
    heading, *lines = text.splitlines()
    names = [name.strip('"') for name in heading.removeprefix("#").split('","')]
    return names, [line.split(",") for line in lines]


@pytest.mark.slow
def test_every_column(tmp_path):
    made, force = simulation(tolerance=1e-4)
    path = str(tmp_path / "fmm.csv")
    made.reporters.append(fmm.FMMReporter(path, 2, time=True, parameters=True, particles=[0, 700]))
    made.step(4)
    made.reporters.clear()
    names, lines = read((tmp_path / "fmm.csv").read_text())
    assert names == [
        *("Step", "Time (ps)", "Coulomb Energy (kJ/mole)"),
        *("Order", "Near Radius", "Smoothing", "Precision", "Backend", "Bridge", "Expected Error"),
        *("Potential of 0 (kJ/mole/e)", "Potential of 700 (kJ/mole/e)"),
    ]
    assert [line[0] for line in lines] == ["2", "4"]
    row = dict(zip(names, lines[-1], strict=True))
    energy = made.context.getState(energy=True, groups={5}).getPotentialEnergy()._value
    assert float(row["Coulomb Energy (kJ/mole)"]) == pytest.approx(energy, rel=1e-9)
    assert float(row["Time (ps)"]) == pytest.approx(4e-4)
    used = force.getFMMParametersInContext(made.context)
    assert (row["Order"], row["Backend"]) == (str(used["order"]), "cpu")
    assert float(row["Expected Error"]) == used["expected_error"] < 1e-4
    potentials = force.getPotentialsInContext(made.context)
    found = [float(row[f"Potential of {k} (kJ/mole/e)"]) for k in (0, 700)]
    assert found == pytest.approx(potentials[[0, 700]].tolist(), rel=1e-9)


def test_energy_follows_a_parameter():
    """The energy of charges with an offset is that at the value in the Context."""
    topology, system, positions = small_water()
    nonbonded = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    nonbonded.addGlobalParameter("charging", 0.0)
    for k in range(3):
        charge = nonbonded.getParticleParameters(k)[0]._value
        nonbonded.addParticleParameterOffset("charging", k, charge, 0.0, 0.0)
    fmm.use_fmm(system, backend="cpu").setForceGroup(5)
    made = app.Simulation(topology, system, openmm.VerletIntegrator(1e-4))
    made.context.setPositions(positions)
    made.context.setParameter("charging", 0.7)
    out = io.StringIO()
    made.reporters.append(fmm.FMMReporter(out, 1, step=False))
    made.step(1)
    names, ((value,),) = read(out.getvalue())
    energy = made.context.getState(energy=True, groups={5}).getPotentialEnergy()._value
    assert names == ["Coulomb Energy (kJ/mole)"]
    assert float(value) == pytest.approx(energy, rel=1e-9)


@pytest.mark.slow
def test_append(tmp_path):
    made, _ = simulation()
    path = str(tmp_path / "fmm.csv")
    for append in False, True:
        made.reporters.append(fmm.FMMReporter(path, 1, append=append))
        made.step(1)
        made.reporters.clear()
    names, lines = read((tmp_path / "fmm.csv").read_text())
    assert (len(names), [line[0] for line in lines]) == (2, ["1", "2"])
    assert np.isfinite([float(line[1]) for line in lines]).all()


@pytest.mark.parametrize("particles", [5, "12", [0.7], [True, False], [[1, 2]], {1, 2}, [[1], []]])
def test_particles_are_integers(particles):
    with pytest.raises(ValueError, match="`particles` must be a sequence of integers, got "):
        fmm.FMMReporter(io.StringIO(), 1, particles=particles)


def test_bad_files(tmp_path, monkeypatch):
    """A file that cannot be opened gives one error, without another one of the destructor."""
    in_destructor = []
    monkeypatch.setattr(sys, "unraisablehook", in_destructor.append)
    with pytest.raises(TypeError, match=r"`file` must be a path or have write\(\), got NoneType"):
        fmm.FMMReporter(None, 1)
    with pytest.raises(FileNotFoundError):
        fmm.FMMReporter(tmp_path / "none" / "fmm.csv", 1)
    assert not in_destructor


@pytest.mark.slow
def test_bad_arguments():
    with pytest.raises(ValueError, match="`reportInterval` must"):
        fmm.FMMReporter(io.StringIO(), 0)
    made, _ = simulation()
    made.reporters.append(fmm.FMMReporter(io.StringIO(), 1, particles=[768]))
    with pytest.raises(ValueError, match="`particles` must lie between 0 and 767, got 768"):
        made.step(1)
    topology, system, positions = small_water()
    plain = app.Simulation(topology, system, openmm.VerletIntegrator(1e-4))
    plain.context.setPositions(positions)
    plain.reporters.append(fmm.FMMReporter(io.StringIO(), 1))
    with pytest.raises(ValueError, match="needs a System with one FMMForce, got 0 of them"):
        plain.step(1)
