"""What a GPU can do, measured, and times on it.

Imports CuPy: to be imported where there is a GPU only.
"""

import cupy
import numpy as np

from fmm_openmm.bench.timing import BUDGET, REPEATS

CHAINS, ROUNDS, THREADS = 8, 2048, 256
"""Of the FMA loop: independent chains a thread, multiply-adds in each, threads a block."""

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
    begin, end, times = cupy.cuda.Event(), cupy.cuda.Event(), []
    while len(times) < 6 or (len(times) < REPEATS and sum(times) < BUDGET):
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(1e-3 * cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times[3:]))


def fma_rate(precision: str) -> float:
    """Multiply-adds a second in "single" or "double" precision, from a loop of nothing else."""
    real = "float" if precision == "single" else "double"
    options = (f"-DREAL={real}", f"-DCHAINS={CHAINS}", f"-DROUNDS={ROUNDS}")
    kernel = cupy.RawKernel(FMA_LOOP, "fma_loop", options)
    blocks = 32 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    scalar = DTYPES[precision]
    out = cupy.empty(blocks * THREADS, scalar)
    seconds = median_seconds(lambda: kernel((blocks,), (THREADS,), (out, scalar(0.5), scalar(1.0))))
    return blocks * THREADS * CHAINS * ROUNDS / seconds


def bandwidth() -> float:
    """Bytes a second that a copy reads and writes, far beyond the caches."""
    source = cupy.zeros(COPY_BYTES // 4, cupy.float32)
    target = cupy.empty_like(source)
    return 2 * COPY_BYTES / median_seconds(lambda: cupy.copyto(target, source))


def free_bytes() -> int:
    """Free memory of the device, as all processes see it, after CuPy has given back
    what it does not use."""
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


def upload(array: np.ndarray) -> cupy.ndarray:
    """The array on the device."""
    return cupy.asarray(array)


def wait() -> None:
    """Until the device has done everything."""
    cupy.cuda.Device().synchronize()
