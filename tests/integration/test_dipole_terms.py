"""The dipole term in OpenMM: of coordinates that are not wrapped."""

import copy
from argparse import ArgumentParser

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.cli.options import add_fmm_arguments, fmm_options
from fmm_openmm.integration.guard import images
from fmm_openmm.oracle import ewald_sum
from tests.integration.boxes import charges_and_pairs

TERMS = [{"slab_correction": True}, {"surface_dielectric": 1.0}]

OUTSIDE = np.array([3.0, 0.0, 3.0])
"""What takes an ion across two faces of the box."""


def converted(box, **options):
    return fmm.use_fmm(box.system, **{"tolerance": 1e-7, "backend": "cpu", **options})


def exact(box, positions, term):
    charges, pairs = charges_and_pairs(box.nonbonded)
    return ewald_sum(positions, charges, box.cell, pairs, **term)


def in_context(context):
    state = context.getState(positions=True, energy=True, forces=True, groups={7})
    return (
        state.getPositions(asNumpy=True)._value,
        state.getPotentialEnergy()._value,
        state.getForces(asNumpy=True)._value,
    )


@pytest.mark.filterwarnings("ignore:`positions`. charges span")
@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("term", TERMS)
def test_ions_that_cross_the_box(ions, term, platform):
    """Before, while and after: the energy is that of the path, not of the wrapped positions."""
    original = copy.deepcopy(ions.system)
    force = converted(ions, **term)
    force.setForceGroup(7)
    integrator = openmm.VerletIntegrator(0.01)
    context = openmm.Context(ions.system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(ions.positions)
    context.setVelocities(np.outer([1.0, -1.0, 0.0, 0.0], [25.0, 0.0, 20.0]))
    ions.system = original
    charges, pairs = charges_and_pairs(original.getForce(0))
    for _ in range(3):
        positions, energy, forces = in_context(context)
        expected = ewald_sum(positions, charges, ions.cell, pairs, **term)
        assert energy == pytest.approx(expected.energy, rel=1e-5)
        np.testing.assert_allclose(forces, expected.forces, atol=1e-3)
        integrator.step(10)
    positions, *_ = in_context(context)
    assert (np.floor(positions[:2] / 3.0) != 0).any()
    wrapped = ewald_sum(positions % 3.0, charges, ions.cell, pairs, **term)
    unwrapped = ewald_sum(positions, charges, ions.cell, pairs, **term)
    assert abs(wrapped.energy - unwrapped.energy) > 1.0


@pytest.mark.parametrize("term", TERMS)
def test_validation_has_the_term(ions, term):
    for reference in ("ewald", "pme"):
        report = fmm.validate(
            ions.system, ions.positions, reference, tolerance=1e-5, backend="cpu", **term
        )
        assert report.passed
    expected = exact(ions, ions.positions, term).energy
    assert report.reference_energy == pytest.approx(expected, rel=1e-4)
    assert report.pme.relative_rms_force_error < 1e-2
    converted(ions, **term)
    report = fmm.validate(ions.system, ions.positions, tolerance=1e-4)  # keeps the term
    assert report.passed and report.reference_energy == pytest.approx(expected, rel=1e-9)


def test_copies_and_xml(ions):
    converted(ions, surface_dielectric=2.0)
    text = openmm.XmlSerializer.serialize(ions.system)
    for system in (copy.deepcopy(ions.system), openmm.XmlSerializer.deserialize(text)):
        (force,) = fmm.find_fmm(system)
        assert force._definition.options.surface_dielectric == 2.0
    assert "surface_dielectric 2.0" in repr(force)
    plain = fmm.FMMForce()._definition.pack()
    assert fmm.FMMForce()._definition.unpack(plain).options.surface_dielectric == np.inf


def test_what_is_refused(ions):
    before = openmm.XmlSerializer.serialize(ions.system)
    with pytest.raises(ValueError, match="exclude each other"):
        fmm.use_fmm(ions.system, slab_correction=True, surface_dielectric=1.0)
    for term in TERMS:
        with pytest.raises(ValueError, match="needs `boundary='periodic'`, got 'slab'"):
            fmm.use_fmm(ions.system, boundary="slab", **term)
        with pytest.raises(ValueError, match="needs `boundary='periodic'`, got 'open'"):
            fmm.FMMForce(**term).setUsesPeriodicBoundaryConditions(False)
    ions.nonbonded.setParticleParameters(0, 2.0, 0.3, 0.1)
    with pytest.raises(fmm.UnsupportedError, match="neutral in total with `surface_dielectric=1`"):
        fmm.use_fmm(ions.system, surface_dielectric=1.0)
    ions.nonbonded.setParticleParameters(0, 1.0, 0.3, 0.1)
    assert openmm.XmlSerializer.serialize(ions.system) == before


def test_what_drops_the_term(ions):
    expected = exact(ions, ions.positions, TERMS[0]).energy
    converted(ions, slab_correction=True)
    with pytest.warns(
        UserWarning, match="a term that charges alone do not have: give `slab_correction=True`"
    ):
        charges = fmm.ChargeSystem.from_openmm(ions.system, ions.positions)
    energy = charges.solver(tolerance=1e-7, slab_correction=True).compute(ions.positions).energy
    assert energy == pytest.approx(expected, rel=1e-6)


def test_platforms_that_wrap_positions(ions, monkeypatch):
    converted(ions, surface_dielectric=1.0)
    cpu = openmm.Platform.getPlatformByName("CPU")
    monkeypatch.setattr(images, "PLATFORMS", ("Reference",))
    with pytest.raises(fmm.UnsupportedError, match="on the CPU platform it receives wrapped"):
        openmm.Context(ions.system, openmm.VerletIntegrator(0.001), cpu)
    context = openmm.Context(
        ions.system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(ions.positions)
    assert np.isfinite(context.getState(energy=True).getPotentialEnergy()._value)


def test_inside_another_force(ions):
    """Where nothing can be checked nothing is computed."""
    inner = fmm.FMMForce.from_nonbonded(ions.nonbonded, backend="cpu", slab_correction=True)
    outer = openmm.CustomCVForce("coulomb")
    outer.addCollectiveVariable("coulomb", inner)
    ions.system.removeForce(0)
    ions.system.addForce(outer)
    with pytest.raises(openmm.OpenMMException, match="not one inside another force"):
        ions.context().getState(energy=True)


@pytest.mark.filterwarnings("ignore:`positions`. charges span")
@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_a_barostat_keeps_the_images(ions, platform):
    """It scales positions where they are, outside of the box, too."""
    converted(ions, slab_correction=True)
    barostat = openmm.MonteCarloBarostat(1.0, 300.0, 1)
    barostat.setRandomNumberSeed(3)
    ions.system.addForce(barostat)
    context = openmm.Context(
        ions.system, openmm.VerletIntegrator(1e-4), openmm.Platform.getPlatformByName(platform)
    )
    moved = ions.positions + np.outer([0, 0, 0, 1], OUTSIDE)
    context.setPositions(moved)
    context.getIntegrator().step(20)
    state = context.getState(positions=True)
    scale = np.cbrt(state.getPeriodicBoxVolume()._value) / 3.0
    assert abs(scale - 1) > 1e-4
    found = state.getPositions(asNumpy=True)._value
    np.testing.assert_allclose(found, scale * moved, atol=0.01)


def test_the_command_line():
    parser = ArgumentParser()
    add_fmm_arguments(parser, context=False)
    assert "slab_correction" not in fmm_options(parser.parse_args([]))
    given = fmm_options(parser.parse_args(["--slab-correction"]))
    assert given == {"slab_correction": True}
    assert fmm_options(parser.parse_args(["--surface-dielectric", "4"])) == {
        "surface_dielectric": 4.0
    }
