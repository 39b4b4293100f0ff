// M2L between boxes of a level by rotation, O(p^3) per pair of boxes.
//
// The vector r from the source's centre to the target's has length R and equals g (0, 0, R) with
// g = Q Rz(alpha) Q Rz(-theta) Q, where Q swaps x and z. In the frame g the translation is along z
// and conserves the order m:
//
//     M' = F Z(theta) F Z(-alpha) F M    L''_lm = sum_j (l + j)! / R^(l+j+1) M'_jm
//     L = F^T Z(alpha) F^T Z(-theta) F^T S L''
//
// Z(b) multiplies order m by exp(i m b). F, with R_a(Q y) = sum_b F_ab R_b(y), is a constant matrix
// for each degree (swap_xz.cuh). S is (-1)^(l+m), and twice that for m > 0. (Fast rotation: A.
// Lengvenis, H. Dachsel, L. Morgenstern and I. Kabadshow, IPDPS 2025,
// doi:10.1109/IPDPS64566.2025.00075.)
//
// All r in one plane through the x axis, which is parallel to the first box vector, have the same
// alpha. The 189 translations between well-separated boxes lie in 16 such planes in cells of any
// shape. Therefore the moments of all boxes are first rotated into each plane, and local expansions
// are rotated back once per plane (m2l_planes.cu):
//
//     M_plane = F Z(-alpha) F M    L_plane = sum_r Z(-theta) F^T S L''
//     L = F^T sum_planes Z(alpha) F^T L_plane
//
// Reflection in the plane preserves the terms of M_plane and L_plane with even l + m and negates
// the others. Terms of one parity depend only on terms of the same parity, so that the work
// separates into two halves, each with half of the registers and of the code.
//
// The signs (-1)^l of S are included in the moments and in the powers of R.
//
//   PARTS_EVEN, PARTS_ODD  number of parts into which the work on terms of even and odd parity is
//                          divided, each with its own sums: 1 or 2, PARTS_ODD <= PARTS_EVEN
#pragma once
#include "common/swap_xz.cuh"
#include "common/levels.cuh"

static_assert(PARTS_ODD <= PARTS_EVEN, "parts are numbered by their sums");

// Table of a translation. For a plane: exp(-i m alpha), and zeros in place of powers.
struct __align__(4 * sizeof(real)) Rotation {
    real2 phase[ORDER + 1];     // exp(i m theta)
    real power[2 * ORDER + 2];  // 2 (-1)^n n! / R^(n+1), then a zero
};

// Length of the slabs of one plane or of the sums of one list, and the index of a group in the n-th
// slabs.
__device__ __forceinline__ long long plane_length(int half) {
    return (8LL * groups_of(half) + ANY_PADDED) * (TERMS * WARP);
}
__device__ __forceinline__ long long slab_of(int n, int child, int group, int half) {
    return ((8LL * n + child) * groups_of(half) + group) * (TERMS * WARP);
}

// An array of a fixed size. A plain array in inlined functions shares its memory with others of the
// same type, and NVVM takes a time quadratic in the length of the code to move shared memory into
// registers. It does not share structures.
template <class T, int N>
struct Array {
    T values[N];
    __device__ __forceinline__ T& operator[](int i) { return values[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
};

// The terms of degree L: the real part of order m at L + m, the imaginary part at L - m.
template <int L>
using Degree = Array<real, 2 * L + 1>;

// Multiplies the orders m = FROM, FROM + STEP, .. by their phases, or by the conjugates if SIGN is
// -1.
template <int L, int SIGN, int FROM = 1, int STEP = 1>
__device__ __forceinline__ void rotate_z(Degree<L>& x, const real2* phase) {
#pragma unroll
    for (int m = FROM == 0 ? STEP : FROM; m <= L; m += STEP) {
        const real2 w = phase[m];
        const real c = x[L + m], s = x[L - m], sine = SIGN * w.y;
        x[L + m] = w.x * c - sine * s;
        x[L - m] = w.x * s + sine * c;
    }
}
