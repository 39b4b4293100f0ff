// Results of a further device, which OpenMM's device adds to its own.
//
//   send_forces   on the further device: fixed-point forces as numbers of type SENT. A thread per
//                 component
//   add_forces    adds them, by atomics because kernels on other streams may add to OpenMM's forces
//                 at the same time. A thread per component
//   add_energy    the elements of the energy buffer. A thread per element
//
// Bound by memory. Macros: REAL, the type of OpenMM's energy buffer; SENT, float or, where that
// would lose precision, unsigned long long.
#include "common/fixed_point.cuh"
#include "common/real.cuh"

typedef unsigned long long uint64;

__device__ __forceinline__ void convert(uint64 force, float& sent) {
    sent = float((long long)force) * 0x1p-32f;
}
__device__ __forceinline__ void convert(uint64 force, uint64& sent) {
    sent = force;
}
__device__ __forceinline__ uint64 received(float sent) {
    return fixed_point(sent);
}
__device__ __forceinline__ uint64 received(uint64 sent) {
    return sent;
}

extern "C" __global__ void send_forces(int n, const uint64* __restrict__ force_buffer /* (n) */,
                                       SENT* __restrict__ sent /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) convert(force_buffer[i], sent[i]);
}

extern "C" __global__ void add_forces(int n, uint64* __restrict__ force_buffer /* (n) */,
                                      const SENT* __restrict__ sent /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const SENT force = i < n ? sent[i] : SENT(0);
    if (force != 0) atomicAdd(&force_buffer[i], received(force));
}

extern "C" __global__ void add_energy(int n, real* __restrict__ energy_buffer /* (n) */,
                                      const real* __restrict__ sent /* (n) */) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) energy_buffer[i] += sent[i];
}
