// lattice: the convolution of the moments with the lattice operator, between a forward and an inverse FFT of each term.
//
// For every wave vector (i^-l Lambda)_a = sum_b matrix_ab (i^j M)_b with a real symmetric matrix of operator terms T. With
// the complex rules of fmm_openmm/expansions/harmonics.py, the entries between the real (c) and imaginary (s) parts of the
// target's order m and the source's order k share four operator terms of degree l + j:
//
//     cc = Tc_m+k + Q    cs = Ts_m+k - W    sc = Ts_m+k + W    ss = Q - Tc_m+k,    Q, W = (-1)^k (Tc, Ts)_m-k,    m > 0: twice
//
// A block owns WAVES wave vectors, one a lane; a warp takes one (l, m) after the other. Moments, and the operator if it
// fits, lie in shared memory. Bound by shared-memory reads, six for four entries.
//
//   trace   sums Q, D, S of the trace term: Q and D are the moments' k = 0 components
#include "common/types.cuh"

#define WAVES 32
#define WARPS 8
#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)

struct __align__(2 * sizeof(real)) real2 {
    real x, y;
};

// i^turn z
__device__ __forceinline__ real2 turned(real2 z, int turn) {
    turn &= 3;
    if (turn == 1) return real2{-z.y, z.x};
    if (turn == 2) return real2{-z.x, -z.y};
    if (turn == 3) return real2{z.y, -z.x};
    return z;
}

// Degree of a term, or of the pair l (l + 1) / 2 + m.
__device__ __forceinline__ int degree_of(int a) {
    return int(sqrtf(float(a) + 0.5f));
}

__device__ __forceinline__ int degree_of_pair(int pair) {
    return int((sqrtf(8.0f * pair + 1.5f) - 1.0f) * 0.5f);
}

extern "C" __global__ void __launch_bounds__(WAVES * WARPS)
convolve(int waves, const real2* __restrict__ moments /* (TERMS, waves) */,
         const real* __restrict__ operator_terms /* ((2 ORDER + 1)^2, waves) */, real2* __restrict__ local /* (TERMS, waves) */) {
    extern __shared__ char memory[];
    real2* m = reinterpret_cast<real2*>(memory);              // (TERMS, WAVES)
    const int lane = threadIdx.x % WAVES, warp = threadIdx.x / WAVES;
    const int wave = blockIdx.x * WAVES + lane;
    const bool used = wave < waves;
    for (int a = warp; a < TERMS; a += WARPS) {
        real2 z = {0, 0};
        if (used) z = moments[a * (long long)waves + wave];
        m[a * WAVES + lane] = turned(z, degree_of(a));
    }
#if STAGED
    real* staged = reinterpret_cast<real*>(m + TERMS * WAVES);     // ((2 ORDER + 1)^2, WAVES)
    for (int a = warp; a < (2 * ORDER + 1) * (2 * ORDER + 1); a += WARPS)
        staged[a * WAVES + lane] = used ? operator_terms[a * (long long)waves + wave] : real(0);
    const int stride = WAVES;
    const real* op = staged + lane;
#else
    const long long stride = waves;
    const real* op = operator_terms + (used ? wave : 0);
#endif
    m += lane;
    __syncthreads();
    for (int pair = blockIdx.y * WARPS + warp; pair < PAIRS; pair += gridDim.y * WARPS) {
        const int l = degree_of_pair(pair), mu = pair - l * (l + 1) / 2;
        const real even = mu % 2 == 0 ? 1 : -1;
        real2 c = {0, 0}, s = {0, 0};
        for (int j = 0; j <= ORDER; j++) {
            const int n = l + j, center = n * n + n, source = j * j + j;
            const real2 z = m[source * WAVES];
            const real tc = op[(center + mu) * stride], ts = op[(center - mu) * stride];
            c.x += tc * z.x; c.y += tc * z.y;
            s.x += ts * z.x; s.y += ts * z.y;
            real sign = -1;
#pragma unroll 2
            for (int k = 1; k <= j; k++, sign = -sign) {
                const int below = abs(mu - k);
                const real factor = mu >= k ? sign : even;
                const real p = op[(center + mu + k) * stride], u = op[(center - mu - k) * stride];
                const real q = factor * op[(center + below) * stride];
                const real w = below == 0 ? real(0) : (mu >= k ? factor : -factor) * op[(center - below) * stride];
                const real2 zc = m[(source + k) * WAVES], zs = m[(source - k) * WAVES];
                c.x += (p + q) * zc.x + (u - w) * zs.x;
                c.y += (p + q) * zc.y + (u - w) * zs.y;
                s.x += (u + w) * zc.x + (q - p) * zs.x;
                s.y += (u + w) * zc.y + (q - p) * zs.y;
            }
        }
        if (!used) continue;
        const real factor = mu == 0 ? 1 : 2;
        local[(l * l + l + mu) * (long long)waves + wave] = turned(real2{factor * c.x, factor * c.y}, -l);
        if (mu > 0) local[(l * l + l - mu) * (long long)waves + wave] = turned(real2{factor * s.x, factor * s.y}, -l);
    }
}

extern "C" __global__ void trace(const real2* __restrict__ spectrum /* (TERMS, waves) of the moments */, int waves,
                                 const double* __restrict__ square /* (BOXES) */, double* __restrict__ sums /* (5): Q, D, S */) {
    __shared__ double partial[1024];
    double s = 0;
    for (int b = threadIdx.x; b < BOXES; b += blockDim.x) s += square[b];
    partial[threadIdx.x] = s;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[0] = spectrum[0].x;
        sums[1] = 2 * spectrum[3 * (long long)waves].x;   // R_11 = (x + i y) / 2
        sums[2] = 2 * spectrum[1 * (long long)waves].x;
        sums[3] = spectrum[2 * (long long)waves].x;
        sums[4] = partial[0];
    }
}
