// The wave vectors for which the lattice operator is stored, and products of phases.
#pragma once
#include "common/types.cuh"

#define PI 3.14159265358979323846

__device__ __forceinline__ double2 product(double2 a, double2 b) {
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

// Components of a wave vector along the reciprocal vectors of the boxes, in [-1/2, 1/2].
__device__ __forceinline__ void fractions(double (&fraction)[3], int wave,
                                          const int* __restrict__ group) {
    const int kappa[3] = {wave / (group[13] * group[14]), wave / group[14] % group[13],
                          FIRST2 + wave % group[14]};
    for (int a = 0; a < 3; a++) {
        double f = 0;
        for (int k = 0; k < 3; k++) {
            const double d = group[9 + k], n = double(group[3 * a + k]) * kappa[k];
            f += fma(-d, rint(n / d), n) / d;
        }
        fraction[a] = f - rint(f);
    }
}
