// Numbers: REAL is float or double. ORDER is that of the expansions, where there are any.
#pragma once

typedef REAL real;

struct __align__(2 * sizeof(real)) real2 {
    real x, y;
};

struct __align__(4 * sizeof(real)) real4 {
    real x, y, z, w;
};

#define TERMS ((ORDER + 1) * (ORDER + 1))
#define FULL 0xffffffffu

// 1 / sqrt(x) for x in float's range. In float64 a float32 guess and one step of third order: no branch for special numbers.
__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }

__device__ __forceinline__ double inverse_root(double x) {
    const double guess = rsqrtf(float(x));
    const double error = 1 - x * guess * guess;
    return guess + guess * error * (0.5 + 0.375 * error);
}
