"""From a tolerance to parameters: the request is met or obeyed, bad requests are refused, every
cell costs the same."""

import warnings
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from fmm_openmm.box import BoxLattice, row_cycle
from fmm_openmm.expansions.error import largest_ratio
from fmm_openmm.planning.cost import CPU_COST, CUDA_COST
from fmm_openmm.planning.load import Load, filled_fraction
from fmm_openmm.planning.request import CONSERVING, LARGEST, SINGLE_FLOOR, SMOOTHINGS, Request
from fmm_openmm.planning.search import adapt_parameters, candidates, choose_parameters
from tests.support.cells import DODECAHEDRON, OCTAHEDRON
from tests.systems import SKEWED, build

CELLS = {
    "cube": np.eye(3),
    "dodecahedron": DODECAHEDRON,
    "octahedron": OCTAHEDRON,
    "skewed": SKEWED,
    "rod": np.diag([1.0, 1.0, 5.0]),
    "plate": np.diag([4.0, 4.0, 1.0]),
}


def cell_for(name, particles):
    """A cell of that shape with 100 particles a nm^3, as water."""
    cell = CELLS[name]
    return cell * np.cbrt(particles / 100 / np.linalg.det(cell))


@cache
def chosen(name, particles, tolerance=5e-4, ionic=0.0, precision="auto"):
    cell = cell_for(name, particles)
    return choose_parameters(
        Request(tolerance, precision=precision), cell, Load(particles, 1.0, ionic)
    )


@cache
def cost(name, particles, *request):
    """Seconds, by the cost model, of the parameters chosen."""
    parameters = chosen(name, particles, *request)
    lattice = BoxLattice.from_cell(
        cell_for(name, particles), parameters.counts, parameters.near_radius
    )
    parts = particles * (1 + 2 * parameters.smoothing) ** 3
    return CPU_COST(parts, 1.0, lattice.size, len(lattice.near), parameters.order)


@pytest.mark.parametrize("tolerance", [1e-2, 5e-4, 1e-5, 1e-8])
@pytest.mark.parametrize("particles", [1000, 21480])
@pytest.mark.parametrize("name", CELLS)
def test_every_tolerance_is_met(name, particles, tolerance):
    assert tolerance / 30 < chosen(name, particles, tolerance).expected_error <= tolerance


@pytest.mark.parametrize("tolerance", [0.1, 5e-4, 1e-5, 1e-10])
@pytest.mark.parametrize("ionic", [0.1, 1.0])
def test_every_tolerance_is_met_for_ions(ionic, tolerance):
    assert tolerance / 30 < chosen("skewed", 2000, tolerance, ionic).expected_error <= tolerance


@pytest.mark.parametrize("particles", [1, 2, 31, 200])
@pytest.mark.parametrize("name", ["cube", "rod", "skewed"])
def test_few_particles_get_parameters(name, particles):
    for tolerance in (1e-2, 1e-9):
        assert chosen(name, particles, tolerance).expected_error <= tolerance


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"order": 7}, {"order": 7}),
        ({"near_radius": 3.1}, {"near_radius": 3.1}),
        ({"smoothing": 0.0}, {"smoothing": 0.0}),
        ({"smoothing": 0.2}, {"smoothing": 0.2}),
        ({"grid": (6, 7, 8)}, {"grid": ((6, 0, 0), (0, 7, 0), (0, 0, 8))}),
        (
            {"grid": [[6, 0, 0], [1, 7, 0], [0, -2, 8]]},
            {"grid": ((6, 0, 0), (1, 7, 0), (0, -2, 8))},
        ),
        ({"levels": 0}, {"levels": 0}),
        ({"precision": "double", "tolerance": 1e-2}, {"precision": "double"}),
        ({"precision": "single", "tolerance": 1e-5}, {"precision": "single"}),
        (
            {"order": 3, "near_radius": 2.0, "grid": (5, 5, 5), "smoothing": 0.05},
            {
                "order": 3,
                "near_radius": 2.0,
                "grid": ((5, 0, 0), (0, 5, 0), (0, 0, 5)),
                "smoothing": 0.05,
            },
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:`tolerance=0.0005` is out of reach")
def test_explicit_values_are_obeyed(options, expected):
    parameters = choose_parameters(Request(**options), cell_for("cube", 2000), Load(2000, 1.0, 0.0))
    assert {name: getattr(parameters, name) for name in expected} == expected


@pytest.mark.parametrize("cost", [CPU_COST, CUDA_COST], ids=["cpu", "cuda"])
@pytest.mark.parametrize("options", [{}, {"levels": 1}, {"order": 6}, {"smoothing": 0.1}])
def test_the_choice_is_the_first_of_all_candidates(options, cost):
    for name, tolerance in (("skewed", 1e-3), ("cube", 1e-7)):
        request, load = Request(tolerance, **options), Load(5000, 1.0, 0.0)
        first, *_ = candidates(request, cell_for(name, 5000), load, cost)
        assert choose_parameters(request, cell_for(name, 5000), load, cost) == first


def test_explicit_values_that_miss_the_tolerance_say_so():
    request = Request(1e-6, order=2, near_radius=1.75, grid=(8, 8, 8))
    with pytest.warns(UserWarning, match=r"the best expected error is 2\.1e-01$"):
        assert choose_parameters(request, 3 * np.eye(3), Load(2700, 1.0, 0.0)).expected_error > 1e-3


def test_what_is_not_given_is_chosen_for_the_rest():
    """A higher order allows a smaller stencil."""
    low, high = (
        choose_parameters(Request(1e-4, order=order), 3 * np.eye(3), Load(2700, 1.0, 0.0))
        for order in (5, 8)
    )
    assert low.expected_error <= 1e-4 >= high.expected_error
    assert low.near_radius > high.near_radius


def test_defaults():
    parameters = choose_parameters(Request(), 3 * np.eye(3), Load(2700, 1.0, 0.0))
    assert parameters.precision == "single"
    assert parameters.smoothing in SMOOTHINGS
    assert Request().tolerance == 5e-4  # OpenMM's ewaldErrorTolerance


@pytest.mark.parametrize("particles", [2e4, 7e4, 1e6])
@pytest.mark.parametrize("cell", [DODECAHEDRON, OCTAHEDRON], ids=["dodecahedron", "octahedron"])
@pytest.mark.parametrize("tolerance", [5e-4, 1e-5])
def test_on_a_gpu_neighbouring_boxes_lie_side_by_side(cell, particles, tolerance):
    """Boxes scattered over memory cost up to a quarter of an evaluation more, far more than a
    slightly worse grid."""
    found = choose_parameters(Request(tolerance), cell, Load(int(particles), 1.0, 0.0), CUDA_COST)
    assert row_cycle(found.counts) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("particles", "edge", "boxes"), [(21384, 6.0, 12), (70752, 9.0, 16)])
def test_on_a_gpu_boxes_are_many_enough(particles, edge, boxes):
    """The fastest grid in an MD step on an H200, at order 11: with 10^3 boxes a part of the device
    is idle."""
    for tolerance in (5e-4, 8e-4, 1e-3):
        found = choose_parameters(
            Request(tolerance), edge * np.eye(3), Load(particles, 1.0, 0.0), CUDA_COST
        )
        np.testing.assert_array_equal(found.counts, boxes * np.eye(3))


@pytest.mark.parametrize(
    "tolerance, ionic, cost, precision",
    [
        (5e-4, 0.0, CPU_COST, "single"),
        (SINGLE_FLOOR, 0.0, CPU_COST, "single"),
        (0.99 * SINGLE_FLOOR, 0.0, CPU_COST, "double"),
        (1e-9, 0.0, CPU_COST, "double"),
        # forces in a salt crystal are small differences of large numbers
        (SINGLE_FLOOR, 1.0, CPU_COST, "double"),
        (5e-4, 1.0, CPU_COST, "single"),
        (1e-5, 0.0, CUDA_COST, "single"),
        (SINGLE_FLOOR, 0.0, CUDA_COST, "double"),
    ],
)
def test_auto_precision(tolerance, ionic, cost, precision):
    parameters = choose_parameters(Request(tolerance), 3 * np.eye(3), Load(2700, 1.0, ionic), cost)
    assert parameters.precision == precision
    assert parameters.expected_error <= tolerance


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"tolerance": 0}, ValueError, r"^`tolerance` must lie between 1e-10 and 0.1, got 0$"),
        (
            {"tolerance": -1e-4},
            ValueError,
            r"^`tolerance` must lie between 1e-10 and 0.1, got -0.0001$",
        ),
        ({"tolerance": 1.0}, ValueError, r"^`tolerance` must lie between 1e-10 and 0.1, got 1.0$"),
        (
            {"tolerance": float("nan")},
            ValueError,
            r"^`tolerance` must lie between 1e-10 and 0.1, got nan$",
        ),
        ({"tolerance": "small"}, TypeError, r"^`tolerance` must be a number, got 'small'$"),
        (
            {"tolerance": 1e-6, "precision": "single"},
            ValueError,
            r"^`tolerance` must be at least 5e-06 in single precision, got 1e-06: "
            r"ask for `precision='double'`$",
        ),
        (
            {"precision": "half"},
            ValueError,
            r"^`precision` must be one of 'auto', 'single', 'double', got 'half'$",
        ),
        ({"order": 0}, ValueError, r"^`order` must lie between 1 and 40, got 0$"),
        ({"order": 5.0}, TypeError, r"^`order` must be an integer, got 5.0$"),
        ({"near_radius": 0.5}, ValueError, r"^`near_radius` must lie between 1 and 8, got 0.5$"),
        ({"smoothing": -0.1}, ValueError, r"^`smoothing` must lie between 0 and "),
        ({"smoothing": 0.5}, ValueError, r"^`smoothing` must lie between 0 and "),
        (
            {"grid": 0},
            ValueError,
            r"^`grid` must be three integers or a 3x3 integer matrix, got 0$",
        ),
        (
            {"grid": (0, 4, 4)},
            ValueError,
            r"^`grid` must be lower triangular with a diagonal of at least 1, got ",
        ),
        ({"levels": -1}, ValueError, r"^`levels` must lie between 0 and 8, got -1$"),
        (
            {"grid": (2000, 2000, 2000)},
            ValueError,
            r"^`grid` and `levels` must make at most 16777216 boxes, got 8000000000 with "
            r"grid=\(2000, 2000, 2000\) and levels=None$",
        ),
        (
            {"grid": (2**62, 1, 1), "levels": 8},
            ValueError,
            r"^`grid` and `levels` must make at most 16777216 boxes, got \d{26} with",
        ),
        ({"levels": 1.5}, TypeError, r"^`levels` must be an integer, got 1.5$"),
        (
            {"levels": 2, "m2l": "fft"},
            ValueError,
            r"^`m2l` must be one of 'p4', 'p4_dynamic', .* 'rotation', got 'fft'$",
        ),
        (
            {"m2l": "p4"},
            ValueError,
            r"^`m2l` must be None without `levels` below the root grid, got 'p4'$",
        ),
    ],
    ids=str,
)
def test_bad_requests(options, error, message):
    with pytest.raises(error, match=message):
        Request(**options)


@pytest.mark.slow
def test_a_looser_tolerance_never_costs_more():
    """The cost falls in one precision, up to the coarseness of the choices."""
    tolerances = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    costs = [cost("cube", 2000, tolerance, 0.0, "double") for tolerance in tolerances]
    assert all(looser < 1.02 * tighter for tighter, looser in pairwise(costs))
    assert costs[-1] < 0.25 * costs[0]


@pytest.mark.parametrize("tolerance", [1e-2, 5e-4, 1e-5, 1e-8])
@pytest.mark.parametrize("particles", [1000, 21480])
@pytest.mark.parametrize("name", [name for name in CELLS if name != "cube"])
def test_every_cell_costs_what_a_cube_costs(name, particles, tolerance):
    assert cost(name, particles, tolerance) < 1.3 * cost("cube", particles, tolerance)


@pytest.mark.parametrize("particles", [10_000, 1_000_000])
def test_work_is_proportional_to_the_particles(particles):
    assert cost("cube", particles) / particles == pytest.approx(
        cost("cube", 21480) / 21480, rel=0.15
    )


@pytest.mark.parametrize(
    "name", ["water", "tip5p", "nacl", "melt", "peptide_octahedron", "brine_triclinic"]
)
def test_liquids_and_solids_fill_their_cell(name):
    """Parameters do not depend on the positions in filled cells."""
    built = build(name)
    shifts = np.random.default_rng(0).integers(-3, 4, built.positions.shape) @ built.box_vectors
    assert filled_fraction(built.positions + shifts, built.box_vectors) == 1.0


@pytest.mark.parametrize(
    "name, least, most", [("droplet", 1 / 128, 1 / 32), ("slab", 1 / 8, 1 / 2)]
)
def test_empty_space_is_seen(name, least, most):
    """The droplet takes up 1.5 percent of its cell, the slab a fifth."""
    built = build(name)
    for shift in (0.0, 0.5, 7.3):
        assert least <= filled_fraction(built.positions + shift, built.box_vectors) <= most


def test_a_crowd_in_one_place_is_not_taken_for_a_droplet():
    """As sites of virtual particles that have not been placed yet; not even if nothing else is
    there are boxes too many."""
    positions, cell = np.random.default_rng(5).uniform(0, 6, (20_000, 3)), 6.0 * np.eye(3)
    positions[: len(positions) // 4] = 0.0
    assert filled_fraction(positions, cell) == 1.0
    nowhere = filled_fraction(np.zeros_like(positions), cell)
    assert 0.0 < nowhere < 1e-6
    assert (
        abs(
            np.linalg.det(
                choose_parameters(Request(5e-4), cell, Load(len(positions), nowhere, 0.0)).counts
            )
        )
        < 1e6
    )


def test_a_tolerance_out_of_reach_is_warned_of():
    """The warning names the parameters that exclude the tolerance; they are used all the same."""
    request, load = Request(1e-9, near_radius=1.87), Load(20000, 1.0, 0.0)
    with pytest.warns(
        UserWarning,
        match=r"^`tolerance=1e-09` is out of reach .*: the best expected error is \d\.\de-0\d$",
    ):
        found = choose_parameters(request, 6 * np.eye(3), load)
    assert found.expected_error > 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_parameters(replace(request, near_radius=None), 6 * np.eye(3), load)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"order": 3}, "`order`"),
        ({"grid": (6, 6, 6), "order": 3}, "`order` and `grid`"),
        ({"grid": (6, 6, 6), "order": 3, "near_radius": 1.87}, "`order`, `grid` and `near_radius`"),
        ({"near_radius": 1.87, "smoothing": 0.0}, "`near_radius` and `smoothing`"),
    ],
)
def test_what_was_given_is_named(options, given):
    with pytest.warns(UserWarning) as caught:
        found = choose_parameters(Request(1e-9, **options), 6 * np.eye(3), Load(20000, 1.0, 0.0))
    (warning,) = caught
    assert str(warning.message) == (
        f"`tolerance=1e-09` is out of reach for this cell with the {given} given: "
        f"the best expected error is {found.expected_error:.1e}"
    )
    assert warning.filename == __file__


def test_attempts_that_are_given_up_are_not_warned_of():
    """A deformed cell is first tried at the same order, without a warning; only the final
    choice is warned of, and only once.
    """
    load, cell = Load(2000, 1.0, 0.0), 2.7 * np.eye(3)
    deformed = cell * [[1.0], [1.0], [1.1]]
    chosen = choose_parameters(Request(), cell, load)
    request = Request(1.001 * chosen.expected_error, smoothing=chosen.smoothing)
    fixed = replace(request, grid=chosen.grid, order=chosen.order, near_radius=chosen.near_radius)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapt_parameters(chosen, request, deformed, load).expected_error <= request.tolerance
    with pytest.warns(
        UserWarning, match="with the `order`, `grid`, `near_radius` and `smoothing` given"
    ):
        missed = adapt_parameters(chosen, fixed, deformed, load)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapt_parameters(missed, fixed, cell * [[1.0], [1.0], [1.15]], load)


def test_few_particles_fill_their_cell():
    for n in (1, 2, 8):
        assert filled_fraction(np.random.default_rng(n).uniform(0, 3, (n, 3)), 3 * np.eye(3)) == 1.0


def test_the_precision_stays_when_the_cell_is_deformed():
    """Chosen with the widest smoothing in mind, where float32 is least noisy, while a narrower
    one may be cheaper."""
    cell, request, load = 6.0 * np.eye(3), Request(1e-5), Load(21384, 1.0, 0.0)
    chosen = choose_parameters(
        replace(request, smoothing=0.03, precision="single"), cell, load, CUDA_COST
    )
    assert (
        replace(request, smoothing=chosen.smoothing).resolve_precision(
            load.ionic, CUDA_COST.rounding
        )
        == "double"
    )
    deformed = adapt_parameters(
        chosen, request, cell * [[1.0], [1.0], [1.0 - 1e-6]], load, CUDA_COST
    )
    errors = {name: getattr(chosen, name) for name in ("expected_error", "expected_largest_error")}
    assert replace(deformed, **errors) == chosen


@pytest.mark.parametrize("name", CELLS)
def test_the_grid_stays_until_the_cell_is_deformed(name):
    cell, request, load = CELLS[name], Request(1e-4), Load(3000, 1.0, 0.0)
    chosen = choose_parameters(request, cell, load)
    larger = adapt_parameters(chosen, request, 1.7 * cell, load)
    assert (larger.grid, larger.order, larger.near_radius) == (
        chosen.grid,
        chosen.order,
        chosen.near_radius,
    )
    slightly = adapt_parameters(chosen, request, cell * [[1.0], [1.0], [1.02]], load)
    assert slightly.grid == chosen.grid and slightly.expected_error <= 1e-4
    much = adapt_parameters(chosen, request, cell * [[1.0], [1.0], [2.5]], load)
    assert much.grid != chosen.grid and much.expected_error <= 1e-4


@pytest.mark.parametrize("cost", [CPU_COST, CUDA_COST], ids=["cpu", "cuda"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 5e-4, 1e-4, 1e-5, 1e-7])
@pytest.mark.parametrize(("particles", "edge"), [(2700, 3.0), (21384, 6.0), (922752, 21.06)])
def test_promises(particles, edge, tolerance, cost):
    """The choice keeps all promises, without smoothing where that is cheaper and conserves the
    energy."""
    load = Load(particles, 1.0, 0.0)
    chosen = choose_parameters(Request(tolerance), edge * np.eye(3), load, cost)
    assert chosen.expected_error <= tolerance
    # with rounding
    assert (
        chosen.expected_error * largest_ratio(chosen.order, chosen.smoothing)
        <= 1.3 * LARGEST * tolerance
    )
    assert chosen.smoothing > 0 or chosen.expected_error <= CONSERVING
    if tolerance <= CONSERVING:
        assert chosen.smoothing == 0
    if tolerance == 1e-2:
        assert chosen.smoothing > 0


def test_promises_are_kept_as_far_as_possible():
    """An order too low for all of them is smoothed; one that was asked for without smoothing
    meets the tolerance alone."""
    cell, load = 6.0 * np.eye(3), Load(21384, 1.0, 0.0)
    low = choose_parameters(Request(5e-4, order=9, near_radius=1.87), cell, load, CUDA_COST)
    assert low.smoothing > 0
    plain = choose_parameters(Request(5e-4, smoothing=0.0), cell, load, CUDA_COST)
    assert CONSERVING < plain.expected_error <= 5e-4
    assert (
        plain.order
        < choose_parameters(
            Request(5e-4, near_radius=plain.near_radius), cell, load, CUDA_COST
        ).order
    )
