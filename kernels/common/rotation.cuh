// M2L between boxes of a level by rotation, O(p^3) for each pair.
//
// The vector r from the source's centre to the target's, of length R, is g z with g = Q Rz(alpha) Q
// Rz(-theta) Q, where Q swaps x and z. In the frame g the translation runs along z
// and keeps the order m:
//
//     M' = F Z(theta) F Z(-alpha) F M    L''_lm = sum_j (l + j)! / R^(l+j+1) M'_jm
//     L = F^T Z(alpha) F^T Z(-theta) F^T S L''
//
// Z(b) multiplies order m by exp(i m b). F, R_a(Q y) = sum_b F_ab R_b(y), is one constant matrix a
// degree; it keeps real and imaginary parts apart and half of its entries vanish. S is (-1)^(l+m),
// twice that for m > 0. (Fast rotation: A. Lengvenis, H. Dachsel, L. Morgenstern and I. Kabadshow,
// IPDPS 2025, doi:10.1109/IPDPS64566.2025.00075.)
//
// All r in one plane through the x axis, along which the first box vector lies, have the same
// alpha: 189 translations to far boxes have 16 such planes, in cells of every shape. So moments of
// all boxes are turned into each plane beforehand, and local expansions are turned back once a
// plane (m2l_planes.cu):
//
//     M_plane = F Z(-alpha) F M    L_plane = sum_r Z(-theta) F^T S L''
//     L = F^T sum_planes Z(alpha) F^T L_plane
//
// Reflection in the plane leaves the terms of M_plane and L_plane with even l + m as they are and
// negates the others: those of one parity depend on those of the same parity only, and are half of
// the work each, with half of the numbers and of the code.
//
// The signs (-1)^l of S come with the moments and the powers of R.
//
//   PARTS_EVEN, PARTS_ODD  of the work on terms of even and of odd parity, each with sums of its
//                          own: 1 or 2, the latter at most as many as the former
#pragma once
#include "common/flip.cuh"
#include "common/levels.cuh"

static_assert(PARTS_ODD <= PARTS_EVEN, "parts are numbered by their sums");

// Of a translation; or of a plane, with exp(-i m alpha) and no powers.
struct __align__(4 * sizeof(real)) Turn {
    real2 phase[ORDER + 1];     // exp(i m theta)
    real power[2 * ORDER + 2];  // 2 (-1)^n n! / R^(n+1); a zero
};

// Length of the slabs of a plane, and of the sums of a list; where a group is in the n-th of these.
__device__ __forceinline__ long long plane_length(int half) {
    return (8LL * groups_of(half) + OPEN) * (TERMS * WARP);
}
__device__ __forceinline__ long long slab_of(int n, int child, int group, int half) {
    return ((8LL * n + child) * groups_of(half) + group) * (TERMS * WARP);
}

// Index L + m: real part of order m, L - m: its imaginary part.
template <int L>
using Degree = real[2 * L + 1];

// Orders m = FROM, FROM + STEP, .. times their phases, or the conjugates of these where SIGN is -1.
template <int L, int SIGN, int FROM = 1, int STEP = 1>
__device__ __forceinline__ void turn(Degree<L>& x, const real2* phase) {
#pragma unroll
    for (int m = FROM == 0 ? STEP : FROM; m <= L; m += STEP) {
        const real2 w = phase[m];
        const real c = x[L + m], s = x[L - m], sine = SIGN * w.y;
        x[L + m] = w.x * c - sine * s;
        x[L - m] = w.x * s + sine * c;
    }
}
