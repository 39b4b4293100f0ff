"""Many sets of charges at the same positions: potentials, their matrix, groups and the operator."""

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator, cg

from fmm_openmm import CoulombSolver
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.oracle import ewald_sum
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.ewald import exact

EXCLUDED = [(0, 1), (0, 2), (1, 2), (7, 3), (5, 39)]
FIXED = {"order": 6, "near_radius": 1.8, "smoothing": 0.05}
CUBE = 3.0 * np.eye(3)
BACKENDS = ("cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu))

pytestmark = pytest.mark.filterwarnings("ignore:`tolerance")


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "cuda":
        from fmm_openmm.backends import backend_class

        try:
            backend_class("cuda")
        except UnsupportedError as reason:
            pytest.skip(f"no GPU to run on: {reason}")
    return request.param


def system(sets=4, n=60):
    x, q = random_charges(n, SKEWED, net=0.5)
    x[1], x[2] = x[0] + [0.1, 0.0, 0.0], x[0] + [0.0, 0.08, 0.05]
    charges = np.random.default_rng(1).normal(size=(sets, n))
    charges[0], charges[1, 8:], charges[2, 4:] = q, 0.0, 0.0  # the solver's own; of few particles
    return x, q, charges


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("levels", [0, 1])
def test_sets_equal_single_evaluations(boundary, backend, precision, levels):
    x, q, charges = system()
    box = None if boundary == "open" else 3.0 * np.eye(3)
    options = FIXED | {"boundary": boundary, "backend": backend, "precision": precision}
    if levels and boundary == "periodic":
        options |= {"levels": 1, "grid": (2, 2, 2), "smoothing": 0.0}
    solver = CoulombSolver(q, box, EXCLUDED, **options)
    result = solver.compute(x, charges=charges)
    small = 1e-13 if precision == "double" else 2e-5
    for k, each in enumerate(charges):
        alone = CoulombSolver(each, box, EXCLUDED, positions=x, **options).compute(x)
        assert relative(result.potentials[k], alone.potentials) < small
        assert relative(result.fields[k], alone.fields) < small
        assert relative(result.forces[k], each[:, None] * result.fields[k]) < small
        assert abs(result.energy[k] - alone.energy) < small * abs(alone.energy) + small
    without = solver.compute(x, charges=charges, fields=False)
    assert without.fields is None and without.forces is None
    assert relative(without.potentials, result.potentials) < small
    alone = solver.compute(x, charges=charges, potentials=False)
    assert alone.potentials is None and alone.fields is None and alone.forces is None
    assert relative(alone.matrix, result.matrix) < small
    assert np.array_equal(alone.matrix, alone.matrix.T)
    # the solver goes on with its own charges
    assert relative(solver.compute(x).potentials, result.potentials[0]) < small


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["periodic", "slab", "ac", "open"])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_points_and_virial_of_each_set(boundary, backend, precision):
    """Points around the particles and outside of the boxes that cover these."""
    if backend == "reference" and (precision == "single" or boundary in ("slab", "ac")):
        pytest.skip("minutes for what other cases show")
    x, q, charges = system()
    charges -= charges.mean(1, keepdims=True)
    charges[1] = q - q.mean()
    points = np.random.default_rng(5).uniform(-1.0, 4.0, (40, 3))
    box = None if boundary == "open" else SKEWED
    options = FIXED | {"boundary": boundary, "backend": backend, "precision": precision}
    solver = CoulombSolver(charges[1], box, EXCLUDED, **options)
    result = solver.compute(x, charges=charges, points=points, virial=True)
    small = 1e-12 if precision == "double" else 2e-5
    # in slabs a GPU computes the virial of one set in boxes that do not cover the points
    covers_points = boundary in ("periodic", "open") or backend != "cuda"
    on_cpu = CoulombSolver(charges[1], box, EXCLUDED, **options | {"backend": "cpu"})
    for k, each in enumerate(charges):
        solver.set_charges(each)
        on_cpu.set_charges(each)
        alone = solver.compute(x, points=points, virial=True)
        for name in ("potentials", "forces", "point_potentials", "point_fields"):
            assert relative(getattr(result, name)[k], getattr(alone, name)) < small, name
        covering = alone if covers_points else on_cpu.compute(x, points=points, virial=True)
        assert relative(result.virial[k], covering.virial) < small
        assert np.trace(result.virial[k]) == pytest.approx(result.energy[k], rel=1e-12)
    if boundary == "periodic":
        assert relative(result.stress, -result.virial / result.volume) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"levels": 1, "grid": (2, 2, 2)}, {"positions": True}])
def test_points_and_virial_with_levels_and_in_nearly_empty_cells(options, backend):
    x, q, charges = system()
    cell = 9.0 * np.eye(3)
    x = (x - x.min(0)) * 0.3 + 5.0
    points = np.random.default_rng(5).uniform(-3.0, 12.0, (40, 3))
    options = {key: x if value is True else value for key, value in options.items()}
    settings = {"tolerance": 1e-2, "backend": backend, "precision": "double"}
    solver = CoulombSolver(q, cell, EXCLUDED, **settings, **options)
    result = solver.compute(x, charges=charges[:2], points=points, virial=True)
    for k, each in enumerate(charges[:2]):
        solver.set_charges(each)
        alone = solver.compute(x, points=points, virial=True)
        expected = ewald_sum(
            np.concatenate([x, points]), np.append(each, np.zeros(40)), cell, EXCLUDED
        )
        assert relative(result.point_potentials[k], expected.potentials[60:]) < 1e-2
        for name in ("potentials", "point_potentials", "point_fields", "virial"):
            assert relative(getattr(result, name)[k], getattr(alone, name)) < 1e-2, name


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [5e-4, 1e-6])
def test_matrix_against_the_oracle(tolerance, backend):
    """Off the diagonal the error is relative to the mean of the sets' own energies."""
    d, _ = exact("water")
    charges = np.random.default_rng(2).normal(size=(3, len(d.charges))) * d.charges
    charges[0] = d.charges
    solver = CoulombSolver(d.charges, d.box_vectors, d.exclusions, tolerance, backend=backend)
    matrix = solver.compute(d.positions, charges=charges).matrix
    potentials = [
        ewald_sum(d.positions, each, d.box_vectors, d.exclusions).potentials for each in charges
    ]
    expected = charges @ np.transpose(potentials)
    scale = np.sqrt(np.abs(np.outer(np.diag(expected), np.diag(expected))))
    assert (np.abs(matrix - expected) <= tolerance * scale).all()
    assert np.array_equal(matrix, matrix.T)


def test_quadratic_form(backend):
    x, q, charges = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend=backend, precision="double", **FIXED)
    result = solver.compute(x, charges=charges, fields=False)
    factors = np.array([1.0, -0.3, 0.7, 0.2])
    solver.set_charges(factors @ charges)
    expected = solver.compute(x).energy
    assert abs(factors @ result.matrix @ factors / 2 - expected) < 1e-10 * abs(expected)


def test_energies_among_groups(backend):
    x, q, _ = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend=backend, precision="double", **FIXED)
    groups = np.arange(60) % 7
    matrix = solver.interaction_energies(x, groups)
    total = solver.compute(x).energy
    assert abs(matrix.sum() - total) < 1e-11 * abs(total)
    assert np.array_equal(matrix, matrix.T)
    together = np.where(np.isin(groups, (1, 4)), q, 0.0)
    alone = [np.where(groups == g, q, 0.0) for g in (1, 4)]
    pair, first, second = solver.compute(x, charges=[together, *alone]).energy
    assert abs(matrix[1, 4] + matrix[4, 1] - (pair - first - second)) < 1e-10 * abs(total)
    assert abs(matrix[4, 4] - second) < 1e-10 * abs(total)


@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("result", ["sets", "groups", "operator"])
def test_charges_that_have_come_close(result, boundary):
    """Single precision, which sufficed before, is left, or a warning says what it costs."""
    x, q, _ = system()
    cell = None if boundary == "open" else SKEWED
    close = x.copy()
    close[1::2] = close[::2] + 1e-5 * (close[1::2] - close[::2])
    exact = CoulombSolver(q, cell, tolerance=1e-8, boundary=boundary, backend="cpu").compute(close)

    def compute(solver):
        solver.compute(x)
        if result == "sets":
            return relative(solver.compute(close, charges=[q]).fields[0], exact.fields)
        if result == "groups":
            energy = solver.interaction_energies(close, np.arange(60) % 7).sum()
            return abs(energy / exact.energy - 1.0)
        return relative(solver.coulomb_operator(close) @ q, exact.potentials)

    options = dict(tolerance=1e-4, boundary=boundary, backend="cpu")
    assert compute(CoulombSolver(q, cell, **options)) < 1e-4
    single = CoulombSolver(q, cell, precision="single", **options)
    with pytest.warns(UserWarning, match="for charges so close to each other"):
        compute(single)


def test_forces_that_have_become_small():
    """Those of a crystal near zero temperature after those of a gas need other parameters."""
    rng = np.random.default_rng(5)
    sites = np.stack(np.meshgrid(*3 * [np.arange(8)], indexing="ij"), -1).reshape(-1, 3)
    x, q = 0.3 * (sites + 1e-3 * rng.normal(size=sites.shape)), 1.0 - 2 * (sites.sum(1) % 2)
    cell = 2.4 * np.eye(3)
    solver = CoulombSolver(q, cell, tolerance=1e-6, backend="cpu")
    solver.compute(rng.random(x.shape) @ cell)
    found = solver.compute(x, charges=[q]).forces[0]
    assert relative(found, ewald_sum(x, q, cell).forces) < 1e-6


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_more_groups_than_are_computed_at_once(backend):
    x, q, _ = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend=backend, precision="double", **FIXED)
    matrix = solver.interaction_energies(x, np.arange(60))
    operator = solver.coulomb_operator(x)
    expected = 0.5 * q[:, None] * (operator @ np.eye(60)) * q
    assert relative(matrix, expected) < 1e-12


def test_operator(backend):
    """Symmetric, linear, and unaffected by what the solver computes in between."""
    x, q, charges = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend=backend, precision="double", **FIXED)
    operator = solver.coulomb_operator(x)
    assert operator.shape == (60, 60)
    expected = solver.compute(x).potentials
    solver.compute(x + 0.1)
    assert relative(operator @ q, expected) < 1e-13
    full = operator @ np.eye(60)
    assert relative(full, full.T) < 1e-12
    assert relative(operator @ charges.T, full @ charges.T) < 1e-12


def test_operator_of_vectors_of_any_length():
    """In single precision, too, in which 1e-60 e is 0 and 1e60 e infinite."""
    x, q, _ = system()
    operator = CoulombSolver(q, SKEWED, EXCLUDED, backend="cpu", **FIXED).coulomb_operator(x)
    expected = operator @ q
    for length in 1e-60, 1e60:
        columns = np.stack([length * q, q, 0.0 * q], axis=1)
        found = operator @ columns
        assert relative(found[:, 0], length * expected) < 1e-5
        assert relative(found[:, 1], expected) < 1e-5
        assert not found[:, 2].any()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1e60, r"`charges` must be at most 1e\+30 e, got .*e\+60 for particle \d+ of set 1$"),
        (1e-60, r"largest at least 1e-20 e, got .*e-60 for particle \d+ of set 1$"),
    ],
)
def test_sets_out_of_the_range_of_float32_are_refused(size, message):
    x, q, _ = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend="cpu", **FIXED)
    with pytest.raises(ValueError, match=message):
        solver.compute(x, charges=[q, size * q])
    assert not solver.compute(x, charges=[q, 0.0 * q]).matrix[1].any()


def test_charge_equilibration():
    """Charges of least energy with a hardness that makes the matrix positive definite."""
    x, q, _ = system()
    solver = CoulombSolver(q, SKEWED, EXCLUDED, backend="cpu", precision="double", **FIXED)
    coulomb, hardness = solver.coulomb_operator(x), 3e4
    wanted = np.random.default_rng(4).normal(size=60)
    field = hardness * wanted + coulomb @ wanted
    shifted = coulomb + aslinearoperator(hardness * np.eye(60))
    found, failed = cg(shifted, field, rtol=1e-12)
    assert not failed and relative(found, wanted) < 1e-9


@pytest.mark.parametrize(
    ("charges", "words"),
    [
        (np.ones(60), r"`charges` must have shape \(K, n\).*got \(60,\)"),
        (np.ones((2, 59)), r"got \(2, 59\)"),
        (np.ones((0, 60)), r"K >= 1"),
        (np.full((2, 60), np.nan), "got nan for particle 0 of set 0"),
    ],
)
def test_wrong_sets_are_refused(charges, words):
    x, q, _ = system()
    with pytest.raises(ValueError, match=words):
        CoulombSolver(q, SKEWED).compute(x, charges=charges)


@pytest.mark.parametrize(
    ("groups", "error", "words"),
    [
        (np.zeros(59, int), ValueError, "must have shape"),
        (np.zeros(60), TypeError, "must be integers"),
        (np.full(60, -1), ValueError, "must not be negative"),
        (np.ma.array(np.zeros(60, int), mask=np.eye(60)[0]), ValueError, "no masked entries"),
        (np.full(60, 2), ValueError, "from 0 without gaps, got 2 to 2 without particles in 0"),
        (np.repeat([0, 10**12], 30), ValueError, "got 0 to 1000000000000 without particles in 1"),
    ],
)
def test_wrong_groups_are_refused(groups, error, words):
    x, q, _ = system()
    with pytest.raises(error, match=words):
        CoulombSolver(q, SKEWED).interaction_energies(x, groups)


def test_other_requests_are_refused():
    x, q, charges = system()
    direct = CoulombSolver(q, None, boundary="open", method="direct")
    with pytest.raises(UnsupportedError, match="method='fmm'"):
        direct.compute(x, charges=charges)
    for points in (None, x + 0.5):
        with pytest.raises(UnsupportedError, match="method='fmm'"):
            direct.compute(x, points=points, virial=True)
    with pytest.raises(UnsupportedError, match="`coulomb_operator` needs"):
        direct.coulomb_operator(x)


def test_coincident_charges_are_refused(backend):
    x, q, charges = system()
    x[20] = x[30]
    solver = CoulombSolver(q, SKEWED, [*EXCLUDED, (20, 30)], backend=backend)
    assert np.isfinite(solver.compute(x, charges=charges).potentials).all()
    x[21] = x[31]
    for potentials in (True, False):
        with pytest.raises(ValueError, match="coincide and are not excluded"):
            solver.compute(x, charges=charges, potentials=potentials)
    with pytest.raises(ValueError, match="coincide and are not excluded"):
        solver.interaction_energies(x, np.arange(60) % 7)


@pytest.mark.parametrize("backend", BACKENDS[2:], indirect=True)
@pytest.mark.parametrize("boundary", ["periodic", "open"])
@pytest.mark.parametrize("sets", [1, 3, 11])
def test_arrays_stay_on_the_device(boundary, sets, backend):
    """More sets than are computed at once, and in another cell after the first."""
    cupy = pytest.importorskip("cupy")
    x, q, charges = system(11)
    charges, box = charges[:sets], None if boundary == "open" else 3.0 * np.eye(3)
    options = FIXED | {"boundary": boundary, "precision": "double"}
    solver = CoulombSolver(q, box, EXCLUDED, backend=backend, **options)
    host = CoulombSolver(q, box, EXCLUDED, backend="cpu", positions=x, **options)
    groups = np.arange(60) % 19
    for scale in (1.0, 1.05):
        cell = None if box is None else scale * box
        place = cupy.asarray(scale * x)
        found = solver.compute(place, cell, charges=cupy.asarray(charges))
        expected = host.compute(scale * x, cell, charges=charges)
        for name in ("potentials", "matrix", "forces", "fields"):
            array = getattr(found, name)
            assert isinstance(array, cupy.ndarray)
            assert relative(array.get(), getattr(expected, name)) < 1e-12
        assert np.array_equal(found.matrix.get(), found.matrix.get().T)
        without = solver.compute(place, cell, charges=charges, fields=False)
        assert without.forces is None
        assert relative(without.potentials.get(), found.potentials.get()) < 1e-13
        alone = solver.compute(place, cell, charges=charges, potentials=False)
        assert alone.potentials is None and isinstance(alone.matrix, cupy.ndarray)
        assert relative(alone.matrix.get(), expected.matrix) < 1e-12
        matrix = solver.interaction_energies(place, groups, cell)
        assert relative(matrix.get(), host.interaction_energies(scale * x, groups, cell)) < 1e-12
    operator = solver.coulomb_operator(place, cell)
    solver.compute(place + 0.1, cell)
    columns = cupy.asarray(charges.T)
    assert relative((operator @ columns).get(), expected.potentials.T) < 1e-12
    assert relative((operator @ columns[:, 0]).get(), expected.potentials[0]) < 1e-12
    with pytest.raises(ValueError, match=r"`charges` must have shape \(K, n\)"):
        solver.compute(place, cell, charges=columns)


@pytest.mark.parametrize("backend", BACKENDS[2:], indirect=True)
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize(
    ("boundary", "box"),
    [
        ("periodic", SKEWED),
        ("periodic", 3.0 * np.eye(3)),
        ("slab", 3.0 * np.eye(3)),
        ("open", None),
    ],
)
def test_many_small_groups_and_large_ones(boundary, box, precision, backend):
    """The same bits each time, at positions on the device and on the host; with other charges,
    groups and cells."""
    cupy = pytest.importorskip("cupy")
    x, q = random_charges(400, 3.0 * np.eye(3), net=0.0)
    q[7], q[8] = 0.0, q[7] + q[8]
    options = FIXED | {"boundary": boundary, "precision": precision}
    solver = CoulombSolver(q, box, EXCLUDED, backend=backend, positions=x, **options)
    host = CoulombSolver(q, box, EXCLUDED, backend="cpu", positions=x, **options)
    small = 1e-12 if precision == "double" else 2e-5
    slices = np.argsort(np.argsort(x[:, 0])) // 5
    for groups, scale in (
        (np.maximum(0, slices - 40), 1.0),  # one large group
        (np.minimum(60, slices) % 51, 1.0),
        (np.minimum(60, slices) % 51, 1.01),
        (np.arange(400) // 2, 1.01),
    ):
        cell, place = None if box is None else scale * box, scale * x
        expected = host.interaction_energies(place, groups, cell)
        for each in (cupy.asarray(place), place):
            found, again = (solver.interaction_energies(each, groups, cell) for _ in range(2))
            found, again = (getattr(a, "get", lambda a=a: a)() for a in (found, again))
            assert relative(found, expected) < small
            assert np.array_equal(found, found.T) and np.array_equal(found, again)
        q = 3.0 * q[::-1]
        solver.set_charges(q)
        host.set_charges(q)
    place[21] = place[31]
    found = solver.interaction_energies(cupy.asarray(place), groups, cell).get()
    assert np.argwhere(np.isnan(found)).tolist() == [[10, 15], [15, 10]]
    with pytest.raises(ValueError, match="coincide and are not excluded"):
        solver.interaction_energies(place, groups, cell)
