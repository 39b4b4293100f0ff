"""What is timed, counted and derived from times."""

from types import SimpleNamespace

import numpy as np
import pytest

from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.bench import timing
from fmm_openmm.bench.open import crossover
from fmm_openmm.bench.scaling import copies_near, growth_exponent
from fmm_openmm.bench.solver import (
    Evaluation,
    Limits,
    compulsory_bytes,
    measure,
    near_pairs,
    relative_error,
)
from fmm_openmm.bench.systems import Size
from fmm_openmm.box import BoxLattice
from fmm_openmm.convert import ChargeSystem
from tests.bench.cases import EDGE


def test_pairs_are_counted():
    lattice = BoxLattice.from_cell(
        np.array([[3.0, 0, 0], [0.8, 3.3, 0], [0.2, -1.1, 4.0]]), np.diag([5, 6, 7]), 2.3
    )
    count = np.random.default_rng(3).integers(0, 4, lattice.size)
    index = np.stack(np.unravel_index(np.arange(lattice.size), (7, 6, 5)), -1)[:, ::-1]
    expected = sum(count @ count[lattice.linear(index + offset)] for offset in lattice.near)
    assert near_pairs(lattice, count) == expected


def test_bytes_of_the_far_field():
    lattice = BoxLattice.from_cell(np.eye(3), np.diag([4, 4, 4]), 1.8)
    boxes, waves, terms = 64, 4 * 4 * 3, 9
    moments = local = terms * boxes
    spectrum = local_spectrum = 2 * terms * waves
    expected = 4 * (2 * (moments + local + spectrum + local_spectrum) + 25 * waves + 12 * 100)
    assert compulsory_bytes(lattice, 2, 100, 4) == expected


def test_growth_exponent():
    rows = [{"atoms": n, "seconds": 1e-9 * n**1.1} for n in (1e4, 1e5, 1e6)]
    assert growth_exponent(rows) == pytest.approx(1.1)
    assert growth_exponent(rows[:1]) is None
    assert [int(np.prod(copies_near(k))) for k in (1, 10, 100, 1000)] == [1, 8, 100, 1000]


@pytest.mark.slow
def test_stage_clock_changes_nothing(base):
    solver = base.charges.solver(
        tolerance=1e-3, backend="reference", order=2, grid=(3, 3, 3), near_radius=1.8
    )
    solver.compute(base.charges.positions)
    stages = solver.evaluation.used[0]
    assert isinstance(stages, ReferenceStages)
    seconds = timing.stage_seconds(stages, base.charges.positions, EDGE / 3)
    assert list(seconds) == list(timing.STAGES)
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed(base):
    solver = base.charges.solver(
        tolerance=1e-3, backend="cpu", order=2, grid=(2, 2, 2), near_radius=1.8, levels=1
    )
    solver.compute(base.charges.positions)
    seconds = timing.stage_seconds(solver.evaluation.used[0], base.charges.positions, EDGE / 4)
    assert list(seconds) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    assert min(seconds.values()) > 0


def test_stages_of_levels_are_timed_on_a_gpu(base):
    """The clock counts what is queued."""
    evaluation = Evaluation(
        base.charges, backend="cpu", order=2, grid=(1, 1, 1), near_radius=1.8, levels=2
    )
    assert list(evaluation.stage_seconds()) == [*timing.STAGES, "m2m", "m2l", "l2l"]
    evaluation._device = SimpleNamespace(median_seconds=lambda run: run())
    evaluation.evaluator = SimpleNamespace(run=SimpleNamespace(queue=lambda *stages: [*stages]))
    single = {name: [name] for name in timing.STAGES}
    assert evaluation.stage_seconds() == single | {
        "m2m": ["m2m"],
        "m2l": ["m2l1", "m2l2"],
        "l2l": ["l2l1", "l2l2"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "tolerance", "instructions"), [("single", 1e-3, 14), ("double", 1e-6, 18)]
)
def test_share_of_the_limits(monkeypatch, precision, tolerance, instructions):
    monkeypatch.setattr("fmm_openmm.bench.solver.limits", lambda *_: Limits(1e12, 1e10))
    row = measure(Size(EDGE), tolerance, 0.0, backend="cpu")
    assert row["precision"] == precision
    assert row["p2p_share"] == pytest.approx(instructions * row["pairs_per_second"] / 1e12)


# the commands


def test_where_one_method_overtakes_another():
    def rows(method, *times):
        return [
            {"method": method, "atoms": atoms, "seconds": t}
            for atoms, t in zip((10, 100, 1000), times, strict=True)
        ]

    found = crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 8.0, 64.0), "fmm", "direct")
    assert found == pytest.approx(10 ** (1 + np.log(4) / np.log(8)))
    assert (
        crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 1.0, 2.0, 3.0), "fmm", "direct")
        is None
    )
    assert (
        crossover(rows("fmm", 4.0, 4.0, 4.0) + rows("direct", 5.0, 6.0, 7.0), "fmm", "direct") == 10
    )


def test_an_evaluation_is_of_all_that_its_charges_are(base):
    """Pairs excluded at their nearest image are taken into account."""
    c = base.charges
    wrapped = c.positions % np.diag(c.box_vectors)
    broken = ChargeSystem(c.charges, wrapped, c.box_vectors, c.exclusions, exclusions_periodic=True)
    assert (
        relative_error(Evaluation(broken, tolerance=1e-3, backend="cpu").forces, base.exact) < 1e-3
    )


def test_the_loop_of_multiply_adds_compiles(nvrtc):
    from fmm_openmm.bench.device import CHAINS, FMA_LOOP, ROUNDS

    for real in ("float", "double"):
        program = nvrtc.createProgram(FMA_LOOP, "fma_loop.cu", [], [])
        options = [f"-DREAL={real}", f"-DCHAINS={CHAINS}", f"-DROUNDS={ROUNDS}", "-arch=sm_90"]
        nvrtc.compileProgram(program, options)
        assert nvrtc.getProgramLog(program).strip() == ""
