// Forces as OpenMM adds them up: 64-bit fixed-point numbers, so that the order of
// additions does not matter.
#pragma once

#define FIXED_POINT 4294967296.0  // 2^32

// kJ/mol/nm, 1.25 * 2^30. OpenMM's minimiser takes a force beyond 2^30 for an overflow and computes
// this step on the CPU; so it does for one or two of the largest forces on a particle, and what
// other forces add to one changes nothing.
#define LARGEST 1342177280.0

// Neither a force too large for the format nor NaN may turn into an unrelated number: both become
// the largest force.
__device__ __forceinline__ unsigned long long fixed_point(double force) {
    return (unsigned long long)((long long)(fmin(fmax(force, -LARGEST), LARGEST) * FIXED_POINT));
}
