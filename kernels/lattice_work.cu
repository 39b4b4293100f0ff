// lattice_work: the work of the lattice operator under five strains, of which the virial consists
// in part (fmm_openmm/expansions/operators/derivatives.py). For each generator g,
//
//     sum_k sum_t dT_g,t(k) P_t(k),      P_t = sum_ab C_abt conj(z_a) z_b,   z_a = i^l M_a
//
// over the wave vectors of the half grid, those that stand for their opposites twice. With the
// matrix of lattice.cu and moments y = z for order 0, 2 z for others, in real (c) and imaginary
// (s) parts of harmonics, where products are scalar products of complex numbers,
//
//     real:       1/2 sum_{k + n = m} (c c' - s s')  +  sum_{k - n = m} (-1)^n (c c' + s s')
//     imaginary:  1/2 sum_{k + n = m} (c s' + s c')  +  sum_{k - n = m} (-1)^n (s c' - c s')
//
// over all (l, k) and (j, n) with l + j the degree of the term and m its order; for m = 0 the
// second sum counts half.
//
// A block owns WORK_WAVES wave vectors, one per lane, whose moments are in shared memory. A warp
// takes (32 / WORK_WAVES) of the pairs of terms in turn. Sums over terms are real, over wave
// vectors float64, with a partial sum for each block. Bound by reads of shared memory, for large
// grids by reading dT.
#include "common/grid_sums.cuh"
#include "common/types.cuh"

#define BLOCK 256
#define GENERATORS 5
#define TOP (2 * ORDER)
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)
#define TERM_PAIRS ((TOP + 1) * (TOP + 2) / 2)
#define HALF (D2 / 2 + 1)

// The complex moments of the real and the imaginary part of a harmonic.
struct __align__(4 * sizeof(real)) Moment {
    real2 c, s;
};

__device__ __forceinline__ real dot(const real2& a, const real2& b) {
    return a.x * b.x + a.y * b.y;
}

// i^power z
__device__ __forceinline__ real2 times_power_of_i(real2 z, int power) {
    power &= 3;
    if (power == 1) return real2{-z.y, z.x};
    if (power == 2) return real2{-z.x, -z.y};
    if (power == 3) return real2{z.y, -z.x};
    return z;
}

// Degree l of pair number l (l + 1) / 2 + m.
__device__ __forceinline__ int degree_of(int pair) {
    return int((sqrtf(8.0f * pair + 1.5f) - 1.0f) * 0.5f);
}

__device__ __forceinline__ int first_of(int l) {
    return l * (l + 1) / 2;
}

// P of the terms of degree L and order m; y holds a lane's moments, by pair, WORK_WAVES apart.
__device__ __forceinline__ real2 products(int L, int m, const Moment* y) {
    real2 sum = {0, 0}, mirrored = {0, 0};
#pragma unroll 1
    for (int l = max(0, L - ORDER); l <= min(ORDER, L); l++) {
        const int j = L - l;
        const Moment *left = y + first_of(l) * WORK_WAVES, *right = y + first_of(j) * WORK_WAVES;
        // the sum over k + n = m is the same for (l, j) and (j, l)
        if (l <= j) {
            const real twice = l < j ? 2 : 1;
            real2 part = {0, 0};
            for (int k = max(0, m - j); k <= min(l, m); k++) {
                const Moment a = left[k * WORK_WAVES], b = right[(m - k) * WORK_WAVES];
                part.x += dot(a.c, b.c) - dot(a.s, b.s);
                part.y += dot(a.c, b.s) + dot(a.s, b.c);
            }
            sum.x += twice * part.x;
            sum.y += twice * part.y;
        }
        for (int n = 0; n <= min(j, l - m); n++) {
            const Moment a = left[(n + m) * WORK_WAVES], b = right[n * WORK_WAVES];
            const real sign = n % 2 ? -1 : 1;
            mirrored.x += sign * (dot(a.c, b.c) + dot(a.s, b.s));
            mirrored.y += sign * (dot(a.s, b.c) - dot(a.c, b.s));
        }
    }
    const real twice = m > 0 ? 2 : 1;
    return {(sum.x + twice * mirrored.x) / 2, (sum.y + twice * mirrored.y) / 2};
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    lattice_work(int waves, const real2* __restrict__ moments /* (TERMS, waves) */,
                 const real* __restrict__ derivatives /* (GENERATORS, (TOP + 1)^2, waves) */,
                 double* __restrict__ partial /* (blocks, GENERATORS) */) {
    extern __shared__ char memory[];
    Moment* y = reinterpret_cast<Moment*>(memory);  // (PAIRS, WORK_WAVES)
    const int lane = threadIdx.x % WORK_WAVES, worker = threadIdx.x / WORK_WAVES,
              workers = BLOCK / WORK_WAVES;
    const int wave = blockIdx.x * WORK_WAVES + lane;
    const bool used = wave < waves;
#pragma unroll 4
    for (int pair = worker; pair < PAIRS; pair += workers) {
        const int l = degree_of(pair), m = pair - first_of(l);
        const real factor = used ? (m > 0 ? 2 : 1) : 0;
        Moment z = {{0, 0}, {0, 0}};
        if (used) z.c = moments[(l * l + l + m) * (long long)waves + wave];
        if (used && m > 0) z.s = moments[(l * l + l - m) * (long long)waves + wave];
        z.c = times_power_of_i(real2{factor * z.c.x, factor * z.c.y}, l);
        z.s = times_power_of_i(real2{factor * z.s.x, factor * z.s.y}, l);
        y[pair * WORK_WAVES + lane] = z;
    }
    __syncthreads();
    double own[GENERATORS] = {};
    for (int pair = blockIdx.y * workers + worker; pair < TERM_PAIRS; pair += gridDim.y * workers) {
        if (!used) break;
        const int L = degree_of(pair), m = pair - first_of(L);
        const real2 product = products(L, m, y + lane);
        const real* cosine = derivatives + (L * L + L + m) * (long long)waves + wave;
        const real* sine = derivatives + (L * L + L - m) * (long long)waves + wave;
#pragma unroll
        for (int g = 0; g < GENERATORS; g++) {
            const long long to = g * (TOP + 1) * (TOP + 1) * (long long)waves;
            own[g] += cosine[to] * product.x;
            if (m > 0) own[g] += sine[to] * product.y;
        }
    }
    const int k2 = wave % HALF;
    const double number = k2 == 0 || 2 * k2 == D2 ? 1 : 2;
    for (int g = 0; g < GENERATORS; g++) own[g] *= number;
    sum_over_block<BLOCK>(own);
    if (threadIdx.x == 0)
        for (int g = 0; g < GENERATORS; g++)
            partial[(blockIdx.y * gridDim.x + blockIdx.x) * GENERATORS + g] = own[g];
}
