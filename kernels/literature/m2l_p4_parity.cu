// m2l_p4_parity: M2L of a level of an octree, O(p^4), with matrices shared by mirror images
// (mirrors.cuh) and sums over mirror images.
//
// Target terms of the same parity share sums over the group, which need one product with the
// matrix:
//
//     L_a = sum_b B_ab N_b(parity of a)      N_b(q) = sum_g (-1)^(q . g) s_b(g) M_b(g)
//
// N is a transform of M over g with one step per axis in MIRRORS. A source term of a group takes
// ROWS multiply-adds and ROWS / 4 reads of the matrix. (B. Kohnke et al., Int. J. High Perform.
// Comput. Appl. 35, 97 (2021), doi:10.1177/1094342020964857, without the sums N.)
#include "mirrors.cuh"

template <int MIRRORS>
__device__ __forceinline__ void transform(const real4& signs, real (&m)[8]) {
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        const int bit = 1 << axis;
        const real sign = axis == 0 ? signs.x : axis == 1 ? signs.y : signs.z;
#pragma unroll
        for (int g = 0; g < 8; g++)
            if ((g & MIRRORS) == g && (MIRRORS & bit) && !(g & bit)) {
                const real mirrored = m[g | bit];
                m[g | bit] = m[g] - sign * mirrored;
                m[g] += sign * mirrored;
            }
    }
}

template <int MIRRORS>
__device__ __forceinline__ void add(const real4* matrix, const real (&m)[8], real (&local)[ROWS]) {
#pragma unroll
    for (int o = 0; o < ROWS; o += 4) {
        const real4 e = matrix[o / 4];
        local[o] += e.x * m[TERM_TILES.parity[o] & MIRRORS];
        local[o + 1] += e.y * m[TERM_TILES.parity[o + 1] & MIRRORS];
        local[o + 2] += e.z * m[TERM_TILES.parity[o + 2] & MIRRORS];
        local[o + 3] += e.w * m[TERM_TILES.parity[o + 3] & MIRRORS];
    }
}

extern "C" __global__ void __launch_bounds__(WARP* M2L_WARPS, BLOCKS)
    m2l_p4_parity(int half, int groups, const int2* __restrict__ group, int count,
                  const int4* __restrict__ list, const real* __restrict__ matrix,
                  const real* __restrict__ moments, real* __restrict__ sums) {
    add_all(half, groups, group, count, list, matrix, moments, sums);
}
