// Regular solid harmonics R_a, conventions of fmm_openmm/expansions/harmonics.py: term (l, m) at l^2 + l + m, m >= 0 the
// real part, m < 0 the imaginary part of order -m.
#pragma once
#include "types.cuh"

// Calls visit(l, m, Re R_lm, Im R_lm) for the orders FIRST <= m < LAST and all degrees up to P, order by order. Needs few
// registers: the recurrence in l keeps two values of each part. Fully unrolled, so l and m are compile-time constants in visit.
template <int P, int FIRST, int LAST, class Visit>
__device__ __forceinline__ void regular_harmonics(real x, real y, real z, Visit visit) {
    const real r2 = x * x + y * y + z * z;
    real diagonal_c = 1, diagonal_s = 0;
#pragma unroll
    for (int m = 0; m < LAST; m++) {
        if (m > 0) {
            const real scale = real(1) / real(2 * m);
            const real c = (x * diagonal_c - y * diagonal_s) * scale;
            diagonal_s = (x * diagonal_s + y * diagonal_c) * scale;
            diagonal_c = c;
        }
        if (m < FIRST) continue;
        real c1 = diagonal_c, s1 = diagonal_s, c2 = 0, s2 = 0;
        visit(m, m, c1, s1);
#pragma unroll
        for (int l = m + 1; l <= P; l++) {
            const real scale = real(1) / real((l + m) * (l - m));
            const real up = real(2 * l - 1) * scale;
            const real c = up * z * c1 - scale * r2 * c2, s = up * z * s1 - scale * r2 * s2;
            c2 = c1; c1 = c;
            s2 = s1; s1 = s;
            visit(l, m, c, s);
        }
    }
}

__host__ __device__ constexpr int term(int l, int m) { return l * l + l + m; }

// First order m of share `share` of `shares`: the orders are dealt out in nearly equal numbers of terms, low orders first.
__host__ __device__ constexpr int first_order(int share, int shares) {
    int m = 0;
    for (int before = 0; m <= ORDER; m++) {
        const int terms = (m > 0 ? 2 : 1) * (ORDER + 1 - m);
        if ((2 * before + terms) * shares >= 2 * share * TERMS) break;
        before += terms;
    }
    return m;
}
