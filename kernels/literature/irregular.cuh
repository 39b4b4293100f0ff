// Entries of the M2L matrix from irregular harmonics T, for the O(p^4) operators.
//
// The entries between the real (c) and imaginary (s) parts of the target's order m and the source's
// order k share four terms of degree l + j (complex relations of
// fmm_openmm/expansions/harmonics.py; without the row's factor (-1)^l, twice that for m > 0):
//
//     cc = Tc_m+k + Q    cs = Ts_m+k - W    sc = Ts_m+k + W    ss = Q - Tc_m+k    for k > 0
//     cc = Tc_m          sc = Ts_m                                                for k = 0
//     with Q, W = (-1)^k (Tc, Ts)_m-k
#pragma once
#include "common/levels.cuh"

#define PAIRS ((ORDER + 1) * (ORDER + 2) / 2)
#define HARMONICS ((2 * ORDER + 1) * (2 * ORDER + 1))

struct Entries {
    real cc, cs, sc, ss;
};

// t points to the real term of order 0 and degree l + j.
__device__ __forceinline__ Entries entries(const real* t, int m, int k) {
    const real p = t[m + k], u = m + k == 0 ? real(0) : t[-m - k];
    if (k == 0) return Entries{p, 0, u, 0};
    const int order = m >= k ? m - k : k - m;
    const real factor = (m >= k ? k : m) % 2 == 0 ? 1 : -1;
    const real q = factor * t[order],
               w = order == 0 ? real(0) : (m >= k ? factor : -factor) * t[-order];
    return Entries{p + q, u - w, u + w, q - p};
}

__device__ __forceinline__ real row_factor(int l, int m) {
    return (l % 2 == 0 ? 1 : -1) * (m == 0 ? 1 : 2);
}

// Entry of the matrix for the target's term a and the source's term b, from the harmonics of one
// translation.
__device__ __forceinline__ real matrix_entry(const real* harmonics, int a, int b) {
    const int l = degree_of(a), m = a - l * l - l, j = degree_of(b), k = b - j * j - j;
    const Entries e = entries(harmonics + (l + j) * (l + j) + l + j, abs(m), abs(k));
    return row_factor(l, m) * (m < 0 ? (k < 0 ? e.ss : e.sc) : (k < 0 ? e.cs : e.cc));
}

// Bits 0, 1, 2: whether mirroring x, y, z changes the sign of a term; m < 0 denotes imaginary
// parts.
__host__ __device__ constexpr int parity(int l, int m) {
    return ((m & 1) ^ (m < 0)) | (m < 0) << 1 | ((l + m) & 1) << 2;
}

// Degree and order of pair number `pair` of the pairs (l, m >= 0).
__device__ __forceinline__ void degree_and_order(int pair, int& l, int& m) {
    l = int((sqrtf(8.0f * pair + 1.5f) - 1.0f) * 0.5f);
    m = pair - l * (l + 1) / 2;
}
