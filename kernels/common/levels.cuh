// Boxes of one level of an octree in a periodic cube, for M2L between boxes whose parents are near.
//
// Expansions of a level are kept in slabs: the boxes with child position c (x + 2 y + 4 z of their parities), one of every parent,
// parents' x fastest, 32 together, these with one term after the other:    (8 children, groups of 32 parents, TERMS, 32)
// So the lanes of a warp share their interaction list, the sources at one relative translation are next to each other again, and
// terms are at constant distances. Lanes beyond the last parent repeat it.
//
//   M2L_WARPS   warps a block
#pragma once
#include "common/real.cuh"

#define WARP 32

__device__ __forceinline__ int groups_of(int half) {
    return (half * half * half + WARP - 1) / WARP;
}

// Where the expansion of a box begins in slabs.
__device__ __forceinline__ long long slab(int child, unsigned int parent, int half) {
    return (child * groups_of(half) + parent / WARP) * (long long)(TERMS * WARP) + parent % WARP;
}

// A target in a grid of half^3 parents. An entry of an interaction list holds the source's parent relative to the target's in x, y
// and z, and in w the source's child position in the lowest three bits, what describes the translation above them.
struct Target {
    int half, x, y, z;

    __device__ __forceinline__ Target(int number, int half) : half(half) {
        const int parent = min(number, half * half * half - 1);
        x = parent % half;
        y = parent / half % half;
        z = parent / (half * half);
    }
    __device__ __forceinline__ int wrapped(int i) const {    // at most a few grids away: no division
        while (i < 0) i += half;
        while (i >= half) i -= half;
        return i;
    }
    // Where the expansion of a source begins.
    __device__ __forceinline__ long long source(int4 entry) const {
        const int sx = wrapped(x + entry.x), sy = wrapped(y + entry.y), sz = wrapped(z + entry.z);
        return slab(entry.w & 7, (sz * half + sy) * half + sx, half);
    }
};
