// The loop over a box's targets that P2P kernels share whose sources are laid out differently.
//
//     Phi_i = sum_j Q_j / r_ij      E_i = sum_j Q_j (x_i - x_j) / r_ij^3      j: not i
//
// A warp takes up to PASS_TARGETS parts of a box at a time, a pass, and keeps them in registers;
// each lane lets them meet every 32nd source, 14 floating-point instructions a pair, and the lanes'
// sums are added at the end. A box has `share` warps, which take its passes in turn.
//
//   NEAR        number of boxes of the near stencil      PASS_TARGETS    targets of a pass
//   PASS_WARPS  warps a block
#pragma once
#include "common/real.cuh"

struct Field {
    real phi, x, y, z;
};

// N targets from part number `first` on.
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

    // A source: part `number` of the targets' own box, which does not meet itself.
    __device__ __forceinline__ void meet_own(const real4& source, int number) {
#pragma unroll
        for (int t = 0; t < N; t++) interact(t, source, number == first + t);
    }

    __device__ __forceinline__ void meet(const real4& source) {
#pragma unroll
        for (int t = 0; t < N; t++) interact(t, source, false);
    }

    __device__ __forceinline__ void interact(int t, const real4& source, bool itself) {
        const real dx = target[t].x - source.x, dy = target[t].y - source.y,
                   dz = target[t].z - source.z;
        const real inverse = itself ? 0 : inverse_root(dx * dx + dy * dy + dz * dz);
        const real s = source.w * inverse, f = s * (inverse * inverse);
        sum[t].phi += s;
        sum[t].x += f * dx;
        sum[t].y += f * dy;
        sum[t].z += f * dz;
    }

    __device__ __forceinline__ void store(int lane, real4* __restrict__ results) {
#pragma unroll
        for (int t = 0; t < N; t++) {
            const real phi = over_lanes(sum[t].phi), x = over_lanes(sum[t].x),
                       y = over_lanes(sum[t].y), z = over_lanes(sum[t].z);
            if (lane == t) results[first + t] = real4{phi, x, y, z};
        }
    }

    static __device__ __forceinline__ real over_lanes(real value) {
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

// Parts first ... last - 1 as targets, those of every share-th pass, of sources that
// `sources(targets)` lets them meet.
template <class Sources>
__device__ __forceinline__ void all_passes(int first, int last, int way, int share, int lane,
                                           const real4* __restrict__ xq, Sources sources,
                                           real4* __restrict__ results) {
    for (int next = first + PASS_TARGETS * way; next < last; next += PASS_TARGETS * share)
        pass<PASS_TARGETS>(min(PASS_TARGETS, last - next), next, lane, xq, sources, results);
}
