// Forces in OpenMM's format: 64-bit fixed-point numbers, whose sum does not depend on the order of
// additions.
#pragma once

#define FIXED_POINT 4294967296.0  // 2^32

// Largest force in kJ/mol/nm, 1.25 * 2^30. OpenMM's minimiser treats a force beyond 2^30 as an
// overflow and computes that step on the CPU. It does so too if one or two forces of this size act
// on a particle, whatever the other forces on it are.
#define LARGEST_FORCE 1342177280.0

// Converts a force. A force too large for the format, or NaN, becomes the largest force instead of
// an unrelated number.
__device__ __forceinline__ unsigned long long fixed_point(double force) {
    return (unsigned long long)((long long)(fmin(fmax(force, -LARGEST_FORCE), LARGEST_FORCE) *
                                            FIXED_POINT));
}
