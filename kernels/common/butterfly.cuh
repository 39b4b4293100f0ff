// Fourier transforms of a few values in registers; all constants are known at compile time:
//
//     X_k = sum_n x_n e^(SIGN 2 pi i n k / R)
//
// A composite R is split into P * Q with n = p Q + q, k = k1 + P k2 (Cooley and Tukey,
// doi:10.1090/S0025-5718-1965-0178586-1). For a prime R, terms n and R - n are combined.
#pragma once
#include "common/types.cuh"

__device__ __forceinline__ real2 operator+(real2 a, real2 b) {
    return real2{a.x + b.x, a.y + b.y};
}
__device__ __forceinline__ real2 operator-(real2 a, real2 b) {
    return real2{a.x - b.x, a.y - b.y};
}

// a b, or a conj(b) for SIGN < 0.
template <int SIGN>
__device__ __forceinline__ real2 times(real2 a, real2 b) {
    return real2{a.x * b.x - SIGN * a.y * b.y, a.y * b.x + SIGN * a.x * b.y};
}

// cos(2 pi k / n), 0 <= k < n.
__host__ __device__ constexpr double cosine(int k, int n) {
    if (2 * k > n) k = n - k;
    if (4 * k == n) return 0;
    if (4 * k > n) return -cosine(n - 2 * k, 2 * n);
    const double x = 6.283185307179586477 * k / n;
    double sum = 0, term = 1;
    for (int j = 1; j < 28; j += 2) {
        sum += term;
        term *= -x * x / (j * (j + 1));
    }
    return sum;
}

template <int R>
struct Circle {
    double cos[R], sin[R];

    __host__ __device__ constexpr Circle() : cos(), sin() {
        for (int k = 0; k < R; k++) {
            cos[k] = cosine(k, R);
            sin[k] = cosine(4 * k > R ? 4 * k - R : R - 4 * k, 4 * R);
        }
    }
};

// The smallest factor of r above 1; but 4 if it is a proper divisor of r.
__host__ __device__ constexpr int first_factor(int r) {
    if (r % 4 == 0 && r > 4) return 4;
    for (int p = 2; p * p <= r; p++)
        if (r % p == 0) return p;
    return r;
}

// z e^(SIGN 2 pi i k / R), without multiplication if the factor is 1, -1, i or -i.
template <int R, int SIGN>
__device__ __forceinline__ real2 rotated(real2 z, int k) {
    constexpr Circle<R> circle;
    if (k == 0) return z;
    if (2 * k == R) return real2{-z.x, -z.y};
    if (4 * k == R) return real2{-SIGN * z.y, SIGN * z.x};
    if (4 * k == 3 * R) return real2{SIGN * z.y, -SIGN * z.x};
    return times<SIGN>(z, real2{real(circle.cos[k]), real(circle.sin[k])});
}

template <int R, int SIGN>
__device__ __forceinline__ void prime_butterfly(real2 (&x)[R]) {
    constexpr Circle<R> circle;
    real2 even[R / 2 + 1], odd[R / 2 + 1], result[R];
    result[0] = x[0];
#pragma unroll
    for (int j = 1; 2 * j < R; j++) {
        even[j] = x[j] + x[R - j];
        odd[j] = x[j] - x[R - j];
        result[0] = result[0] + even[j];
    }
#pragma unroll
    for (int k = 1; 2 * k < R; k++) {
        real2 c = x[0], s = {0, 0};
#pragma unroll
        for (int j = 1; 2 * j < R; j++) {
            const real cos = real(circle.cos[j * k % R]), sin = real(SIGN * circle.sin[j * k % R]);
            c.x += cos * even[j].x;
            c.y += cos * even[j].y;
            s.x += sin * odd[j].x;
            s.y += sin * odd[j].y;
        }
        result[k] = real2{c.x - s.y, c.y + s.x};
        result[R - k] = real2{c.x + s.y, c.y - s.x};
    }
#pragma unroll
    for (int k = 0; k < R; k++) x[k] = result[k];
}

template <int R, int SIGN>
__device__ __forceinline__ void butterfly(real2 (&x)[R]) {
    constexpr int P = first_factor(R), Q = R / P;
    if constexpr (R == 2) {
        const real2 sum = x[0] + x[1];
        x[1] = x[0] - x[1];
        x[0] = sum;
    } else if constexpr (R > 2 && Q == 1) {
        prime_butterfly<R, SIGN>(x);
    } else if constexpr (R > 2) {
        real2 y[P][Q], column[P];
#pragma unroll
        for (int q = 0; q < Q; q++) {
#pragma unroll
            for (int p = 0; p < P; p++) column[p] = x[p * Q + q];
            butterfly<P, SIGN>(column);
#pragma unroll
            for (int p = 0; p < P; p++) y[p][q] = rotated<R, SIGN>(column[p], p * q);
        }
#pragma unroll
        for (int p = 0; p < P; p++) {
            butterfly<Q, SIGN>(y[p]);
#pragma unroll
            for (int q = 0; q < Q; q++) x[p + P * q] = y[p][q];
        }
    }
}
