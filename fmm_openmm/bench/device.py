"""Measured limits of a GPU, and timing on it.

Imports CuPy, and is therefore imported only where there is a GPU.
"""

from collections.abc import Callable
from typing import TypeVar

import cupy
import numpy as np

from fmm_openmm.bench.timing import BUDGET, REPEATS

Value = TypeVar("Value")

CHAINS, ROUNDS, THREADS = 8, 2048, 256
"""FMA loop: independent chains in a thread, multiply-adds in a chain, threads in a block."""

FMA_LOOP = r"""
extern "C" __global__ void fma_loop(REAL* out, REAL a, REAL b) {
    REAL x[CHAINS];
#pragma unroll
    for (int k = 0; k < CHAINS; k++) x[k] = threadIdx.x + k;
    for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (int k = 0; k < CHAINS; k++) x[k] = fma(x[k], a, b);
    }
    REAL sum = 0;
#pragma unroll
    for (int k = 0; k < CHAINS; k++) sum += x[k];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

COPY_BYTES = 1 << 29

DTYPES = {"single": np.float32, "double": np.float64}


def median_seconds(launch) -> float:
    """Median device time of ``launch()``, seconds."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times: list[float] = []
    while len(times) < 6 or (len(times) < REPEATS and sum(times) < BUDGET):
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(1e-3 * cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times[3:]))


def fma_rate(precision: str) -> float:
    """Multiply-adds per second in "single" or "double" precision, measured in a loop."""
    real = "float" if precision == "single" else "double"
    options = (f"-DREAL={real}", f"-DCHAINS={CHAINS}", f"-DROUNDS={ROUNDS}")
    kernel = cupy.RawKernel(FMA_LOOP, "fma_loop", options)
    blocks = 32 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    scalar = DTYPES[precision]
    out = cupy.empty(blocks * THREADS, scalar)
    seconds = median_seconds(lambda: kernel((blocks,), (THREADS,), (out, scalar(0.5), scalar(1.0))))
    return blocks * THREADS * CHAINS * ROUNDS / seconds


def bandwidth() -> float:
    """Bytes per second read and written by a copy much larger than the caches."""
    source = cupy.zeros(COPY_BYTES // 4, cupy.float32)
    target = cupy.empty_like(source)
    return 2 * COPY_BYTES / median_seconds(lambda: cupy.copyto(target, source))


def free_bytes(index: int | None = None) -> int:
    """Free memory of a device, by default the current one, in bytes, after CuPy has released what
    it does not use."""
    with cupy.cuda.Device(index):
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.runtime.memGetInfo()[0]


def upload(array: np.ndarray) -> cupy.ndarray:
    """The array on the device."""
    return cupy.asarray(array)


def wait() -> None:
    """Wait until the device has finished all work."""
    cupy.cuda.Device().synchronize()


def use(number: int) -> None:
    """Make a GPU the current one, counting again from the first where there are fewer."""
    cupy.cuda.Device(number % cupy.cuda.runtime.getDeviceCount()).use()


def peak_memory(evaluate: Callable[[], Value]) -> tuple[Value, int]:
    """The result of ``evaluate`` and the bytes that it takes of the device at most, as CuPy's pool
    keeps them."""
    before = free_bytes()
    result = evaluate()
    wait()
    return result, before - cupy.cuda.runtime.memGetInfo()[0]
