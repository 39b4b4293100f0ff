"""The virial of the CUDA pipeline on the host, through ``tests/emulator``, against the reference
backend. Needs no GPU."""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.pipeline.virial import operator_program, strained
from fmm_openmm.backends.cuda.program import SETUP, Device
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.box import BoxLattice, PaddedLattice, box_width, counts_matrix
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.expansions.operators.derivatives import GENERATORS
from fmm_openmm.specification import Specification
from fmm_openmm.units import COULOMB_CONSTANT
from tests.compiler import COMPILER
from tests.emulator import DEVICE, EmulatedStages, Emulator, fill_derivatives
from tests.support.strains import deformation

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

SKEWED = np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]])
CELLS = {
    "cube": (np.eye(3) * 3.0, (6, 6, 6)),
    "skewed": (SKEWED, [[6, 0, 0], [1, 5, 0], [-2, 2, 5]]),
    "cuboid": (np.diag([3.0, 2, 1]), (9, 6, 3)),
    "one box": (np.diag([3.0, 1, 1]), (1, 1, 1)),
}


def lattice_of(cell):
    vectors, grid = CELLS[cell]
    counts = counts_matrix(grid)
    return BoxLattice.from_cell(vectors, counts, 2.0), box_width(vectors, counts)


def particles_in(low, high, n=150):
    rng = np.random.default_rng(3)
    pairs = np.sort(rng.integers(0, n, (n, 2)), 1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return rng.uniform(low, high, (n, 3)), rng.normal(size=n), pairs


def check(lattice, width, particles, order, smoothing, minimum_image, dtype, folder, device=DEVICE):
    """Results and virial equal those of the reference backend, and repeat bit by bit."""
    positions, charges, pairs = particles
    wanted = Specification(lattice, order, smoothing, charges, pairs, minimum_image, dtype)
    potentials, fields, work = ReferenceStages(wanted).evaluate_with_virial(positions, width)
    stages = EmulatedStages(wanted, folder, device=device, with_virial=True)
    fill_derivatives(stages.buffers["operator_derivatives"], lattice, order, folder)
    found = stages.evaluate(positions, width)
    accuracy = 1e-12 if dtype == np.float64 else 2e-5
    for a, b in zip(found, (potentials, fields), strict=True):
        assert np.linalg.norm(a - b) <= accuracy * np.linalg.norm(b)
    virial, energy = stages.buffers["virial"], 0.5 * charges @ potentials
    expected = (work + np.eye(3) * energy / 3) * COULOMB_CONSTANT / width
    # mirror images of differences of operators agree to the rounding of these over their step
    assert np.abs(virial - expected).max() <= max(accuracy, 1e-11) * np.abs(expected).max()
    assert np.array_equal(virial, virial.T)
    again = virial.copy()
    stages.evaluate(positions, width, set_up=False)
    assert np.array_equal(virial, again)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "dtype", "order", "smoothing", "minimum_image"),
    [
        ("cube", np.float64, 5, 0.1, True),
        ("skewed", np.float64, 4, 0.0, True),
        ("skewed", np.float32, 3, 0.1, False),
        ("cuboid", np.float64, 3, 0.05, False),
        ("one box", np.float64, 3, 0.1, False),
    ],
)
def test_agrees_with_the_reference_backend(cell, dtype, order, smoothing, minimum_image, folder):
    lattice, width = lattice_of(cell)
    check(lattice, width, particles_in(-2, 3), order, smoothing, minimum_image, dtype, folder)


@pytest.mark.parametrize("span", [(5, 4, 6), (1, 1, 1)])
def test_agrees_in_empty_space(span, folder):
    lattice = PaddedLattice(np.array(span), 2.0)
    particles = particles_in(0.15, np.array(span) - 0.35)
    check(lattice, 1.0, particles, 4, 0.05, False, np.float64, folder)


@pytest.mark.parametrize("padded", [(False, False, True), (False, True, True)])
def test_agrees_in_slabs_and_wires(padded, folder):
    span = np.array([4, 3, 5])
    cell = np.where(np.array(padded)[:, None], EMPTY_SPACE, np.diag(span))
    lattice = PaddedLattice(span, 2.0, cell=cell, padded=padded)
    particles = particles_in(0.15, span - 0.35)
    check(lattice, 1.0, particles, 3, 0.05, True, np.float64, folder)


@pytest.mark.slow
def test_a_crowd_in_one_box(folder):
    """More particles than a batch or a window holds, and empty boxes."""
    positions, charges, pairs = particles_in(0, 0.2, n=700)
    sites = np.stack(np.unravel_index(np.arange(700), (9, 9, 9)), -1)
    positions = 0.2 + 0.025 * sites + 0.01 * positions
    lattice = BoxLattice.from_cell(np.eye(3) * 3.0, counts_matrix((5, 4, 4)), 1.8)
    width = box_width(np.eye(3) * 3.0, counts_matrix((5, 4, 4)))
    system = positions, charges, pairs
    check(lattice, width, system, 3, 0.0, False, np.float64, folder)


@pytest.mark.slow
def test_with_little_shared_memory(folder):
    """Fewer wave vectors in a block."""
    lattice, width = lattice_of("skewed")
    system, device = particles_in(-2, 3), Device(4, 2048)
    check(lattice, width, system, 1, 0.0, False, np.float64, folder, device)


@pytest.mark.parametrize("cell", CELLS)
def test_operators_of_strained_cells(cell, folder):
    """One program builds them all, from a strained cell as well."""
    lattice, _ = lattice_of(cell)
    order = 3
    emulator = Emulator(operator_program(lattice, order, DEVICE), folder)
    change = deformation(np.array([[1.0, 0, 0], [1, -1, 0], [-1, 1, 1]]))
    moved = lattice.strained(lattice.cell @ change)
    for base, sign in ((lattice, 1.0), (lattice, -1.0), (moved, 1.0)):
        wanted = strained(base, GENERATORS[3], sign)
        emulator.buffers["parameters"][...] = parameter_block(wanted, 1.0)
        emulator.run([SETUP])
        expected = lattice_operator(wanted, order)
        found = emulator.buffers["operator"] * lattice.size
        assert np.abs(found - expected).max() <= 3e-13 * np.abs(expected).max()
