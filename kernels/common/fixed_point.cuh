// Forces as OpenMM adds them up: 64-bit fixed-point numbers, so that the order of
// additions does not matter.
#pragma once

#define FIXED_POINT 4294967296.0  // 2^32
#define LARGEST 1073741823.0      // kJ/mol/nm; the sum of two such forces still fits

// Neither a force too large for the format nor NaN may turn into an unrelated number: both become
// the largest force.
__device__ __forceinline__ unsigned long long fixed_point(double force) {
    return (unsigned long long)((long long)(fmin(fmax(force, -LARGEST), LARGEST) * FIXED_POINT));
}
