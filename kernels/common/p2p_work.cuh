// The work of the near field in p2p under a strain, its contribution to the virial: the sum over
// targets i and sources j
//
//     W_ab = sum q_i Q_j d_a d_b / r^3,   d = x_i - x_j      for ab = xx, yy, zz, yx, zx, zy
//          = sum_i x_i,a F_i,b - sum_j x_j,a G_j,b
//
// with the force F_i on a target and the force G_j of a source on all targets. Only G is added up
// pair by pair. Without the macro VIRIAL everything here is empty.
#pragma once
#include "common/reduce.cuh"

#define WORK_SUMS 6

// The force of a source on the targets of a pass.
struct SourceForce {
#if VIRIAL
    real x = 0, y = 0, z = 0;
#endif
    // Adds the force on a target of a charge in the field f d.
    __device__ __forceinline__ void add(real charge, real f, real dx, real dy, real dz) {
#if VIRIAL
        f *= charge;
        x += f * dx;
        y += f * dy;
        z += f * dz;
#endif
    }
};

// A lane's share of W.
struct Work {
#if VIRIAL
    real sum[WORK_SUMS] = {};

    __device__ __forceinline__ void add(real x, real y, real z, real fx, real fy, real fz) {
        sum[0] += x * fx;
        sum[1] += y * fy;
        sum[2] += z * fz;
        sum[3] += y * fx;
        sum[4] += z * fx;
        sum[5] += z * fy;
    }
#endif

    // Adds a target in the sum of the fields of its sources.
    __device__ __forceinline__ void add_target(const real4& target, real ex, real ey, real ez) {
#if VIRIAL
        const real q = target.w;
        add(target.x, target.y, target.z, q * ex, q * ey, q * ez);
#endif
    }

    // Adds a source with its force on the targets.
    __device__ __forceinline__ void add_source(const real4& source, const SourceForce& force) {
#if VIRIAL
        add(-source.x, -source.y, -source.z, force.x, force.y, force.z);
#endif
    }

    // Subtracts a pair at displacement d, with a charge of the target in the field f d.
    __device__ __forceinline__ void subtract_pair(real charge, real f, real dx, real dy, real dz) {
#if VIRIAL
        f *= -charge;
        add(dx, dy, dz, f * dx, f * dy, f * dz);
#endif
    }

    // Stores the sum over the lanes of a warp in total[WORK_SUMS].
    __device__ __forceinline__ void store(real* __restrict__ total) const {
#if VIRIAL
        const int lane = threadIdx.x % 32;
        real values[8] = {sum[0], sum[1], sum[2], sum[3], sum[4], sum[5], 0, 0};
        real result = transposed_sum(values, lane);
        result += __shfl_xor_sync(FULL, result, 8);
        result += __shfl_xor_sync(FULL, result, 16);
        if (lane < WORK_SUMS) total[lane] = result;
#endif
    }
};
