// m2l_p4_symmetric: M2L of a level of an octree, O(p^4), with the symmetries of the octants.
//
// A mirror of x, y or z multiplies every term by a sign, so that the translations along (+-x, +-y, +-z) share the matrix A of
// (x, y, z):    L_a = sum_g s_a(g) sum_b A_ab s_b(g) M_b(g)        over the group g of 1, 2, 4 or 8 signs in the list.
//
// Signs are bits, put in place by an exclusive or. Lists are sorted by groups for each child position. A lane owns a target, a warp
// M2L_ROWS terms of 32 targets, a block M2L_WARPS such tiles. Moments and matrix pass through shared memory, CHUNK terms at a time: an entry
// is read once for all sources of the group, a moment once for M2L_ROWS terms. Bound by issuing multiply-adds and those reads. (B. Kohnke
// et al., Int. J. High Perform. Comput. Appl. 35, 97 (2021), doi:10.1177/1094342020964857.)
//
//   BLOCKS  of a multiprocessor      PADDED  terms of the target, in full blocks
//
//   matrices          A of every group, from harmonics
//   m2l_p4_symmetric  the sums
#include "common/irregular.cuh"

typedef unsigned int uint32;

#define OUTPUTS (M2L_WARPS * M2L_ROWS)
#define CHUNK (sizeof(real) == 4 ? 16 : 8)

extern "C" __global__ void matrices(const real* __restrict__ harmonics /* (groups, HARMONICS) */,
                                    real* __restrict__ matrix /* (groups, TERMS, PADDED): source term, target term */) {
    const int a = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (a >= PADDED) return;
    const real value = a < TERMS ? matrix_entry(harmonics + blockIdx.z * HARMONICS, a, b) : real(0);
    matrix[(blockIdx.z * (long long)TERMS + b) * PADDED + a] = value;
}

__device__ __forceinline__ float with_sign(float x, uint32 sign) { return __uint_as_float(__float_as_uint(x) ^ sign); }

__device__ __forceinline__ double with_sign(double x, uint32 sign) {
    return __hiloint2double(__double2hiint(x) ^ int(sign), __double2loint(x));
}

// The sign bit of a term under some of the mirrors.
__device__ __forceinline__ uint32 sign_of(int parity, int mirrors) {
    return uint32(__popc(parity & mirrors)) << 31;
}

struct Shared {
    real moments[CHUNK][8][WARP];
    real4 matrix[CHUNK][OUTPUTS / 4];
    unsigned char parities[PADDED];
};

// The sources of a group at their matrix: sums over b for each of them, then with the signs of the target's terms.
template <int G>
__device__ __forceinline__ void add_group(Shared& shared, const int4* __restrict__ list, const Target& target,
                                          const real* __restrict__ moments, const real4* __restrict__ matrix /* (TERMS, PADDED / 4) */,
                                          int base, real (&local)[M2L_ROWS]) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    constexpr int OWN = (G + M2L_WARPS - 1) / M2L_WARPS;    // sources that a warp stages, or one of them with other warps
    constexpr int SPLIT = G >= M2L_WARPS ? 1 : M2L_WARPS / G;
    real sum[G][M2L_ROWS] = {};
    const real* source[OWN];
    int mirrors[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int4 entry = list[(warp / SPLIT + i * M2L_WARPS) % G];
        source[i] = moments + target.source(entry);
        mirrors[i] = entry.w >> 3;
    }
    for (int first = 0; first < TERMS; first += CHUNK) {
        const int used = min(CHUNK, TERMS - first);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int g = warp / SPLIT + i * M2L_WARPS;
            if (g < G)
#pragma unroll 8
                for (int b = warp % SPLIT; b < used; b += SPLIT)
                    shared.moments[b][g][lane] = with_sign(source[i][(first + b) * WARP], sign_of(shared.parities[first + b], mirrors[i]));
        }
        for (int i = threadIdx.x; i < used * (OUTPUTS / 4); i += WARP * M2L_WARPS)
            shared.matrix[i / (OUTPUTS / 4)][i % (OUTPUTS / 4)] = matrix[(first + i / (OUTPUTS / 4)) * (PADDED / 4) + i % (OUTPUTS / 4)];
        __syncthreads();
#pragma unroll 2
        for (int b = 0; b < used; b++) {
            real m[G];
#pragma unroll
            for (int g = 0; g < G; g++) m[g] = shared.moments[b][g][lane];
#pragma unroll
            for (int o = 0; o < M2L_ROWS; o += 4) {
                const real4 e = shared.matrix[b][(warp * M2L_ROWS + o) / 4];
#pragma unroll
                for (int g = 0; g < G; g++) {
                    sum[g][o] += e.x * m[g];
                    sum[g][o + 1] += e.y * m[g];
                    sum[g][o + 2] += e.z * m[g];
                    sum[g][o + 3] += e.w * m[g];
                }
            }
        }
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        const int of = list[g].w >> 3;
#pragma unroll
        for (int o = 0; o < M2L_ROWS; o++) local[o] += with_sign(sum[g][o], sign_of(shared.parities[base + warp * M2L_ROWS + o], of));
    }
}

extern "C" __global__ void __launch_bounds__(WARP * M2L_WARPS, BLOCKS)
m2l_p4_symmetric(int half, int groups, const int2* __restrict__ group /* (8, groups): first source, matrix and its size's exponent */,
                 int count, const int4* __restrict__ list /* (8, count), with signs in place of the translation */,
                 const real* __restrict__ matrix /* (matrices, TERMS, PADDED) */, const real* __restrict__ moments /* slabs */,
                 real* __restrict__ sums /* (gridDim.z) slabs */) {
    __shared__ Shared shared;
    constexpr int SHARES = PADDED / OUTPUTS;
    const int lane = threadIdx.x % WARP, child = blockIdx.y, base = blockIdx.x % SHARES * OUTPUTS, first = base + threadIdx.x / WARP * M2L_ROWS;
    for (int a = threadIdx.x; a < PADDED; a += blockDim.x) {
        const int l = degree_of(a);
        shared.parities[a] = parity(l, a - l * l - l);
    }
    const Target target(blockIdx.x / SHARES * WARP + lane, half);
    real local[M2L_ROWS] = {};
    for (int n = blockIdx.z; n < groups; n += gridDim.z) {
        const int2 which = group[child * groups + n];
        const real4* own = reinterpret_cast<const real4*>(matrix + (which.y >> 2) * (long long)(TERMS * PADDED) + base);
        const int4* sources = list + child * count + which.x;
        switch (which.y & 3) {
            case 3: add_group<8>(shared, sources, target, moments, own, base, local); break;
            case 2: add_group<4>(shared, sources, target, moments, own, base, local); break;
            case 1: add_group<2>(shared, sources, target, moments, own, base, local); break;
            default: add_group<1>(shared, sources, target, moments, own, base, local);
        }
    }
    sums += ((blockIdx.z * 8 + child) * (long long)groups_of(half) + blockIdx.x / SHARES) * (TERMS * WARP) + lane;
#pragma unroll
    for (int o = 0; o < M2L_ROWS; o++)
        if (first + o < TERMS) sums[(first + o) * WARP] = local[o];
}
