"""Frames that are queued one behind the other, with kernels and arrays on the host. Needs no
GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.error import force_sums
from fmm_openmm.specification import Specification
from fmm_openmm.units import COULOMB_CONSTANT
from tests import emulator
from tests.compiler import COMPILER
from tests.support.cupy_on_host import Buffer, Module

cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda import frames  # noqa: E402
from fmm_openmm.backends.cuda.execute.cupy import exchange  # noqa: E402

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

N, WIDTH = 300, 0.7
"""More particles than a block of the kernel has threads."""


class Event:
    """Nothing is done before it is waited for."""

    def __init__(self, disable_timing):
        self.is_done = True

    def record(self):
        self.is_done = False

    def synchronize(self):
        self.is_done = True


class Copied(Buffer):
    """An array that is copied to an address."""

    @property
    def data(self):
        def copy(address, size):
            assert size == self.nbytes
            memory = (np.ctypeslib.ctypes.c_char * size).from_address(address)
            memory[:] = self.tobytes()

        return SimpleNamespace(ptr=self.ctypes.data, copy_to_host_async=copy)


@pytest.fixture
def run(monkeypatch, folder):
    """A program, set up."""
    kernels = {"examine": ["examine"], "exchange": ["take", "give"]}

    def load(stage, macros):
        return Module(emulator.compiled(stage, macros, kernels[stage], folder))

    fakes = {
        "cupy": SimpleNamespace(
            empty=lambda count: np.full(count, np.nan).view(Buffer),
            zeros=lambda *given: np.zeros(*given).view(Buffer),
            cuda=SimpleNamespace(Event=Event, get_current_stream=lambda: None),
        ),
        "load": load,
        "pinned": lambda shape, dtype: np.full(shape, np.nan, dtype),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(frames, name, fake)
    monkeypatch.setattr(exchange, "load", load)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    exchange._kernel.cache_clear()
    lattice = BoxLattice.from_cell(np.eye(3), np.eye(3, dtype=int) * 2, 1.87)
    charges, pairs = np.random.default_rng(4).normal(size=N), np.array([(0, 1)])
    wanted = Specification(lattice, 3, 0.1, charges, pairs, False)
    made = emulator.Emulator(build(wanted, emulator.DEVICE), folder)
    buffers = {name: each.view(Copied) for name, each in made.buffers.items()}
    buffers["charges"][...], buffers["parameters"][...] = charges, parameter_block(lattice, WIDTH)
    made.run([SETUP])
    buffers["parameters"][...] = np.nan  # those of each frame take their place
    yield SimpleNamespace(
        buffers=buffers, specification=wanted, queue=made.run,
        captured=lambda queue: SimpleNamespace(launch=lambda stream: queue()),
    )  # fmt: skip
    exchange._kernel.cache_clear()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_frame_has_its_own_results(dtype, run):
    """Several are queued at a time, later ones use the memory of the first again, and the caller's
    positions may change meanwhile."""
    random, queue = np.random.default_rng(5), frames.FrameQueue(run)
    stages, charges = ReferenceStages(run.specification), run.specification.charges
    names, widths = ("potentials", "forces"), WIDTH * np.linspace(0.9, 1.1, 5)

    def begin(number):
        x, block = given[number].copy(), parameter_block(stages.lattice, widths[number])
        queued = queue.queue(x, block, np.inf, names)
        x[...] = block[...] = np.nan
        return queued

    given = [random.uniform(0.0, width / WIDTH, (N, 3)).astype(dtype) for width in widths]
    queued = [begin(number) for number in range(3)]
    assert not any(each._done.is_done for each in queued)
    for number, x in enumerate(given):
        first = queued.pop(0)
        first.wait()
        assert first._done.is_done
        assert first.positions.dtype == dtype and np.array_equal(first.positions, x)
        energy, invalid, *sums = first.found
        found = first.copy()
        queue.release(first)
        if number < 2:
            queued.append(begin(3 + number))
            assert queued[-1] is first
        potentials, fields = stages.evaluate(x.astype(float), widths[number])
        scale = COULOMB_CONSTANT / widths[number]
        assert list(found) == list(names)
        assert found["potentials"] == pytest.approx(scale * potentials, rel=1e-6)
        forces = charges[:, None] * fields
        assert found["forces"] == pytest.approx(scale / widths[number] * forces, rel=1e-6, abs=1e-4)
        assert energy == pytest.approx(scale / 2 * charges @ potentials)
        assert sums == pytest.approx(list(force_sums(charges, fields, potentials)))
        assert invalid == 0


def test_invalid_values_are_counted(run):
    queue, x = frames.FrameQueue(run), np.random.default_rng(6).uniform(size=(N, 3))
    buffers, block = run.buffers, parameter_block(run.specification.lattice, WIDTH)
    run.queue = lambda: None

    def found(limit):
        queued = queue.queue(x, block, limit * WIDTH / COULOMB_CONSTANT, ())
        counted = queued.found[1]
        queue.release(queued)
        return counted

    buffers["energy"][...] = buffers["force_sums"][...] = 1.0
    buffers["potentials"][...] = np.linspace(-10.0, 10.0, N)
    assert found(np.inf) == found(10.0) == 0
    assert found(9.99) == 2
    buffers["potentials"][[3, 299]] = np.nan, -np.inf
    x[5] = 1e10, np.inf, -1.1e9
    x[299, 1] = np.nan
    assert found(1e300) == 6
    assert found(9.99) == 7
