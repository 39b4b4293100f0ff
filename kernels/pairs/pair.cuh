// The interaction of one pair of sites of types s and t:
//
//     U(r) = (A_st / r^12 - B_st / r^6) S(u)
//     S(u) = 1 - 10 u^3 + 15 u^4 - 6 u^5      u = (r - SWITCHING) / (CUTOFF - SWITCHING) in [0, 1]
//
// with S = 1 unless SWITCHED. If PAIR_FUNCTIONS is defined, U(r) = (A_st f(r) - B_st g(r)) S(u).
// The macro then defines the real variables f, g, f_slope = df/dr and g_slope = dg/dr from r,
// inverse = 1/r, square = r^2 and ab = (A_st, B_st) (fmm_openmm/native/openmm/function_source.h).
//
// The code has no branches. In float32 it uses one reciprocal square root or reciprocal, without
// loss of accuracy; in float64 it divides.
#pragma once
#include "common/real.cuh"

// Whether pair_at returns zero forces beyond the cutoff, where f and g may be infinite.
#if SWITCHED && !defined(PAIR_FUNCTIONS)
#define ZERO_BEYOND_CUTOFF true
#else
#define ZERO_BEYOND_CUTOFF false
#endif

// 12 A and 6 B for each pair of types; A and B with PAIR_FUNCTIONS.
struct Table {
    const real2* __restrict__ pairs;  // (TYPES, TYPES)

    __device__ __forceinline__ real2 coefficients(int row, int type) const {
        return TYPES == 1 ? pairs[0] : pairs[row + type];
    }
};

struct Pair {
    real force_over_r, energy;
};

__device__ __forceinline__ float reciprocal(float x) {
    return __fdividef(1.0f, x);
}
__device__ __forceinline__ double reciprocal(double x) {
    return 1 / x;
}

__device__ __forceinline__ float saturate(float x) {
    return __saturatef(x);
}
__device__ __forceinline__ double saturate(double x) {
    return fmin(fmax(x, 0.0), 1.0);
}

#if SWITCHED
// The switching function S and w^2, where dS/dr = -30 w^2 / (CUTOFF - SWITCHING).
struct Switch {
    real value, w2;
};

__device__ __forceinline__ Switch switch_at(real r) {
    const real scale = real(1.0 / (CUTOFF - SWITCHING));
    const real u = saturate(r * scale - real(SWITCHING / (CUTOFF - SWITCHING))), uu = u * u,
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
    pair.force_over_r = pair.force_over_r * s.value +
                        pair.energy * (inverse * real(30.0 / (CUTOFF - SWITCHING))) * s.w2;
    pair.energy *= s.value;
#endif
    return pair;
#elif SWITCHED
    const real inverse = inverse_root(square), inverse2 = inverse * inverse,
               inverse6 = inverse2 * inverse2 * inverse2;
    const real scaled_force = ab.x * inverse6 - ab.y, scaled_energy = scaled_force - ab.y;
    // force_over_r = scaled_force / r^8 and energy = scaled_energy / (12 r^6), before switching
    const Switch s = switch_at(square * inverse);
    const real slope = s.w2 * (inverse * real(2.5 / (CUTOFF - SWITCHING)));
    return {inverse6 * (scaled_force * (s.value * inverse2) + scaled_energy * slope),
            ENERGY ? scaled_energy * inverse6 * (s.value * real(1.0 / 12)) : 0};
#else
    const real inverse2 = reciprocal(square), inverse6 = inverse2 * inverse2 * inverse2;
    return {(ab.x * inverse6 - ab.y) * (inverse6 * inverse2),
            ENERGY ? (ab.x * real(1.0 / 12) * inverse6 - ab.y * real(1.0 / 6)) * inverse6 : 0};
#endif
}
