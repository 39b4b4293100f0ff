// lattice_work: the work of the lattice operator under five strains, its contribution to the virial
// (fmm_openmm/expansions/operators/derivatives.py). For each generator g of a strain,
//
//     sum_k sum_t dT_g,t(k) P_t(k),      P_t = sum_ab C_abt conj(z_a) z_b,   z_a = i^l M_a
//
// over the wave vectors of the half grid, with weight 2 if the opposite one is omitted. With the
// matrix of lattice.cu, and with y = z for order 0 and y = 2 z for others, P_t is the sum of the
// following terms of y for the real (c) and imaginary (s) parts of harmonics, where c c' stands for
// Re(conj(c) c'):
//
//     real:       1/2 sum_{k + n = m} (c c' - s s')  +  sum_{k - n = m} (-1)^n (c c' + s s')
//     imaginary:  1/2 sum_{k + n = m} (c s' + s c')  +  sum_{k - n = m} (-1)^n (s c' - c s')
//
// over all (l, k) and (j, n) with l + j the degree of the term and m its order; for m = 0 the
// second sum counts half.
//
// In rectangular cells dT is stored for one octant of wave vectors. Each of them also represents
// its mirror images, with signs as in mirrored.cu; a shear reverses the signs along its two axes.
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
#define WAVES (D0 * D1 * H2)  // of the half grid
#define STORED (WORK_IMAGES == 1 ? WAVES : H0 * H1 * H2)
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)
#define TASKS_OF_DEGREE (TOP / WORK_ORDERS + 1)
#define TASKS ((TOP + 1) * TASKS_OF_DEGREE)
#define H0 (D0 / 2 + 1)
#define H1 (D1 / 2 + 1)
#define H2 (D2 / 2 + 1)

// The complex moments of the real and the imaginary part of a harmonic.
struct Moment {
    real2 c, s;
};

__device__ __forceinline__ Moment times(real factor, const Moment& z) {
    return {{factor * z.c.x, factor * z.c.y}, {factor * z.s.x, factor * z.s.y}};
}

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

// The wave vector of a lane: where it lies in the half grid, where its dT is stored, and the signs
// of terms that are odd along y and z.
struct Wave {
    bool used;
    long long place, stored;
    real sign_y, sign_z;

    __device__ explicit Wave(int lane) : sign_y(1), sign_z(1) {
#if WORK_IMAGES == 1
        stored = place = blockIdx.x * (long long)WORK_WAVES + lane;
        used = place < WAVES;
#else
        // see mirrored.cu
        const int owned = WORK_WAVES / WORK_IMAGES;
        const int wave = blockIdx.x * owned + lane % owned, k0 = wave / (H1 * H2),
                  k1 = wave / H2 % H1;
        const bool y = lane / owned % 2, z = lane / owned / 2;
        stored = wave;
        place = ((z ? D0 - k0 : k0) * D1 + (y ? D1 - k1 : k1)) * (long long)H2 + wave % H2;
        used = wave < STORED && (!y || (k1 > 0 && 2 * k1 < D1)) && (!z || (k0 > 0 && 2 * k0 < D0));
        if (y) sign_y = -1;
        if (z) sign_z = -1;
#endif
    }
    // Wave vectors for which it stands: with its opposite, which the half grid lacks.
    __device__ int number() const {
        const int k2 = stored % H2;
        return k2 == 0 || 2 * k2 == D2 ? 1 : 2;
    }
};

// Moment of order m of a degree, zero for orders that the degree does not have. In shared memory
// the real and the imaginary parts of a harmonic have a row of WORK_WAVES each.
__device__ __forceinline__ Moment order_of(const real2* degree_l, int l, int m) {
    Moment z = {{0, 0}, {0, 0}};
    if (m >= 0 && m <= l) z = {degree_l[2 * m * WORK_WAVES], degree_l[(2 * m + 1) * WORK_WAVES]};
    return z;
}

// Adds P of the terms of degree L and the orders first .. first + WORK_ORDERS - 1, as far as it
// comes from degrees l and j = L - l. Each moment that is read serves all orders.
__device__ __forceinline__ void add_products(int l, int j, int first, const real2* left,
                                             const real2* right, real (&cosine)[WORK_ORDERS],
                                             real (&sine)[WORK_ORDERS]) {
    Moment window[WORK_ORDERS];
    // the sum over k + n = m is the same for (l, j) and (j, l), half of it each
    if (l <= j) {
        const int begin = max(0, first - j);
        const real half = l < j ? real(1) : real(0.5);
        Moment next = order_of(left, l, begin);
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) window[i] = order_of(right, j, first + i - begin);
#pragma unroll 1
        for (int k = begin; k <= min(l, first + WORK_ORDERS - 1); k++) {
            const Moment a = times(half, next);
            next = order_of(left, l, k + 1);
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
    Moment next = order_of(right, j, 0);
#pragma unroll 1
    for (int n = 0; n <= min(j, l - first); n++) {
        const Moment b = times(sign, next);
        next = order_of(right, j, n + 1);
        sign = -sign;
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) {
            const real once = i == 0 && first == 0 ? real(0.5) : real(1);
            cosine[i] += once * (dot(window[i].c, b.c) + dot(window[i].s, b.s));
            sine[i] += dot(window[i].s, b.c) - dot(window[i].c, b.s);
        }
#pragma unroll
        for (int i = 0; i < WORK_ORDERS - 1; i++) window[i] = window[i + 1];
        window[WORK_ORDERS - 1] = order_of(left, l, first + n + WORK_ORDERS);
    }
}

// Loads the moments z = i^l M of the lane's wave vector, twice those of orders above 0.
__device__ __forceinline__ void load(const Wave& wave, int worker, int workers,
                                     const real2* __restrict__ moments, real2* y) {
#pragma unroll 4
    for (int pair = worker; pair < PAIRS; pair += workers) {
        const int l = degree_of(pair), m = pair - first_of(l);
        Moment z = {{0, 0}, {0, 0}};
        if (wave.used) z.c = moments[(l * l + l + m) * (long long)WAVES + wave.place];
        if (wave.used && m > 0) z.s = moments[(l * l + l - m) * (long long)WAVES + wave.place];
        z = times(m > 0 ? 2 : 1, z);
        y[2 * pair * WORK_WAVES] = times_power_of_i(z.c, l);
        y[(2 * pair + 1) * WORK_WAVES] = times_power_of_i(z.s, l);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    lattice_work(const real2* __restrict__ moments /* (TERMS, WAVES) */,
                 const real* __restrict__ derivatives /* (GENERATORS, (TOP + 1)^2, STORED) */,
                 double* __restrict__ partial /* (blocks, GENERATORS) */) {
    extern __shared__ char memory[];
    const int lane = threadIdx.x % WORK_WAVES, worker = threadIdx.x / WORK_WAVES,
              workers = BLOCK / WORK_WAVES;
    real2* const y = reinterpret_cast<real2*>(memory) + lane;  // (PAIRS, 2, WORK_WAVES)
    const Wave wave(lane);
    load(wave, worker, workers, moments, y);
    __syncthreads();
    double own[GENERATORS] = {};
    for (int task = blockIdx.y * workers + worker; task < TASKS; task += gridDim.y * workers) {
        const int L = TOP - task / TASKS_OF_DEGREE, first = task % TASKS_OF_DEGREE * WORK_ORDERS;
        if (first > L || !wave.used) continue;
        real cosine[WORK_ORDERS] = {}, sine[WORK_ORDERS] = {}, sum[GENERATORS] = {};
#pragma unroll 1
        for (int l = max(0, L - ORDER); l <= min(ORDER, L); l++)
            add_products(l, L - l, first, y + 2 * first_of(l) * WORK_WAVES,
                         y + 2 * first_of(L - l) * WORK_WAVES, cosine, sine);
        const real* of_degree = derivatives + (L * L + L) * (long long)STORED + wave.stored;
#pragma unroll
        for (int i = 0; i < WORK_ORDERS; i++) {
            const int m = first + i;
            if (m > L) break;
            const real sign = (L + m) % 2 ? wave.sign_z : real(1);
#pragma unroll
            for (int g = 0; g < GENERATORS; g++) {
                const real* term = of_degree + g * (TOP + 1) * (TOP + 1) * (long long)STORED;
                sum[g] += term[m * (long long)STORED] * (sign * cosine[i]);
                if (m > 0) sum[g] += term[-m * (long long)STORED] * (sign * wave.sign_y * sine[i]);
            }
        }
#pragma unroll
        for (int g = 0; g < GENERATORS; g++) own[g] += sum[g];
    }
    // a shear along two axes is odd along both
    own[2] *= wave.sign_y;
    own[3] *= wave.sign_z;
    own[4] *= wave.sign_y * wave.sign_z;
#pragma unroll
    for (int g = 0; g < GENERATORS; g++) own[g] *= wave.number();
    sum_over_block<BLOCK>(own);
    if (threadIdx.x == 0)
        for (int g = 0; g < GENERATORS; g++)
            partial[(blockIdx.y * gridDim.x + blockIdx.x) * GENERATORS + g] = own[g];
}
