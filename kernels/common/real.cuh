// Number types. REAL is float or double; ORDER is the expansion order, if there are expansions.
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

// 1 / sqrt(x) for normal x. In float64 this refines the hardware's estimate by one step of third
// order, without branches for special values.
__device__ __forceinline__ float inverse_root(float x) {
    return rsqrtf(x);
}

__device__ __forceinline__ double inverse_root(double x) {
#ifdef __CUDA_ARCH__
    double estimate;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(estimate) : "d"(x));
#else
    const double estimate = rsqrtf(float(x));
#endif
    const double error = 1 - x * estimate * estimate;
    return estimate + estimate * error * (0.5 + 0.375 * error);
}
