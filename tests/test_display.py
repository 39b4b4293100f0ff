"""What objects look like at a prompt and in a notebook, and what a module lists."""

from xml.etree import ElementTree

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from tests.convert.small_water import small_water


@pytest.fixture(scope="module")
def charges():
    return fmm.ChargeSystem.from_openmm(*small_water()[1:])


def text_of(html):
    """The cells of a table, row by row, of HTML that is well formed."""
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_solver_and_parameters(charges):
    solver = charges.solver(tolerance=1e-3, order=6, grid=(4, 4, 4), backend="cpu")
    p = solver.parameters
    shown = (
        f"order 6, near radius {p.near_radius:g}, grid 4 x 4 x 4, smoothing {p.smoothing:g}, "
        f"precision single, expected error {p.expected_error:.1e}"
    )
    assert repr(p) == f"FMMParameters({shown})"
    assert repr(solver) == (
        f"CoulombSolver(768 particles, {len(charges.exclusions)} exclusions, periodic, "
        f"tolerance 0.001, backend 'cpu', FMMParameters({shown}))"
    )
    assert text_of(p._repr_html_()) == [
        ["order", "6"],
        ["near radius", f"{p.near_radius:g}"],
        ["grid", "4 x 4 x 4"],
        ["smoothing", f"{p.smoothing:g}"],
        ["precision", "single"],
        ["expected error", f"{p.expected_error:.1e}"],
    ]


def test_parameters_of_levels_and_of_a_skewed_grid():
    grid = ((2, 0, 0), (0, 2, 0), (1, 1, 2))
    p = fmm.FMMParameters(4, 1.75, grid, 0.0, 2, "double", 1e-3, "rotation")
    assert repr(p) == (
        "FMMParameters(order 4, near radius 1.75, grid [[2, 0, 0], [0, 2, 0], [1, 1, 2]], "
        "smoothing 0, levels 2, m2l rotation, precision double, expected error 1.0e-03)"
    )


def test_a_solver_in_free_space_before_its_first_evaluation():
    solver = fmm.CoulombSolver([1.0, -1.0], None, boundary="open", backend="cpu")
    assert repr(solver) == (
        "CoulombSolver(2 particles, 0 exclusions, open, tolerance 0.0005, backend 'cpu', "
        "parameters not chosen yet)"
    )
    positions = [[0.0, 0, 0], [0.3, 0, 0]]
    direct = fmm.CoulombSolver([1.0, -1.0], None, boundary="open", method="direct", backend="cpu")
    result = direct.compute(positions)
    force = abs(result.forces[0, 0])
    assert repr(result) == (
        f"CoulombResult(2 particles, energy {result.energy:.6f} kJ/mol, "
        f"RMS force {force:.4g} kJ/mol/nm)"
    )
    assert "SumParameters(method='direct'" in repr(direct)


def test_a_result_on_the_device():
    """The repr shows no numbers, which would wait for the device."""
    arrays = np.zeros((1,)), np.zeros((4, 3)), np.zeros(4), np.zeros((4, 3))
    assert repr(fmm.CoulombResult(*arrays)) == "CoulombResult(4 particles, on the GPU)"


def test_force():
    """Shown before and after a System owns it; the C++ object is not built for it."""
    force = fmm.FMMForce(1e-5, order=9, backend="cpu")
    for charge in 1.0, -1.0:
        force.addParticle(charge)
    force.addExclusion(0, 1)
    shown = "FMMForce(2 particles, 1 exclusions, periodic, tolerance 1e-05, order 9, backend 'cpu')"
    assert repr(force) == shown
    assert "this" not in vars(force)
    system = openmm.System()
    system.addForce(force)
    assert repr(force) == repr(fmm.find_fmm(system)[0]) == shown


@pytest.mark.slow
def test_report(charges):
    _, system, positions = small_water()
    report = fmm.validate(system, positions, backend="cpu")
    line = repr(report)
    assert line.startswith("ValidationReport(768 particles, FMM 0.0005: relative RMS force error ")
    assert line.endswith(", passed)") and "PME 0.0005: " in line and "\n" not in line
    assert str(report) == report.summary()
    header, first, second = text_of(report._repr_html_())
    assert header[0] == "" and (first[0], second[0]) == ("FMM 0.0005", "PME 0.0005")
    assert float(first[1]) == pytest.approx(report.energy, abs=1e-6)
    assert "FMM meets its tolerance of 0.0005" in report._repr_html_()
    for each in report.methods:
        exact = each.relative_rms_force_error
        assert each.force_errors.shape == (768,)
        assert each.force_errors.max() == each.max_force_error
        scale = np.linalg.norm(each.force_errors) / exact  # the norm of the exact forces
        assert scale == pytest.approx(
            np.linalg.norm(report.fmm.force_errors) / report.fmm.relative_rms_force_error
        )
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = report.plot(figure.add_subplot())
    counted = [patch.get_path().vertices for patch in axes.patches]
    assert len(counted) == 2
    assert axes.get_xscale() == "log" and "kJ/mol/nm" in axes.get_xlabel()
    labels = [entry.get_text() for entry in axes.get_legend().get_texts()]
    assert sorted(labels) == ["FMM 0.0005", "PME 0.0005"]


def test_a_report_without_errors_is_drawn():
    """Every error of a single particle in free space is zero."""
    system, force = openmm.System(), openmm.NonbondedForce()
    system.addParticle(1.0)
    force.addParticle(1.0, 1.0, 0.0)
    system.addForce(force)
    report = fmm.validate(system, [[0.0, 0, 0]])
    assert report.fmm.force_errors.tolist() == [0.0]
    figure = pytest.importorskip("matplotlib.figure").Figure()
    assert not report.plot(figure.add_subplot()).patches


@pytest.mark.slow
def test_plot_makes_axes_of_its_own(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    _, system, positions = small_water()
    axes = fmm.validate(system, positions, tolerance=1e-2, backend="cpu").plot()
    assert axes.figure.number in pyplot.get_fignums()
    pyplot.close(axes.figure)


def test_dir_of_a_force_has_public_names_alone():
    names = dir(fmm.FMMForce())
    assert {"addParticle", "getPotentialsInContext", "setForceGroup"} <= set(names)
    assert not [name for name in names if name.startswith("_") or name in ("this", "thisown")]


def test_dir_has_public_names_alone():
    assert sorted([*fmm.__all__, "__version__"]) == dir(fmm)
    assert all(getattr(fmm, name) for name in dir(fmm))
