// M2L of a level of an octree, O(p^4), with matrices shared by the translations (+-x, +-y, +-z).
//
// Mirroring x, y or z multiplies every term by a sign. Let g be a product of some of the three
// mirrors, s_a(g) its sign for term a, and A the matrix of the translation (|x|, |y|, |z|). The
// sources of a group have the translations g h (|x|, |y|, |z|) for one h and all products g of the
// mirrors in MIRRORS. Their sum is
//
//     L_a = sum_b B_ab sum_g s_a(g) s_b(g) M_b(g)        B_ab = s_a(h) A_ab s_b(h)
//
// A lane owns a target, a warp one tile of the terms of 32 targets. Every tile has the same number
// of terms of each parity (tiles.cuh), so that s_a(g) is known at compile time. Sums are in
// registers. Moments are read through the caches, AHEAD of them in flight per lane; B is in shared
// memory, for all warps of a block. The kernel files define how a term b is added, in `transform`
// and `add`.
//
//   ABREAST       tiles per block, a divisor of TILES
//   M2L_WARPS     maximum warps per block, ABREAST for every 32 targets
//   BLOCKS        blocks per multiprocessor
//   AHEAD         moments that are loaded in advance, a power of 2
#pragma once
#include "tiles.cuh"

#define CHUNK_TERMS (16384 / int(sizeof(real)) / (ABREAST * ROWS) / AHEAD * AHEAD)
#define SIGNS ((TERMS + AHEAD - 1) / AHEAD * AHEAD)
// source terms whose rows of the matrix are in shared memory at a time
#define CHUNK (CHUNK_TERMS < TERMS ? CHUNK_TERMS : TERMS)

// Whether a product of mirrors changes the sign of a term.
__host__ __device__ constexpr bool odd(int parity, int mirrors) {
    return ((parity & mirrors) ^ (parity & mirrors) >> 1 ^ (parity & mirrors) >> 2) & 1;
}

// Number of sources in a group.
__host__ __device__ constexpr int size_of(int mirrors) {
    return 1 << ((mirrors & 1) + (mirrors >> 1 & 1) + (mirrors >> 2));
}

__device__ __forceinline__ real sign_of(int parity, int mirrors) {
    return odd(parity, mirrors) ? real(-1) : real(1);
}

struct Shared {
    real4 matrix[CHUNK][ABREAST * ROWS / 4];
    real4 rows[ROWS / 4];  // signs under h of the terms of a tile
    real4 signs[SIGNS];    // signs of the source terms under the mirrors of x, y, z and under h
    unsigned int begins[8 * WARP * M2L_WARPS];  // first terms of the sources of a group, per thread
};

// Replaces the moments M_b(g) of a source term, for g in MIRRORS, by the form that `add` expects.
template <int MIRRORS>
__device__ __forceinline__ void transform(const real4& signs, real (&m)[8]);

// Adds the contribution of a source term to the sums of a tile.
template <int MIRRORS>
__device__ __forceinline__ void add(const real4* matrix /* (ROWS / 4) */, const real (&m)[8],
                                    real (&local)[ROWS]);

template <int MIRRORS>
__device__ __forceinline__ void add_group(
    Shared& shared, const int4* __restrict__ list, const Target& target,
    const real* __restrict__ moments,
    const real4* __restrict__ matrix /* (TERMS, TILES ROWS / 4) */, int tile, real (&local)[ROWS]) {
    constexpr int SIZE = size_of(MIRRORS), STEP = SIZE < AHEAD ? AHEAD / SIZE : 1,
                  WIDTH = ABREAST * ROWS / 4;
    unsigned int source[8];  // 32-bit offsets, to save registers
    real m[STEP][8], next[STEP][8] = {};
    unsigned int* begins = shared.begins + threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < SIZE; i++)
        begins[i * (WARP * M2L_WARPS)] = (unsigned int)target.source(list[i]);
#pragma unroll
    for (int g = 0, i = 0; g < 8; g++)
        if ((g & MIRRORS) == g) {
            source[g] = begins[i++ * (WARP * M2L_WARPS)];
            const real* from = moments + source[g];
#pragma unroll
            for (int k = 0; k < STEP; k++)
                if (k < TERMS) next[k][g] = from[k * WARP];
        }
    for (int first = 0; first < TERMS; first += CHUNK) {
        const int used = min(CHUNK, TERMS - first);
        __syncthreads();
        for (int i = threadIdx.x; i < used * WIDTH; i += blockDim.x) {
            const int b = i / WIDTH, o = i % WIDTH;
            const real sign = shared.signs[first + b].w;
            const real4 row = shared.rows[o % (ROWS / 4)],
                        e = matrix[(first + b) * (TILES * ROWS / 4) + o];
            shared.matrix[b][o] = real4{sign * row.x * e.x, sign * row.y * e.y, sign * row.z * e.z,
                                        sign * row.w * e.w};
        }
        __syncthreads();
#pragma unroll 1
        for (int b = 0; b < used; b += STEP) {
#pragma unroll
            for (int k = 0; k < STEP; k++) {
#pragma unroll
                for (int g = 0; g < 8; g++) m[k][g] = next[k][g];
                transform<MIRRORS>(shared.signs[first + b + k], m[k]);
            }
            const int left = TERMS - first - b - STEP;
#pragma unroll
            for (int g = 0; g < 8; g++)
                if ((g & MIRRORS) == g) {
                    source[g] += STEP * WARP;
                    const real* from = moments + source[g];
#pragma unroll
                    for (int k = 0; k < STEP; k++)
                        if (k < left) next[k][g] = from[k * WARP];
                }
#pragma unroll
            for (int k = 0; k < STEP; k++)
                if (TERMS % STEP == 0 || b + k < used)
                    add<MIRRORS>(&shared.matrix[b + k][tile * (ROWS / 4)], m[k], local);
        }
    }
}

// Sets the signs of all terms for the mirror h in B = s(h) A s(h).
__device__ __forceinline__ void mirror_all(Shared& shared, int h) {
    for (int b = threadIdx.x; b < SIGNS; b += blockDim.x) {
        const int l = degree_of(b), q = parity(l, b - l * l - l);
        shared.signs[b] = real4{sign_of(q, 1), sign_of(q, 2), sign_of(q, 4), sign_of(q, h)};
    }
    for (int row = threadIdx.x; row < ROWS; row += blockDim.x)
        reinterpret_cast<real*>(shared.rows)[row] = sign_of(TERM_TILES.parity[row], h);
}

__device__ __forceinline__ void add_all(
    int half, int groups, const int2* __restrict__ group /* (8, groups): first source, and
    64 times the row of its matrix + 8 h + MIRRORS */
    ,
    int count, const int4* __restrict__ list /* (8, count) */,
    const real* __restrict__ matrix /* (vectors, TERMS, TILES, ROWS) */,
    const real* __restrict__ moments /* slabs */, real* __restrict__ sums /* (gridDim.z) slabs */) {
    __shared__ Shared shared;
    constexpr int PARTS = TILES / ABREAST;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, tile = warp % ABREAST,
              child = blockIdx.y;
    const int part = blockIdx.x % PARTS,
              slab_group = blockIdx.x / PARTS * (blockDim.x / (WARP * ABREAST)) + warp / ABREAST;
    const Target target(slab_group * WARP + lane, half);
    real local[ROWS] = {};
    int h = -1;
    for (int n = blockIdx.z; n < groups; n += gridDim.z) {
        const int2 which = group[child * groups + n];
        const int4* sources = list + child * count + which.x;
        const real4* own = reinterpret_cast<const real4*>(
            matrix + (which.y >> 6) * (long long)(TERMS * TILES * ROWS) + part * (ABREAST * ROWS));
        if (h != (which.y >> 3 & 7)) {  // constant for cubic boxes
            h = which.y >> 3 & 7;
            __syncthreads();
            mirror_all(shared, h);
        }
        switch (which.y & 7) {
            case 0:
                add_group<0>(shared, sources, target, moments, own, tile, local);
                break;
            case 1:
                add_group<1>(shared, sources, target, moments, own, tile, local);
                break;
            case 2:
                add_group<2>(shared, sources, target, moments, own, tile, local);
                break;
            case 3:
                add_group<3>(shared, sources, target, moments, own, tile, local);
                break;
            case 4:
                add_group<4>(shared, sources, target, moments, own, tile, local);
                break;
            case 5:
                add_group<5>(shared, sources, target, moments, own, tile, local);
                break;
            case 6:
                add_group<6>(shared, sources, target, moments, own, tile, local);
                break;
            default:
                add_group<7>(shared, sources, target, moments, own, tile, local);
        }
    }
    if (slab_group >= groups_of(half)) return;
    sums += ((blockIdx.z * 8 + child) * (long long)groups_of(half) + slab_group) * (TERMS * WARP) +
            lane;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const int a = TERM_TILES.term[part * ABREAST + tile][row];
        if (a >= 0) sums[a * WARP] = local[row];
    }
}
