"""The lattice operator built on the GPU against ``lattice_operator``; needs an NVIDIA GPU."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.harmonics import degrees
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.specification import Specification

try:
    CudaEvaluator = backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)

import cupy

from fmm_openmm.backends.cuda.execute.cupy.executor import allocated, bound
from fmm_openmm.backends.cuda.execute.cupy.loader import load
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.setup_tables import mirrored
from fmm_openmm.backends.cuda.program import SETUP, Device

pytestmark = pytest.mark.gpu

CUBE = np.eye(3)
OBLIQUE = np.array([[1.0, 0, 0], [0.05, 1.1, 0], [-0.03, 0.07, 0.95]])
LATTICES = {
    "cube": (np.diag([6, 6, 6]), CUBE),
    "cuboid": (np.diag([4, 5, 7]), np.diag([1.0, 1.1, 0.95])),
    "oblique": (np.diag([4, 5, 6]), OBLIQUE),
    "long": (np.diag([9, 1, 2]), OBLIQUE),
    "one": (np.diag([1, 1, 1]), OBLIQUE),
    "dodecahedron": (np.array([[4, 0, 0], [0, 4, 0], [2, 2, 3]]), CUBE),
    "skewed": (np.array([[5, 0, 0], [2, 4, 0], [-2, 1, 3]]), OBLIQUE),
    "sheared": (np.array([[27, 0, 0], [4, 5, 0], [-7, -2, 7]]), OBLIQUE),
}
ACCURACY = {np.float32: 1e-6, np.float64: 1e-12}


def lattice_of(counts, boxes, radius):
    return BoxLattice.from_cell(counts @ boxes, counts, radius)


NOTHING = np.ones(2), np.zeros((0, 2), np.int64), False


def set_up(lattice, order, dtype):
    """The operator, after the setup steps alone: the stages would take time to compile, and
    perhaps too much shared memory."""
    program = build(Specification(lattice, order, 0.0, *NOTHING, dtype), Device(1, 2**18))
    names = [name for name, kernel in program.kernels.items() if kernel.file == SETUP]
    kernels = {name: load(SETUP, program.macros).get_function(name) for name in names}
    buffers = allocated(program, {}) | {"parameters": cupy.asarray(parameter_block(lattice, 1.0))}
    for step in program.steps_of(SETUP):
        bound(step, program, kernels, buffers, {})()
    return buffers["operator"].get().astype(np.float64) * lattice.size


def adopts(stages, lattice, order, smoothing, dtype):
    return stages.adopt(Specification(lattice, order, smoothing, *NOTHING, dtype))


def stages_of(lattice, order, dtype):
    return CudaEvaluator(Specification(lattice, order, 0.0, *NOTHING, dtype))


def operator_of(stages):
    stages.compute(cupy.asarray([[0.1, 0.2, 0.3], [0.4, 0.6, 0.5]]), 1.0)
    return stages.run.buffers["operator"].get().astype(np.float64) * stages.lattice.size


def assert_equal(found, lattice, order, accuracy):
    """Relative to each degree's largest entry, or to S of the nearest far boxes where these
    cancel by symmetry."""
    expected = lattice_operator(lattice, order, octant=mirrored(lattice)).reshape(len(found), -1)
    found = found.reshape(expected.shape)
    l = np.arange(2 * order + 1)
    around = np.stack(np.meshgrid(*3 * [np.arange(-8, 9)], indexing="ij"), -1).reshape(-1, 3)
    reach = np.linalg.norm(around[~lattice.is_near(around)] @ lattice.boxes, axis=1).min()
    scale = np.cumprod(np.maximum(1.0, 2 * l - 1.0)) / reach ** (l + 1)
    largest = np.array([np.abs(expected[degrees(2 * order) == k]).max() for k in l])
    error = np.abs(found - expected).max(1) / np.maximum(scale, largest)[degrees(2 * order)]
    assert error.max() < accuracy


@pytest.mark.parametrize(
    ("order", "radius", "dtype"),
    [
        (6, 1.87, np.float32),
        (9, 4.18, np.float32),
        (11, 2.91, np.float64),
        (20, 2.64, np.float64),
    ],
)
@pytest.mark.parametrize("name", LATTICES)
def test_equals_the_definition(name, order, radius, dtype):
    lattice = lattice_of(*LATTICES[name], radius)
    assert_equal(set_up(lattice, order, dtype), lattice, order, ACCURACY[dtype])


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("radius", [1.0, 2.34, 3.53, 4.64])
@pytest.mark.parametrize("order", [1, 2, 5, 10])
def test_equals_the_definition_for_all_radii(order, radius, dtype):
    lattice = lattice_of(*LATTICES["skewed"], radius)
    assert_equal(set_up(lattice, order, dtype), lattice, order, ACCURACY[dtype])


def stretched(boxes, largest):
    return boxes * (1 + largest * np.array([0.9, -0.9, 0.5]))


def deformed(boxes, largest):
    return boxes + largest * np.array([[0.9, 0, 0], [-0.9, -0.8, 0], [0.9, 0.9, 0.9]])


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("name", ["cuboid", "oblique", "one", "skewed"])
def test_another_shape_is_adopted(name, dtype):
    counts, boxes = LATTICES[name]
    first = lattice_of(counts, boxes, 2.64)
    stages = stages_of(first, 6, dtype)
    operator_of(stages)
    change = stretched if name == "cuboid" else deformed
    for largest in (0.002, 0.0):
        other = lattice_of(counts, change(boxes, largest), 2.64)
        assert adopts(stages, other, 6, 0.0, dtype)
        assert_equal(operator_of(stages), other, 6, ACCURACY[dtype])
        np.testing.assert_allclose(
            np.sort(stages.run.buffers["shifts"].get()[:, :3], 0),
            np.sort(other.near @ other.boxes, 0),
            rtol=0,
            atol=1e-6,
        )


def test_only_what_fits_is_adopted():
    counts, boxes = LATTICES["skewed"]
    lattice = lattice_of(counts, boxes, 2.64)
    stages = stages_of(lattice, 6, np.float32)
    assert not adopts(stages, lattice, 5, 0.0, np.float32)
    assert not adopts(stages, lattice, 6, 0.1, np.float32)
    assert not adopts(stages, lattice, 6, 0.0, np.float64)
    assert not adopts(stages, lattice_of(counts, boxes, 2.91), 6, 0.0, np.float32)
    assert not adopts(stages, lattice_of(counts, deformed(boxes, 0.15), 2.64), 6, 0.0, np.float32)
    assert not adopts(
        stages, lattice_of(counts + np.diag([0, 0, 1]), boxes, 2.64), 6, 0.0, np.float32
    )
    assert stages.lattice is lattice


def test_results_follow_the_shape():
    """Trial moves of an anisotropic barostat, some rejected:
    as from a solver made for each shape."""
    rng = np.random.default_rng(5)
    charges, cell = rng.normal(size=300), 3 * OBLIQUE
    positions = rng.uniform(0, 1, (300, 3)) @ cell
    options = {
        "order": 8,
        "near_radius": 2.64,
        "grid": (6, 7, 6),
        "precision": "double",
        "backend": "cuda",
    }
    solver = CoulombSolver(charges, cell, **options)
    trials = [np.diag([1, 1, 1 + 0.002 * k]) for k in (0, 1, 0, 2, 2, 3, 0, 1)]
    made = set()
    for stretch in trials:
        found = solver.compute(positions @ stretch, cell @ stretch)
        made |= {id(stages) for stages in solver.evaluation.used}
        expected = CoulombSolver(charges, cell @ stretch, **options).compute(positions @ stretch)
        np.testing.assert_allclose(
            found.forces, expected.forces, rtol=0, atol=1e-11 * np.abs(expected.forces).max()
        )
        assert found.energy == pytest.approx(expected.energy, rel=1e-12)
    assert len(made) == 2
