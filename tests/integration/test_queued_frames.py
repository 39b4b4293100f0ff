"""Frames that a GPU computes while later ones are read, by arrays and an evaluator that only behave
as if they were there."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.integration import frame_solver
from fmm_openmm.integration.frame_tasks import AHEAD
from tests.integration.trajectories import Backwards, close_ions, liquid
from tests.support.on_device import QueueingEvaluator, device_array, notes

QUANTITIES = ("forces", "energy", "potentials")


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(frame_solver, "to_device", device_array)
    notes.clear()


def moved(made):
    """The trajectory for a solver on the device."""
    frames, solver = made
    solver.evaluation.backend, solver.evaluation.evaluator_class = "cuda", QueueingEvaluator
    return frames, solver


def in_one_box(count):
    """Water in one box, as an array of positions for each frame."""
    frames, solver = moved(liquid(1))
    (x, box), random = frames[0], np.random.default_rng(3)
    return [(x + 0.001 * random.normal(size=x.shape), box.copy()) for _ in range(count)], solver


def assert_equal(found, expected, chosen=slice(None)):
    for name in QUANTITIES:
        assert np.array_equal(found[name], expected[name][chosen])


def test_results_are_those_of_the_solver():
    frames, solver = in_one_box(4)
    found = fmm.analyse(frames, solver, QUANTITIES)
    assert len(notes) == 8
    cpu = liquid(1, backend="cpu")[1]
    for number, frame in enumerate(frames):
        expected = cpu.compute(*frame)
        for name in QUANTITIES:
            assert found[name][number] == pytest.approx(getattr(expected, name), rel=1e-5, abs=0.1)


def test_frames_are_queued_ahead():
    count = AHEAD + 4
    frames, solver = in_one_box(count)
    fmm.analyse(frames, solver)
    expected = [("queue", number) for number in range(AHEAD + 1)]
    for number in range(count):
        expected.append(("wait", number))
        if number + AHEAD + 1 < count:
            expected.append(("queue", number + AHEAD + 1))
    assert notes == expected


@pytest.mark.parametrize("make", [lambda: in_one_box(9), lambda: moved(liquid(9))])
@pytest.mark.slow
def test_any_split_gives_the_same_bits(make):
    """In one box, in others, and with positions in single precision, which are exact."""
    frames, solver = make()
    frames = [(x.astype(np.float32), box) for x, box in frames]
    expected = fmm.analyse(frames, solver, QUANTITIES)
    assert sum(what == "queue" for what, _ in notes) == 9
    assert_equal(fmm.analyse(frames, solver, QUANTITIES, Backwards()), expected)
    assert_equal(fmm.analyse(iter(frames), solver, QUANTITIES, Backwards()), expected)
    assert_equal(
        fmm.analyse([frames[0], *frames[5:]], solver, QUANTITIES), expected, [0, *range(5, 9)]
    )
    doubles = [(x.astype(float), box) for x, box in frames]
    assert_equal(fmm.analyse(doubles, solver, QUANTITIES), expected)


def test_one_array_for_all_frames():
    """The caller writes the next frame to it while others are queued."""
    frames, solver = in_one_box(6)
    expected = fmm.analyse(frames, solver, QUANTITIES)

    def reading():
        x, box = frames[0][0].copy(), frames[0][1].copy()
        for positions, vectors in frames:
            x[...], box[...] = positions, vectors
            yield x, box

    assert_equal(fmm.analyse(reading(), solver, QUANTITIES), expected)


def test_forces_that_need_other_parameters():
    """Such a frame is computed again, in double precision, and nothing else changes."""
    frames, solver = moved(close_ions())
    pairs = [(x, solver.box_vectors) for x in frames]
    expected = fmm.analyse(pairs, close_ions(backend="cpu")[1], ("forces",))["forces"]
    found = fmm.analyse(pairs, solver, QUANTITIES)
    error = np.linalg.norm(found["forces"] - expected, axis=(1, 2))
    assert (error < 2e-4 * np.linalg.norm(expected, axis=(1, 2))).all()
    assert_equal(fmm.analyse(pairs[:1] + pairs[2:], solver, QUANTITIES), found, [0, 2, 3, 4])
    without = fmm.analyse(pairs[:2] + pairs[3:], solver, QUANTITIES)
    assert_equal(without, found, [0, 1, 3, 4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nan", "must be finite and within 1e+09 nm of the origin, got .*nan.* for particle 7"),
        ("far", "must be finite and within 1e+09 nm of the origin, got .* for particle 7"),
        ("same", "particles 0 and 3 coincide"),
        ("shape", "must have shape"),
        ("box", "must span a positive volume"),
        ("read", "OSError: end of file"),
    ],
)
def test_a_frame_that_is_invalid(wrong, message):
    """Those before it are done, and nothing is left queued."""
    frames, solver = in_one_box(6)
    expected = fmm.analyse(frames, solver, QUANTITIES)
    notes.clear()

    def reading():
        for number, (positions, box) in enumerate(frames):
            x, vectors = positions.copy(), box.copy()
            if number == 4:
                if wrong == "read":
                    raise OSError("end of file")
                if wrong == "shape":
                    x = x[1:]
                elif wrong == "box":
                    vectors[2, 2] = 0.0
                elif wrong == "same":
                    x[3] = x[0]
                else:
                    x[7, 1] = {"nan": np.nan, "far": -2e9}[wrong]
            yield x, vectors

    with pytest.raises(
        fmm.AnalysisError, match=f"frame 4 .*{message}".replace("+", r"\+")
    ) as caught:
        fmm.analyse(reading(), solver, QUANTITIES)
    assert caught.value.frames.tolist() == [0, 1, 2, 3]
    assert_equal(caught.value.arrays, expected, slice(4))
    begun = {number for what, number in notes if what == "queue"}
    assert begun == {number for what, number in notes if what == "wait"}


class Filled(QueueingEvaluator):
    """Has no memory left when it queues the third frame, nor for another evaluator then."""

    is_full = False

    def __init__(self, specification):
        if type(self).is_full:
            raise MemoryError("no room")
        super().__init__(specification)

    def queue_frame(self, *arguments):
        if sum(what == "queue" for what, _ in notes) == 2:
            type(self).is_full = True
            vars(self).clear()
            raise MemoryError("no room")
        return super().queue_frame(*arguments)


def test_a_device_that_is_full(monkeypatch):
    """The frames queued before it was are those of the device, the others of the CPU."""
    monkeypatch.setattr(Filled, "is_full", False)
    frames, solver = in_one_box(5)
    expected = fmm.analyse(frames, liquid(1, backend="cpu")[1], QUANTITIES)
    notes.clear()
    solver.evaluation.evaluator_class = Filled
    with pytest.warns(UserWarning, match="backend 'auto' means 'cpu' here: no room"):
        found = fmm.analyse(frames, solver, QUANTITIES)
    assert [what for what, _ in notes] == ["queue", "queue", "wait", "wait"]
    for name in QUANTITIES:
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=0.1)
    assert np.array_equal(found["forces"][2:], expected["forces"][2:])
