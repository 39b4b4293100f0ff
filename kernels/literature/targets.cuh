// The loop over the targets of a box, shared by P2P kernels with different layouts of sources:
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3      j != i
//
// In one pass, a warp holds up to PASS_TARGETS parts of a box in registers; each lane takes every
// 32nd source, 14 floating-point instructions per pair, and at the end the sums of the lanes are
// added. A box has `share` warps, which take its passes in turn.
//
//   NEAR        number of boxes in the near stencil      PASS_TARGETS    maximum targets per pass
//   PASS_WARPS  warps per block
#pragma once
#include "common/real.cuh"

struct Field {
    real phi, x, y, z;
};

// N targets, beginning with part number `first`.
template <int N>
struct Targets {
    int first;
    real4 target[N];
    Field sum[N];

    __device__ __forceinline__ Targets(int first, const real4* __restrict__ xq) : first(first) {
#pragma unroll
        for (int t = 0; t < N; t++) {
            target[t] = xq[first + t];
            sum[t] = Field{0, 0, 0, 0};
        }
    }

    // Adds a source from the targets' own box, part `number`, which does not interact with itself.
    __device__ __forceinline__ void add_own(const real4& source, int number) {
#pragma unroll
        for (int t = 0; t < N; t++) interact(t, source, number == first + t);
    }

    __device__ __forceinline__ void add(const real4& source) {
#pragma unroll
        for (int t = 0; t < N; t++) interact(t, source, false);
    }

    __device__ __forceinline__ void interact(int t, const real4& source, bool same) {
        const real dx = target[t].x - source.x, dy = target[t].y - source.y,
                   dz = target[t].z - source.z;
        const real inverse = same ? 0 : inverse_root(dx * dx + dy * dy + dz * dz);
        const real s = source.w * inverse, f = s * (inverse * inverse);
        sum[t].phi += s;
        sum[t].x += f * dx;
        sum[t].y += f * dy;
        sum[t].z += f * dz;
    }

    __device__ __forceinline__ void store(int lane, real4* __restrict__ results) {
#pragma unroll
        for (int t = 0; t < N; t++) {
            const real phi = sum_over_lanes(sum[t].phi), x = sum_over_lanes(sum[t].x),
                       y = sum_over_lanes(sum[t].y), z = sum_over_lanes(sum[t].z);
            if (lane == t) results[first + t] = real4{phi, x, y, z};
        }
    }

    static __device__ __forceinline__ real sum_over_lanes(real value) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(FULL, value, d);
        return value;
    }
};

template <int N, class Sources>
__device__ __forceinline__ void pass(int count, int first, int lane, const real4* __restrict__ xq,
                                     Sources sources, real4* __restrict__ results) {
    if constexpr (N > 1) {
        if (count < N) return pass<N - 1>(count, first, lane, xq, sources, results);
    }
    Targets<N> targets(first, xq);
    sources(targets);
    targets.store(lane, results);
}

// Passes over the parts first .. last - 1, every share-th of them beginning with number `way`.
// sources(targets) adds all sources to the targets.
template <class Sources>
__device__ __forceinline__ void all_passes(int first, int last, int way, int share, int lane,
                                           const real4* __restrict__ xq, Sources sources,
                                           real4* __restrict__ results) {
    for (int next = first + PASS_TARGETS * way; next < last; next += PASS_TARGETS * share)
        pass<PASS_TARGETS>(min(PASS_TARGETS, last - next), next, lane, xq, sources, results);
}
