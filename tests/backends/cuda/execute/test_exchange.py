"""Data of another package at the addresses of its arrays, with kernels that run on the host. Needs
no GPU."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from tests import emulator
from tests.compiler import COMPILER
from tests.support.cupy_on_host import Buffer, Module

cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda.execute.cupy import exchange, graph  # noqa: E402

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

N, LENGTH, ENERGY = 130, 0.1, 4.184
SHAPES = {
    "positions": (N, 3),
    "charges": N,
    "energy": (1,),
    "forces": (N, 3),
    "potentials": N,
    "virial": (3, 3),
    "parameters": 41,
}


class Driver:
    """The CUDA driver for a graph of one kernel, which runs on the host."""

    NODE = 7

    def __init__(self, kernel):
        self.kernel, self.changes = kernel, 0

    def cuGraphInstantiateWithFlags(self, executable, graph, flags):
        return 0

    def cuGraphGetRootNodes(self, graph, node, count):
        assert count._obj.value == 1
        node._obj.value = self.NODE
        return 0

    def cuGraphExecKernelNodeSetParams(self, executable, node, parameters):
        assert node.value == self.NODE
        node = parameters._obj
        assert node.function == self.kernel.kernel.ptr
        assert (node.threads_y, node.threads_z) == (1, 1)
        self.changes, self.node = self.changes + 1, node
        return 0

    def launch(self, executable, stream):
        node = self.node
        blocks = node.blocks_x, node.blocks_y, node.blocks_z
        self.kernel.run(*blocks, node.threads_x, ctypes.c_void_p(node.arguments))


@pytest.fixture
def on_host(monkeypatch, folder):
    def load(stage, macros):
        return Module(emulator.compiled(stage, macros, ["take", "give"], folder))

    emulator.machine(folder)
    monkeypatch.setattr(exchange, "load", load)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    exchange._kernel.cache_clear()
    yield
    exchange._kernel.cache_clear()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("real", "position", "charge"),
    [
        (np.float32, np.float32, np.float32),
        (np.float32, np.float64, np.float32),
        (np.float64, np.float32, np.float64),
    ],
)
def test_types_units_and_orientation(real, position, charge, turned, on_host):
    random = np.random.default_rng(8)
    rotation = np.linalg.qr(random.normal(size=(3, 3)))[0].copy() if turned else np.eye(3)
    ours = {"charges": real, "forces": real, "potentials": real}
    theirs = {"positions": position, "forces": position, "charges": charge, "potentials": charge}
    buffers, given = (
        {
            name: random.normal(size=shape).astype(types.get(name, np.float64)).view(Buffer)
            for name, shape in SHAPES.items()
        }
        for types in (ours, theirs)
    )
    results = {name: buffers[name].astype(float) for name in list(SHAPES)[2:6]}
    address = {name: values.ctypes.data for name, values in given.items()}
    sizes = np.dtype(position).itemsize, np.dtype(charge).itemsize
    carrier = exchange.Given(N, *sizes, LENGTH, ENERGY, rotation.ctypes.data if turned else 0)

    before = {name: buffers[name].copy() for name in ("charges", "parameters")}
    carrier.take(buffers, address["positions"]).queue()
    assert all(np.array_equal(buffers[name], values) for name, values in before.items())
    carrier.take(buffers, *map(address.get, ("positions", "charges", "parameters"))).queue()
    assert np.array_equal(buffers["parameters"], given["parameters"])
    check(buffers["positions"], LENGTH * given["positions"].astype(float) @ rotation)
    check(buffers["charges"], given["charges"].astype(float))

    virial = given["virial"].copy()
    carrier.give(buffers, *(address[name] for name in exchange.RESULTS)).queue()
    assert np.array_equal(given["virial"], virial)
    carrier.give(buffers, *(address[name] for name in results)).queue()
    check(given["energy"], results["energy"] / ENERGY)
    check(given["forces"], results["forces"] @ rotation.T * (LENGTH / ENERGY))
    check(given["potentials"], results["potentials"] / ENERGY)
    check(given["virial"], rotation @ results["virial"] @ rotation.T / ENERGY)


def test_arguments_of_a_graph_change(on_host, monkeypatch):
    """They are set anew if one of them differs, and only then."""
    random = np.random.default_rng(9)
    buffers = {name: np.zeros(shape).view(Buffer) for name, shape in SHAPES.items()}
    given = [(random.normal(size=(N, 3)), random.normal(size=N)) for _ in range(3)]
    calls = [
        exchange.Given(N, 8, 8, length).take(buffers, x.ctypes.data, q.ctypes.data)
        for length, (x, q) in zip((1.0, 1.0, LENGTH), given, strict=True)
    ]
    driver = Driver(calls[0].kernel)
    monkeypatch.setattr(graph, "_driver", lambda: driver)
    for name in "graphLaunch", "graphDestroy", "graphExecDestroy":
        monkeypatch.setattr(cupy.cuda.runtime, name, lambda *_: None)
    monkeypatch.setattr(cupy.cuda.runtime, "graphLaunch", driver.launch)
    made = graph.Graph(1, calls[0])
    for changes, (which, length) in enumerate([(1, 1.0), (2, LENGTH), (0, 1.0)], 1):
        for _ in range(2):
            buffers["positions"][...] = buffers["charges"][...] = 0.0
            made.launch(SimpleNamespace(ptr=0), calls[which])
            assert np.array_equal(buffers["positions"], length * given[which][0])
            assert np.array_equal(buffers["charges"], given[which][1])
            assert driver.changes == changes


def check(found, expected):
    assert np.abs(found - expected).max() <= 4 * np.finfo(found.dtype).eps * np.abs(expected).max()
