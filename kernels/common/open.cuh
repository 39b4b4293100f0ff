// Charges in empty space, anywhere: a coordinate is a sum of two reals, so that float32 tells near
// particles apart at any distance from the origin.
#pragma once
#include "real.cuh"

// A particle: its coordinates, rounded, and its charge; what rounding took off.
struct Charge {
    real4 high, low;
};

// Potential and field of all sources met so far: a few in REAL, more in float64.
struct Field {
    real phi, x, y, z;
};

struct __align__(16) Sum {
    double phi, x, y, z;

    template <class Part>
    __device__ __forceinline__ void add(const Part& part) {
        phi += part.phi;
        x += part.x;
        y += part.y;
        z += part.z;
    }
};

__device__ __forceinline__ real difference(real high, real low, real other_high, real other_low) {
    return (high - other_high) + (low - other_low);
}

// Adds what a source contributes at a target: q / r and q d / r^3.
__device__ __forceinline__ void interact(const Charge& target, const real4& high, const real4& low,
                                         Field& sum) {
    const real dx = difference(target.high.x, target.low.x, high.x, low.x);
    const real dy = difference(target.high.y, target.low.y, high.y, low.y);
    const real dz = difference(target.high.z, target.low.z, high.z, low.z);
    const real inverse = inverse_root(dx * dx + dy * dy + dz * dz);
    const real v = high.w * inverse, f = v * inverse * inverse;
    sum.phi += v;
    sum.x += f * dx;
    sum.y += f * dy;
    sum.z += f * dz;
}
