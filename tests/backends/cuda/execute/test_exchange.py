"""Data of another package at the addresses of its arrays, with kernels that run on the host. Needs
no GPU."""

import ctypes
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests import emulator
from tests.compiler import COMPILER

cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
from fmm_openmm.backends.cuda.execute.cupy import exchange  # noqa: E402

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

N, LENGTH, ENERGY = 130, 0.1, 4.184
PASSED = {int: ctypes.c_longlong, float: ctypes.c_double}


def launch(kernel, grid, block, arguments):
    """What a kernel of CuPy does with arguments on the host."""
    passed = [
        ctypes.c_void_p(each.ctypes.data)
        if isinstance(each, np.ndarray)
        else PASSED[type(each)](each)
        if type(each) in PASSED
        else ctypes.create_string_buffer(each.tobytes(), each.nbytes)
        for each in arguments
    ]
    pointers = (ctypes.c_void_p * len(passed))(*map(ctypes.addressof, passed))
    kernel.restype = ctypes.c_char_p
    fault = kernel(*grid, 1, 1, *block, pointers)
    assert fault is None, fault.decode()


@pytest.fixture
def on_host(monkeypatch, folder):
    def load(stage, macros):
        library = emulator.compiled(stage, macros, ["take", "give"], folder)
        return SimpleNamespace(
            get_function=lambda name: partial(launch, getattr(library, f"launch_{name}"))
        )

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
    shapes = {"positions": (N, 3), "charges": N, "energy": (1,), "forces": (N, 3)}
    shapes |= {"potentials": N, "virial": (3, 3)}
    ours = {"charges": real, "forces": real, "potentials": real}
    theirs = {"positions": position, "forces": position, "charges": charge, "potentials": charge}
    buffers, given = (
        {
            name: random.normal(size=shape).astype(types.get(name, np.float64))
            for name, shape in shapes.items()
        }
        for types in (ours, theirs)
    )
    results = {name: buffers[name].astype(float) for name in list(shapes)[2:]}
    address = {name: values.ctypes.data for name, values in given.items()}
    sizes = np.dtype(position).itemsize, np.dtype(charge).itemsize
    carrier = exchange.Given(N, *sizes, LENGTH, ENERGY, rotation.ctypes.data if turned else 0)

    carrier.take(buffers, address["positions"], address["charges"])
    check(buffers["positions"], LENGTH * given["positions"].astype(float) @ rotation)
    check(buffers["charges"], given["charges"].astype(float))

    virial = given["virial"].copy()
    carrier.give(buffers, *(address[name] for name in exchange.RESULTS))
    assert np.array_equal(given["virial"], virial)
    carrier.give(buffers, *(address[name] for name in results))
    check(given["energy"], results["energy"] / ENERGY)
    check(given["forces"], results["forces"] @ rotation.T * (LENGTH / ENERGY))
    check(given["potentials"], results["potentials"] / ENERGY)
    check(given["virial"], rotation @ results["virial"] @ rotation.T / ENERGY)


def check(found, expected):
    assert np.abs(found - expected).max() <= 4 * np.finfo(found.dtype).eps * np.abs(expected).max()
