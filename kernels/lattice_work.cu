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
// A block owns WORK_WAVES wave vectors, one per lane, whose moments are in shared memory. Groups of
// WORK_WAVES threads take WORK_ORDERS orders of a degree in turn. Sums over terms are real, over
// wave vectors float64, with a partial sum for each block. Bound by instruction issue, for large
// grids by reading dT.
#include "common/grid_sums.cuh"
#include "common/types.cuh"

#define BLOCK 256
#define GENERATORS 5
#define TOP (2 * ORDER)
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)
#define TASKS_OF_DEGREE (TOP / WORK_ORDERS + 1)
#define TASKS ((TOP + 1) * TASKS_OF_DEGREE)
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

// Moment of order m of a degree, whose moments of orders 0 to `degree` are WORK_WAVES apart; zero
// for other orders.
__device__ __forceinline__ Moment order_of(const Moment* row, int degree, int m) {
    Moment z = {{0, 0}, {0, 0}};
    if (m >= 0 && m <= degree) z = row[m * WORK_WAVES];
    return z;
}

// Adds P of the terms of degree L and the orders first .. first + WORK_ORDERS - 1 to real and
// imaginary, as far as it comes from degrees l and j = L - l. Each moment that is read serves all
// orders.
__device__ __forceinline__ void add_products(int l, int j, int first, const Moment* left,
                                             const Moment* right, real (&cosine)[WORK_ORDERS],
                                             real (&sine)[WORK_ORDERS]) {
    Moment window[WORK_ORDERS];
    // the sum over k + n = m is the same for (l, j) and (j, l), half of it each
    if (l <= j) {
        const int begin = max(0, first - j);
        const real half = l < j ? real(1) : real(0.5);
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) window[i] = order_of(right, j, first + i - begin);
#pragma unroll 1
        for (int k = begin; k <= min(l, first + WORK_ORDERS - 1); k++) {
            Moment a = left[k * WORK_WAVES];
            a = {{half * a.c.x, half * a.c.y}, {half * a.s.x, half * a.s.y}};
#pragma unroll
            for (int i = 0; i < WORK_ORDERS; i++) {
                cosine[i] += dot(a.c, window[i].c) - dot(a.s, window[i].s);
                sine[i] += dot(a.c, window[i].s) + dot(a.s, window[i].c);
            }
#pragma unroll
            for (int i = WORK_ORDERS - 1; i > 0; i--) window[i] = window[i - 1];
            window[0] = order_of(right, j, first - k - 1);
        }
    }
#pragma unroll
    for (int i = 0; i < WORK_ORDERS; i++) window[i] = order_of(left, l, first + i);
    real sign = 1;
#pragma unroll 1
    for (int n = 0; n <= min(j, l - first); n++) {
        Moment b = right[n * WORK_WAVES];
        b = {{sign * b.c.x, sign * b.c.y}, {sign * b.s.x, sign * b.s.y}};
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) {
            const real once = i == 0 && first == 0 ? real(0.5) : real(1);
            cosine[i] += once * (dot(window[i].c, b.c) + dot(window[i].s, b.s));
            sine[i] += dot(window[i].s, b.c) - dot(window[i].c, b.s);
        }
#pragma unroll
        for (int i = 0; i < WORK_ORDERS - 1; i++) window[i] = window[i + 1];
        window[WORK_ORDERS - 1] = order_of(left, l, first + n + WORK_ORDERS);
        sign = -sign;
    }
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
    for (int task = blockIdx.y * workers + worker; task < TASKS; task += gridDim.y * workers) {
        const int L = TOP - task / TASKS_OF_DEGREE, first = task % TASKS_OF_DEGREE * WORK_ORDERS;
        if (first > L || !used) continue;
        real cosine[WORK_ORDERS] = {}, sine[WORK_ORDERS] = {};
#pragma unroll 1
        for (int l = max(0, L - ORDER); l <= min(ORDER, L); l++)
            add_products(l, L - l, first, y + first_of(l) * WORK_WAVES + lane,
                         y + first_of(L - l) * WORK_WAVES + lane, cosine, sine);
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) {
            const int m = first + i;
            if (m > L) break;
            const real* of_cosine = derivatives + (L * L + L + m) * (long long)waves + wave;
            const real* of_sine = derivatives + (L * L + L - m) * (long long)waves + wave;
#pragma unroll
            for (int g = 0; g < GENERATORS; g++) {
                const long long to = g * (TOP + 1) * (TOP + 1) * (long long)waves;
                own[g] += of_cosine[to] * cosine[i];
                if (m > 0) own[g] += of_sine[to] * sine[i];
            }
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
