// Programmatic dependent launch: blocks of a kernel may be placed on the device while the previous
// kernel of the stream still runs.
#pragma once

// Waits until the previous kernel has ended and its results are visible. Comes before all access to
// global memory, also for writing, in the kernels that program.py lists as WAITING.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
