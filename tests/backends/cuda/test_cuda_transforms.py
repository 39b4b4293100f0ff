"""The Fourier transforms of the stage lattice against NumPy's; needs an NVIDIA GPU."""

import numpy as np
import pytest

from fmm_openmm import UnsupportedError
from fmm_openmm.backends import backend_class
from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.pipeline.fft import Fourier
from fmm_openmm.backends.cuda.program import At, Device
from fmm_openmm.box import BoxLattice

try:
    backend_class("cuda")
except UnsupportedError as reason:
    pytest.skip(f"no GPU to run on: {reason}", allow_module_level=True)

import cupy

from fmm_openmm.backends.cuda.execute.cupy.loader import load

pytestmark = pytest.mark.gpu

SHAPES = [
    # whole
    *[
        (1, 1, 1),
        (2, 1, 1),
        (1, 1, 504),
        (1, 8, 64),
        (7, 8, 9),
        (12, 12, 12),
        (13, 15, 16),
        (32, 5, 13),
        (36, 3, 4),
    ],
    # plane by plane
    *[
        (25, 21, 24),
        (60, 36, 32),
        (39, 22, 26),
        (3, 64, 96),
        (1, 4, 2048),
        (700, 7, 5),
        (9, 100, 11),
    ],
    # in float64 one axis after the other, unless there is more shared memory than on an H200
    *[(3, 130, 130), (2, 700, 40), (1, 4096, 3), (1, 3, 9000)],
    # by sums
    *[
        (17, 4, 6),
        (3, 17, 30),
        (5, 32, 34),
        (9, 19, 17),
        (23, 19, 17),
        (1, 30, 15015),
        (2, 17, 15015),
    ],
]


def transformed(moments, shared):
    """The spectrum of every grid, and what the spectrum times the number of points gives back."""
    terms, *shape = moments.shape
    lattice = BoxLattice(np.diag(shape[::-1]), np.eye(3), 1.75)
    b = Builder(lattice, round(np.sqrt(terms)) - 1, 0.0, 1, moments.dtype, Device(132, shared))
    b.macros(
        REAL="float" if b.real == np.float32 else "double",
        ORDER=b.order,
        SMOOTHED=0,
        C10=0,
        C20=0,
        C21=0,
    )
    b.macros(**{f"PADDED{axis}": 0 for axis in range(3)})
    b.macros(**{f"N{axis}": length for axis, length in enumerate(shape[::-1])})
    fourier = Fourier.from_builder(b)
    fourier.forward(b)
    forward = len(b.program.steps)
    fourier.inverse(b)
    buffers = {
        "moments": cupy.asarray(moments),
        "roots": cupy.asarray(b.program.buffers["roots"].data),
    }
    buffers |= {
        name: cupy.empty((terms, *fourier.half), b.complex)
        for name in ("spectrum", "local_spectrum")
    }
    buffers["local"] = cupy.full_like(buffers["moments"], np.nan)
    modules = {
        file: load(file, b.program.macros)
        for file in {kernel.file for kernel in b.program.kernels.values()}
    }

    def run(step):
        file, size = b.program.kernels[step.kernel].file, b.program.kernels[step.kernel].shared
        kernel = modules[file].get_function(step.kernel)
        kernel.max_dynamic_shared_size_bytes = size
        arguments = [
            buffers[a.buffer].ravel()[a.element :] if isinstance(a, At) else a
            for a in step.arguments
        ]
        kernel(step.grid, (step.block,), tuple(arguments), shared_mem=size)

    for step in b.program.steps[:forward]:
        run(step)
    spectrum = buffers["spectrum"].copy()
    buffers["local_spectrum"][...] = spectrum
    for step in b.program.steps[forward:]:
        run(step)
    return spectrum.get(), buffers["local"].get()


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float64, 1e-14), (np.float32, 3e-6)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_numpy(shape, dtype, accuracy):
    moments = np.random.default_rng(1).normal(size=(4, *shape)).astype(dtype)
    spectrum, back = transformed(
        moments, cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    )
    expected = np.fft.rfftn(moments, axes=(1, 2, 3))
    assert np.linalg.norm(spectrum - expected) <= accuracy * np.linalg.norm(expected)
    expected = moments * float(np.prod(shape))
    assert np.linalg.norm(back - expected) <= accuracy * np.linalg.norm(expected)


@pytest.mark.parametrize("shape", [(12, 16, 18), (30, 24, 20)], ids=str)
def test_needs_no_more_shared_memory_than_there_is(shape):
    """Every way of transforming a grid gives the same."""
    moments = np.random.default_rng(1).normal(size=(4, *shape))
    expected = np.fft.rfftn(moments, axes=(1, 2, 3))
    for shared in (200_000, 20_000, 5_000, 400, 100):
        spectrum, back = transformed(moments, shared)
        assert np.linalg.norm(spectrum - expected) <= 1e-14 * np.linalg.norm(expected)
        assert np.linalg.norm(back - moments * np.prod(shape)) <= 1e-14 * np.linalg.norm(
            expected
        ) * np.sqrt(np.prod(shape))


def test_repeats_bit_for_bit():
    moments = np.random.default_rng(1).normal(size=(4, 30, 24, 20)).astype(np.float32)
    first, second = (transformed(moments, 200_000) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
