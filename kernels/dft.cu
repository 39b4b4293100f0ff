// dft: real three-dimensional Fourier transforms of small grids, for which the three launches of an FFT library take longer
// than the sums themselves. Part of the stage lattice.
//
//     forward   X_k = sum_n x_n e^(-2 pi i n.k / D)     inverse   x_n = sum_k X_k e^(+2 pi i n.k / D)     (unnormalised)
//
// A block owns a grid of D0 x D1 x D2 points, which stays in shared memory. Along an axis of length D = R * S a thread sums R
// outputs S apart at once: their terms differ by powers of e^(2 pi i / R) only. Bound by latency.
#include "common/types.cuh"

#define HALF (D2 / 2 + 1)
#define LINES (D0 * D1)

// The largest divisor of a length whose square is not larger.
__host__ __device__ constexpr int radix(int length) {
    int r = 1;
    for (int d = 2; d * d <= length; d++)
        if (length % d == 0) r = d;
    return r;
}

__device__ __forceinline__ void add_product(real2& sum, real2 a, real2 b) {
    sum.x += a.x * b.x; sum.x -= a.y * b.y;
    sum.y += a.x * b.y; sum.y += a.y * b.x;
}

__device__ __forceinline__ void add_product(real2& sum, real a, real2 b) {
    sum.x += a * b.x;
    sum.y += a * b.y;
}

// Outputs k, k + S, k + 2 S ... of a line of D values; root holds the powers of e^(-+2 pi i / D).
template <int D, class Load, class Store>
__device__ __forceinline__ void transform(const real2* root, int k, Load load, Store store) {
    constexpr int R = radix(D), S = D / R;
    real2 sum[R] = {};
    int power = 0;
    for (int n = 0; n < D; n += R)
#pragma unroll
        for (int r = 0; r < R; r++) {
            add_product(sum[r], load(n + r), root[power]);
            power += k;
            if (power >= D) power -= D;
        }
#pragma unroll
    for (int j = 0; j < R; j++) {
        real2 x = sum[0];
#pragma unroll
        for (int r = 1; r < R; r++) add_product(x, sum[r], root[r * j * S % D]);
        store(k + j * S, x);
    }
}

struct Roots {
    real2 along0[D0], along1[D1], along2[D2];

    __device__ void fill(int sign) {
        for (int k = threadIdx.x; k < D0 + D1 + D2; k += blockDim.x) {
            const int length = k < D0 ? D0 : (k < D0 + D1 ? D1 : D2), power = k < D0 ? k : (k < D0 + D1 ? k - D0 : k - D0 - D1);
            double s, c;
            sincospi(2.0 * power / length, &s, &c);
            along0[k] = real2{real(c), real(sign * s)};
        }
    }
};

// Along the second axis of a grid (D0, D1, HALF).
__device__ __forceinline__ void along1(const Roots& roots, const real2* from, real2* to) {
    constexpr int S = D1 / radix(D1);
    for (int t = threadIdx.x; t < D0 * S * HALF; t += blockDim.x) {
        const int column = t % HALF, k = t / HALF % S, corner = t / (HALF * S) * D1 * HALF + column;
        transform<D1>(roots.along1, k, [&](int n) { return from[corner + n * HALF]; },
                      [&](int n, real2 x) { to[corner + n * HALF] = x; });
    }
}

// Along the first axis.
__device__ __forceinline__ void along0(const Roots& roots, const real2* from, real2* to) {
    constexpr int S = D0 / radix(D0), PLANE = D1 * HALF;
    for (int t = threadIdx.x; t < S * PLANE; t += blockDim.x) {
        const int corner = t % PLANE, k = t / PLANE;
        transform<D0>(roots.along0, k, [&](int n) { return from[corner + n * PLANE]; },
                      [&](int n, real2 x) { to[corner + n * PLANE] = x; });
    }
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
forward(const real* __restrict__ grids /* (TERMS, D0, D1, D2) */, real2* __restrict__ spectra /* (TERMS, D0, D1, HALF) */) {
    extern __shared__ char memory[];
    real2* a = reinterpret_cast<real2*>(memory);
    real2* b = a + LINES * HALF;
    Roots& roots = *reinterpret_cast<Roots*>(b + LINES * HALF);
    real* grid = reinterpret_cast<real*>(b);  // until b is needed
    roots.fill(-1);
    for (int k = threadIdx.x; k < LINES * D2; k += blockDim.x) grid[k] = grids[blockIdx.x * (long long)POINTS + k];
    __syncthreads();
    constexpr int S = D2 / radix(D2);
    for (int t = threadIdx.x; t < LINES * S; t += blockDim.x) {
        const int line = t / S;
        transform<D2>(roots.along2, t % S, [&](int n) { return grid[line * D2 + n]; },
                      [&](int n, real2 x) { if (n < HALF) a[line * HALF + n] = x; });
    }
    __syncthreads();
    along1(roots, a, b);
    __syncthreads();
    along0(roots, b, spectra + blockIdx.x * (long long)(LINES * HALF));
}

extern "C" __global__ void __launch_bounds__(DFT_THREADS)
inverse(const real2* __restrict__ spectra /* (TERMS, D0, D1, HALF) */, real* __restrict__ grids /* (TERMS, D0, D1, D2) */) {
    extern __shared__ char memory[];
    real2* a = reinterpret_cast<real2*>(memory);
    real2* b = a + LINES * HALF;
    Roots& roots = *reinterpret_cast<Roots*>(b + LINES * HALF);
    roots.fill(1);
    for (int k = threadIdx.x; k < LINES * HALF; k += blockDim.x) a[k] = spectra[blockIdx.x * (long long)(LINES * HALF) + k];
    __syncthreads();
    along0(roots, a, b);
    __syncthreads();
    along1(roots, b, a);
    __syncthreads();
    // the other half of a line is the conjugate of this one
    for (int t = threadIdx.x; t < LINES * D2; t += blockDim.x) {
        const int line = t / D2, n = t % D2;
        const real2* x = a + line * HALF;
        real sum = D2 % 2 == 0 ? x[0].x + (n % 2 == 0 ? 1 : -1) * x[HALF - 1].x : x[0].x;
        int power = n;
        for (int k = 1; 2 * k < D2; k++) {
            const real2 root = roots.along2[power];
            sum += 2 * (x[k].x * root.x - x[k].y * root.y);
            power += n;
            if (power >= D2) power -= D2;
        }
        grids[blockIdx.x * (long long)POINTS + t] = sum;
    }
}
