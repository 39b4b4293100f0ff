"""A frame's result does not depend on frames other than the first, even where evaluators that are
changed to another shape of the boxes round differently from new ones, as they do on a GPU."""

import numpy as np
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cpu import CpuStages
from fmm_openmm.integration.frame_solver import FrameSolver, discard_frame_solver
from tests.integration.trajectories import Backwards, liquid


class Changeable(CpuStages):
    """An evaluator that can be changed; its results show what it was made for."""

    made: list = []  # noqa: RUF012

    def __init__(self, specification):
        super().__init__(specification)
        self.mark = 1e-6 * specification.lattice.boxes[2, 2]
        self.made.append(self)

    def adopt(self, specification):
        if not np.array_equal(self.lattice.counts, specification.lattice.counts):
            return False
        made_for, mark = self.specification, self.mark
        super().__init__(specification)
        self.specification, self.mark = made_for, mark
        return True

    def evaluate(self, positions, width):
        potentials, fields = super().evaluate(positions, width)
        return potentials * (1 + self.mark), fields


@pytest.fixture
def trajectory():
    Changeable.made.clear()
    frames, solver = liquid(9, backend="cpu")
    solver.evaluation.evaluator_class = Changeable
    return frames, solver


@pytest.mark.slow
def test_changed_evaluators(trajectory):
    frames, solver = trajectory
    expected = fmm.analyse(frames, solver)["energy"]
    found = fmm.analyse(frames, solver, executor=Backwards())["energy"]
    assert np.array_equal(found, expected)
    for k in 3, 7:
        alone = fmm.analyse([frames[0], frames[k]], solver)["energy"][1]
        assert alone == expected[k]


@pytest.mark.slow
def test_a_solver_shows_the_difference(trajectory):
    """Otherwise the test above would show nothing."""
    frames, solver = trajectory
    found = [solver.compute(*frame).energy for frame in frames]
    _, other = liquid(9, backend="cpu")
    other.evaluation.evaluator_class = Changeable
    assert found[1:] != [other.compute(*frame).energy for frame in frames[1:]]


def test_evaluators_are_changed_where_they_can_be(trajectory):
    """One is made for the first frame, and one for each frame whose boxes are others."""
    frames, solver = trajectory
    fmm.analyse(frames, solver)
    others = sum(number % 5 == 2 for number in range(len(frames)))
    assert 1 <= len(Changeable.made) <= 1 + others


def evaluate(solver, positions, box_vectors):
    return solver.compute(positions, box_vectors).energy


def test_frames_are_evaluated_without_a_trace(trajectory):
    frames, solver = trajectory
    frame_solver = FrameSolver(solver, *frames[0], evaluate)
    planner = dict(vars(frame_solver._solver.evaluation.planner))
    for frame in frames:
        evaluate(frame_solver, *frame)
    assert vars(frame_solver._solver.evaluation.planner) == planner
    assert frame_solver._solver.evaluation.evaluators == {}
    discard_frame_solver()
