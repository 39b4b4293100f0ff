// Vectors between the centres of boxes, in mean box widths, from box offsets and the parameter
// block.
#pragma once
#include "common/parameters.cuh"
#include "common/real.cuh"

struct Vector {
    double x, y, z;

    __device__ Vector(double i0, double i1, double i2, const Parameters* parameters) {
        const double* b = parameters->boxes;
        x = i0 * b[0] + i1 * b[3] + i2 * b[6];
        y = i0 * b[1] + i1 * b[4] + i2 * b[7];
        z = i0 * b[2] + i1 * b[5] + i2 * b[8];
    }
    __device__ Vector(int4 offset, const Parameters* parameters)
        : Vector(offset.x, offset.y, offset.z, parameters) {}
    __device__ double square() const { return x * x + y * y + z * z; }
    __device__ double theta() const { return atan2(sqrt(x * x + y * y), z); }
    __device__ double phi() const { return atan2(y, x); }
};
