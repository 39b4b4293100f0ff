// Types for several sets of charges of the same parts.
#pragma once
#include "types.cuh"

#define QUADS ((SETS + 3) / 4)   // four sets are loaded at a time
#define VALUES (FIELDS ? 4 : 1)  // results for a part and a set: potential, or with the field
#define RESULTS (SETS * VALUES)  // results for a part

// The charges of a part in all sets, padded with zeros to whole quads.
struct ChargeQuads {
    real4 quad[QUADS];

    // Charge in a set, a constant once loops are unrolled.
    __device__ __forceinline__ real operator[](int set) const {
        const real4& q = quad[set / 4];
        return set % 4 == 0 ? q.x : set % 4 == 1 ? q.y : set % 4 == 2 ? q.z : q.w;
    }
};

// Reads the charges of an item from (QUADS, stride).
__device__ __forceinline__ ChargeQuads charges_at(const real4* quads, long long stride, int item) {
    ChargeQuads q;
#pragma unroll
    for (int k = 0; k < QUADS; k++) q.quad[k] = quads[k * stride + item];
    return q;
}
