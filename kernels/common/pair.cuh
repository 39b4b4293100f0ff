// The interaction of one pair of sites, of types s and t:
//
//     U(r) = A_st / r^12 - B_st / r^6,   with a switching function times 1 - 10 u^3 + 15 u^4 - 6 u^5, u from 0 where it begins
//                                        to 1 at the cutoff
//
// Without a branch and with one reciprocal root in float, whose accuracy this keeps; in double by division.
#pragma once
#include "real.cuh"

// 12 A and 6 B of a pair of types.
struct Table {
    const real2* __restrict__ pairs;   // (TYPES, TYPES)

    __device__ __forceinline__ real2 of(int row, int type) const { return TYPES == 1 ? pairs[0] : pairs[row + type]; }
};

// Of a pair: force over distance, energy.
struct Pair {
    real force, energy;
};

__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

__device__ __forceinline__ float saturated(float x) { return __saturatef(x); }
__device__ __forceinline__ double saturated(double x) { return fmin(fmax(x, 0.0), 1.0); }

template <bool ENERGY>
__device__ __forceinline__ Pair pair_at(real square, const real2& ab) {
#if SWITCHED
    const real inverse = inverse_root(square), inverse2 = inverse * inverse, inverse6 = inverse2 * inverse2 * inverse2;
#else
    const real inverse2 = reciprocal(square), inverse6 = inverse2 * inverse2 * inverse2;
#endif
    Pair pair = {(ab.x * inverse6 - ab.y) * (inverse6 * inverse2), 0};
    if (ENERGY || SWITCHED) pair.energy = (ab.x * real(1.0 / 12) * inverse6 - ab.y * real(1.0 / 6)) * inverse6;
#if SWITCHED
    const real rate = real(1.0 / (CUTOFF - SWITCHING));
    const real u = saturated(square * inverse * rate - real(SWITCHING) * rate), v = 1 - u, uv = u * v;
    const real share = 1 - u * u * u * (10 - u * (15 - 6 * u));
    pair.force = pair.force * share + pair.energy * inverse * (30 * rate * uv * uv);
    pair.energy *= share;
#endif
    return pair;
}
