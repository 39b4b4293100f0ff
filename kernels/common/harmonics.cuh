// Regular solid harmonics R_a in the conventions of fmm_openmm/expansions/harmonics.py: term (l, m)
// has index l^2 + l + m; m >= 0 denotes the real part, m < 0 the imaginary part of order -m. They
// are products of a real factor, shared by both parts, and a power:
//
//     R_lm = Q_lm(z, r^2) R_mm,   R_mm = (x + i y)^m / (2^m m!)
//     Q_mm = 1,   (l^2 - m^2) Q_lm = (2 l - 1) z Q_l-1,m - r^2 Q_l-2,m
#pragma once
#include "real.cuh"

// Computes Q_lm of order m for the degrees m <= l <= LAST. Like all loops here, to be inlined with
// constant m.
template <int LAST, int SIZE>
__device__ __forceinline__ void degree_factors(int m, real z, real r2, real (&q)[SIZE]) {
    static_assert(LAST < SIZE, "a factor for each degree");
#pragma unroll
    for (int l = 0; l <= LAST; l++) {
        if (l < m) continue;
        if (l == m)
            q[l] = 1;
        else if (l == m + 1)
            q[l] = z;
        else
            q[l] =
                ((2 * l - 1) * z * q[l - 1] - r2 * q[l - 2]) * (real(1) / real((l + m) * (l - m)));
    }
}

// R_m+1,m+1 from R_mm.
__device__ __forceinline__ real2 next_power(int m, real x, real y, const real2& power) {
    const real scale = real(1) / real(2 * m + 2);
    return real2{(x * power.x - y * power.y) * scale, (x * power.y + y * power.x) * scale};
}

// Calls visit(l, m, Re R_lm, Im R_lm) for all terms up to ORDER; l and m are compile-time constants
// in it.
template <class Visit>
__device__ __forceinline__ void regular_harmonics(real x, real y, real z, Visit visit) {
    const real r2 = x * x + y * y + z * z;
    real2 power = {1, 0};
#pragma unroll
    for (int m = 0; m <= ORDER; m++) {
        real q[ORDER + 1];
        degree_factors<ORDER>(m, z, r2, q);
#pragma unroll
        for (int l = m; l <= ORDER; l++) visit(l, m, q[l] * power.x, q[l] * power.y);
        power = next_power(m, x, y, power);
    }
}

__host__ __device__ constexpr int term(int l, int m) {
    return l * l + l + m;
}

// First order m of share number `share`: the orders are divided into `shares` ranges with nearly
// equal numbers of terms, low orders first.
__host__ __device__ constexpr int first_order(int share, int shares) {
    int m = 0;
    for (int before = 0; m <= ORDER; m++) {
        const int terms = (m > 0 ? 2 : 1) * (ORDER + 1 - m);
        if ((2 * before + terms) * shares >= 2 * share * TERMS) break;
        before += terms;
    }
    return m;
}
