"""Bad input to ``CoulombSolver``: an error that names the culprit, and nothing lost.

Several solvers, and memory.
"""

import gc
import re
import resource
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm import CoulombSolver
from fmm_openmm.backends import choose_backend
from fmm_openmm.oracle import ewald_sum
from tests.support.charges import SKEWED, random_charges, relative

BACKENDS = ("cpu", "reference")
NAN, INF = float("nan"), float("inf")
PAIRS = [(0, 1), (2, 3)]


@pytest.fixture(scope="module")
def scattered():
    x, q = random_charges(40, SKEWED, net=1.0)
    x[1] = x[0] + 0.05
    return x, q


@pytest.fixture(params=BACKENDS, scope="module")
def solver(request, scattered):
    return CoulombSolver(scattered[1], SKEWED, PAIRS, backend=request.param)


@pytest.fixture
def unharmed(solver, scattered):
    """After the test the solver gives the very energy it gave before."""
    before = solver.compute(scattered[0])
    yield before
    after = solver.compute(scattered[0])
    assert after.energy == before.energy
    np.testing.assert_array_equal(after.forces, before.forces)


def changed(array, index, value):
    array = np.array(array)
    array[index] = value
    return array


@pytest.mark.parametrize("value", [NAN, 1e10])
def test_bad_coordinate(solver, scattered, unharmed, value):
    bad = changed(scattered[0], (17, 1), value)
    with pytest.raises(
        ValueError, match=r"^`positions` must be finite and within 1e\+09 nm .* particle 17$"
    ):
        solver.compute(bad)


def test_no_box():
    with pytest.raises(
        ValueError,
        match=r"^`box_vectors` must be given with .*: use `boundary='open'` for free space",
    ):
        CoulombSolver([1.0], None)


@pytest.mark.parametrize("shape", [(39, 3), (41, 3), (40, 2), (120,), (0, 3)])
def test_bad_shape_of_positions(solver, unharmed, shape):
    with pytest.raises(ValueError) as error:
        solver.compute(np.zeros(shape))
    assert (
        str(error.value)
        == f"`positions` must have shape (n, 3) with n = 40 (from `charges`), got {shape}"
    )


@pytest.mark.parametrize(
    "box_vectors, message",
    [
        (changed(SKEWED, (1, 1), NAN), "`box_vectors` must be finite, got "),
        (changed(SKEWED, (2, 2), 0.0), "`box_vectors` must span a positive volume, got "),
        (changed(SKEWED, (0, 0), -2.0), "`box_vectors` must span a positive volume, got "),
        (1e-200 * SKEWED, "`box_vectors` must span a positive volume, got "),
        (changed(SKEWED, (2, 2), 1e12), r"`box_vectors` must be at most 1e\+09 nm, got "),
        (changed(SKEWED, (1, 0), 1.2), "periodic box vectors must be in reduced form, got "),
        (
            changed(SKEWED, (0, 1), 0.2),
            "must be in reduced form: the first periodic box vector must be parallel to x",
        ),
        ([2.0, 2.0, 2.0], r"`box_vectors` must have shape \(3, 3\), got \(3,\)"),
    ],
    ids=["nan", "flat", "negative", "tiny", "huge", "too_skewed", "rotated", "lengths"],
)
def test_bad_box(solver, scattered, unharmed, box_vectors, message):
    with pytest.raises(ValueError, match=message):
        solver.compute(scattered[0], box_vectors)
    with pytest.raises(ValueError, match=message):
        CoulombSolver(scattered[1], box_vectors)


@pytest.mark.parametrize(
    "charges, message",
    [
        (changed(np.ones(40), 5, NAN), r"^`charges` must be finite, got nan for particle 5$"),
        (changed(np.ones(40), 39, -INF), r"^`charges` must be finite, got -inf for particle 39$"),
        (np.ones(39), r"^`charges` must have shape \(40,\) as at creation, got \(39,\)$"),
        (np.ones((40, 1)), r"^`charges` must have shape \(n,\), got \(40, 1\)$"),
        (
            [],
            r"^`charges` must hold at least one particle, got an empty array: "
            r"there are no particles$",
        ),
    ],
    ids=["nan", "inf", "count", "column", "empty"],
)
def test_bad_charges(solver, unharmed, charges, message):
    with pytest.raises(ValueError, match=message):
        solver.set_charges(charges)
    if len(charges) != 39:
        with pytest.raises(ValueError, match=message):
            CoulombSolver(charges, SKEWED)


def test_orders_beyond_the_range_of_floats_are_refused():
    """Irregular harmonics of degree 36 are 1.7e40 at distance 2."""
    options = {
        "order": 18,
        "grid": (4, 4, 4),
        "near_radius": 1.87,
        "precision": "single",
        "backend": "cpu",
    }
    solver = CoulombSolver([1.0, -1.0], 3 * np.eye(3), **options)
    with pytest.raises(
        fmm.UnsupportedError, match=r"^`order` 18 is too high for single precision: ask for"
    ):
        solver.compute([[0.1, 0.2, 0.3], [1.4, 1.5, 1.6]])


@pytest.mark.parametrize("smoothing", [0.01, 0.02, 0.05])
def test_the_tolerance_that_an_error_names_is_available(smoothing):
    def solver(tolerance):
        options = {"precision": "single", "smoothing": smoothing, "backend": "cpu"}
        return CoulombSolver([1.0, -1.0], 2 * np.eye(3), tolerance=tolerance, **options)

    with pytest.raises(ValueError, match="in single precision for these charges") as error:
        solver(5e-6)
    named = re.search(r"at least (\S+)", str(error.value))[1]
    assert solver(float(named)).parameters.precision == "single"


@pytest.mark.parametrize(("order", "near_radius"), [(18, None), (40, None), (16, 1.1)])
def test_precision_is_chosen_for_the_order(order, near_radius):
    solver = CoulombSolver(
        [1.0, -1.0], 3 * np.eye(3), order=order, near_radius=near_radius, backend="cpu"
    )
    solver.compute([[0.1, 0.2, 0.3], [1.4, 1.5, 1.6]])
    assert solver.parameters.precision == "double"


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"exclusions": [(0, 40)]},
            ValueError,
            r"`exclusions` must hold indices from 0 to 39, got \[0, 40\] in row 0",
        ),
        ({"tolerance": 0}, ValueError, r"`tolerance` must lie between 1e-10 and 0.1, got 0"),
        (
            {"backend": "gpu"},
            ValueError,
            r"`backend` must be one of 'auto', 'cuda', 'cpu', 'reference', got 'gpu'",
        ),
        (
            {"boundary": "vacuum"},
            ValueError,
            r"`boundary` must be one of 'periodic', 'slab', .*'open', got 'vacuum'",
        ),
        ({"boundary": "open"}, ValueError, r"`box_vectors` must be None with `boundary='open'`"),
        (
            {"levels": 1, "m2l": "p4_symmetric", "backend": "cpu"},
            fmm.UnsupportedError,
            r"^`m2l='p4_symmetric'` needs `backend='cuda'`, got 'cpu': use 'p4' or 'rotation'$",
        ),
        ({"cutoff": 0.9}, TypeError, r"cutoff"),
        (
            {"exclusions_periodic": "no"},
            TypeError,
            r"^`exclusions_periodic` must be True or False, got 'no'$",
        ),
    ],
    ids=str,
)
def test_bad_options(scattered, options, error, message):
    with pytest.raises(error, match=message):
        CoulombSolver(scattered[1], SKEWED, **options)


@pytest.mark.skipif(choose_backend() == "cuda", reason="this machine has a usable GPU")
def test_cuda_is_refused_without_a_gpu(scattered):
    with pytest.raises(fmm.UnsupportedError, match=r"^`backend='cuda'` needs "):
        CoulombSolver(scattered[1], SKEWED, backend="cuda")
    assert CoulombSolver(scattered[1], SKEWED).backend == "cpu"


@pytest.mark.parametrize(
    ("cell", "options", "reason"),
    [
        (SKEWED, {"order": 3}, "this cell with the `order` given"),
        (SKEWED, {"order": 3, "grid": (4, 4, 4)}, "this cell with the `order` and `grid` given"),
        (
            None,
            {"order": 1, "levels": 2, "near_radius": 1.87},
            "these particles with the `order`, `near_radius` and `levels` given",
        ),
        (
            None,
            {"order": 1, "method": "treecode"},
            "a treecode in single precision with the `order` given",
        ),
        (
            None,
            {"order": 1, "method": "treecode", "precision": "double"},
            "a treecode in double precision with the `order` given",
        ),
    ],
    ids=str,
)
def test_a_tolerance_out_of_reach_is_warned_of_once(scattered, cell, options, reason):
    """One warning, at the user's line, of the error that is expected before forces are known."""
    x, q = scattered
    options = options | {"tolerance": 2e-4, "backend": "cpu"}
    if cell is None:
        options["boundary"] = "open"
    with pytest.warns(UserWarning) as caught:
        solver = CoulombSolver(q, cell, **options)
        solver.compute(x)
        solver.compute(x)
    (warning,) = (each for each in caught if each.category is not DeprecationWarning)
    with pytest.warns(UserWarning):
        planned = CoulombSolver(q, cell, **options, positions=x if cell is None else None)
    expected = (
        f"`tolerance=0.0002` is out of reach for {reason}: the best expected error is "
        f"{planned.parameters.expected_error:.1e}"
    )
    assert str(warning.message) == expected
    assert warning.filename == __file__


# Particles in the same place


@pytest.mark.parametrize("image", [(0, 0, 0), (1, 0, 0), (-2, 3, 1)], ids=str)
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_coincident_particles_are_named(scattered, precision, smoothing, image):
    x, q = scattered
    solver = CoulombSolver(q, SKEWED, PAIRS, precision=precision, smoothing=smoothing)
    before = solver.compute(x).energy
    with pytest.raises(
        ValueError, match=r"^`positions`: particles 7 and 30 coincide and are not excluded$"
    ):
        solver.compute(changed(x, 30, x[7] + image @ SKEWED))
    assert solver.compute(x).energy == before


def test_an_excluded_pair_that_meets_through_an_image_is_named(scattered):
    """The image that is excluded is another one, unless the nearest is meant."""
    x, q = scattered
    first, second = PAIRS[0]
    met = changed(x, second, x[first] + SKEWED[2])
    with pytest.raises(
        ValueError,
        match=rf"^`positions`: particles {first} and {second} coincide and are not excluded$",
    ):
        CoulombSolver(q, SKEWED, PAIRS).compute(met)
    CoulombSolver(q, SKEWED, PAIRS, exclusions_periodic=True).compute(met)


def test_every_particle_in_the_same_place(solver, scattered, unharmed):
    with pytest.raises(
        ValueError, match=r"^`positions`: particles \d+ and \d+ coincide and are not excluded$"
    ):
        solver.compute(np.ones((40, 3)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_excluded_particles_may_coincide(scattered, backend, precision):
    x, q = scattered
    x = changed(x, 1, x[0])
    expected = ewald_sum(x, q, SKEWED, PAIRS)
    result = CoulombSolver(q, SKEWED, PAIRS, backend=backend, precision=precision).compute(x)
    assert relative(result.forces, expected.forces) < 5e-4
    assert result.energy == pytest.approx(expected.energy, rel=5e-4)


@pytest.mark.parametrize("precision, resolution", [("single", 1e-7), ("double", 1e-15)])
@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
def test_a_clash_gives_its_force(scattered, distance, precision, resolution):
    """However large, as far as the coordinates (to `resolution` nm) tell it: a minimiser has to
    get out of it."""
    x, q = scattered
    x = changed(x, 30, x[7] + [distance, 0, 0])
    expected = ewald_sum(x, q, SKEWED).forces[[7, 30]]
    found = CoulombSolver(q, SKEWED, precision=precision).compute(x).forces[[7, 30]]
    assert relative(found, expected) < 1e-6 + resolution / distance


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(
    "charges", [(1e-6, 1e-6), (1e-6, -1e-6), (1e-12, 1e-6), (1.0, 1e-12)], ids=str
)
def test_however_small_the_charges_that_coincide_beside_others(
    scattered, precision, smoothing, charges
):
    x, q = scattered
    solver = CoulombSolver(
        changed(q, [7, 30], charges),
        SKEWED,
        precision=precision,
        smoothing=smoothing,
        backend="cpu",
    )
    with pytest.raises(
        ValueError, match=r"^`positions`: particles 7 and 30 coincide and are not excluded$"
    ):
        solver.compute(changed(x, 30, x[7]))


@pytest.mark.filterwarnings("error", "ignore:`method='treecode'` with")
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(
    "boundary, options",
    [
        ("periodic", {"backend": "cpu"}),
        ("periodic", {"backend": "cpu", "smoothing": 0.2}),
        ("open", {"backend": "cpu"}),
        ("periodic", {"backend": "reference"}),
        ("periodic", {"backend": "reference", "smoothing": 0.2}),
        ("open", {"backend": "reference"}),
        ("open", {"backend": "cpu", "method": "direct"}),
        ("open", {"backend": "cpu", "method": "treecode"}),
    ],
)
def test_uncharged_particles_may_be_anywhere(scattered, boundary, options, precision):
    x, q = scattered
    x, q = changed(x, [7, 20, 30], x[[8, 19, 8]]), changed(q, [7, 19, 20, 30], 0.0)
    cell, options = (
        SKEWED if boundary == "periodic" else None,
        {"boundary": boundary, "precision": precision, **options},
    )
    result = CoulombSolver(q, cell, **options).compute(x)
    expected = CoulombSolver(q, cell, [(7, 8), (7, 30), (8, 30), (19, 20)], **options).compute(x)
    assert result.energy == pytest.approx(expected.energy, rel=1e-6)
    np.testing.assert_allclose(
        result.forces, expected.forces, atol=1e-6 * np.abs(expected.forces).max()
    )
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(result.potentials)), [7, 30])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(result.fields).any(1)), [7, 30])
    with pytest.raises(
        ValueError, match=r"^`positions`: particles 8 and 40 coincide and are not excluded$"
    ):
        CoulombSolver(np.append(q, 1.0), cell, **options).compute(np.concatenate([x, x[8:9]]))


# Several solvers


def test_quantities_are_accepted(scattered):
    x, q = scattered
    plain = CoulombSolver(q, SKEWED).compute(1.1 * x, 1.1 * SKEWED)
    solver = CoulombSolver(q * unit.elementary_charge, 10 * SKEWED * unit.angstrom)
    other = solver.compute(11 * x * unit.angstrom, 1.1 * SKEWED * unit.nanometer)
    assert other.energy == pytest.approx(plain.energy, rel=1e-6)
    assert relative(other.forces, plain.forces) < 1e-6


def test_solvers_do_not_disturb_each_other(scattered):
    x, q = scattered
    a, b = (
        CoulombSolver(q, SKEWED, PAIRS),
        CoulombSolver(-2 * q[:30], 2 * np.eye(3), precision="double"),
    )
    alone = a.compute(x)
    b.compute(x[:30])
    with pytest.raises(ValueError):
        b.compute(np.ones((30, 3)))
    b.set_charges(np.ones(30))
    np.testing.assert_array_equal(a.compute(x).forces, alone.forces)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_are_independent(scattered, backend):
    """Solvers of their own and one that all share."""
    x, q = scattered
    cells = [SKEWED, 2.0 * np.eye(3), np.diag([1.8, 2.0, 2.4]), 1.1 * SKEWED]
    shared = CoulombSolver(q, SKEWED, PAIRS, backend=backend)

    def evaluate(k):
        own = CoulombSolver((1 + k) * q, cells[k % 4], PAIRS, backend=backend)
        return [own.compute(x + 0.01 * k).forces for _ in range(3)], shared.compute(
            x + 0.01 * k
        ).forces

    alone = [evaluate(k) for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(evaluate, range(8)))
    np.testing.assert_array_equal([own for own, _ in together], [own for own, _ in alone])
    np.testing.assert_array_equal(
        [common for _, common in together], [common for _, common in alone]
    )


# Memory


def resident_peak():
    """Largest resident size so far, bytes: what tracemalloc does not see, such as memory of
    compiled code."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def memory_in_arrays():
    """Bytes in blocks of a kilobyte or more: the interpreter's own small objects come and go. Where
    coverage is measured, its list of all threads grows."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot()
    snapshot = snapshot.filter_traces([tracemalloc.Filter(False, "*/coverage/*")])
    return sum(trace.size for trace in snapshot.traces if trace.size >= 1024)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`tolerance=0.0005` is out of reach")
@pytest.mark.parametrize("backend", BACKENDS)
def test_create_and_compute_in_a_loop(backend):
    """Flat memory, with a box change and an error each time."""
    x, q = np.random.default_rng(0).uniform(0, 2, (200, 3)), np.tile([1.0, -1.0], 100)

    def cycle():
        solver = CoulombSolver(
            q, 2 * np.eye(3), [(0, 1)], backend=backend, order=3, near_radius=1.75, grid=(4, 4, 4)
        )
        solver.compute(x)
        solver.compute(x, np.diag([2.0, 2.0, 2.1]))
        with pytest.raises(ValueError):
            solver.compute(x * NAN)

    cycle()
    tracemalloc.start()
    try:
        cycle()
        memory, peak = memory_in_arrays(), resident_peak()
        for _ in range(20):
            cycle()
        assert memory_in_arrays() - memory < q.nbytes
    finally:
        tracemalloc.stop()
    assert resident_peak() - peak < 20e6


@pytest.mark.slow
def test_memory_is_proportional_to_the_particles():
    peaks = []
    for edge in (2.0, 4.0):
        n = int(100 * edge**3)
        x = np.random.default_rng(0).uniform(0, edge, (n, 3))
        q = np.where(np.arange(n) % 2, 1.0, -1.0)
        tracemalloc.start()
        try:
            CoulombSolver(q, edge * np.eye(3)).compute(x)
            peaks.append(tracemalloc.get_traced_memory()[1] / n)
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_tiny_charges_that_coincide_are_named_and_their_excluded_partner_is_not(
    backend, scale, smoothing
):
    x, q = random_charges(40, SKEWED)
    x[30] = x[7] = x[8]
    solver = CoulombSolver(scale * q, SKEWED, [(7, 8)], backend=backend, smoothing=smoothing)
    with pytest.raises(
        ValueError, match=r"^`positions`: particles 7 and 30 coincide and are not excluded$"
    ):
        solver.compute(x)
