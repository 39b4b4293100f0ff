// Charges in free space. A coordinate is a sum of two reals, so that float32 resolves small
// separations at any distance from the origin.
#pragma once
#include "real.cuh"

// A particle: rounded coordinates and charge, and the rounding errors of the coordinates.
struct Charge {
    real4 high, low;
};

// Sum of potential and field: over a few sources in REAL, over many in float64 (Sum).
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

// Adds the contribution of a source at a target, q / r and q d / r^3.
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
