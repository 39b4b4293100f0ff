"""The a-priori error estimate: it bounds measured errors without waste, and moves the right way."""

import numpy as np
import pytest

from fmm_openmm import CoulombSolver
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.error import (
    L,
    charged_fraction,
    estimate_error,
    far_distances,
    ionic_fraction,
    single_noise,
)
from fmm_openmm.oracle import ewald_sum
from tests.support.charges import relative
from tests.systems import build, charge_arrays


@pytest.fixture(scope="module", params=["water", "brine_triclinic", "melt"])
def system(request):
    """(charges, box_vectors, exclusions), positions, exact forces."""
    d = charge_arrays(build(request.param))
    exact = ewald_sum(d.positions, d.charges, d.box_vectors, d.exclusions)
    return (d.charges, d.box_vectors, d.exclusions), d.positions, exact.forces


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2])
@pytest.mark.parametrize(
    "radius, order", [(1.75, 3), (1.75, 8), (2.5, 5), (2.5, 10), (3.5, 4), (3.5, 9)]
)
def test_estimate_bounds_the_error(system, radius, order, smoothing):
    """The formula alone, over five decades of error, with explicit parameters."""
    arguments, positions, exact = system
    solver = CoulombSolver(
        *arguments, order=order, near_radius=radius, smoothing=smoothing, precision="double"
    )
    measured = relative(solver.compute(positions).forces, exact)
    assert solver.parameters.expected_error / 30 < measured < solver.parameters.expected_error


@pytest.mark.parametrize("smoothing", [0.0, 0.025, 0.1])
def test_rounding_of_single_precision(system, smoothing):
    """The difference of the two precisions at the same parameters is what float32 adds."""
    arguments, positions, _ = system
    options = dict(order=5, near_radius=2.5, smoothing=smoothing)
    single, double = (
        CoulombSolver(*arguments, **options, precision=p).compute(positions)
        for p in ("single", "double")
    )
    noise = single_noise(ionic_fraction(arguments[0], arguments[2]), smoothing)
    assert noise / 8 < relative(single.forces, double.forces) < 2 * noise


@pytest.mark.parametrize(
    "charges, fraction",
    [([1, -1, 1, -1], 1), ([-2, 1, 1], 2 / 3), ([0, -2, 1, 1], 1 / 2), ([0, 0], 1)],
)
def test_charged_fraction(charges, fraction):
    assert charged_fraction(np.array(charges, float)) == pytest.approx(fraction)


@pytest.mark.parametrize(
    "charges, exclusions, fraction",
    [
        ([1, -1, 1, -1], [], 1.0),
        ([1, -1, 1, -1], [(0, 1), (2, 3)], 0.0),
        ([-0.8, 0.4, 0.4, 1.0], [(0, 1), (0, 2)], 1.0 / 1.96),
        ([1, 1, 1, -1], [(0, 1)], 1.0),
        ([0.0, 0.0], [], 0.0),
    ],
    ids=["ions", "molecules", "molecule_and_ion", "capped", "no_charges"],
)
def test_ionic_fraction(charges, exclusions, fraction):
    pairs = np.array(exclusions, np.int64).reshape(-1, 2)
    assert ionic_fraction(np.array(charges, float), pairs) == pytest.approx(fraction)


@pytest.mark.parametrize(
    "radius, offset",
    [(1.75, (2, 0, 0)), (2.3, (2, 1, 1)), (2.5, (2, 2, 0)), (2.9, (2, 2, 1)), (3.5, (3, 2, 0))],
)
def test_first_far_boxes_of_cubes(radius, offset):
    """Boxes along a diagonal count as nearer, those next to a face as farther."""
    distances = far_distances(BoxLattice(8 * np.eye(3, dtype=np.int64), np.eye(3), radius))
    length = np.linalg.norm(offset)
    assert distances.min() == pytest.approx(length * (1 - L * (sum(offset) / (2 * length) - 0.7)))
    assert distances.max() == pytest.approx(radius + 2, abs=0.5)


@pytest.mark.parametrize("radius", [1.75, 2.5, 4.2])
@pytest.mark.parametrize("order", [3, 8])
def test_estimate_moves_the_right_way(radius, order):
    lattices = [
        BoxLattice(8 * np.eye(3, dtype=np.int64), np.eye(3), r) for r in (radius, radius + 0.8)
    ]
    near, wider = map(far_distances, lattices)
    base = dict(smoothing=0.1, per_box=5.0, deformation=1.02, ionic=0.1, charged=2e4)
    error = estimate_error(near, order, **base)
    assert estimate_error(near, order + 1, **base) < 0.8 * error
    assert estimate_error(wider, order, **base) < 0.8 * error
    for name, worse in {
        "smoothing": 0.02,
        "per_box": 2.0,
        "deformation": 1.1,
        "ionic": 0.5,
        "charged": 5e3,
    }.items():
        assert estimate_error(near, order, **{**base, name: worse}) > error
    assert estimate_error(near, order, **{**base, "smoothing": 0.0}) < 2 * error
