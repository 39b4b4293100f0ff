"""``CoulombSolver.measure_errors`` against errors relative to sums that share no approximation with
the FMM."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError
from fmm_openmm.arrays import to_host
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import direct_sum, ewald_sum, partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.expected_errors import crystal, of_system, random_case, relative, solver_of
from tests.systems import build

CASES = {
    **{
        f"{name}, displaced by {amplitude:g}": (lambda n=name, a=amplitude: crystal(n, a))
        for name in ("nacl", "cscl", "fluorite_primitive", "wigner_sc", "wigner_bcc_primitive")
        for amplitude in (0.014, 0.07)
    },
    **{
        f"{kind} {seed}": (lambda kind=kind, seed=seed: random_case(kind, seed))
        for kind in ("gas", "cluster_beside_others", "pairs", "crystal", "layer", "mixture")
        for seed in (0, 1)
    },
    "molecules 1": lambda: random_case("molecules", 1),
    "droplet 2": lambda: random_case("droplet", 2),
    **{
        name: (lambda name=name: of_system(build(name)))
        for name in ("water", "melt", "peptide_cube")
    },
}

NEGLIGIBLE = 1e-3
"""Error over tolerance below which it does not matter how large it is: rounding in double precision
may dominate it."""


@pytest.mark.filterwarnings("ignore::UserWarning")  # of tolerances out of reach
@pytest.mark.parametrize("tolerance", [5e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("name", CASES)
def test_errors_are_measured(name, tolerance):
    case = CASES[name]()
    exact = ewald_sum(case.positions, case.charges, case.cell, case.exclusions).forces
    solver = solver_of(case, tolerance)
    found = relative(solver.compute(case.positions).forces, exact)
    measured, p = solver.measure_errors(case.positions), solver.parameters
    if found[0] < NEGLIGIBLE * tolerance:
        assert measured.rms < 2 * NEGLIGIBLE * tolerance
        return
    for error, value, expected in zip(
        found,
        (measured.rms, measured.largest),
        (p.expected_error, p.expected_largest_error),
        strict=True,
    ):
        assert value == pytest.approx(error, rel=0.06)
        assert error <= expected <= 3 * error


def ratio_of_rounding(seed):
    """Measured error over error of a cluster in wide boxes, in double precision."""
    case = random_case("cluster_beside_others", seed)
    q, x = case.charges.astype(np.longdouble), case.positions.astype(np.longdouble)
    delta = x[:, None] - x
    squares = (delta**2).sum(-1)
    np.fill_diagonal(squares, np.inf)
    pairs = COULOMB_CONSTANT * q[:, None] * q / squares**1.5
    exact = (pairs[..., None] * delta).sum(1)
    solver = CoulombSolver(case.charges, None, boundary="open", tolerance=1e-10, backend="cpu")
    error, _ = relative(solver.compute(case.positions).forces, exact)
    return solver.measure_errors(case.positions).rms / error


@pytest.mark.slow
def test_rounding_in_double_precision():
    """Another evaluation must round the coordinates differently. A few particles make most of the
    error, so that the magnitudes agree in one system, and errors on average."""
    ratios = [ratio_of_rounding(seed) for seed in range(24)]
    assert 0.1 < min(ratios) < max(ratios) < 10
    assert 0.5 < np.median(ratios) < 2


@pytest.mark.slow
def test_expected_errors_of_other_positions():
    """The errors measured in a liquid hold wherever the boxes lie in it."""
    case = of_system(build("melt"))
    exact = ewald_sum(case.positions, case.charges, case.cell).forces
    solver = CoulombSolver(case.charges, case.cell, tolerance=1e-5, backend="cpu")
    solver.measure_errors(case.positions)
    for shift in np.random.default_rng(3).normal(size=(4, 3)):
        error, _ = relative(solver.compute(case.positions + shift).forces, exact)
        assert error <= solver.parameters.expected_error <= 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("boundary", ["open", "slab", "bc", "wire"])
def test_errors_without_images(boundary, backend):
    rng = np.random.default_rng(7)
    x, q, cell = 2 * rng.random((300, 3)), rng.choice([-1.0, 1.0], 300), 2.0 * np.eye(3)
    q[:150], q[150:] = 1.0, -1.0
    if boundary == "open":
        exact, vectors = direct_sum(x, q).forces, None
    else:
        vectors = cell
        exact = partial_ewald_sum(x, q, Boundary.from_name(boundary).cell(cell)).forces
    solver = CoulombSolver(q, vectors, tolerance=1e-3, boundary=boundary, backend=backend, order=4)
    error, largest = relative(solver.compute(x).forces, exact)
    found = solver.measure_errors(x)
    assert found.rms == pytest.approx(error, rel=0.06)
    assert found.largest == pytest.approx(largest, rel=0.06)


def test_measuring_changes_no_forces():
    case = random_case("gas", 1)
    solver = CoulombSolver(case.charges, case.cell, backend="cpu")
    before = solver.compute(case.positions).forces
    solver.measure_errors(case.positions)
    assert np.array_equal(solver.compute(case.positions).forces, before)


def test_other_parameters_have_no_measured_errors():
    case = random_case("gas", 1)
    solver = CoulombSolver(case.charges, case.cell, backend="cpu")
    solver.compute(case.positions)
    before = solver.parameters
    solver.measure_errors(case.positions)
    assert solver.parameters.expected_error != before.expected_error
    solver.set_charges(np.append(case.charges[:-1] * 1e-6, 1.0))  # one carries all charge
    assert solver.parameters.expected_error >= before.expected_error


@pytest.mark.parametrize("tolerance", [5e-4, 1e-7])
def test_positions_on_host_and_device(backend, tolerance):
    case = random_case("gas", 1)
    exact = ewald_sum(case.positions, case.charges, case.cell).forces
    places = [case.positions]
    if backend == "cuda":
        places.append(pytest.importorskip("cupy").asarray(case.positions))
    for x in places:
        solver = CoulombSolver(case.charges, case.cell, tolerance=tolerance, backend=backend)
        error, largest = relative(to_host(solver.compute(x).forces), exact)
        found = solver.measure_errors(x)
        assert found.rms == pytest.approx(error, rel=0.06)
        assert found.largest == pytest.approx(largest, rel=0.06)


def test_orders_that_cannot_be_measured_are_refused():
    case = random_case("gas", 1)
    solver = CoulombSolver(case.charges, case.cell, backend="cpu", order=36)
    with pytest.raises(UnsupportedError, match="needs an order of at most 35, got 36"):
        solver.measure_errors(case.positions)
    direct = CoulombSolver([1.0, -1.0], None, boundary="open", method="direct", backend="cpu")
    with pytest.raises(UnsupportedError, match="`measure_errors` needs `method='fmm'`"):
        direct.measure_errors([[0, 0, 0], [0, 0, 1]])
