// m2l_p4_parity: M2L of a level of an octree, O(p^4), with the symmetries of the octants for matrices and for sums of moments.
//
// A mirror g of x, y or z multiplies every term by a sign s(g), so that the translations along (+-x, +-y, +-z) share the matrix A of
// (x, y, z), and target terms of the same signs share sums over the group of 1, 2, 4 or 8 mirrors in the list:
//
//     L_a = sum_g s_a(g) sum_b A_ab s_b(g) M_b(g) = sum_b A_ab N_b(parity of a)      N_b(q) = sum_g (-1)^(q . g) s_b(g) M_b(g)
//
// N is a transform of M over g in as many steps as there are axes to mirror. The interaction lists of the eight child positions
// are mirror images of each other, those of the source terms and of the target terms included: all use the matrices of the last.
//
// A lane owns a target, a warp a tile of the terms of 32 targets, the same number of each parity in every tile, which registers
// hold. Moments come from the caches, a term ahead; matrices pass through shared memory, for all warps of a block. Bound by issuing
// instructions, of which more than half are multiply-adds. (B. Kohnke et al., Int. J. High Perform. Comput. Appl. 35, 97 (2021),
// doi:10.1177/1094342020964857, without the sums N.)
//
//   TILES, ROWS   of all terms; of a tile, a multiple of 4, some of them empty
//   ABREAST       tiles a block, a divisor of TILES
//   M2L_WARPS     a block at most, ABREAST for every 32 targets      BLOCKS  of a multiprocessor
//
//   matrices       A of every group, from harmonics
//   m2l_p4_parity  the sums
#include "common/irregular.cuh"

#define CHUNK (16384 / int(sizeof(real)) / (ABREAST * ROWS))    // source terms whose part of the matrix is in shared memory at a time

struct Tiles {
    int parity[ROWS], term[TILES][ROWS];    // -1 where there is none
};

__host__ __device__ constexpr Tiles make_tiles() {
    Tiles tiles = {};
    for (int tile = 0; tile < TILES; tile++)
        for (int row = 0; row < ROWS; row++) tiles.term[tile][row] = -1;
    int begin = 0;    // of the rows of this parity
    for (int q = 0; q < 8; q++) {
        int n = 0;
        for (int l = 0; l <= ORDER; l++)
            for (int m = -l; m <= l; m++)
                if (parity(l, m) == q) {
                    tiles.term[n % TILES][begin + n / TILES] = l * l + l + m;
                    n++;
                }
        const int end = begin + (n + TILES - 1) / TILES;
        for (; begin < end; begin++) tiles.parity[begin] = q;
    }
    return tiles;
}

static __device__ constexpr Tiles OF = make_tiles();

extern "C" __global__ void matrices(const real* __restrict__ harmonics /* (groups, HARMONICS) */,
                                    real* __restrict__ matrix /* (groups, TERMS, TILES, ROWS): source term, target term */) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (row >= TILES * ROWS) return;
    const int a = OF.term[row / ROWS][row % ROWS];
    const real value = a < 0 ? real(0) : matrix_entry(harmonics + blockIdx.z * HARMONICS, a, b);
    matrix[(blockIdx.z * (long long)TERMS + b) * (TILES * ROWS) + row] = value;
}

// The sign of a term under some of the mirrors.
__device__ __forceinline__ real sign_of(int parity, int mirrors) {
    return __popc(parity & mirrors) % 2 == 0 ? real(1) : real(-1);
}

struct Shared {
    real4 matrix[CHUNK][ABREAST * ROWS / 4];
    long long begins[8 * WARP * M2L_WARPS];    // of the sources of a group, for each thread
    real4 signs[TERMS];    // of the source terms: mirrors of x, of y, of z; from the last child position to this one
};

// The sources of a group at their matrix. MIRRORS: bits of the axes of its mirrors.
template <int MIRRORS>
__device__ __forceinline__ void add_group(Shared& shared, const int4* __restrict__ list, const Target& target,
                                          const real* __restrict__ moments, const real4* __restrict__ matrix /* (TERMS, TILES ROWS / 4) */,
                                          int tile, real (&local)[ROWS]) {
    const real* source[8];
    real n[8], next[8];
    long long* begins = shared.begins + threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < 1 << __popc(MIRRORS); i++) begins[i * (WARP * M2L_WARPS)] = target.source(list[i]);
#pragma unroll
    for (int g = 0, i = 0; g < 8; g++)
        if ((g & MIRRORS) == g) {
            source[g] = moments + begins[i++ * (WARP * M2L_WARPS)];
            next[g] = source[g][0];
        }
    for (int first = 0; first < TERMS; first += CHUNK) {
        const int used = min(CHUNK, TERMS - first);
        __syncthreads();
        for (int i = threadIdx.x; i < used * (ABREAST * ROWS / 4); i += blockDim.x) {
            const int b = i / (ABREAST * ROWS / 4), o = i % (ABREAST * ROWS / 4);
            const real sign = shared.signs[first + b].w;
            const real4 e = matrix[(first + b) * (TILES * ROWS / 4) + o];
            shared.matrix[b][o] = real4{sign * e.x, sign * e.y, sign * e.z, sign * e.w};
        }
        __syncthreads();
#pragma unroll 2
        for (int b = 0; b < used; b++) {
            const int after = min(first + b + 1, TERMS - 1);
#pragma unroll
            for (int g = 0; g < 8; g++)
                if ((g & MIRRORS) == g) {
                    n[g] = next[g];
                    next[g] = source[g][after * WARP];
                }
            const real4 signs = shared.signs[first + b];
#pragma unroll
            for (int axis = 0; axis < 3; axis++) {
                const int bit = 1 << axis;
                const real sign = axis == 0 ? signs.x : axis == 1 ? signs.y : signs.z;
#pragma unroll
                for (int g = 0; g < 8; g++)
                    if ((g & MIRRORS) == g && (MIRRORS & bit) && !(g & bit)) {
                        const real mirrored = n[g | bit];
                        n[g | bit] = n[g] - sign * mirrored;
                        n[g] += sign * mirrored;
                    }
            }
#pragma unroll
            for (int o = 0; o < ROWS; o += 4) {
                const real4 e = shared.matrix[b][tile * (ROWS / 4) + o / 4];
                local[o] += e.x * n[OF.parity[o] & MIRRORS];
                local[o + 1] += e.y * n[OF.parity[o + 1] & MIRRORS];
                local[o + 2] += e.z * n[OF.parity[o + 2] & MIRRORS];
                local[o + 3] += e.w * n[OF.parity[o + 3] & MIRRORS];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARP * M2L_WARPS, BLOCKS)
m2l_p4_parity(int half, int groups, const int2* __restrict__ group /* (groups): first source; 8 times the matrix, and its mirrors */,
              int count, const int4* __restrict__ list /* (8, count) */, const real* __restrict__ matrix /* (groups, TERMS, TILES, ROWS) */,
              const real* __restrict__ moments /* slabs */, real* __restrict__ sums /* (gridDim.z) slabs */) {
    __shared__ Shared shared;
    constexpr int PARTS = TILES / ABREAST;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, tile = warp % ABREAST, child = blockIdx.y, mirrored = 7 - child;
    const int part = blockIdx.x % PARTS, slab_group = blockIdx.x / PARTS * (blockDim.x / (WARP * ABREAST)) + warp / ABREAST;
    for (int b = threadIdx.x; b < TERMS; b += blockDim.x) {
        const int l = degree_of(b), q = parity(l, b - l * l - l);
        shared.signs[b] = real4{sign_of(q, 1), sign_of(q, 2), sign_of(q, 4), sign_of(q, mirrored)};
    }
    const Target target(slab_group * WARP + lane, half);
    real local[ROWS] = {};
    list += child * count;
    for (int n = blockIdx.z; n < groups; n += gridDim.z) {
        const int2 which = group[n];
        const int4* sources = list + which.x;
        const real4* own = reinterpret_cast<const real4*>(matrix + (which.y >> 3) * (long long)(TERMS * TILES * ROWS) + part * (ABREAST * ROWS));
        switch (which.y & 7) {
            case 0: add_group<0>(shared, sources, target, moments, own, tile, local); break;
            case 1: add_group<1>(shared, sources, target, moments, own, tile, local); break;
            case 2: add_group<2>(shared, sources, target, moments, own, tile, local); break;
            case 3: add_group<3>(shared, sources, target, moments, own, tile, local); break;
            case 4: add_group<4>(shared, sources, target, moments, own, tile, local); break;
            case 5: add_group<5>(shared, sources, target, moments, own, tile, local); break;
            case 6: add_group<6>(shared, sources, target, moments, own, tile, local); break;
            default: add_group<7>(shared, sources, target, moments, own, tile, local);
        }
    }
    if (slab_group >= groups_of(half)) return;
    sums += ((blockIdx.z * 8 + child) * (long long)groups_of(half) + slab_group) * (TERMS * WARP) + lane;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const int a = OF.term[part * ABREAST + tile][row];
        if (a >= 0) sums[a * WARP] = sign_of(OF.parity[row], mirrored) * local[row];
    }
}
