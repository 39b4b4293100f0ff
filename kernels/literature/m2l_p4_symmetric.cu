// m2l_p4_symmetric: M2L of a level of an octree, O(p^4), with matrices shared by mirror images
// (mirrors.cuh).
//
// Every entry of a matrix is read once for a group of sources at mirrored displacements and
// multiplied by the moments of each. A source term takes ROWS multiply-adds per source and
// ROWS / 4 reads of the matrix. (B. Kohnke et al., Int. J. High Perform. Comput. Appl. 35, 97
// (2021), doi:10.1177/1094342020964857.)
#include "mirrors.cuh"

template <int MIRRORS>
__device__ __forceinline__ void transform(const real4& signs, real (&m)[8]) {
    const real yz = signs.y * signs.z;
    m[1] *= signs.x;
    m[2] *= signs.y;
    m[3] *= signs.x * signs.y;
    m[4] *= signs.z;
    m[5] *= signs.x * signs.z;
    m[6] *= yz;
    m[7] *= signs.x * yz;
}

template <int MIRRORS>
__device__ __forceinline__ void add(const real4* matrix, const real (&m)[8], real (&local)[ROWS]) {
#pragma unroll
    for (int o = 0; o < ROWS; o += 4) {
        const real4 e = matrix[o / 4];
#pragma unroll
        for (int g = 0; g < 8; g++)
            if ((g & MIRRORS) == g) {
                local[o] += (odd(TERM_TILES.parity[o], g) ? -e.x : e.x) * m[g];
                local[o + 1] += (odd(TERM_TILES.parity[o + 1], g) ? -e.y : e.y) * m[g];
                local[o + 2] += (odd(TERM_TILES.parity[o + 2], g) ? -e.z : e.z) * m[g];
                local[o + 3] += (odd(TERM_TILES.parity[o + 3], g) ? -e.w : e.w) * m[g];
            }
    }
}

extern "C" __global__ void __launch_bounds__(WARP* M2L_WARPS, BLOCKS)
    m2l_p4_symmetric(int half, int groups, const int2* __restrict__ group, int count,
                     const int4* __restrict__ list, const real* __restrict__ matrix,
                     const real* __restrict__ moments, real* __restrict__ sums) {
    add_all(half, groups, group, count, list, matrix, moments, sums);
}
