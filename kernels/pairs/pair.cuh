// The interaction of one pair of sites, of types s and t:
//
//     U(r) = A_st / r^12 - B_st / r^6,   with a switching function times
//                                        1 - 10 u^3 + 15 u^4 - 6 u^5, u from 0 where it begins
//                                        to 1 at the cutoff
//
// or A_st f(r) - B_st g(r) with functions that PAIR_FUNCTIONS defines, if it is defined: real
// variables f, g, f_slope and g_slope, the last two for df/dr and dg/dr, made of r, inverse = 1/r
// and square = r^2 (fmm_openmm/native/openmm/function_source.h).
//
// Without a branch and with one reciprocal root in float, whose accuracy this keeps;
// in double by division.
#pragma once
#include "common/real.cuh"

// Whether forces are zero beyond the cutoff by themselves; f and g may be infinite there.
#if SWITCHED && !defined(PAIR_FUNCTIONS)
#define FADES true
#else
#define FADES false
#endif

// 12 A and 6 B of a pair of types, with PAIR_FUNCTIONS A and B.
struct Table {
    const real2* __restrict__ pairs;  // (TYPES, TYPES)

    __device__ __forceinline__ real2 of(int row, int type) const {
        return TYPES == 1 ? pairs[0] : pairs[row + type];
    }
};

// Of a pair: force over distance, energy.
struct Pair {
    real force, energy;
};

__device__ __forceinline__ float reciprocal(float x) {
    return __fdividef(1.0f, x);
}
__device__ __forceinline__ double reciprocal(double x) {
    return 1 / x;
}

__device__ __forceinline__ float saturated(float x) {
    return __saturatef(x);
}
__device__ __forceinline__ double saturated(double x) {
    return fmin(fmax(x, 0.0), 1.0);
}

#if SWITCHED
// The switching function, and w^2 in its slope -30 w^2 / (CUTOFF - SWITCHING).
struct Switch {
    real share, square;
};

__device__ __forceinline__ Switch switch_at(real r) {
    const real scale = real(1.0 / (CUTOFF - SWITCHING));
    const real u = saturated(r * scale - real(SWITCHING / (CUTOFF - SWITCHING))), uu = u * u,
               w = u - uu;
    return {1 - uu * u * (10 - u * (15 - 6 * u)), w * w};
}
#endif

template <bool ENERGY>
__device__ __forceinline__ Pair pair_at(real square, const real2& ab) {
#ifdef PAIR_FUNCTIONS
    const real inverse = inverse_root(square);
    [[maybe_unused]] const real r = square * inverse;
    PAIR_FUNCTIONS
    Pair pair = {(ab.y * g_slope - ab.x * f_slope) * inverse, ab.x * f - ab.y * g};
#if SWITCHED
    const Switch s = switch_at(square * inverse);
    pair.force = pair.force * s.share +
                 pair.energy * (inverse * real(30.0 / (CUTOFF - SWITCHING))) * s.square;
    pair.energy *= s.share;
#endif
    return pair;
#elif SWITCHED
    const real inverse = inverse_root(square), inverse2 = inverse * inverse,
               inverse6 = inverse2 * inverse2 * inverse2;
    const real force = ab.x * inverse6 - ab.y, energy = force - ab.y;  // times r^8, 12 r^6
    const Switch s = switch_at(square * inverse);
    const real slope = s.square * (inverse * real(2.5 / (CUTOFF - SWITCHING)));
    return {inverse6 * (force * (s.share * inverse2) + energy * slope),
            ENERGY ? energy * inverse6 * (s.share * real(1.0 / 12)) : 0};
#else
    const real inverse2 = reciprocal(square), inverse6 = inverse2 * inverse2 * inverse2;
    return {(ab.x * inverse6 - ab.y) * (inverse6 * inverse2),
            ENERGY ? (ab.x * real(1.0 / 12) * inverse6 - ab.y * real(1.0 / 6)) * inverse6 : 0};
#endif
}
