"""The calculator of ASE: energies, forces and stresses in ASE's units, in cells of any
orientation."""

import runpy
import subprocess
import sys

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm import oriented
from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.oracle import direct_sum, ewald_sum, partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.docs.pages import ROOT

ase = pytest.importorskip("ase", reason="needs ASE: pip install 'fmm_openmm[ase]'")

from ase import units  # noqa: E402
from ase.build import bulk, molecule  # noqa: E402
from ase.calculators.calculator import PropertyNotImplementedError  # noqa: E402
from ase.calculators.fd import (  # noqa: E402
    calculate_numerical_forces,
    calculate_numerical_stress,
)
from ase.calculators.mixing import SumCalculator  # noqa: E402
from ase.filters import FrechetCellFilter  # noqa: E402
from ase.optimize import BFGS  # noqa: E402

from fmm_openmm.ase import FMMCalculator  # noqa: E402

KE = units.Hartree * units.Bohr  # Coulomb constant, eV A
EXACT = {"tolerance": 1e-10, "precision": "double", "backend": "cpu"}
GRADIENT = np.array([[1.04, 0.10, -0.07], [0.05, 0.93, 0.12], [-0.11, 0.02, 1.01]])
"""Turns, shears and stretches a cell."""

born_mayer = runpy.run_path(str(ROOT / "examples" / "born_mayer.py"))
BornMayer = born_mayer["BornMayer"]


def salt(gradient=GRADIENT, left_handed=False):
    """Eight ions, displaced, in a cell of any shape."""
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.set_initial_charges([1.0, -1.0] * 4)
    atoms.rattle(0.2, seed=1)
    cell = atoms.cell.array @ gradient
    atoms.set_cell(cell, scale_atoms=True)
    if left_handed:
        atoms.set_cell(cell * [[1], [-1], [1]])
    return atoms


def water():
    """A molecule in free space with charges of SPC/E; nothing is excluded."""
    atoms = molecule("H2O")
    atoms.set_initial_charges([-0.8476, 0.4238, 0.4238])
    return atoms


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pbc", "left_handed"),
    [
        ((True, True, True), False),
        ((True, True, True), True),
        ((True, False, True), False),
        ((False, True, False), True),
    ],
)
def test_forces_and_stress_are_derivatives_of_the_energy(pbc, left_handed):
    atoms = salt(left_handed=left_handed)
    atoms.pbc = pbc
    atoms.calc = FMMCalculator(**EXACT)
    stress, forces = atoms.get_stress(), atoms.get_forces()
    assert relative(calculate_numerical_stress(atoms, eps=1e-5), stress) < 1e-6
    assert relative(calculate_numerical_forces(atoms, eps=1e-4), forces) < 1e-6


@pytest.mark.parametrize("left_handed", [False, True])
def test_any_cell_against_an_ewald_sum(left_handed):
    """The sum is of the same crystal, rotated by a QR decomposition."""
    atoms = salt(left_handed=left_handed)
    atoms.calc = FMMCalculator(tolerance=1e-8)
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    rotation, triangle = np.linalg.qr(atoms.cell.array.T)
    rotation *= np.sign(np.diag(triangle))
    found = ewald_sum(
        atoms.positions @ rotation / 10,
        atoms.get_initial_charges(),
        np.tril(atoms.cell.array @ rotation) / 10,
    )
    to_ev = KE / 10 / COULOMB_CONSTANT
    assert energy == pytest.approx(to_ev * found.energy, rel=1e-8)
    assert relative(forces @ rotation, to_ev / 10 * found.forces) < 1e-8


@pytest.mark.slow
def test_the_results_fit_each_other():
    atoms = salt()
    atoms.calc = FMMCalculator(**EXACT)
    charges = atoms.get_initial_charges()
    energy, results = atoms.get_potential_energy(), atoms.calc.results
    assert atoms.calc.get_property("free_energy") == energy
    assert 0.5 * charges @ results["potentials"] == pytest.approx(energy, rel=1e-12)
    np.testing.assert_allclose(results["forces"], charges[:, None] * results["fields"], rtol=1e-12)
    np.testing.assert_array_equal(atoms.get_charges(), charges)
    stress = atoms.get_stress(voigt=False)
    assert -np.trace(stress) * atoms.get_volume() == pytest.approx(energy, rel=1e-6)
    exported = atoms.calc.export_properties()
    assert {"energy", "forces", "stress", "charges"} <= set(exported)


def test_free_space_with_exclusions():
    atoms = water()
    atoms.calc = FMMCalculator(exclusions=[(0, 1), (0, 2)], **EXACT)
    q, (_, a, b) = atoms.get_initial_charges(), atoms.positions
    expected = KE * q[1] * q[2] / np.linalg.norm(a - b)
    assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(PropertyNotImplementedError, match="`stress` needs a cell that spans"):
        atoms.get_stress()
    atoms.set_cell([4.0, 5.0, 6.0])
    stress = atoms.get_stress()
    assert relative(calculate_numerical_stress(atoms, eps=1e-5), stress) < 1e-6


def test_free_space_against_all_pairs():
    atoms = salt()
    atoms.pbc = False
    atoms.calc = FMMCalculator(tolerance=1e-8)
    found = direct_sum(atoms.positions / 10, atoms.get_initial_charges())
    expected = KE / 10 / COULOMB_CONSTANT * found.energy
    assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-8)


def test_exclusions_are_those_at_creation():
    """Also for a new number of atoms, which needs another solver."""
    pairs = [(0, 1), (2, 3)]
    one, two = salt(), salt() * (2, 1, 1)
    exact = FMMCalculator(exclusions=tuple(pairs), tolerance=1e-8)
    expected = [exact.get_potential_energy(atoms) for atoms in (one, two)]
    calculator = FMMCalculator(exclusions=pairs, tolerance=1e-8)
    found = [calculator.get_potential_energy(one)]
    pairs.clear()
    assert [*found, calculator.get_potential_energy(two)] == pytest.approx(expected, rel=1e-8)


def test_exclusions_at_the_nearest_image():
    atoms = salt()
    atoms.calc = FMMCalculator(exclusions=[(0, 1)], **EXACT)
    energy = atoms.get_potential_energy()
    atoms.positions[1] += 2 * atoms.cell[0] - atoms.cell[2]
    assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-10)


def test_a_solver_is_kept(monkeypatch):
    made = []

    class Counted(fmm.CoulombSolver):
        def __init__(self, *arguments, **options):
            made.append(options)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(oriented, "CoulombSolver", Counted)
    atoms = salt()
    atoms.calc = FMMCalculator(tolerance=1e-8)
    energy = atoms.get_potential_energy()
    atoms.set_cell(1.1 * atoms.cell, scale_atoms=True)
    assert atoms.get_potential_energy() == pytest.approx(energy / 1.1, rel=1e-8)
    atoms.set_initial_charges(2 * atoms.get_initial_charges())
    assert atoms.get_potential_energy() == pytest.approx(4 * energy / 1.1, rel=1e-8)
    assert len(made) == 1
    atoms.pbc = False
    atoms.get_forces()
    assert len(made) == 2


def test_beside_another_calculator():
    atoms, repulsion = salt(), BornMayer()
    coulomb = FMMCalculator(tolerance=1e-8)
    atoms.calc = SumCalculator([coulomb, repulsion])
    parts = [calculator.get_property("forces", atoms) for calculator in (coulomb, repulsion)]
    np.testing.assert_allclose(atoms.get_forces(), sum(parts), rtol=1e-12)


@pytest.mark.slow
def test_a_strained_crystal_relaxes_to_its_lattice_constant():
    atoms = bulk("NaCl", "rocksalt", a=5.64)
    atoms.set_cell(atoms.cell.array @ (0.3 * GRADIENT + 0.7 * np.eye(3)), scale_atoms=True)
    repulsion = BornMayer()
    atoms.calc = SumCalculator([FMMCalculator(charges=[1, -1], tolerance=1e-6), repulsion])
    assert BFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=2e-4, steps=60)
    edge = repulsion.lattice_constant()
    np.testing.assert_allclose(atoms.cell.lengths(), edge / 2**0.5, rtol=2e-4)
    np.testing.assert_allclose(atoms.cell.angles(), 60.0, rtol=2e-4)


def test_some_directions():
    """Atoms that are periodic along a and c, whatever the vector b is."""
    atoms = salt()
    atoms.rattle(0.05, seed=1)
    atoms.pbc = (True, False, True)
    atoms.calc = FMMCalculator(tolerance=1e-7)
    forces = atoms.get_forces()
    cell = np.where(atoms.pbc[:, None], atoms.cell.array * 0.1, EMPTY_SPACE)
    charges = atoms.get_initial_charges()
    exact = partial_ewald_sum(atoms.positions * 0.1, charges, cell).forces
    assert relative(forces, exact * KE / COULOMB_CONSTANT * 0.01) < 1e-7
    atoms.cell[1] = 0.0
    assert relative(atoms.get_forces(), forces) < 1e-7


@pytest.mark.parametrize("left_handed", [False, True])
def test_a_charged_slab_between_sheets(left_handed):
    """Atoms that are periodic along b and c; heights along the normal towards x."""
    atoms = salt(left_handed=left_handed)
    charges = atoms.get_initial_charges() + 0.1
    atoms.pbc = (False, True, True)
    atoms.calc = FMMCalculator(charges, tolerance=1e-8, neutralization=[-12.0, 15.0])
    forces, energy = atoms.get_forces(), atoms.get_potential_energy()
    _, b, c = atoms.cell.array / 10
    normal = np.cross(b, c) * (-1 if left_handed else 1)
    assert normal[0] > 0
    u, v = b / np.linalg.norm(b), normal / np.linalg.norm(normal)
    axes = np.stack([u, np.cross(v, u), v], 1)
    box = np.array([b @ axes, c @ axes * np.sign(c @ axes[:, 1]), [0.0, 0.0, 1.0]])
    box[1] -= np.rint(box[1, 0] / box[0, 0]) * box[0]
    box[abs(box) < 1e-12] = 0.0
    solver = fmm.CoulombSolver(
        charges, box, None, 1e-8, "slab", neutralization=[-1.2, 1.5], backend="cpu"
    )
    expected = solver.compute(atoms.positions @ axes / 10)
    to_ev = KE / 10 / COULOMB_CONSTANT
    assert energy == pytest.approx(to_ev * expected.energy, rel=1e-8)
    assert relative(forces @ axes, to_ev / 10 * expected.forces) < 1e-7


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_charged_wire_that_turns_within_cylinders(axis):
    """Against the solver of a wire, whatever direction it has."""
    vectors = np.array([[1.0, 0.1, 0.2], [0.3, 1.0, 0.2], [-0.2, 0.1, 1.0]])
    tubes = [[1.0, 2.0, -3.0, 20.0], [0.0, 1.0, 4.0, 0.0]]
    atoms = salt()
    atoms.pbc = np.arange(3) == axis
    charges = atoms.get_initial_charges() + 0.1
    atoms.calc = FMMCalculator(charges, tolerance=1e-8, neutralization=tubes)
    to_ev = KE / 10 / COULOMB_CONSTANT
    for tilt in (0.0, 1e-3, 0.2):
        atoms.cell[axis] = 6.0 * vectors[axis] + tilt
        expected = fmm.CoulombSolver(
            charges,
            np.diag([1.0, 1.0, 0.0]) + np.outer([0, 0, 1], atoms.cell[axis] / 10),
            None,
            1e-8,
            "wire",
            neutralization=np.array(tubes) / 10,
        ).compute(atoms.positions / 10)
        assert relative(atoms.get_forces(), to_ev / 10 * expected.forces) < 1e-7
        assert atoms.get_potential_energy() == pytest.approx(to_ev * expected.energy, rel=1e-8)


def test_parameters_are_those_at_creation():
    """ASE's own ``set`` would keep new ones and go on with the old."""
    with pytest.raises(TypeError, match=r"`set` cannot change charges, tolerance: make another"):
        FMMCalculator([1.0, -1.0]).set(charges=[2.0, -2.0], tolerance=1e-3)


def test_what_is_refused():
    atoms = bulk("NaCl", "rocksalt", a=5.64)
    atoms.calc = FMMCalculator()
    with pytest.raises(ValueError, match="`atoms` has no charges: pass `charges`"):
        atoms.get_potential_energy()
    atoms.calc = FMMCalculator(charges=[1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match=r"shape \(n,\) with n = 2 \(from `atoms`\), got \(3,\)"):
        atoms.get_potential_energy()
    atoms.calc = FMMCalculator(charges=[1.0, -1.0])
    atoms.set_cell([[1, 0, 0], [1, 0, 0], [0, 0, 1]])
    with pytest.raises(ValueError, match="`cell` must be finite and span a volume"):
        atoms.get_potential_energy()
    atoms = salt()
    atoms.calc = FMMCalculator(neutralization=[1.0])
    with pytest.raises(fmm.UnsupportedError, match="`neutralization` needs `boundary='slab'`"):
        atoms.get_potential_energy()
    atoms.pbc = (True, True, False)
    atoms.set_cell([[0, 6, 0], [0, 0, 6], [6, 0, 0]])
    with pytest.raises(fmm.UnsupportedError, match="whose normal is not perpendicular to z"):
        atoms.get_potential_energy()
    with pytest.raises(ValueError, match="`neutralization` must be an array of real numbers"):
        FMMCalculator(neutralization="walls")
    with pytest.raises(ValueError, match="`tolerance` must lie between"):
        FMMCalculator(tolerance=2.0)
    with pytest.raises(ValueError, match="`exclusions` must be integer pairs of shape"):
        FMMCalculator(exclusions=[0, 1])
    with pytest.raises(ValueError, match="`backend` must be one of"):
        FMMCalculator(backend="gpu")
    with pytest.raises(TypeError, match="did you mean `tolerance`"):
        FMMCalculator(tolerence=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ase"])
def test_a_missing_package_is_one_line(module):
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"try:\n    import fmm_openmm.{module}\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith(f"{module} is needed here: pip install 'fmm_openmm[{module}]'")
    assert done.stdout.count("\n") == 1
