// Fourier transforms of lines in shared memory, by decimation in frequency and in place.
//
// A line of N = R M values takes a pass of M butterflies of R values M apart, each held by a
// thread, times powers of e^(2 pi i / N); R lines of M values are left. Value k of the result then
// lies at place<N>(k).
#pragma once
#include "common/butterfly.cuh"

#define HALF (D2 / 2 + 1)
#define LARGEST_RADIX 16  // with it, lengths without prime factors above 13 are covered

// Fewest passes of radices up to the largest.
__host__ __device__ constexpr int passes(int n) {
    if (n <= LARGEST_RADIX) return 1;
    int fewest = 100;
    for (int r = 2; r <= LARGEST_RADIX; r++)
        if (n % r == 0 && 1 + passes(n / r) < fewest) fewest = 1 + passes(n / r);
    return fewest;
}

// Radix of the first pass of a line: the largest that is not above those of the others.
__host__ __device__ constexpr int radix(int n) {
    const int count = passes(n);
    int largest = n;
    for (int r = 2; count > 1 && r <= LARGEST_RADIX; r++) {
        int power = 1;
        for (int i = 0; i < count; i++) power *= r;
        if (power <= n && n % r == 0 && passes(n / r) == count - 1) largest = r;
    }
    return largest;
}

// Where value k of a transformed line lies.
template <int N>
__device__ __forceinline__ int place(int k) {
    constexpr int R = radix(N), M = N / R;
    if constexpr (M == 1)
        return k;
    else
        return k % R * M + place<M>(k / R);
}

// Which value lies there.
template <int N>
__device__ __forceinline__ int value_at(int place) {
    constexpr int R = radix(N), M = N / R;
    if constexpr (M == 1)
        return place;
    else
        return place / M + R * value_at<M>(place % M);
}

// All passes over LINES lines of LENGTH values; N is what is left of LENGTH. The first pass reads
// load(line, n), the last writes store(line, place, k, value), which may be tile(line, place):
// where the values lie in between. roots: powers of e^(2 pi i / LENGTH).
template <int LENGTH, int LINES, int SIGN, int N = LENGTH, class Load, class Tile, class Store>
__device__ __forceinline__ void transform(const real2* __restrict__ roots, Load load, Tile tile,
                                          Store store) {
    constexpr int R = radix(N), M = N / R;
    for (int t = threadIdx.x; t < LINES * (LENGTH / R); t += blockDim.x) {
        const int line = t % LINES, i = t / LINES, q = i % M, from = i / M * N + q;
        real2 x[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if constexpr (N == LENGTH)
                x[r] = load(line, from + r * M);
            else
                x[r] = tile(line, from + r * M);
        }
        butterfly<R, SIGN>(x);
        if constexpr (M == 1) {
            const int k = value_at<LENGTH>(from);
#pragma unroll
            for (int r = 0; r < R; r++) store(line, from + r, k + r * (LENGTH / R), x[r]);
        } else {
            tile(line, from) = x[0];
#pragma unroll
            for (int r = 1; r < R; r++)
                tile(line, from + r * M) = times<SIGN>(x[r], roots[q * r * (LENGTH / N)]);
        }
    }
    if constexpr (M > 1) {
        __syncthreads();
        transform<LENGTH, LINES, SIGN, M>(roots, load, tile, store);
    }
}
