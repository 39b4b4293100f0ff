// M2L between boxes of a level by rotation, O(p^3) for each pair.
//
// The vector r from the source's centre to the target's, of length R, is g z with g = Q Rz(alpha) Q Rz(-theta) Q, where Q
// swaps x and z. In the frame g the translation runs along z and keeps the order m:
//
//     M' = F Z(theta) F Z(-alpha) F M    L''_lm = sum_j (l + j)! / R^(l+j+1) M'_jm
//     L = F^T Z(alpha) F^T Z(-theta) F^T S L''
//
// Z(b) multiplies order m by exp(i m b). F, R_a(Q y) = sum_b F_ab R_b(y), is one constant matrix a degree; it keeps real and
// imaginary parts apart and half of its entries vanish. S is (-1)^(l+m), twice that for m > 0. (Fast rotation: A. Lengvenis,
// H. Dachsel, L. Morgenstern and I. Kabadshow, IPDPS 2025, doi:10.1109/IPDPS64566.2025.00075.)
//
// All r in one plane through the x axis, along which the first box vector lies, have the same alpha: 189 translations to far
// boxes have 16 such planes, in cells of every shape. So `to_planes` turns the moments of all boxes into each plane, and local expansions are
// turned back once a plane, the last step by `from_planes` (m2l_planes.cu):
//
//     M_plane = F Z(-alpha) F M    M' = F Z(theta) M_plane    L = F^T sum_planes Z(alpha) F^T sum_r Z(-theta) F^T S L''
//
// The signs (-1)^l of S come with the moments and the powers of R.
#pragma once
#include "common/flip.cuh"
#include "common/levels.cuh"

// Of a translation; or of a plane, with exp(-i m alpha) and no powers.
struct __align__(4 * sizeof(real)) Turn {
    real2 phase[ORDER + 1];        // exp(i m theta)
    real power[2 * ORDER + 2];     // 2 (-1)^n n! / R^(n+1); a zero
};

#define NUMBERS (4 * (ORDER + 1))    // of a turn

// In w of an entry of a list: child, translation, plane.
__device__ __forceinline__ int turn_of(const int4& entry) { return entry.w >> 3 & 0x7fff; }
__device__ __forceinline__ int plane_of(const int4& entry) { return entry.w >> 18; }

// Length of the slabs of a plane, and where those of a group are among shares of them.
__device__ __forceinline__ long long plane_length(int half) { return (8LL * groups_of(half) + OPEN) * (TERMS * WARP); }
__device__ __forceinline__ long long slab_of(int share, int child, int group, int half) {
    return ((8LL * share + child) * groups_of(half) + group) * (TERMS * WARP);
}

// Where the interaction list of a share is empty: zeros at first, every so many-th term from a number on.
__device__ __forceinline__ void clear(bool initial, int from, int step, real* local) {
#pragma unroll 1
    for (int a = from; initial && a < TERMS; a += step) local[a * WARP] = 0;
}

// Index L + m: real part of order m, L - m: its imaginary part.
template <int L>
using Degree = real[2 * L + 1];

// F, or F^T.
template <int L, bool TRANSPOSED = false>
__device__ __forceinline__ void flip(const Degree<L>& x, Degree<L>& y) {
#pragma unroll
    for (int m = 0; m <= L; m++) {
        real c = 0, s = 0;
#pragma unroll
        for (int k = 0; k <= L; k++) {
            if ((L + m + k) % 2 == 0) c += real(TRANSPOSED ? FLIP.real_part[L][k][m] : FLIP.real_part[L][m][k]) * x[L + k];
            if ((L + m + k) % 2 == 1 && m > 0 && k > 0)
                s += real(TRANSPOSED ? FLIP.imaginary_part[L][k][m] : FLIP.imaginary_part[L][m][k]) * x[L - k];
        }
        y[L + m] = c;
        if (m > 0) y[L - m] = s;
    }
}

// Order m times its phase, or the conjugate of it where SIGN is -1.
template <int L, int SIGN>
__device__ __forceinline__ void turn(Degree<L>& x, const real2* phase) {
#pragma unroll
    for (int m = 1; m <= L; m++) {
        const real2 w = phase[m];
        const real c = x[L + m], s = x[L - m], sine = SIGN * w.y;
        x[L + m] = w.x * c - sine * s;
        x[L - m] = w.x * s + sine * c;
    }
}

// Adds a degree to an expansion in global memory, of which this thread has all of it, or sets it.
template <int L>
__device__ __forceinline__ void add_degree(bool initial, const Degree<L>& x, real* local) {
    real* own = local + L * L * WARP;
    if (initial)
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) own[k * WARP] = x[k];
    else
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) atomicAdd(&own[k * WARP], x[k]);
}

// Which of N warps has which degrees and which orders, the largest first to the one with least to do.
template <int N>
struct Split {
    int degree[ORDER + 1], order[ORDER + 1];    // whose they are
    int before[ORDER + 1], most;                // where a degree's terms begin among those of its warp; of the warp with most

    static __host__ __device__ constexpr int least(const int (&work)[N]) {
        int found = 0;
        for (int k = 1; k < N; k++)
            if (work[k] < work[found]) found = k;
        return found;
    }
    __host__ __device__ constexpr Split() : degree(), order(), before(), most(0) {
        int turning[N] = {}, along[N] = {100}, terms[N] = {};    // about as many instructions; the first warp also looks up
        for (int l = ORDER; l >= 0; l--) {
            const int warp = least(turning);
            degree[l] = warp;
            before[l] = terms[warp];
            turning[warp] += 2 * l * l + 24 * l + 10;
            terms[warp] += 2 * l + 1;
            if (terms[warp] > most) most = terms[warp];
        }
        for (int m = 0; m <= ORDER; m++) {
            const int warp = least(along), n = ORDER + 1 - m;
            order[m] = warp;
            along[warp] += (m == 0 ? 1 : 2) * (n * n + 2 * n + 5);
        }
    }
};
