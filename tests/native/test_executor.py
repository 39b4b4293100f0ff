"""The executor of ``fmm_openmm/native/core``, run on the CPU: a driver that calls the emulator's
kernels (``tests/emulator/driver.cpp``)."""

import ctypes

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.program import At, Interface, Launch, Phase, Share
from fmm_openmm.backends.cuda.serial import serialise
from fmm_openmm.box import BoxLattice, PaddedLattice
from fmm_openmm.integration.native import plugin
from fmm_openmm.specification import Specification
from tests import compiler
from tests.emulator import SOURCES, EmulatedStages
from tests.support.openmm_arrays import between_openmm

CUDA = [folder for folder in plugin._cuda_folders() if (folder / "cuda.h").is_file()]
if compiler.COMPILER is None or not CUDA:
    pytest.skip("needs a C++ compiler and cuda.h", allow_module_level=True)


@pytest.fixture(scope="module")
def driver(folder):
    core = plugin._folder() / "core"
    sources = [SOURCES / "driver.cpp", *sorted(core.glob("*.cpp"))]
    options = "-O1", "-w", "-Wl,-Bsymbolic", f"-I{core}", f"-I{CUDA[0]}"
    library = compiler.library(folder, "driver", *options, *sources)
    library.make_graph.restype = ctypes.c_void_p
    for name in ("start", "run", "replay", "upload"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


class Executor:
    """The program of some stages in C++, between the arrays that these are given as OpenMM's."""

    def __init__(self, driver, stages):
        self._driver, self._program = driver, stages.emulator.program
        arguments = {
            step.kernel: step.arguments for step in self._program.steps if isinstance(step, Launch)
        }
        for name, kernel in stages.emulator._functions.items():
            sizes = [8 if isinstance(each, At) else each.nbytes for each in arguments.get(name, ())]
            bytes_of, launch = (
                (ctypes.c_int * len(sizes))(*sizes),
                ctypes.cast(kernel, ctypes.c_void_p),
            )
            driver.add_kernel(name.encode(), launch, bytes_of, len(sizes))
        external = [
            name for name, buffer in self._program.buffers.items() if buffer.kind == "external"
        ]
        for name in external:
            self._add_array(name, stages.buffers[name].ctypes.data)
        self._add_array(external[-1], None)  # it comes later
        data = serialise(self._program)
        self._executor = ctypes.c_void_p()
        self._check(driver.start(ctypes.byref(self._executor), data, ctypes.c_int64(len(data))))
        self._add_array(external[-1], stages.buffers[external[-1]].ctypes.data)
        phases = [each.encode() for each in (Phase.EVALUATE, Phase.FAR, Phase.NEAR, Phase.EXPORT)]
        graph = driver.make_graph((ctypes.c_char_p * len(phases))(*phases), len(phases))
        self._graph = ctypes.c_void_p(graph)

    def _add_array(self, name: str, address: int | None) -> None:
        self._driver.add_array(name.encode(), ctypes.c_void_p(address))

    def _check(self, fault: bytes) -> None:
        assert not fault, fault.decode()

    def run(self, phase: str, is_urgent: bool = False) -> None:
        self._check(self._driver.run(self._executor, phase.encode(), is_urgent))

    def evaluate(self) -> None:
        self.run(Phase.AHEAD)
        self._check(self._driver.replay(self._executor, self._graph))

    def upload(self, name: str, values) -> bytes:
        data = np.ascontiguousarray(values).tobytes()
        return self._driver.upload(self._executor, name.encode(), data, ctypes.c_int64(len(data)))

    def download(self, name: str) -> np.ndarray:
        buffer = self._program.buffers[name]
        found = np.empty(buffer.shape, buffer.dtype)
        to = found.ctypes.data_as(ctypes.c_void_p)
        assert self._driver.download(
            self._executor, name.encode(), to, ctypes.c_int64(found.nbytes)
        )
        return found

    def take_flag(self, name: str) -> bool:
        return bool(self._driver.take_flag(self._executor, name.encode()))

    def keep(self) -> None:
        self._driver.keep(self._executor)

    def restore(self) -> None:
        self._driver.restore(self._executor)

    def end(self) -> None:
        self._driver.end(self._executor, self._graph)


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True], ids=["periodic", "open"])
def test_the_executor_does_what_the_emulator_does(driver, folder, is_open):
    """Bit for bit, with a graph that is captured once; and it returns to the shape of a cell.
    Kernels have the highest priority where that is requested, and only there."""
    rng, n, width = np.random.default_rng(3), 60, 0.9
    span = np.array([4, 5, 3])
    cells = [np.diag(span).astype(float), np.diag(span * [1.01, 1.0, 0.99])]
    lattices = [
        PaddedLattice(span, 1.87) if is_open else BoxLattice.from_cell(cell, np.diag(span), 1.87)
        for cell in cells
    ]
    charges = rng.choice([-1.0, 1.0], n)
    pairs = np.zeros((0, 2), np.int64)
    stages = EmulatedStages(
        Specification(lattices[0], 4, 0.0, charges, pairs, False, np.float32),
        folder,
        Interface("mixed", 64),
    )
    arrays, forces = stages.buffers, []
    between_openmm(stages, width * rng.uniform(0.2, span - 0.2, (n, 3)))
    if is_open:
        arrays["outside"][...] = 0
    stages.run(width)
    expected = {name: arrays[name].copy() for name in ("force_buffer", "sums", "potentials")}
    assert np.abs(expected["force_buffer"]).max() > 0

    compilation, reports, urgent = (
        ctypes.c_int.in_dll(driver, name) for name in ("compile_ms", "reports", "urgent")
    )
    urgent.value = 0
    compilation.value, reports.value = (1200 if is_open else 0), 0
    executor = Executor(driver, stages)
    assert reports.value == is_open  # only a compilation that takes more than a second
    for shape in (0, 0, 1, 0):
        arrays["force_buffer"][...] = 0
        block = parameter_block(lattices[shape], width)
        assert executor.upload("parameters", block) == b""
        if len(forces) == 0:
            executor.run(Phase.SETUP, is_urgent=True)
            launches = urgent.value
        elif shape == 1:
            executor.keep()
            executor.run(Phase.SETUP)
        elif forces[-1][0] == 1:
            executor.restore()
        executor.evaluate()
        forces.append((shape, arrays["force_buffer"].copy()))
        assert not is_open or not executor.take_flag("outside")
    assert urgent.value == launches and (launches > 0 or is_open)
    for shape, found in forces:
        assert np.array_equal(found, expected["force_buffer"]) == (shape == 0 or is_open)
    for name in ("sums", "potentials"):
        np.testing.assert_array_equal(executor.download(name), expected[name])
    assert executor.upload("charges", np.ones(3)).decode() == (
        "FMMForce: charges has another size than before"
    )
    if is_open:
        arrays["posq"][7, 0] += width * span[0]
        executor.evaluate()
        assert executor.take_flag("outside")
        assert not executor.take_flag("outside")
    executor.end()


@pytest.mark.slow
def test_a_graph_takes_another_share_of_the_boxes(driver, folder):
    """Whatever two shares a graph that was captured once computes, they add up to the forces and
    the energy of all boxes."""
    rng, n, width, span = np.random.default_rng(3), 60, 0.9, np.array([4, 5, 3])
    lattice = BoxLattice.from_cell(np.diag(span).astype(float), np.diag(span), 1.87)
    charges, none = rng.choice([-1.0, 1.0], n), np.zeros((0, 2), np.int64)
    positions = width * rng.uniform(0, span, (n, 3))
    wanted = Specification(lattice, 4, 0.05, charges, none, False, np.float64)

    def made(share):
        stages = EmulatedStages(wanted, folder, Interface("double", 64), share=share)
        between_openmm(stages, positions)
        return stages

    whole, stages = made(None), made(Share(0, 60, 60))
    whole.run(width)
    executor, found = Executor(driver, stages), []
    assert executor.upload("parameters", parameter_block(lattice, width)) == b""
    executor.run(Phase.SETUP)
    for share in ((0, 60), (0, 60), (0, 23), (23, 60), (0, 41), (41, 60)):
        stages.buffers["force_buffer"][...] = 0
        assert executor.upload("share", np.array([*share, *share], np.int32)) == b""
        executor.evaluate()
        forces = stages.buffers["force_buffer"].astype(np.int64) / 2**32
        found.append((forces, executor.download("sums")[0]))
    executor.end()
    expected = whole.buffers["force_buffer"].astype(np.int64) / 2**32
    for first, second in ((0, None), (1, None), (2, 3), (4, 5)):
        forces, energy = found[first]
        if second:
            forces, energy = forces + found[second][0], energy + found[second][1]
            assert np.linalg.norm(found[second][0]) > 0.1 * np.linalg.norm(expected)
        np.testing.assert_allclose(forces, expected, rtol=0.0, atol=1e-8)
        assert energy == pytest.approx(whole.buffers["sums"][0], rel=1e-12)


def test_what_is_no_program_is_refused(driver):
    executor = ctypes.c_void_p()
    for data, fault in (
        (b"something else", "FMMForce: not a program"),
        (b"FMMprog\0", "FMMForce: a program ends too early"),
        (
            b"FMMprog\0" + bytes(8),
            "FMMForce: the plugin and the package are of different versions",
        ),
    ):
        message = driver.start(ctypes.byref(executor), data, ctypes.c_int64(len(data)))
        assert message.decode() == fault
