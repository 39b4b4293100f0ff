// slabs: conversion between memory order of the boxes of a level (x fastest) and the slabs of
// common/levels.cuh, for the comparison of M2L operators.
//
//   to_slabs    moments in memory order to slabs, terms of degree l times UNIT^l
//   from_slabs  the sum over shares in slabs to local expansions in memory order, terms of degree l
//               times UNIT^(l+1)
//
// Lengths in slabs are in units of the box width / UNIT, so that terms of degree 20 and harmonics
// of degree 40 are within the range of a float. Bound by memory.
#include "common/levels.cuh"

__device__ __forceinline__ real scale(int a) {
    const int l = degree_of(a);
    real power = 1;
    for (int i = 0; i < l; i++) power *= UNIT;
    return power;
}

// A block per group of 32 boxes, a warp per term.
extern "C" __global__ void to_slabs(int half, const real* __restrict__ moments /* (TERMS, boxes) */,
                                    real* __restrict__ slabs) {
    const long long boxes = 8LL * half * half * half, side = 2 * half;
    const int groups = groups_of(half), child = blockIdx.x / groups;
    const Target target(blockIdx.x % groups * WARP + threadIdx.x % WARP, half);
    const int x = 2 * target.x + (child & 1), y = 2 * target.y + (child >> 1 & 1),
              z = 2 * target.z + (child >> 2);
    const real* from = moments + (z * side + y) * side + x;
    real* to = slabs + blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x % WARP;
    for (int a = threadIdx.x / WARP; a < TERMS; a += blockDim.x / WARP)
        to[a * WARP] = scale(a) * from[a * boxes];
}

// A thread per box and term.
extern "C" __global__ void from_slabs(int half, int shares,
                                      const real* __restrict__ sums /* (shares) slabs */,
                                      real* __restrict__ local /* (TERMS, boxes) */) {
    const long long boxes = 8LL * half * half * half, length = 8LL * groups_of(half) * TERMS * WARP;
    const int i = blockIdx.x * blockDim.x + threadIdx.x, side = 2 * half, a = blockIdx.y;
    if (i >= boxes) return;
    const int x = i % side, y = i / side % side, z = i / (side * side);
    const int child = (x & 1) + 2 * (y & 1) + 4 * (z & 1),
              parent = ((z / 2) * half + y / 2) * half + x / 2;
    sums += slab(child, parent, half) + a * WARP;
    real sum = 0;
    for (int n = 0; n < shares; n++) sum += sums[n * length];
    local[a * boxes + i] = UNIT * scale(a) * sum;
}
