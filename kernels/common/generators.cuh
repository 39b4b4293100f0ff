// Sums over the five generators of strain, fmm_openmm/expansions/operators/derivatives.py:
// xx - yy, yy - zz, yx, zx and zy.
#pragma once

#define GENERATORS 5

// Adds the products of the generators and a matrix.
__device__ __forceinline__ void add_elements(double (&sum)[GENERATORS], double factor, double xx,
                                             double yy, double zz, double yx, double zx,
                                             double zy) {
    sum[0] += factor * (xx - yy);
    sum[1] += factor * (yy - zz);
    sum[2] += factor * yx;
    sum[3] += factor * zx;
    sum[4] += factor * zy;
}
