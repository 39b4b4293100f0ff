"""What the evaluator queues on a GPU, with streams and graphs that take notes. Needs no GPU."""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.program import SETUP, Device
from fmm_openmm.box import BoxLattice
from fmm_openmm.specification import Specification
from tests.support.cupy_on_host import Buffer

cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda import evaluator as evaluators  # noqa: E402
from fmm_openmm.backends.cuda.execute.cupy import executor  # noqa: E402
from fmm_openmm.backends.cuda.execute.cupy.graph import Call  # noqa: E402

LEVELS, COUNTS = 1, np.diag((4, 6, 8))
CELL = 1.0 * COUNTS


class Array(Buffer):
    def get(self):
        return np.asarray(self)


class Stream:
    """A stream that is the current one within a ``with``."""

    def __init__(self, non_blocking=True, priority=0):
        self.priority, self.ptr = priority, 0

    def __enter__(self):
        current.append(self)

    def __exit__(self, *_):
        current.pop()

    def begin_capture(self):
        notes.append(("capture", self))


class Graph:
    @classmethod
    def captured(cls, stream, first, uses):
        notes.append(("captured", stream))
        return cls()

    def launch(self, stream, first):
        notes.append(("graph", stream))
        if first:
            notes.append(first.arguments)


class CurrentDevice:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


notes: list[tuple] = []  # what was queued, and on which stream
current: list[Stream] = []


@pytest.fixture
def evaluator(monkeypatch):
    def allocated(program, given):
        buffers = program.buffers.items()
        return {name: np.zeros(each.shape, each.dtype).view(Array) for name, each in buffers}

    def shared(flag):
        return 2 * (np.zeros(flag.shape, flag.dtype).view(Array),)

    def kernels_of(program):
        return dict.fromkeys(program.kernels, lambda *_: None)

    def bound(step, *_):
        return lambda: notes.append((step, current[-1]))

    notes.clear()
    current[:] = [Stream()]
    monkeypatch.setattr(cupy.cuda, "Stream", Stream)
    monkeypatch.setattr(cupy.cuda, "Device", CurrentDevice)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: current[-1])
    monkeypatch.setattr(evaluators, "contiguous", lambda values, *_: values.view(Buffer))
    monkeypatch.setattr(evaluators.Given, "take", lambda *_: None)
    monkeypatch.setattr(executor, "allocated", allocated)
    monkeypatch.setattr(executor, "shared", shared)
    monkeypatch.setattr(executor, "compiled", kernels_of)
    monkeypatch.setattr(executor, "bound", bound)
    monkeypatch.setattr(executor, "Graph", Graph)
    monkeypatch.setattr(evaluators, "current_device", lambda: Device(132, 227 * 1024))
    return evaluators.CudaEvaluator(specification(CELL))


def specification(cell, order=4):
    lattice, pairs = BoxLattice.from_cell(cell, COUNTS, 1.87), np.zeros((0, 2), np.int64)
    return Specification(lattice, order, 0.05, np.ones(20), pairs, False, np.float32, LEVELS)


def queued(evaluator, width=1.0):
    notes.clear()
    evaluator.evaluate(np.zeros((20, 3)), width)
    return [*notes]


def test_the_graph_is_captured_once(evaluator):
    """After all steps were queued one by one, in the order of the program."""
    (caller,) = current
    steps = evaluator._program.steps
    setup = [step for step in steps if step.stage == SETUP]
    others = [step for step in steps if step.stage != SETUP]
    first = queued(evaluator)
    count = len(setup) + len(others)
    assert [step for step, _ in first[:count]] == setup + others
    side = {step.stream: stream for step, stream in first[:count]}
    assert side[0] is caller
    assert all(stream is side[step.stream] for step, stream in first[:count])
    lower = {number: stream.priority for number, stream in side.items() if number}
    assert max(lower, key=lower.get) == 1  # the background's

    (begin, captured), *again, end, launch = first[count:]
    assert (begin, end, launch) == ("capture", ("captured", captured), ("graph", caller))
    assert [step for step, _ in again] == others
    assert all(stream is (side | {0: captured})[step.stream] for step, stream in again)
    assert queued(evaluator) == [("graph", caller)]


def test_a_kernel_precedes_the_others_in_the_graph(evaluator):
    """Its arguments differ between calls; another kernel has a graph of its own."""

    def queued(kernel, argument):
        notes.clear()
        evaluator.queue(lambda run: Call(kernel, (1, 1, 1), 1, (argument,)), 1.0)
        return [*notes]

    def kernel(grid, block, arguments):
        notes.append(("kernel", current[-1]))

    (caller,) = current
    steps = [step for step in evaluator._program.steps if step.stage != SETUP]
    *_, begin, first, step, _ = [
        note for note in queued(kernel, 5) if note[0] in ("capture", "kernel", steps[0], "captured")
    ]
    assert (begin, first, step) == (
        ("capture", first[1]),
        ("kernel", first[1]),
        (steps[0], step[1]),
    )
    assert first[1] is not caller
    assert queued(kernel, 6) == [("graph", caller), (6,)]
    assert len(queued(lambda *_: None, 7)) > len(steps)
    assert queued(kernel, 8) == [("graph", caller), (8,)]


def test_a_kernel_alone_in_a_graph(evaluator):
    (caller,) = current

    def kernel(grid, block, arguments):
        notes.append(("kernel", current[-1]))

    for argument in 1, 2:
        notes.clear()
        evaluator.run.launch(Call(kernel, (1, 1, 1), 1, (argument,)))
        if argument == 1:
            (_, stream), (begin, own), (_, captured), end, *_ = notes
            assert (stream, begin, end) == (caller, "capture", ("captured", own))
            assert own is captured is not caller
        assert notes[-2:] == [("graph", caller), (argument,)]
    assert len(notes) == 2


def test_results_are_written_to_new_arrays(evaluator, monkeypatch):
    """By the last kernel, whose graph follows that of all others."""
    monkeypatch.setattr(cupy, "ndarray", lambda *given: np.zeros(*given).view(Array))
    (caller,) = current
    (gather,) = (step for step in evaluator._program.steps if step.stage == "gather")
    buffers = evaluator.run.buffers
    for again in False, True:
        notes.clear()
        found = evaluator.compute(np.zeros((20, 3)), 1.0)
        assert gather not in [note[0] for note in notes]
        assert notes[-2] == ("graph", caller)
        assert [note for note in notes if note[0] == "graph"] == 2 * [("graph", caller)]
        assert (len(notes) == 3) == again
        (arguments,) = notes[-1:]
        for at, given in zip(arguments, gather.arguments, strict=True):
            name = getattr(given, "buffer", None)
            if name in evaluator.outputs:
                array = found[evaluator.outputs.index(name)]
                assert at == array.ctypes.data
                assert (array.shape, array.dtype) == (buffers[name].shape, buffers[name].dtype)
            elif name:
                assert at == buffers[name][given.element :].ctypes.data
            else:
                assert at == given


def test_sums_of_forces_are_those_that_the_device_has_reported(evaluator):
    assert np.isnan(evaluator.force_sums).all()
    evaluator.run.buffers["force_sums"][...] = 2.0, 3.0, 4.0  # as a kernel does
    assert evaluator.force_sums == (2.0, 3.0, 4.0)


def test_the_set_up_is_queued_for_another_shape_only(evaluator):
    (caller,) = current
    queued(evaluator)
    parameters = evaluator.run.buffers["parameters"].copy()
    assert queued(evaluator, 1.1) == [("graph", caller)]
    assert (evaluator.run.buffers["parameters"] != parameters).any()
    strained = CELL * [[1.0], [1.0], [1.001]]
    assert not evaluator.adopt(specification(strained, 5))
    assert evaluator.adopt(specification(strained))
    *setup, graph = queued(evaluator)
    assert graph == ("graph", caller)
    assert {step.stage for step, _ in setup} == {SETUP}
    assert len(setup) == len(evaluator._program.steps_of(SETUP))
