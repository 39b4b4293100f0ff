// Sums over the lanes of a warp.
#pragma once
#include "real.cuh"

// The sum of the values of this lane and of those before it. Called by all lanes of a warp, of a
// block with one dimension.
__device__ __forceinline__ int prefix_sum(int value) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(FULL, value, d);
        if (lane >= d) value += other;
    }
    return value;
}

// Sums of COUNT values per lane over groups of COUNT lanes, where COUNT is a power of two. Lane i
// returns the sum of value i % COUNT.
template <int COUNT>
__device__ __forceinline__ real transposed_sum(real (&v)[COUNT], unsigned lane) {
    if constexpr (COUNT > 1) {
        real half[COUNT / 2];
        const bool upper = lane & (COUNT / 2);
#pragma unroll
        for (int k = 0; k < COUNT / 2; k++) {
            const real keep = upper ? v[k + COUNT / 2] : v[k],
                       give = upper ? v[k] : v[k + COUNT / 2];
            half[k] = keep + __shfl_xor_sync(FULL, give, COUNT / 2);
        }
        return transposed_sum(half, lane);
    } else {
        return v[0];
    }
}
