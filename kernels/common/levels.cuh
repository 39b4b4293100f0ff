// Boxes of one level of an octree. The grid of their parents has `half` times as many boxes along
// each axis as the root grid.
//
// Expansions of a level are stored in slabs. The boxes with child position c (x + 2 y + 4 z of
// their parities), one for each parent, are divided into groups of 32 in the order of the parents,
// x fastest; a group stores its terms one after the other:
//
//     (8 children, groups of 32 parents, TERMS, 32)
//
// Thus the lanes of a warp share an interaction list, the sources at one relative translation are
// contiguous as well, and the distance between terms is constant. Lanes beyond the last parent
// repeat it. If an axis is padded, a slab of zeros follows, which stands for boxes outside the
// grid.
//
//   M2L_WARPS      warps per block
//   ROOT0 ..       boxes of the root grid along each axis
//   ROOT10, ROOT20, ROOT21
//                  lower triangle of its counts matrix
#pragma once
#include "common/padding.cuh"
#include "common/real.cuh"

#define WARP 32

__device__ __forceinline__ int degree_of(int a) {
    return int(sqrtf(a + 0.5f));
}

__device__ __forceinline__ int parents_of(int half) {
    return ROOT0 * ROOT1 * ROOT2 * half * half * half;
}

__device__ __forceinline__ int groups_of(int half) {
    return (parents_of(half) + WARP - 1) / WARP;
}

// Index of a box's first term in slabs.
__device__ __forceinline__ long long slab(int child, unsigned int parent, int half) {
    return (child * groups_of(half) + parent / WARP) * (long long)(TERMS * WARP) + parent % WARP;
}

// A target's parent, in the grid of parents. An entry of an interaction list holds in x, y and z
// the source's parent relative to the target's, and in w the source's child position in the lowest
// three bits and the number of the translation above them.
struct Target {
    int half, x, y, z;

    __device__ __forceinline__ Target(int number, int half) : half(half) {
        const int parent = min(number, parents_of(half) - 1), nx = ROOT0 * half, ny = ROOT1 * half;
        x = parent % nx;
        y = parent / nx % ny;
        z = parent / (nx * ny);
    }
    // Index of a source's first term. Sources are at most a few periods away, so that loops replace
    // divisions.
    __device__ __forceinline__ long long source(int4 entry) const {
        int sx = x + entry.x, sy = y + entry.y, sz = z + entry.z;
        const int nx = ROOT0 * half, ny = ROOT1 * half, nz = ROOT2 * half;
#if !PADDED2
        for (; sz < 0; sz += nz) {
            sy += ROOT21 * half;
            sx += ROOT20 * half;
        }
        for (; sz >= nz; sz -= nz) {
            sy -= ROOT21 * half;
            sx -= ROOT20 * half;
        }
#endif
#if !PADDED1
        for (; sy < 0; sy += ny) sx += ROOT10 * half;
        for (; sy >= ny; sy -= ny) sx -= ROOT10 * half;
#endif
#if !PADDED0
        while (sx < 0) sx += nx;
        while (sx >= nx) sx -= nx;
#endif
        if ((PADDED0 && sx < 0) || (PADDED0 && sx >= nx) || (PADDED1 && sy < 0) ||
            (PADDED1 && sy >= ny) || (PADDED2 && sz < 0) || (PADDED2 && sz >= nz))
            return 8LL * groups_of(half) * (TERMS * WARP);
        return slab(entry.w & 7, (sz * ny + sy) * nx + sx, half);
    }
};

// Index of a box's first term in the slabs of its own level, whose parents' grid has half / 2 boxes
// for each box of the root grid.
__device__ __forceinline__ long long own_slab(const Target& box) {
    const int nx = ROOT0 * box.half / 2, ny = ROOT1 * box.half / 2;
    const int child = (box.x & 1) + 2 * (box.y & 1) + 4 * (box.z & 1);
    return slab(child, ((box.z / 2) * ny + box.y / 2) * nx + box.x / 2, box.half / 2);
}
