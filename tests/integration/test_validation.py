"""validate: the errors it reports are those of FMM and PME, and it changes nothing."""

import copy
import warnings

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.integration import slab_pme, validation
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.oracle.ewald import ewald_sum
from tests.integration.boxes import charges_and_pairs, xml


@pytest.mark.parametrize("name", ["water", "tip5p", "chains"])
def test_report_against_ewald(name, request):
    box = request.getfixturevalue(name)
    before = xml(box.system)
    report = fmm.validate(
        box.system, box.positions * unit.nanometer, reference="ewald", tolerance=1e-5
    )
    assert xml(box.system) == before
    count = box.nonbonded.getNumParticles()
    charges = [box.nonbonded.getParticleParameters(index)[0]._value for index in range(count)]
    pairs = [
        box.nonbonded.getExceptionParameters(index)[:2]
        for index in range(box.nonbonded.getNumExceptions())
    ]
    exact = ewald_sum(box.positions, charges, box.cell, pairs)
    assert report.particles == count and report.tolerance == 1e-5
    assert report.reference_energy == pytest.approx(exact.energy, rel=1e-12)
    assert report.energy == pytest.approx(exact.energy, rel=1e-5)
    assert report.relative_energy_error == pytest.approx(
        abs(report.energy / exact.energy - 1), abs=1e-12
    )
    assert 0 < report.relative_rms_force_error <= 1e-5 and report.passed
    scale = np.sqrt((exact.forces**2).sum(1).mean())
    for each in report.methods:
        errors = each.force_errors
        assert each.relative_rms_force_error * scale == pytest.approx(np.sqrt((errors**2).mean()))
        assert each.relative_max_force_error * scale == pytest.approx(errors.max())
    assert report.max_force_error < 1e-3 * np.abs(exact.forces).max()
    assert report.pme.method == "PME 0.0005"
    assert 1e-5 < report.pme.relative_rms_force_error < 5e-3
    assert report.fmm.relative_rms_force_error < report.pme.relative_rms_force_error


def test_the_norm_of_the_tolerance(water):
    """With the same parameters either norm decides."""
    parameters = {"order": 8, "grid": (4, 4, 4), "near_radius": 2.5, "smoothing": 0.0}
    first = fmm.validate(water.system, water.positions, tolerance=1e-2, **parameters)
    between = 0.5 * (first.relative_rms_force_error + first.relative_max_force_error)
    for norm, passed in (("rms", True), ("max", False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the largest error is out of reach
            report = fmm.validate(
                water.system, water.positions, tolerance=between, error_norm=norm, **parameters
            )
        assert report.passed == passed


def test_pme_as_the_reference(water):
    ewald = fmm.validate(water.system, water.positions, tolerance=1e-4)
    pme = fmm.validate(water.system, water.positions, reference="pme", tolerance=1e-4)
    assert pme.reference_energy == pytest.approx(ewald.reference_energy, rel=1e-6)
    assert pme.relative_rms_force_error == pytest.approx(ewald.relative_rms_force_error, rel=0.1)
    assert pme.pme.relative_rms_force_error == pytest.approx(
        ewald.pme.relative_rms_force_error, rel=0.1
    )


def test_pme_is_no_reference_for_a_tight_tolerance(ions):
    with pytest.warns(UserWarning, match="PME as the reference has a relative force error"):
        fmm.validate(ions.system, ions.positions, reference="pme", tolerance=1e-6)


@pytest.mark.parametrize("cutoff", [0.9, 1.2])
def test_the_grid_of_pme_is_foreseen(water, cutoff):
    water.system.setDefaultPeriodicBoxVectors(*np.diag([3.1, 4.2, 5.3]))
    water.nonbonded.setCutoffDistance(cutoff)
    for tolerance in 5e-4, 1e-5:
        water.nonbonded.setEwaldErrorTolerance(tolerance)
        _, *grid = water.nonbonded.getPMEParametersInContext(water.context("Reference"))
        assert validation.grid_points(water.cell, cutoff, tolerance) == np.prod(grid)


def test_pme_in_a_box_that_is_too_large_for_its_grid(ions):
    """OpenMM's Reference platform would crash: it is left out, and as a reference refused."""
    ions.system.setDefaultPeriodicBoxVectors(*(200.0 * np.eye(3)))
    report = fmm.validate(ions.system, ions.positions, tolerance=1e-4)
    assert report.passed and report.pme is None
    assert report.pme_left_out.startswith("left out, as it would need a grid of 4.1e+09 points")
    assert f"PME: {report.pme_left_out}" in report.summary()
    assert "FMM meets its tolerance of 0.0001." in report.summary()
    with pytest.raises(fmm.UnsupportedError, match=r"200 x 200 x 200 nm: take 'ewald'"):
        fmm.validate(ions.system, ions.positions, reference="pme")
    ions.nonbonded.setPMEParameters(0.1, 2000, 2000, 2000)
    assert "8e+09 points" in fmm.validate(ions.system, ions.positions).pme_left_out
    ions.nonbonded.setPMEParameters(0.1, 20, 20, 20)
    assert fmm.validate(ions.system, ions.positions).pme.method == "PME as set"


def test_summary_says_who_is_closer(water):
    text = fmm.validate(water.system, water.positions, tolerance=1e-5, backend="cpu").summary()
    assert "555 particles" in text and "an Ewald sum" in text and "FMM on the cpu backend" in text
    assert "FMM meets its tolerance of 1e-05; FMM 1e-05 has the smaller RMS force error." in text
    text = fmm.validate(
        water.system, water.positions, tolerance=1e-5, order=2, grid=(4, 4, 4)
    ).summary()
    assert "FMM MISSES its tolerance of 1e-05; PME 0.0005 has the smaller RMS force error." in text


@pytest.mark.slow
def test_pme_parameters_that_are_set(water):
    """The error is that of the System's own PME."""
    water.nonbonded.setPMEParameters(2.8, 10, 10, 10)
    report = fmm.validate(water.system, water.positions)
    water.nonbonded.setPMEParameters(0, 0, 0, 0)
    assert report.pme.method == "PME as set"
    assert (
        report.pme.relative_rms_force_error
        > 5 * fmm.validate(water.system, water.positions).pme.relative_rms_force_error
    )


@pytest.mark.slow
def test_a_converted_system_is_validated_as_it_stands(chains):
    before = fmm.validate(chains.system, chains.positions, tolerance=1e-6)
    fmm.use_fmm(chains.system, tolerance=1e-6)
    assert fmm.validate(chains.system, chains.positions) == before


def test_a_second_force_without_charges(ions):
    """It decides neither the charges nor the settings of PME, before the conversion and after."""
    expected = fmm.validate(ions.system, ions.positions, tolerance=1e-4)
    ions.nonbonded.setEwaldErrorTolerance(1e-2)
    nonbonded = copy.deepcopy(ions.nonbonded)
    nonbonded.setEwaldErrorTolerance(5e-4)
    for index in range(len(ions.positions)):
        ions.nonbonded.setParticleParameters(index, 0.0, 0.3, 0.1)
    ions.system.addForce(nonbonded)
    for convert in (False, True):
        if convert:
            fmm.use_fmm(ions.system, tolerance=1e-4)
        assert fmm.validate(ions.system, ions.positions, tolerance=1e-4) == expected


def test_exceptions_that_came_too_late(ions):
    """The Coulomb interaction of late exceptions would be in the FMM as well."""
    force = fmm.use_fmm(ions.system)
    ions.nonbonded.addException(2, 0, 0.0, 0.3, 0.0)
    with pytest.raises(
        fmm.UnsupportedError,
        match=r"has an exception for particles 0 and 2, which the FMMForce does not exclude",
    ):
        fmm.validate(ions.system, ions.positions)
    force.addExclusion(0, 2)
    assert fmm.validate(ions.system, ions.positions).passed


def test_offsets_at_their_defaults(ions):
    plain = fmm.validate(ions.system, ions.positions).reference_energy
    ions.nonbonded.addGlobalParameter("a", 2.0)
    ions.nonbonded.addParticleParameterOffset("a", 0, 0.5, 0.0, 0.0)
    ions.nonbonded.setParticleParameters(0, 0.0, 0.3, 0.1)
    assert fmm.validate(ions.system, ions.positions).reference_energy == pytest.approx(
        plain, rel=1e-12
    )


def test_bad_input(ions):
    with pytest.raises(
        ValueError,
        match=r"`reference` must be one of None, 'ewald', 'pme', 'direct', 'nocutoff', got 'truth'",
    ):
        fmm.validate(ions.system, ions.positions, reference="truth")
    with pytest.raises(ValueError, match=r"`positions` must have shape \(n, 3\) with n = 4"):
        fmm.validate(ions.system, ions.positions[:3])
    with pytest.raises(ValueError, match=r"`tolerance`"):
        fmm.validate(ions.system, ions.positions, tolerance=0)
    for option, value in (("bridge", "host"), ("lennard_jones", "openmm")):
        with pytest.raises(
            TypeError,
            match=rf"validate\(\) got an unexpected keyword argument '{option}': its keywords are",
        ):
            fmm.validate(ions.system, ions.positions, **{option: value})
    with pytest.raises(TypeError, match=r"`system` must be an openmm.System"):
        fmm.validate(None, ions.positions)
    with pytest.raises(fmm.UnsupportedError, match=r"it has 0; its forces: no force"):
        fmm.validate(openmm.System(), ions.positions)


@pytest.mark.slow
def test_a_slab_and_pme_with_vacuum(ions):
    """PME's error decays with the vacuum as the dipole layers' interaction does."""
    ions.positions[:, 2] = [0.3, 0.5, 2.9, 0.4]  # the third across the face
    report = fmm.validate(ions.system, ions.positions, boundary="slab", tolerance=1e-6)
    assert report.reference == "an Ewald sum"
    assert report.passed and report.pme.relative_rms_force_error < 1e-3
    report = fmm.validate(ions.system, ions.positions, "pme", boundary="slab", tolerance=1e-6)
    assert report.fmm.relative_rms_force_error < 5e-6 and "with vacuum" in report.reference
    ions.positions[:, 2] += 1.0
    fmm.use_fmm(ions.system, boundary="slab", backend="cpu")
    assert fmm.validate(ions.system, ions.positions).passed


@pytest.mark.parametrize("vacuum", [0.5, 1.0, 1.5])
def test_the_correction_of_a_slab(ions, vacuum):
    """Yeh and Berkowitz's correction of an Ewald sum against the sum over two directions."""
    charges, pairs = charges_and_pairs(ions.nonbonded)
    x, cell = ions.positions, ions.cell
    exact = partial_ewald_sum(x, charges, Boundary.from_name("slab").cell(cell), pairs)
    cell = slab_pme.vacuum_cell(x, cell, vacuum)
    periodic = ewald_sum(x, charges, cell, pairs)
    corrected = ewald_sum(x, charges, cell, pairs, slab_correction=True)
    bound = 20 * np.exp(-2 * np.pi * vacuum)
    assert abs(corrected.energy - exact.energy) <= bound * abs(exact.energy)
    error = np.linalg.norm(corrected.forces - exact.forces)
    assert error <= bound * np.linalg.norm(exact.forces)
    assert np.linalg.norm(periodic.forces - exact.forces) > 2 * error


def test_the_boundary_of_a_validation(ions):
    with pytest.raises(ValueError, match="`boundary='open'` does not fit a System"):
        fmm.validate(ions.system, ions.positions, boundary="open")
    with pytest.raises(ValueError, match="`reference` must be 'ewald' with the wire boundary"):
        fmm.validate(ions.system, ions.positions, "pme", boundary="wire")
