// Fourier transforms of lines in shared memory, in place, by decimation in frequency.
//
// A pass over a line of N = R M values computes M butterflies of R values that are M apart, one
// butterfly per thread, and multiplies by powers of e^(2 pi i / N); R lines of M values remain.
// Value k of the result is then at place<N>(k).
#pragma once
#include "common/butterfly.cuh"

#define LARGEST_RADIX 16  // which covers all lengths without prime factors above 13

// Minimum number of passes with radices up to LARGEST_RADIX.
__host__ __device__ constexpr int passes(int n) {
    if (n <= LARGEST_RADIX) return 1;
    int fewest = 100;
    for (int r = 2; r <= LARGEST_RADIX; r++)
        if (n % r == 0 && 1 + passes(n / r) < fewest) fewest = 1 + passes(n / r);
    return fewest;
}

// Radix of the first pass: the largest that does not exceed those of the other passes.
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

// Position of value k in a transformed line.
template <int N>
__device__ __forceinline__ int place(int k) {
    constexpr int R = radix(N), M = N / R;
    if constexpr (M == 1)
        return k;
    else
        return k % R * M + place<M>(k / R);
}

// The inverse: the value at a position.
template <int N>
__device__ __forceinline__ int value_at(int place) {
    constexpr int R = radix(N), M = N / R;
    if constexpr (M == 1)
        return place;
    else
        return place / M + R * value_at<M>(place % M);
}

// All passes over LINES lines of LENGTH values; N values remain to be transformed. The first pass
// reads load(line, n), the last writes store(line, place, k, value). In between, values are at
// tile(line, place), which load and store may refer to. `roots` holds the powers of e^(2 pi i /
// LENGTH).
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
