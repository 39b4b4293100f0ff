"""Identities of crystals, and symmetries that energies and forces have."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.crystals import CRYSTALS
from tests.support.cells import DODECAHEDRON, OCTAHEDRON
from tests.support.charges import SKEWED, relative
from tests.support.solvers import BACKENDS, MIXED, scattered, solve

# of low orders, which are asked for
pytestmark = pytest.mark.filterwarnings("ignore:`tolerance=0.0005` is out of reach")


@pytest.mark.parametrize("name", CRYSTALS)
def test_madelung(name):
    crystal = CRYSTALS[name]
    result = solve(crystal.positions, crystal.charges, crystal.box_vectors, tolerance=1e-10)
    assert result.energy == pytest.approx(crystal.energy, rel=max(crystal.digits, 1e-9)), (
        crystal.origin
    )
    # which is polar; elsewhere symmetry leaves no field at any ion
    if not name.startswith("wurtzite"):
        assert np.abs(result.fields).max() < 1e-7 * COULOMB_CONSTANT / crystal.distance**2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CRYSTALS if name + "_primitive" in CRYSTALS])
def test_primitive_cell_conventional_cell_and_supercell_agree(name):
    cells = [CRYSTALS[name], CRYSTALS[name].supercell(2, 1, 3), CRYSTALS[name + "_primitive"]]
    cells.append(cells[-1].supercell(3, 3, 3))
    energies = [
        solve(c.positions, c.charges, c.box_vectors, tolerance=1e-10).energy / c.units
        for c in cells
    ]
    np.testing.assert_allclose(energies, energies[0], rtol=1e-9)


@pytest.fixture(params=BACKENDS)
def base(request):
    """Scattered charges at a loose tolerance: what is exact must be exact there too."""
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, tolerance=1e-3, precision="double", backend=request.param)
    return x, q, solver, solver.compute(x)


@pytest.mark.parametrize("boxes", [1, 1000])
def test_lattice_translations_of_single_particles(base, boxes):
    """Wrapped or not is all the same, as long as nothing is excluded."""
    x, _, solver, result = base
    shifts = np.random.default_rng(1).integers(-boxes, boxes + 1, x.shape)
    moved = solver.compute(x + shifts @ SKEWED)
    assert relative(moved.forces, result.forces) < 1e-12 * boxes + 1e-11
    assert moved.energy == pytest.approx(result.energy, rel=1e-11)


def test_permutation(base):
    x, q, solver, result = base
    order = np.random.default_rng(1).permutation(len(x))
    solver.set_charges(q[order])
    shuffled = solver.compute(x[order])
    assert relative(shuffled.forces, result.forces[order]) < 1e-12
    assert relative(shuffled.potentials, result.potentials[order]) < 1e-12


@pytest.mark.parametrize("exclusions", [None, MIXED], ids=["free", "excluded"])
def test_translation(exclusions):
    """Through the boxes: to the tolerance."""
    x, q = scattered()
    solver = CoulombSolver(q, SKEWED, exclusions, tolerance=1e-8)
    result = solver.compute(x)
    for shift in ([0.1, 0.2, 0.3], [-7.7, 0.0, 12.3]):
        assert relative(solver.compute(x + shift).forces, result.forces) < 2e-8


@pytest.mark.parametrize("tolerance", [1e-5, 1e-9])
def test_the_whole_system_far_away(tolerance):
    """At 3e6 nm float64 resolves 5e-10 nm; the answer is that for the
    coordinates as rounded there."""
    x, q = scattered()
    shift = np.array([3e6, -3e6, 3e6])
    far = x + shift
    solver = CoulombSolver(q, SKEWED, MIXED, tolerance=tolerance)
    rounded = ewald_sum(far - shift, q, SKEWED, MIXED)
    assert relative(solver.compute(far).forces, rounded.forces) < tolerance + 1e-8


@pytest.mark.parametrize(
    "rotation",
    [[[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], np.diag([-1, 1, 1])],
    ids=str,
)
def test_rotation_by_a_symmetry_of_the_cell(rotation):
    cell = 2.2 * np.eye(3)
    x, q = scattered(60, cell)
    solver = CoulombSolver(q, cell, MIXED, tolerance=1e-8)
    result, rotated = solver.compute(x), solver.compute(x @ rotation)
    assert relative(rotated.forces, result.forces @ rotation) < 2e-8
    assert rotated.energy == pytest.approx(result.energy, rel=2e-8)


@pytest.mark.parametrize(
    "cell",
    [SKEWED, 2.2 * DODECAHEDRON, 2.2 * OCTAHEDRON],
    ids=["skewed", "dodecahedron", "octahedron"],
)
def test_grid_order_radius_and_smoothing_do_not_matter(cell):
    x, q = scattered(60, cell, net=1.0)
    chosen = solve(x, q, cell, MIXED, tolerance=1e-9)
    for options in (
        dict(grid=(1, 1, 1), order=14, near_radius=3.8),
        dict(grid=(4, 4, 4), order=16, near_radius=3.5),
        dict(grid=[[3, 0, 0], [1, 3, 0], [-1, 1, 4]], order=15, near_radius=4.0, smoothing=0.0),
        dict(grid=(2, 3, 4), order=15, near_radius=4.5, smoothing=0.2),
    ):
        other = solve(x, q, cell, MIXED, precision="double", **options)
        assert relative(other.forces, chosen.forces) < 1e-7
        assert other.energy == pytest.approx(chosen.energy, rel=1e-8)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_error_falls_with_the_order(smoothing):
    """The error falls by the same factor at each step, down to rounding."""
    x, q = scattered()
    expected, errors = ewald_sum(x, q, SKEWED).forces, []
    for order in range(2, 13, 2):
        options = dict(
            order=order, near_radius=2.5, grid=(4, 4, 4), smoothing=smoothing, precision="double"
        )
        errors.append(relative(solve(x, q, SKEWED, **options).forces, expected))
    ratios = np.divide(errors[1:], errors[:-1])
    assert (ratios > 0.03).all() and (ratios < 0.4).all()
