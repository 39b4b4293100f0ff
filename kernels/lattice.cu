// lattice: convolution of the moments with the lattice operator, between a forward and an inverse
// FFT of each term.
//
// For every wave vector, (i^-l L)_a = sum_b A_ab (i^j M)_b with a real symmetric matrix A of
// operator terms T. With the complex relations of fmm_openmm/expansions/harmonics.py, the entries
// between the real (c) and imaginary (s) parts of the target's order m and the source's order k
// share four operator terms of degree l + j:
//
//     cc = Tc_m+k + Q    cs = Ts_m+k - W    sc = Ts_m+k + W    ss = Q - Tc_m+k
//     with Q, W = (-1)^k (Tc, Ts)_m-k, and a factor of 2 for m > 0
//
// A block owns WAVES wave vectors, one per lane; its warps take the pairs (l, m) in turn. Moments,
// and the operator if it fits, are in shared memory. Bound by reads of shared memory, six for four
// entries. For rectangular cells mirrored.cu is used instead.
#include "common/dependency.cuh"
#include "common/spectra.cuh"

#define WAVES 32
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)

// i^power z
__device__ __forceinline__ real2 times_power_of_i(real2 z, int power) {
    power &= 3;
    if (power == 1) return real2{-z.y, z.x};
    if (power == 2) return real2{-z.x, -z.y};
    if (power == 3) return real2{z.y, -z.x};
    return z;
}

// Row (l, MU) of the matrix times the moments m (TERMS, WAVES); `op` holds the operator terms
// (terms, stride).
template <int MU>
__device__ __forceinline__ void multiply(int l, const real2* m, const real* op, long long stride,
                                         real2& c, real2& s) {
    constexpr real EVEN = MU % 2 == 0 ? 1 : -1;
#pragma unroll 1
    for (int j = 0; j <= ORDER; j++) {
        const real2* z = m + (j * j + j) * WAVES;
        const real* t = op + ((l + j) * (l + j) + l + j) * stride;
        const real tc = t[MU * stride];
        c.x += tc * z->x;
        c.y += tc * z->y;
        if (MU > 0) {
            const real ts = t[-MU * stride];
            s.x += ts * z->x;
            s.y += ts * z->y;
        }
#pragma unroll
        for (int k = 1; k <= ORDER; k++) {
            if (k > j) break;
            const int below = MU >= k ? MU - k : k - MU;
            const real factor = MU >= k ? (k % 2 == 0 ? real(1) : real(-1)) : EVEN;
            const real p = t[(MU + k) * stride], u = t[-(MU + k) * stride];
            const real q = factor * t[below * stride];
            const real w = below == 0 ? real(0) : (MU >= k ? factor : -factor) * t[-below * stride];
            const real2 zc = z[k * WAVES], zs = z[-k * WAVES];
            c.x += (p + q) * zc.x;
            c.x += (u - w) * zs.x;
            c.y += (p + q) * zc.y;
            c.y += (u - w) * zs.y;
            if (MU > 0) {
                s.x += (u + w) * zc.x;
                s.x += (q - p) * zs.x;
                s.y += (u + w) * zc.y;
                s.y += (q - p) * zs.y;
            }
        }
    }
}

// Dispatches the order mu to its instance.
template <int MU = ORDER>
__device__ __forceinline__ void multiply(int mu, int l, const real2* m, const real* op,
                                         long long stride, real2& c, real2& s) {
    if (mu == MU) {
        multiply<MU>(l, m, op, stride, c, s);
    } else if constexpr (MU > 0) {
        multiply<MU - 1>(mu, l, m, op, stride, c, s);
    }
}

extern "C" __global__ void __launch_bounds__(WAVES* CONVOLVE_WARPS)
    convolve(int waves,
             const real2* __restrict__ moments /* (SETS, TERMS, waves), or see spectra.cuh */,
             const real* __restrict__ operator_terms /* ((2 ORDER + 1)^2, waves) */,
             real2* __restrict__ local /* likewise */) {
    extern __shared__ char memory[];
    wait_for_previous_kernel();
    real2* m = reinterpret_cast<real2*>(memory);  // (TERMS, WAVES)
    const int lane = threadIdx.x % WAVES, warp = threadIdx.x / WAVES;
    const int wave = blockIdx.x * WAVES + lane;
    const bool used = wave < waves;
    const auto place = [&](int term) {
#if DIVIDED
        return (wave / TERM_STRIDE * TERMS + term) * TERM_STRIDE + wave % TERM_STRIDE;
#else
        return term * (long long)waves + wave;
#endif
    };
    if (SETS > 1) {
        moments += blockIdx.z * (long long)waves * TERMS;
        local += blockIdx.z * (long long)waves * TERMS;
    }
#pragma unroll 8
    for (int a = warp; a < TERMS; a += CONVOLVE_WARPS) {
        real2 z = {0, 0};
        if (used) z = moments[place(a)];
        m[a * WAVES + lane] = times_power_of_i(z, int(sqrtf(float(a) + 0.5f)));
    }
#if STAGED
    real* staged = reinterpret_cast<real*>(m + TERMS * WAVES);  // ((2 ORDER + 1)^2, WAVES)
#pragma unroll 8
    for (int a = warp; a < (2 * ORDER + 1) * (2 * ORDER + 1); a += CONVOLVE_WARPS)
        staged[a * WAVES + lane] = used ? operator_terms[a * (long long)waves + wave] : real(0);
    const int stride = WAVES;
    const real* op = staged + lane;
#else
    const long long stride = waves;
    const real* op = operator_terms + (used ? wave : 0);
#endif
    m += lane;
    __syncthreads();
    for (int pair = blockIdx.y * CONVOLVE_WARPS + warp; pair < PAIRS;
         pair += gridDim.y * CONVOLVE_WARPS) {
        const int l = int((sqrtf(8.0f * pair + 1.5f) - 1.0f) * 0.5f), mu = pair - l * (l + 1) / 2;
        real2 c = {0, 0}, s = {0, 0};
        multiply(mu, l, m, op, stride, c, s);
        if (!used) continue;
        const real factor = mu == 0 ? 1 : 2;
        local[place(l * l + l + mu)] = times_power_of_i(real2{factor * c.x, factor * c.y}, -l);
        if (mu > 0)
            local[place(l * l + l - mu)] = times_power_of_i(real2{factor * s.x, factor * s.y}, -l);
    }
}
