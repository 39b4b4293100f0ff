"""Each stage of the fast backend against the same stage of the reference backend, and what sort
must guarantee."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmm_openmm.backends.cpu import CpuStages
from fmm_openmm.backends.cpu.lattice import convolve, lattice_m2l
from fmm_openmm.backends.cpu.lattice_matrices import LatticeMatrices
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.backends.reference.sort import cubic_step, sort
from fmm_openmm.box import ORIGIN, BoxLattice, PaddedLattice, box_width
from fmm_openmm.driver import evaluate
from fmm_openmm.expansions.harmonics import term_count
from fmm_openmm.specification import Specification
from fmm_openmm.stages import Accumulator, Moments
from tests.support.charges import random_charges, relative

STAGES = {"cpu": CpuStages, "reference": ReferenceStages}
ROUNDING = {np.float32: 3e-6, np.float64: 1e-13}
"""Relative to the norm of what a stage returns; float32 resolves 6e-8."""

SKEWED = np.array([[5, 0, 0], [2, 4, 0], [-2, 1, 3]])


@dataclass(eq=False)
class Case:
    """Boxes are 0.5 nm wide and slightly deformed; `spread` is the fraction of the cell that the
    particles fill."""

    counts: np.ndarray
    particles: int
    order: int = 4
    radius: float = 2.3
    spread: float = 1.0

    @property
    def cell(self):
        return 0.5 * self.counts @ np.array([[1.0, 0, 0], [0.05, 1.1, 0], [-0.03, 0.07, 0.95]])


CASES = {
    "filled": Case(np.diag([4, 5, 6]), 200),
    "skewed": Case(SKEWED, 150, order=5, radius=2.9),
    "one_box": Case(np.diag([1, 1, 1]), 5, order=7, radius=3.0),
    "flat": Case(np.diag([6, 1, 2]), 40),
    "crowded": Case(np.diag([2, 1, 2]), 150, order=3, radius=1.75),
    "empty": Case(np.diag([9, 8, 7]), 40, order=6, spread=0.3),
    "one_particle": Case(SKEWED, 1),
}


@cache
def particles(case):
    """Positions (unwrapped, over 27 cells), charges, and excluded pairs: close, distant, many
    for particle 0."""
    x, q = random_charges(case.particles, case.cell, net=1.0, gap=0.01)
    x, n = x * case.spread, case.particles
    if n == 1:
        return x, q, np.zeros((0, 2), np.int64)
    pairs = {(0, j) for j in range(1, min(n, 6))}
    nearest = np.linalg.norm(x[:, None] - x, axis=-1) + 1e9 * np.eye(n)
    pairs |= {tuple(sorted((i, int(nearest[i].argmin())))) for i in range(0, n, 3)}
    pairs |= {
        tuple(sorted(pair))
        for pair in np.random.default_rng(1).permutation(n)[: n // 4 * 2].reshape(-1, 2)
    }
    x[1] = x[0] + [1e-4, 0, 0]
    return x, q, np.array(sorted(pairs))


def stages(backend, case, dtype=np.float64, smoothing=0.1, minimum_image=False):
    _, q, pairs = particles(case)
    lattice = BoxLattice.from_cell(case.cell, case.counts, case.radius)
    return STAGES[backend](
        Specification(lattice, case.order, smoothing, q, pairs, minimum_image, dtype)
    )


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=[0.0, 0.1, 0.3])
def smoothing(request):
    return request.param


@pytest.fixture(params=[np.float32, np.float64], ids=["single", "double"])
def dtype(request):
    return request.param


@pytest.fixture
def fast(case, smoothing, dtype):
    """The cpu backend, and its parts, which the stages after sort are given in both backends."""
    stage = stages("cpu", case, dtype, smoothing)
    return stage, stage.sort(particles(case)[0], box_width(case.cell, case.counts))


@pytest.fixture
def obvious(case, smoothing, fast):
    """The reference backend with the same parts, in float64."""
    stage, parts = stages("reference", case, smoothing=smoothing), fast[1]
    stage.sort(particles(case)[0], box_width(case.cell, case.counts))
    return stage, replace(parts, x=parts.x.astype(float), charge=parts.charge.astype(float))


def canonical(parts):
    """Order of the parts that both backends agree on: where a box meets its own image they
    number parts differently."""
    return np.lexsort((*parts.box.T, parts.particle))


def assert_close(found, expected, dtype):
    assert np.linalg.norm(np.subtract(found, expected)) <= ROUNDING[dtype] * max(
        np.linalg.norm(expected), 1e-30
    )


def test_sort(case, smoothing, dtype, fast):
    found = fast[1]
    expected = stages("reference", case, smoothing=smoothing).sort(
        particles(case)[0], box_width(case.cell, case.counts)
    )
    np.testing.assert_array_equal(found.start, expected.start)
    a, b = canonical(found), canonical(expected)
    for name in ("particle", "box"):
        np.testing.assert_array_equal(getattr(found, name)[a], getattr(expected, name)[b])
    for name in ("x", "charge", "weight", "slope"):
        assert_close(getattr(found, name)[a], getattr(expected, name)[b], dtype)
    assert found.x.dtype == found.charge.dtype == dtype
    for i in range(case.particles):
        assert (found.particle[found.place[found.first[i] : found.first[i + 1]]] == i).all()


def test_p2m(fast, obvious, dtype):
    found, expected = (stage.p2m(parts) for stage, parts in (fast, obvious))
    assert_close(found.boxes[:, fast[0].lattice.slots].T, expected.boxes, dtype)
    for name in ("charge", "dipole", "square"):
        assert_close(getattr(found, name), getattr(expected, name), dtype)


def random_expansions(stage, dtype):
    """For all boxes, (terms, boxes) in FFT order; terms of high degree are as small as
    those of moments are."""
    terms = (stage.order + 1) ** 2
    values = np.random.default_rng(2).normal(size=(terms, stage.lattice.size))
    return (values * 0.5 ** np.sqrt(np.arange(terms))[:, None]).astype(dtype)


def test_lattice(fast, obvious, dtype):
    """With and without matrices that are kept, and as the stages choose."""
    boxes, slots = random_expansions(fast[0], dtype), fast[0].lattice.slots
    nothing = (0.0, np.zeros(3), 0.0)
    expected = obvious[0].lattice_m2l(Moments(boxes[:, slots].T.astype(float), *nothing))
    operator, lattice, order = fast[0].operator, fast[0].lattice, fast[0].order
    for found in (
        fast[0].lattice_m2l(Moments(boxes.copy(), *nothing)),
        LatticeMatrices(operator, lattice, order).lattice_m2l(boxes),
        lattice_m2l(boxes, operator, lattice, order),
    ):
        assert found.dtype == dtype
        assert_close(found[:, slots].T, expected, dtype)


def test_no_far_field():
    """Where all boxes are near there are no expansions, and their results would be zero."""
    case, rng = CASES["crowded"], np.random.default_rng(4)
    q, x = rng.normal(size=case.particles), rng.random((case.particles, 3))
    lattice = PaddedLattice(np.array([2, 2, 2]), 1.87)
    stage = CpuStages(Specification(lattice, 3, 0.1, q, np.zeros((0, 2), np.int64), False, float))
    found = evaluate(stage, x, 0.6)
    assert not stage.has_far_field
    stage.has_far_field = True
    for fast, obvious in zip(found, evaluate(stage, x, 0.6), strict=True):
        np.testing.assert_array_equal(fast, obvious)
    assert stages("cpu", case).has_far_field  # which has images


def test_l2p(fast, obvious, dtype):
    local, slots = random_expansions(fast[0], dtype), fast[0].lattice.slots
    moments = Moments(None, 1.3, np.array([0.2, -0.7, 0.4]), np.array([2.1, 0.4, -1.2]))
    found = fast[0].l2p(fast[1], moments, local)
    expected = obvious[0].l2p(obvious[1], moments, local[:, slots].T.astype(float))
    assert_close(found.potentials, expected.potentials, dtype)
    assert_close(found.fields, expected.fields, dtype)


def accumulator(parts):
    """An array that is not zero, so that adding differs from overwriting."""
    rng = np.random.default_rng(3)
    return Accumulator(rng.normal(size=len(parts.x)), rng.normal(size=(len(parts.x), 3)))


def left_out(near):
    """The set of (part, other part, row of the stencil) of the entries that p2p must leave out."""
    target = np.repeat(np.arange(len(near.start) - 1), np.diff(near.start))
    return {entry for entry in zip(target, near.part, near.offset, strict=True) if entry[2] >= 0}


@pytest.mark.parametrize("minimum_image", [False, True], ids=["as_given", "minimum_image"])
def test_exclusions_and_p2p(fast, obvious, case, dtype, minimum_image):
    results = []
    for stage, parts in (fast, obvious):
        stage.minimum_image = minimum_image
        out = accumulator(parts)
        near = stage.exclusions(parts, out)
        far = replace(out, potentials=out.potentials.copy(), fields=out.fields.copy())
        stage.p2p(parts, near, out)
        results.append((far, out, left_out(near)))
    (far, out, entries), (expected_far, expected, expected_entries) = results
    assert entries == expected_entries
    for a, b in ((far, expected_far), (out, expected)):
        assert_close(a.potentials, b.potentials, dtype)
        assert_close(a.fields, b.fields, dtype)


def test_every_part_leaves_out_itself_and_its_siblings(fast):
    stage, parts = fast
    entries = {entry[:2] for entry in left_out(stage.exclusions(parts, accumulator(parts)))}
    siblings = [np.flatnonzero(parts.particle == i) for i in np.unique(parts.particle)]
    assert {(a, b) for group in siblings for a in group for b in group} <= entries


def test_gather(fast, obvious):
    out = accumulator(fast[1])
    found, expected = (stage.gather(parts, out) for stage, parts in (fast, obvious))
    assert_close(found[0], expected[0], np.float64)
    assert_close(found[1], expected[1], np.float64)


@pytest.mark.parametrize("minimum_image", [False, True], ids=["as_given", "minimum_image"])
def test_all_stages(case, dtype, minimum_image):
    x, width = particles(case)[0], box_width(case.cell, case.counts)
    fast = stages("cpu", case, dtype, minimum_image=minimum_image)
    obvious = stages("reference", case, minimum_image=minimum_image)
    for found, expected in zip(evaluate(fast, x, width), evaluate(obvious, x, width), strict=True):
        assert found.dtype == np.float64
        if case.particles > 1:
            assert relative(found, expected) < 5 * ROUNDING[dtype]


@pytest.mark.parametrize("backend", STAGES)
def test_set_charges(backend):
    case = CASES["skewed"]
    x, q, _ = particles(case)
    width, changed = box_width(case.cell, case.counts), stages(backend, case)
    changed.set_charges(-2 * q)
    before, after = evaluate(stages(backend, case), x, width), evaluate(changed, x, width)
    np.testing.assert_allclose(after[0], -2 * before[0], rtol=1e-12)


# What sort guarantees

BOXES = {"cubes": np.eye(3), "skewed": np.array([[1.0, 0, 0], [0.3, 0.9, 0], [-0.2, 0.4, 1.1]])}
coordinate = st.one_of(
    st.floats(-30, 30), st.integers(-30, 30).map(float), st.sampled_from([-1e-17, 0.45, 0.55, -0.1])
)


def split(positions, boxes="skewed", smoothing=0.1, counts=SKEWED):
    """Parts of unit charges at these positions in box widths."""
    lattice = BoxLattice(counts, BOXES[boxes] / np.cbrt(np.linalg.det(BOXES[boxes])), 2.3)
    x = np.asarray(positions, float) @ lattice.boxes
    return lattice, x, sort(x, np.ones(len(x)), lattice, 1.0, smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("boxes", BOXES)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(positions=st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=20))
def test_parts_are_a_partition_of_unity(boxes, smoothing, positions):
    lattice, x, parts = split(positions, boxes, smoothing)
    n = len(x)
    count = np.bincount(parts.particle, minlength=n)
    assert count.min() >= 1 and count.max() <= (8 if smoothing else 1)
    np.testing.assert_allclose(np.bincount(parts.particle, parts.weight, n), 1.0, atol=1e-14)
    np.testing.assert_array_equal(parts.charge, parts.weight)
    for axis in range(3):
        np.testing.assert_allclose(
            np.bincount(parts.particle, parts.slope[:, axis], n), 0.0, atol=1e-12
        )
    assert (parts.weight >= 0).all()

    centre = (parts.box + 0.5 - ORIGIN) @ lattice.boxes
    np.testing.assert_allclose(centre + parts.x, x[parts.particle], atol=1e-12)
    assert np.abs(parts.x @ np.linalg.inv(lattice.boxes)).max() <= 0.5 + smoothing + 1e-12
    number = np.repeat(np.arange(lattice.size), np.diff(parts.start))
    np.testing.assert_array_equal(lattice.linear(parts.box), number)


@pytest.mark.parametrize(
    "corner", [(0.0, 0.0, 0.0), (0.03, 0.98, 0.5), (0.1, 0.9, 0.999), (-1e-17, 0.05, 0.5)]
)
def test_slope_is_the_gradient_of_the_weight(corner):
    lattice, x, parts = split([corner])

    def weights(position):
        moved = sort(position, np.ones(1), lattice, 1.0, 0.1)
        return {tuple(box): weight for box, weight in zip(moved.box, moved.weight, strict=True)}

    h = 1e-6
    for box, slope in zip(parts.box, parts.slope, strict=True):
        ahead, behind = (
            [weights(x + s * h * e).get(tuple(box), 0.0) for e in np.eye(3)] for s in (1, -1)
        )
        np.testing.assert_allclose(slope, np.subtract(ahead, behind) / (2 * h), atol=1e-6)


def test_cubic_step():
    """The step rises from 0 to 1 with a vanishing derivative at both ends."""
    t = np.linspace(0, 1, 101)
    step, slope = cubic_step(t)
    np.testing.assert_allclose(step + step[::-1], 1.0, atol=1e-15)
    np.testing.assert_allclose(slope[1:-1], np.gradient(step, t)[1:-1], atol=2e-3)
    for end in (step[1], 1 - step[-2]):
        assert 0 < end < 3e-4  # 3 t^2
    assert slope[0] == slope[-1] == 0.0


@pytest.mark.parametrize("sets", [(), (3,)])
def test_shares_of_the_wave_vectors(sets):
    """A rank has any number of them, none included."""
    rng, order, waves = np.random.default_rng(5), 3, 150
    operator = rng.normal(size=(term_count(2 * order), waves))
    whole = rng.normal(size=(*sets, term_count(order), waves, 2))
    parts = slice(0, 70), slice(70, 70), slice(70, waves)
    shares = [whole[..., part, :].copy() for part in parts]
    convolve(whole, operator, order)
    for share, part in zip(shares, parts, strict=True):
        convolve(share, np.ascontiguousarray(operator[:, part]), order)
        np.testing.assert_allclose(share, whole[..., part, :], rtol=1e-12, atol=1e-12)
