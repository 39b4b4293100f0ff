"""The virial: central differences of the energy, its trace, and where it comes from."""

import numpy as np
import pytest
from scipy.linalg import expm

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.convert.cells import reduced
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.ewald import exact
from tests.systems import SYSTEMS

EXCLUDED = [(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)]
FIXED = {"order": 4, "near_radius": 1.8, "smoothing": 0.05, "precision": "double"}
SKEWED_GRID = [[4, 0, 0], [1, 4, 0], [0, 1, 5]]

pytestmark = pytest.mark.filterwarnings("ignore:`tolerance")


@pytest.fixture(params=["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
def any_backend(request):
    try:
        backend_class(request.param)
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    return request.param


def scattered(net=0.5):
    x, q = random_charges(60, SKEWED, net=net)
    x[1], x[2] = x[0] + [0.1, 0.0, 0.0], x[0] + [0.0, 0.08, 0.05]
    return x, q


def differences(energy, step=1e-4):
    """-dE/dstrain by central differences, of an energy of the deformation ``x -> x @ F``; shears
    are lower triangular, which differ from symmetric ones by a rotation."""
    virial = np.zeros((3, 3))
    for i in range(3):
        for j in range(i + 1):
            strain = np.zeros((3, 3))
            strain[i, j] = step
            change = energy(expm(strain)) - energy(expm(-strain))
            virial[i, j] = virial[j, i] = -change / (2 * step)
    return virial


@pytest.mark.parametrize("minimum_image", [False, True])
def test_derivative_of_the_energy_that_is_computed(any_backend, minimum_image):
    """To rounding even at low order: the same boxes, expansions and weights."""
    x, q = scattered()

    def energy(deformation):
        solver = CoulombSolver(
            q, SKEWED @ deformation, EXCLUDED, backend=any_backend, grid=SKEWED_GRID,
            exclusions_periodic=minimum_image, **FIXED,
        )  # fmt: skip
        return solver.compute(x @ deformation, virial=deformation is one)

    one = np.eye(3)
    result = energy(one)
    expected = differences(lambda deformation: energy(deformation).energy)
    assert np.abs(result.virial - expected).max() < 3e-8 * abs(result.energy)
    assert np.array_equal(result.virial, result.virial.T)
    assert abs(np.trace(result.virial) - result.energy) < 1e-12 * abs(result.energy)
    volume = abs(np.linalg.det(SKEWED))
    assert relative(result.stress, -result.virial / volume) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_differences_on_every_system(name, backend):
    d, _ = exact(name)

    def compute(deformation, **request):
        cell = reduced(d.box_vectors @ deformation)
        solver = CoulombSolver(d.charges, cell, d.exclusions, tolerance=1e-9, backend=backend)
        return solver.compute(d.positions @ deformation, **request)

    result = compute(np.eye(3), virial=True)
    expected = differences(lambda deformation: compute(deformation).energy, 1e-3)
    assert np.abs(result.virial - expected).max() < 1e-6 * abs(result.energy)


def test_sum_over_pairs_in_free_space(any_backend):
    x, q = scattered()
    solver = CoulombSolver(
        q, None, EXCLUDED, boundary="open", tolerance=1e-9, backend=any_backend, precision="double"
    )
    result = solver.compute(x, virial=True)
    pairs = {(i, j) for i in range(60) for j in range(60) if i != j}
    pairs -= {pair for i, j in EXCLUDED for pair in ((i, j), (j, i))}
    i, j = np.array(sorted(pairs)).T
    delta = x[i] - x[j]
    strength = 0.5 * q[i] * q[j] / np.linalg.norm(delta, axis=1) ** 3
    expected = 138.93545764438198 * np.einsum("k,ka,kb->ab", strength, delta, delta)
    assert np.abs(result.virial - expected).max() < 1e-8 * abs(result.energy)
    with pytest.raises(ValueError, match="which a cell has only with"):
        result.stress  # noqa: B018


@pytest.mark.parametrize("precision", ["single", "double"])
def test_precisions(precision, backend):
    d, _ = exact("water")
    exact_virial = CoulombSolver(d.charges, d.box_vectors, d.exclusions, tolerance=1e-9).compute(
        d.positions, virial=True
    )
    solver = CoulombSolver(
        d.charges, d.box_vectors, d.exclusions, precision=precision, backend=backend
    )
    result, plain = solver.compute(d.positions, virial=True), solver.compute(d.positions)
    error = np.abs(result.virial - exact_virial.virial).max()
    assert error < 5e-4 * abs(result.energy)
    assert relative(result.forces, plain.forces) < 1e-5
    assert plain.virial is None
    with pytest.raises(ValueError, match="virial=True"):
        plain.stress  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"levels": 1, "grid": (2, 2, 2)}, {"positions": True}])
def test_levels_and_nearly_empty_cells(options, backend):
    """With levels, and on a GPU in nearly empty cells, computed on a CPU with boxes of one level
    over the whole cell."""
    x, q = scattered(net=0.0)
    cell = 48.0 * np.eye(3)  # on a GPU boxes over the whole of a smaller one take less time
    x = (x - x.min(0)) * 0.3 + 5.0
    options = {key: x if value is True else value for key, value in options.items()}
    settings = {"tolerance": 1e-6, "backend": backend, "precision": "double"}
    solver = CoulombSolver(q, cell, EXCLUDED, **settings, **options)
    assert solver.evaluation.planner.problem.uses_region == ("positions" in options)
    result = solver.compute(x, virial=True)
    whole = CoulombSolver(q, cell, EXCLUDED, **settings).compute(x, virial=True)
    assert relative(result.virial, whole.virial) < 1e-5
    elsewhere = "levels" in options or backend == "cuda"
    assert bool(solver.evaluation.variants) == elsewhere
    assert abs(result.energy - solver.compute(x).energy) < 1e-5 * abs(result.energy)


@pytest.mark.gpu
@pytest.mark.parametrize("boundary", ["periodic", "open"])
def test_stays_on_the_device(boundary):
    """In cells of several shapes, one after the other, and after a change of the charges."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    try:
        backend_class("cuda")
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    x, q = scattered(net=0.0)
    cell = SKEWED if boundary == "periodic" else None
    solver, expected = (
        CoulombSolver(
            q, cell, EXCLUDED, boundary=boundary, backend=backend, tolerance=1e-6,
            precision="double",
        )
        for backend in ("cuda", "cpu")
    )  # fmt: skip
    for strain in (0.0, 0.004, 0.0):
        deformation = np.eye(3) + strain * np.array([[1.0, 0, 0], [1, -1, 0], [-1, 1, 0]])
        solver.set_charges(q * (1 + strain))
        expected.set_charges(q * (1 + strain))
        box = None if cell is None else cell @ deformation
        found = solver.compute(cupy.asarray(x @ deformation), box, virial=True)
        result = expected.compute(x @ deformation, box, virial=True)
        assert isinstance(found.virial, cupy.ndarray)
        assert found.virial.dtype == np.float64
        assert relative(found.virial.get(), result.virial) < 1e-6
        assert found.volume == result.volume
        plain = solver.compute(cupy.asarray(x @ deformation), box)
        assert plain.virial is None
        assert relative(plain.forces.get(), found.forces.get()) < 1e-12
