// The sum over sources in p2p: potentials and fields of up to TARGETS parts in registers.
#pragma once
#include "common/p2p_sources.cuh"
#include "common/p2p_work.cuh"
#include "common/reduce.cuh"

#define TARGETS 4

struct Field {
    real phi, x, y, z;
};

// Adds the contribution of one source to N targets. All distances come first, so that the
// reciprocal square roots, which have a long latency, overlap. A set bit of `mask` excludes the
// source for that target; the discarded contribution may be infinite or NaN.
template <bool MASKED, bool POTENTIAL, int N>
__device__ __forceinline__ void interact(const real4 (&target)[N], const real4& source,
                                         unsigned mask, Field (&sum)[N], Work& work) {
    real dx[N], dy[N], dz[N], inverse[N];
#pragma unroll
    for (int t = 0; t < N; t++) {
        dx[t] = target[t].x - source.x;
        dy[t] = target[t].y - source.y;
        dz[t] = target[t].z - source.z;
        inverse[t] = dx[t] * dx[t] + dy[t] * dy[t] + dz[t] * dz[t];
    }
#pragma unroll
    for (int t = 0; t < N; t++) inverse[t] = inverse_root(inverse[t]);
    SourceForce force;
#pragma unroll
    for (int t = 0; t < N; t++) {
        const real s = source.w * inverse[t], f = s * (inverse[t] * inverse[t]);
        if (MASKED && mask & (1u << t)) continue;
        if (POTENTIAL) sum[t].phi += s;
        sum[t].x += f * dx[t];
        sum[t].y += f * dy[t];
        sum[t].z += f * dz[t];
        force.add(target[t].w, f, dx[t], dy[t], dz[t]);
    }
    work.add_source(source, force);
}

__device__ __forceinline__ Field shuffle_xor(const Field& v, int bit) {
    return {__shfl_xor_sync(FULL, v.phi, bit), __shfl_xor_sync(FULL, v.x, bit),
            __shfl_xor_sync(FULL, v.y, bit), __shfl_xor_sync(FULL, v.z, bit)};
}

__device__ __forceinline__ void operator+=(Field& a, const Field& b) {
    a.phi += b.phi;
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
}

// The lane, read again so that values computed from it need not stay in registers between passes.
__device__ __forceinline__ unsigned lane_now() {
#ifdef __CUDA_ARCH__
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
#else
    return threadIdx.x % 32;
#endif
}

// Bit of a target in the mask of a source. The upper half of a warp uses the reverse order, as in
// register_target.
__device__ __forceinline__ unsigned target_bit(int source, int target) {
    return 1u << (source & 16 ? BATCH - 1 - target : target);
}

// The target, of N, in register t of a lane. The halves of a warp use opposite orders, so that in a
// sum over the warp the target that one half gives away is in the register of the one that the
// other half keeps.
template <int N>
__device__ __forceinline__ int register_target(unsigned lane, int t) {
    return lane & 16 ? N - 1 - t : t;
}

// Sums N targets over the warp; they are ordered as in register_target. Calls
// store(target, component, total) once for each.
template <int N, class Store>
__device__ __forceinline__ void sum_over_lanes(Field (&sum)[N], unsigned lane, Store store) {
    constexpr int LEFT = (N + 1) / 2, COUNT = LEFT > 2 ? 16 : 4 * LEFT;
#pragma unroll
    for (int t = 0; t < LEFT; t++) sum[t] += shuffle_xor(sum[N - 1 - t], 16);
    real values[COUNT];
#pragma unroll
    for (int t = 0; t < COUNT / 4; t++) {
        values[4 * t] = t < LEFT ? sum[t].phi : 0;
        values[4 * t + 1] = t < LEFT ? sum[t].x : 0;
        values[4 * t + 2] = t < LEFT ? sum[t].y : 0;
        values[4 * t + 3] = t < LEFT ? sum[t].z : 0;
    }
    real total = transposed_sum(values, lane);
#pragma unroll
    for (int d = COUNT; d < 16; d *= 2) total += __shfl_xor_sync(FULL, total, d);
    const int t = lane % 16 / 4;
    if (t < N / 2 || (t < LEFT && lane < 16)) store(register_target<N>(lane, t), lane % 4, total);
}

// Adds all sources of the window to N targets, beginning with target `from` of the batch; the batch
// begins with part `batch`. Overwrites `near` if `initial`, else adds to it.
template <int N, bool POTENTIAL>
__device__ __forceinline__ void accumulate(const Shared& s, int steps, int from, int batch,
                                           bool initial, Work& work, real4* __restrict__ near) {
    const unsigned lane = lane_now();
    real4 target[N];
    Field sum[N];
    const int first = lane & 16 ? 2 * BATCH - N - from : from;
    int masked = 1;
#pragma unroll
    for (int t = 0; t < N; t++) {
        target[t] = s.target[first + t];
        sum[t] = Field{0, 0, 0, 0};
        masked = max(masked, s.last_masked[from + t]);
    }
    // at least one step with masks, and an even number of steps without
    masked = (masked + 31) / 32;
    const int end = 32 * (masked + ((steps - masked) & 1));
    int k = lane;
#pragma unroll 1
    do {
        interact<true, POTENTIAL>(target, s.source[k], s.mask[k] >> first % BATCH, sum, work);
        k += 32;
    } while (k < end);
#pragma unroll 1
    for (; k < 32 * steps; k += 64) {
#pragma unroll
        for (int step = 0; step < 64; step += 32)
            interact<false, POTENTIAL>(target, s.source[k + step], 0, sum, work);
    }
#pragma unroll
    for (int t = 0; t < N; t++) work.add_target(target[t], sum[t].x, sum[t].y, sum[t].z);
    sum_over_lanes(sum, lane, [&](int t, int component, real total) {
        total += reinterpret_cast<const real*>(s.far + from + t)[component];
        real& result = reinterpret_cast<real*>(near + (batch + from + t))[component];
        result = initial ? total : result + total;
    });
}

// Calls accumulate<min(count, N)>.
template <int N>
__device__ __forceinline__ void accumulate_up_to(int count, bool potentials, const Shared& s,
                                                 int steps, int from, int batch, bool initial,
                                                 Work& work, real4* __restrict__ near) {
    if constexpr (N > 1) {
        if (count < N)
            return accumulate_up_to<N - 1>(count, potentials, s, steps, from, batch, initial, work,
                                           near);
    }
    if (SMOOTHED || potentials)
        accumulate<N, true>(s, steps, from, batch, initial, work, near);
    else
        accumulate<N, false>(s, steps, from, batch, initial, work, near);
}

// Targets first .. last - 1 of a batch, at most TARGETS at a time.
__device__ __forceinline__ void accumulate_targets(bool potentials, const Shared& s, int steps,
                                                   int first, int last, int batch, bool initial,
                                                   Work& work, real4* __restrict__ near) {
    while (first < last) {
        const int count = min(TARGETS, last - first);
        accumulate_up_to<TARGETS>(count, potentials, s, steps, first, batch, initial, work, near);
        first += count;
    }
}
