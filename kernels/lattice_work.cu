// lattice_work: the work of the lattice operator under five strains, its contribution to the virial
// (fmm_openmm/expansions/operators/derivatives.py). For each generator g of a strain,
//
//     sum_k sum_lj conj(z_l) dT_g,l+j(k) z_j,      z_a = i^l M_a
//
// over the wave vectors of the half grid, with weight 2 if the opposite one is omitted, and over
// the degrees l and j, with the matrix of lattice.cu. Degrees l and j meet only terms of degree
// l + j, and their orders add up as in a product of functions of an azimuth phi. With y = z for
// order 0 and y = 2 z for others, and c and s its values for real and imaginary parts of harmonics,
//
//     E_l = sum_{even m} c_lm cos m phi + s_lm sin m phi,
//     O_l = sum_{odd m}  c_lm sin m phi - s_lm cos m phi,
//
// the sum over l and j is the mean over phi of
//
//     sum_L DE_L P_L + DO_L Q_L,     P_L = sum_{l + j = L} Re(conj(E_l) E_j - conj(O_l) O_j),
//                                    Q_L = sum_{l + j = L} Re(conj(E_l) O_j + conj(O_l) E_j)
//
// where DE and DO are computed from dT (setup/azimuths.cu). All functions have period pi, up to the
// sign of O and DO. AZIMUTHS equidistant azimuths in [0, pi) therefore give the mean exactly, and
// for L <= ORDER every other one of them suffices.
//
// In rectangular cells dT is stored for one octant of wave vectors. Each of them also represents
// its mirror images, with signs of the moments as in mirrored.cu; a shear reverses the signs along
// its two axes.
//
// A block owns WORK_WAVES wave vectors, one per lane, whose moments are in shared memory. Groups of
// WORK_WAVES threads take azimuths in turn, for which E and O are in registers. Sums over degrees
// and azimuths are real, over wave vectors float64, with a partial sum for each block. Bound by
// instruction issue, for large grids by reading DE and DO.
#include "common/azimuths.cuh"
#include "common/generators.cuh"
#include "common/grid_sums.cuh"
#include "common/spectra.cuh"

#define BLOCK 256
#define H0 (D0 / 2 + 1)
#define H1 (D1 / 2 + 1)
#define STORED ((WORK_IMAGES == 1 ? D0 * D1 : H0 * H1) * WAVES2)
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)

// Adds the dot product of a and b, as two multiply-adds.
__device__ __forceinline__ void add_dot(real& sum, const real2& a, const real2& b) {
    sum += a.x * b.x;
    sum += a.y * b.y;
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

// The wave vector of a lane: where its first moment and its dT are stored, and the signs of terms
// that are odd along y and z.
struct Wave {
    bool used;
    long long place, stored;
    real sign_y, sign_z;

    __device__ explicit Wave(int lane) : sign_y(1), sign_z(1) {
#if WORK_IMAGES == 1
        stored = blockIdx.x * (long long)WORK_WAVES + lane;
        used = stored < STORED;
        place = stored / (D1 * WAVES2) * PLANE_ROWS * WAVES2 + stored % (D1 * WAVES2);
#else
        // see mirrored.cu
        const int owned = WORK_WAVES / WORK_IMAGES;
        const int wave = blockIdx.x * owned + lane % owned, k0 = wave / (H1 * WAVES2),
                  k1 = wave / WAVES2 % H1;
        const bool y = lane / owned % 2, z = lane / owned / 2;
        stored = wave;
        place = ((z ? D0 - k0 : k0) * PLANE_ROWS + (y ? D1 - k1 : k1)) * (long long)WAVES2 +
                wave % WAVES2;
        used = wave < STORED && (!y || (k1 > 0 && 2 * k1 < D1)) && (!z || (k0 > 0 && 2 * k0 < D0));
        if (y) sign_y = -1;
        if (z) sign_z = -1;
#endif
    }
    // Wave vectors for which it stands: with its opposite, which the half grid lacks.
    __device__ int number() const {
        const int k2 = FIRST2 + stored % WAVES2;
        return k2 == 0 || 2 * k2 == D2 ? 1 : 2;
    }
};

// Loads the moments y of the lane's wave vector, with the signs of its image: the real part of a
// pair (l, m), then the imaginary part.
__device__ __forceinline__ void load(const Wave& wave, int worker, int workers,
                                     const real2* __restrict__ moments, real4* y) {
#pragma unroll 4
    for (int pair = worker; pair < PAIRS; pair += workers) {
        const int l = degree_of(pair), m = pair - l * (l + 1) / 2;
        real2 c = {0, 0}, s = {0, 0};
        if (wave.used) c = moments[(l * l + l + m) * TERM_STRIDE + wave.place];
        if (wave.used && m > 0) s = moments[(l * l + l - m) * TERM_STRIDE + wave.place];
        const real factor = (m > 0 ? 2 : 1) * ((l + m) % 2 ? wave.sign_z : real(1));
        c = times_power_of_i(c, l);
        s = times_power_of_i(s, l);
        y[pair * WORK_WAVES] = {factor * c.x, factor * c.y, factor * wave.sign_y * s.x,
                                factor * wave.sign_y * s.y};
    }
}

// Keeps the compiler from loading values early, for which there are no registers.
__device__ __forceinline__ void keep_order() {
#ifdef __CUDA_ARCH__
    asm volatile("" ::: "memory");
#endif
}

// E and O of all degrees.
struct Functions {
    real2 even[ORDER + 1], odd[ORDER + 1];

    // At an azimuth, of the moments y.
    __device__ __forceinline__ Functions(const real4* y, int azimuth) : even{}, odd{} {
        real cosine, sine, c = 1, s = 0;  // of the azimuth and of m times the azimuth
        sincospi(azimuth / real(AZIMUTHS), &sine, &cosine);
#pragma unroll
        for (int m = 0; m <= ORDER; m++) {
#pragma unroll
            for (int l = m; l <= ORDER; l++) {
                const real4 z = y[(l * (l + 1) / 2 + m) * WORK_WAVES];
                if (m == 0) {
                    even[l] = {z.x, z.y};
                } else if (m % 2 == 0) {
                    add_dot(even[l].x, {c, s}, {z.x, z.z});
                    add_dot(even[l].y, {c, s}, {z.y, z.w});
                } else {
                    add_dot(odd[l].x, {s, -c}, {z.x, z.z});
                    add_dot(odd[l].y, {s, -c}, {z.y, z.w});
                }
            }
            const real next = c * cosine - s * sine;
            s = s * cosine + c * sine;
            c = next;
        }
    }

    // Adds DE_L P_L + DO_L Q_L for each generator and advances `row`, which holds DE and DO, to the
    // next degree.
    __device__ __forceinline__ void add_degree(int L, const real2*& row,
                                               real (&sum)[GENERATORS]) const {
        real p = 0, q = 0;
#pragma unroll
        for (int l = L > ORDER ? L - ORDER : 0; 2 * l <= L; l++) {
            const int j = L - l;
            const real weight = l < j ? real(1) : real(0.5);
            const real2 e = {weight * even[l].x, weight * even[l].y},
                        o = {weight * odd[l].x, weight * odd[l].y};
            add_dot(p, e, even[j]);
            add_dot(p, {-o.x, -o.y}, odd[j]);
            add_dot(q, e, odd[j]);
            add_dot(q, o, even[j]);
        }
#pragma unroll
        for (int g = 0; g < GENERATORS; g++) {
            const real2 d = row[g * ROWS * (long long)STORED];
            add_dot(sum[g], d, {p, q});
        }
        row += STORED;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK, sizeof(real) == 4 ? 2 : 1)
    lattice_work(const real2* __restrict__ moments /* see spectra.cuh */,
                 const real2* __restrict__ derivatives /* (GENERATORS, ROWS, STORED): DE, DO */,
                 double* __restrict__ partial /* (blocks, GENERATORS) */) {
    extern __shared__ real4 memory[];
    const int lane = threadIdx.x % WORK_WAVES, worker = threadIdx.x / WORK_WAVES,
              workers = BLOCK / WORK_WAVES;
    real4* const y = memory + lane;  // (PAIRS, WORK_WAVES)
    const Wave wave(lane);
    load(wave, worker, workers, moments, y);
    __syncthreads();
    real sum[GENERATORS] = {};
    for (int azimuth = blockIdx.y * workers + worker; azimuth < AZIMUTHS && wave.used;
         azimuth += gridDim.y * workers) {
        const Functions functions(y, azimuth);
        keep_order();
        const real2* row = derivatives + first_row(azimuth) * (long long)STORED + wave.stored;
        if (azimuth % 2 == 0)
#pragma unroll
            for (int L = 0; L <= ORDER; L++) functions.add_degree(L, row, sum);
#pragma unroll
        for (int L = ORDER + 1; L <= 2 * ORDER; L++) functions.add_degree(L, row, sum);
    }
    double own[GENERATORS];
#pragma unroll
    for (int g = 0; g < GENERATORS; g++) own[g] = wave.number() * sum[g];
    // a shear along two axes is odd along both
    own[2] *= wave.sign_y;
    own[3] *= wave.sign_z;
    own[4] *= wave.sign_y * wave.sign_z;
    sum_over_block<BLOCK>(own);
    if (threadIdx.x == 0)
        for (int g = 0; g < GENERATORS; g++)
            partial[(blockIdx.y * gridDim.x + blockIdx.x) * GENERATORS + g] = own[g];
}
