"""The CUDA backend against the reference backend; needs an NVIDIA GPU."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice, box_width, counts_matrix
from fmm_openmm.driver import evaluate
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.oracle import ewald_sum, partial_ewald_sum
from fmm_openmm.specification import Specification
from fmm_openmm.units import COULOMB_CONSTANT
from tests.expected_errors import crystal
from tests.support.charges import cluster, layers, relative
from tests.systems import SYSTEMS, build, charge_arrays

try:
    CudaEvaluator = backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)

import cupy

pytestmark = pytest.mark.gpu

CELLS = {
    "cube": (np.eye(3) * 3.0, (6, 6, 6)),
    "skewed": (
        np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]]),
        [[8, 0, 0], [1, 6, 0], [-2, 2, 7]],
    ),
    "long": (np.diag([3.0, 1, 1]), (9, 3, 3)),
    "one box": (np.diag([3.0, 1, 1]), (1, 1, 1)),
}


def random_charges(seed=0, n=403):
    rng = np.random.default_rng(seed)
    pairs = np.sort(rng.integers(0, n, (300, 2)), 1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return rng.uniform(-2, 3, (n, 3)), rng.normal(size=n), pairs


@pytest.mark.parametrize("minimum_image", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-12), (np.float32, 2e-5)])
@pytest.mark.parametrize("cell", CELLS)
def test_agrees_with_the_reference_backend(cell, dtype, accuracy, smoothing, minimum_image):
    vectors, grid = CELLS[cell]
    counts = counts_matrix(grid)
    lattice, width = BoxLattice.from_cell(vectors, counts, 2.5), box_width(vectors, counts)
    positions, charges, pairs = random_charges()
    arguments = (lattice, 5, smoothing, charges, pairs, minimum_image)
    expected = evaluate(ReferenceStages(Specification(*arguments)), positions, width)
    found = CudaEvaluator(Specification(*arguments, dtype)).evaluate(positions, width)
    for a, b in zip(found, expected, strict=True):
        assert np.linalg.norm(a - b) <= accuracy * np.linalg.norm(b)


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-12), (np.float32, 2e-5)])
@pytest.mark.parametrize(
    "grid",
    [(7, 10, 15), (11, 1, 2), (13, 5, 32), (36, 33, 30), (96, 4, 32), (33, 17, 4), (23, 19, 17)],
)
def test_agrees_on_grids_of_all_lengths(grid, dtype, accuracy):
    """Small grids are transformed by a block each, larger ones plane by plane, and lengths with
    large prime factors by sums."""
    vectors = np.diag(0.3 * np.array(grid))
    lattice, width = (
        BoxLattice.from_cell(vectors, np.diag(grid), 1.75),
        box_width(vectors, np.diag(grid)),
    )
    positions, charges, pairs = random_charges()
    arguments = (lattice, 4, 0.0, charges, pairs, False)
    expected = evaluate(ReferenceStages(Specification(*arguments)), positions, width)
    found = CudaEvaluator(Specification(*arguments, dtype)).evaluate(positions, width)
    for a, b in zip(found, expected, strict=True):
        assert np.linalg.norm(a - b) <= accuracy * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("cell", "root", "levels", "m2l", "dtype", "smoothing"),
    [
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 2, "rotation", np.float32, 0.1),
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 2, "p4", np.float64, 0.1),
        ("skewed", [[2, 0, 0], [0, 1, 0], [-1, 1, 2]], 2, "p4_dynamic", np.float32, 0.0),
        ("long", (3, 1, 1), 2, "p4_symmetric", np.float64, 0.0),
        ("long", (2, 1, 1), 2, "p4_parity", np.float32, 0.0),
        ("cube", (1, 1, 1), 3, "rotation", np.float64, 0.1),
        ("cube", (1, 1, 1), 3, "rotation", np.float32, 0.1),
    ],
)
def test_levels_agree_with_the_reference_backend(cell, root, levels, m2l, dtype, smoothing):
    """The net charge makes the trace term count. Results repeat bit for bit, and agree for another
    shape of the cell."""
    vectors, counts = CELLS[cell][0], counts_matrix(root) << levels
    positions, charges, pairs = random_charges()
    for scale in (1.0, 1.01):
        vectors = vectors * [[1.0], [1.0], [scale]]
        lattice, width = BoxLattice.from_cell(vectors, counts, 1.87), box_width(vectors, counts)
        arguments = (lattice, 5, smoothing, charges + 0.2, pairs, False)
        expected = evaluate(
            ReferenceStages(Specification(*arguments, levels=levels)), positions, width
        )
        wanted = Specification(*arguments, dtype, levels, m2l)
        if scale == 1.0:
            stages = CudaEvaluator(wanted)
        else:
            assert stages.adopt(wanted)
        found, again = stages.evaluate(positions, width), stages.evaluate(positions, width)
        for a, b, c in zip(found, expected, again, strict=True):
            assert np.linalg.norm(a - b) <= (
                1e-12 if dtype == np.float64 else 2e-5
            ) * np.linalg.norm(b)
            np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("tolerance", [5e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("levels", [1, 2])
def test_levels_meet_the_tolerance(levels, tolerance):
    a = charge_arrays(build("peptide_octahedron"))
    exact = ewald_sum(a.positions, a.charges, a.box_vectors, a.exclusions).forces
    solver = CoulombSolver(
        a.charges, a.box_vectors, a.exclusions, tolerance=tolerance, levels=levels, backend="cuda"
    )
    assert np.linalg.norm(solver.compute(a.positions).forces - exact) <= tolerance * np.linalg.norm(
        exact
    )
    assert (solver.parameters.levels, solver.parameters.m2l) == (levels, "rotation")


@pytest.mark.parametrize("tolerance", [5e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("name", SYSTEMS)
def test_meets_the_tolerance(name, tolerance):
    a = charge_arrays(build(name))
    exact = ewald_sum(a.positions, a.charges, a.box_vectors, a.exclusions).forces
    solver = CoulombSolver(
        a.charges,
        a.box_vectors,
        a.exclusions,
        tolerance=tolerance,
        positions=a.positions,
        backend="cuda",
    )
    error = np.linalg.norm(solver.compute(a.positions).forces - exact) / np.linalg.norm(exact)
    assert error <= tolerance


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_repeats_bit_for_bit(dtype):
    vectors, grid = CELLS["skewed"]
    counts = counts_matrix(grid)
    positions, charges, pairs = random_charges()
    stages = CudaEvaluator(
        Specification(
            BoxLattice.from_cell(vectors, counts, 2.5), 6, 0.05, charges, pairs, False, dtype
        )
    )
    on_device = cupy.asarray(positions)
    first, *others = (
        [array.get() for array in stages.compute(on_device, box_width(vectors, counts))]
        for _ in range(5)
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("count", [1, 2, 33, 5000])
def test_everything_in_one_box(count):
    rng = np.random.default_rng(1)
    positions, charges = rng.uniform(0.4, 0.6, (count, 3)), rng.normal(size=count)
    options = {"order": 6, "near_radius": 2.5, "grid": (8, 8, 8), "precision": "double"}
    expected = CoulombSolver(charges, np.eye(3) * 8, backend="cpu", **options).compute(positions)
    found = CoulombSolver(charges, np.eye(3) * 8, backend="cuda", **options).compute(positions)
    np.testing.assert_allclose(
        found.forces,
        expected.forces,
        rtol=1e-10,
        atol=1e-10 * (1.0 + np.abs(expected.forces).max()),
    )
    assert found.energy == pytest.approx(expected.energy, rel=1e-11)


def test_arrays_on_the_device_give_arrays_on_the_device():
    positions, charges, pairs = random_charges()
    solver = CoulombSolver(charges, np.eye(3) * 3, pairs, tolerance=1e-6, backend="cuda")
    host, device = solver.compute(positions), solver.compute(cupy.asarray(positions))
    for name in ("forces", "potentials", "fields"):
        assert isinstance(getattr(device, name), cupy.ndarray)
        np.testing.assert_allclose(
            getattr(device, name).get(),
            getattr(host, name),
            rtol=1e-12,
            atol=1e-9 * np.abs(getattr(host, name)).max(),
        )
    assert float(device.energy[0]) == pytest.approx(host.energy, rel=1e-12)


@pytest.mark.parametrize("tolerance", [5e-4, 1e-7])
def test_small_forces_on_the_device(tolerance):
    """The first evaluation of a cold crystal is right. When forces become small later, the next
    evaluation warns and is right; others do not wait for the device."""
    cold, warm = crystal("nacl", 0.006), crystal("nacl", 0.4)
    solver = CoulombSolver(cold.charges, cold.cell, tolerance=tolerance, backend="cuda")

    def computed(case):
        return solver.compute(cupy.asarray(case.positions)).forces

    def error(forces, case):
        return relative(forces.get(), ewald_sum(case.positions, case.charges, case.cell).forces)

    usual = solver.parameters.order
    assert error(computed(cold), cold) <= tolerance
    strict = solver.parameters.order
    assert strict > usual
    assert solver.parameters.expected_error <= tolerance
    for _ in range(3):
        assert error(computed(warm), warm) <= tolerance
    assert solver.parameters.order < strict
    computed(cold)
    cupy.cuda.Device().synchronize()
    with pytest.warns(UserWarning, match="was missed at the last positions on the device"):
        found = computed(cold)
    assert error(found, cold) <= tolerance


def test_charges_that_come_close_on_the_device():
    """The first evaluation is in double precision where single does not suffice."""
    x, q, cell = cluster(1e-3, others=60)
    solver = CoulombSolver(q, cell, backend="cuda")
    assert solver.parameters.precision == "single"
    forces = solver.compute(cupy.asarray(x)).forces
    assert solver.parameters.precision == "double"
    assert relative(forces.get(), ewald_sum(x, q, cell).forces) <= 5e-4


def test_layers_of_opposite_charge_with_smoothing_on_the_device():
    """Single precision suffices until they are far apart and their potentials large."""
    x, apart, q, cell = layers()
    options = {"tolerance": 1e-4, "boundary": "slab", "smoothing": 0.00625, "backend": "cuda"}
    solver = CoulombSolver(q, cell, **options)
    solver.compute(cupy.asarray(x))
    assert solver.parameters.precision == "single"
    forces = solver.compute(cupy.asarray(apart)).forces.get()
    exact = partial_ewald_sum(apart, q, Boundary.from_name("slab").cell(cell)).forces
    assert relative(forces, exact) < 1e-4
    assert solver.parameters.precision == "double"


def test_later_evaluations_are_not_waited_for():
    positions, charges, pairs = random_charges(n=20000)
    solver = CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda")
    placed = cupy.asarray(positions)
    for _ in range(2):
        solver.compute(placed)
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long cycles) {'
        " const long long start = clock64(); while (clock64() - start < cycles); }",
        "spin",
    )
    stream = cupy.cuda.get_current_stream()
    spin((1,), (1,), (np.int64(500_000_000),))
    for _ in range(5):
        solver.compute(placed)
    assert not stream.done
    stream.synchronize()
    sums = solver.evaluation.used[0].force_sums
    result = solver.compute(positions)
    width = solver.evaluation.planner.latest.width
    scale = width / COULOMB_CONSTANT
    expected = force_sums(charges, result.fields * (scale * width), result.potentials * scale)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_boxes_and_charges_may_change():
    positions, charges, pairs = random_charges()
    cuda, cpu = (
        CoulombSolver(charges, np.eye(3) * 3, pairs, tolerance=1e-6, backend=b)
        for b in ("cuda", "cpu")
    )
    before = cuda.compute(positions).energy
    for box in (
        np.eye(3) * 3.1,
        np.diag([3.0, 3.1, 2.9]),
        [[3, 0, 0], [0.4, 3, 0], [-0.3, 0.2, 3.1]],
    ):
        assert cuda.compute(positions, box).energy == pytest.approx(
            cpu.compute(positions, box).energy, rel=1e-6
        )
    assert cuda.compute(positions).energy == before
    cuda.set_charges(2 * charges)
    assert cuda.compute(positions).energy == pytest.approx(4 * before, rel=1e-12)


def test_a_bad_particle_is_named_and_nothing_is_lost():
    positions, charges, pairs = random_charges()
    solver = CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda")
    before = solver.compute(positions).energy
    bad = positions.copy()
    bad[17, 1] = np.nan
    with pytest.raises(ValueError, match="particle 17"):
        solver.compute(bad)
    assert np.isnan(solver.compute(cupy.asarray(bad)).forces.get()).any()
    assert solver.compute(positions).energy == before


def test_on_the_callers_stream():
    positions, charges, pairs = random_charges()
    solver = CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda")
    expected = solver.compute(positions).energy
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = solver.compute(cupy.asarray(positions))
        stream.synchronize()
        # float32 potentials
        assert float(result.energy.get(stream=stream)[0]) == pytest.approx(expected, rel=1e-7)


def test_a_caller_may_change_streams():
    """An evaluation waits for the one before, whose buffers it uses, without a wait by the
    caller."""
    positions, charges, pairs = random_charges(n=20000)
    solver = CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda")
    placed = [cupy.asarray(positions + shift) for shift in (0.0, 0.3, 0.7)]
    expected = [solver.compute(each).forces.get() for each in placed]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in placed]
    cupy.cuda.Device().synchronize()
    for _ in range(10):
        results = []
        for each, stream in zip(placed, streams, strict=True):
            with stream:
                results.append(solver.compute(each))
        cupy.cuda.Device().synchronize()
        for result, exact in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.forces.get(), exact)


def test_several_solvers_in_threads_on_streams_of_their_own():
    def run(seed):
        positions, charges, pairs = random_charges(seed)
        exact = (
            CoulombSolver(charges, np.eye(3) * 3, pairs, tolerance=1e-6, backend="cpu")
            .compute(positions)
            .forces
        )
        with cupy.cuda.Stream(non_blocking=True) as stream:
            solver = CoulombSolver(charges, np.eye(3) * 3, pairs, tolerance=1e-6, backend="cuda")
            on_device = cupy.asarray(positions)
            results = [solver.compute(on_device).forces for _ in range(20)]
            stream.synchronize()
            return max(np.linalg.norm(forces.get() - exact) for forces in results) / np.linalg.norm(
                exact
            )

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(run, range(4))) < 2e-6


@pytest.mark.skipif(cupy.cuda.runtime.getDeviceCount() < 2, reason="needs two GPUs")
def test_a_solver_stays_on_its_device():
    positions, charges, pairs = random_charges()
    solvers = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            solvers.append(CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda"))
            first = solvers[device].compute(positions).energy
    for current in (0, 1):
        with cupy.cuda.Device(current):
            for device, solver in enumerate(solvers):
                assert solver.compute(positions).energy == first
                assert solver.evaluation.used[0].run.buffers["positions"].device.id == device
                assert float(solver.compute(cupy.asarray(positions)).energy[0]) == pytest.approx(
                    first, rel=1e-7
                )


# memory


@pytest.fixture
def pool():
    """CuPy's memory pool, with nothing of earlier tests in it and no limit after this one."""
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    yield pool
    pool.set_limit(size=0)


def large(backend):
    """Needs some 60 MB."""
    return CoulombSolver(
        np.resize([1.0, -1.0], 100),
        np.eye(3) * 3,
        grid=(48, 48, 48),
        order=6,
        near_radius=1.87,
        backend=backend,
    )


def test_too_little_memory(pool):
    positions, charges, pairs = random_charges()
    before, free = pool.used_bytes(), pool.total_bytes()
    small = CoulombSolver(charges, np.eye(3) * 3, pairs, backend="cuda")
    energy = small.compute(positions).energy
    held = pool.used_bytes()
    pool.set_limit(size=pool.total_bytes() + 2**24)
    solver = large("cuda")
    with pytest.raises(
        MemoryError,
        match=r"^`backend='cuda'` needs [\d,]{9,} bytes of device memory here: Out of memory",
    ):
        solver.compute(positions[:100])
    assert pool.used_bytes() == held
    assert small.compute(positions).energy == energy
    with pytest.warns(
        UserWarning, match="^backend 'auto' means 'cpu' here: .* bytes of device memory"
    ):
        automatic = large("auto")
        on_cpu = automatic.compute(cupy.asarray(positions[:100]))
    assert automatic.backend == "cpu"
    pool.set_limit(size=0)
    assert solver.compute(positions[:100]).energy == pytest.approx(on_cpu.energy, rel=1e-5)
    del small, solver
    pool.free_all_blocks()
    assert (pool.used_bytes(), pool.total_bytes()) == (before, free)


def test_too_little_memory_for_another_box(pool):
    """There is no memory for a third shape besides the other two, which are then dropped."""
    positions = random_charges()[0][:100]
    solver, shapes = large("cuda"), [np.diag([3, 3, 3 + 0.6 * k]) for k in range(3)]
    energies = [solver.compute(positions, shape).energy for shape in shapes]
    solver = large("cuda")
    solver.compute(positions, shapes[0])
    pool.free_all_blocks()
    pool.set_limit(size=int(1.5 * pool.used_bytes()))
    assert [solver.compute(positions, shape).energy for shape in shapes] == energies


@pytest.mark.alone
def test_memory_stays_flat(pool):
    positions, charges, pairs = random_charges()

    def free_bytes():
        gc.collect()
        pool.free_all_blocks()
        return cupy.cuda.runtime.memGetInfo()[0]

    for cycle in range(200):
        solver = CoulombSolver(
            charges, np.eye(3) * 3, pairs, order=4, near_radius=1.87, grid=(6, 6, 6), backend="cuda"
        )
        solver.compute(positions)
        del solver
        if cycle == 20:
            settled = free_bytes()
    assert settled - free_bytes() < 2**22
