// l2p: local expansions and the trace term to potentials and fields at the parts.
//
//     Phi = sum_a L_a R_a(x) + trace     E = -grad Phi     with the derivatives of fmm_openmm/expansions/harmonics.py:
//     d R_lm / dz = R_l-1,m,   (d/dx - i d/dy) R_lm = R_l-1,m-1,   (d/dx + i d/dy) R_lm = -R_l-1,m+1
//
// A thread owns a part, neighbouring threads mostly parts of the same box, so that a warp reads few sectors of the
// expansions. In small systems L2P_WARPS warps share the orders m of 32 parts. Bound by instruction issue, by latency there.
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define THREADS 128
#define PARTS (THREADS / L2P_WARPS)

// What the orders FIRST <= m < LAST contribute: potential, twice its derivatives along x and y, its derivative along z.
template <int FIRST, int LAST>
__device__ __forceinline__ real4 evaluate(const real4& part, const real* __restrict__ expansion) {
    const auto at = [&](int l, int m) { return __ldg(expansion + term(l, m) * (long long)BOXES); };
    real phi = 0, gx = 0, gy = 0, gz = 0;
    real next_c = 0, next_s = 0;  // the expansion's terms of the next degree
    regular_harmonics<ORDER, FIRST, LAST>(part.x, part.y, part.z, [&](int l, int m, real c, real s) {
        if (l == m) {
            next_c = at(l, m);
            next_s = m > 0 ? at(l, -m) : real(0);
        }
        phi += next_c * c;
        phi += next_s * s;
        if (l == ORDER) return;
        next_c = at(l + 1, m);
        const real right_c = at(l + 1, m + 1), right_s = at(l + 1, -m - 1);
        gz += next_c * c;
        if (m == 0) {
            gx += right_c * c;
            gy += right_s * c;
            return;
        }
        next_s = at(l + 1, -m);
        gz += next_s * s;
        // m = 1 meets order 0, which has no imaginary part and counts twice
        const real left_c = (m > 1 ? 1 : 2) * at(l + 1, m - 1), left_s = m > 1 ? at(l + 1, 1 - m) : real(0);
        gx += (right_c - left_c) * c;
        gx += (right_s - left_s) * s;
        gy += (right_s + left_s) * c;
        gy -= (right_c + left_c) * s;
    });
    return real4{phi, gx, gy, gz};
}

template <int SHARE>
__device__ __forceinline__ real4 evaluate_share(const real4& part, const real* __restrict__ expansion) {
    return evaluate<first_order(SHARE, L2P_WARPS), first_order(SHARE + 1, L2P_WARPS)>(part, expansion);
}

extern "C" __global__ void __launch_bounds__(THREADS)
l2p(const int* __restrict__ start /* (BOXES + 1) */, const real4* __restrict__ xq /* (parts) */,
    const int* __restrict__ slot_of /* (parts) */, const real* __restrict__ local /* (TERMS, BOXES) in FFT order */,
    const double* __restrict__ sums /* (5) */, real4* __restrict__ far /* (parts): potential, field */) {
    const int parts = start[BOXES];
    const real factor = real(2 * 3.14159265358979323846 / 3 / BOXES);
    const real charge = factor * real(sums[0]), square = factor * real(sums[4]);
    const real dipole_x = 2 * factor * real(sums[1]), dipole_y = 2 * factor * real(sums[2]), dipole_z = 2 * factor * real(sums[3]);
    for (int first = blockIdx.x * PARTS; first < parts; first += gridDim.x * PARTS) {
        const int k = first + threadIdx.x % PARTS;
        const real4 part = xq[min(k, parts)];
        const real* expansion = local + slot_of[min(k, parts - 1)];
#if L2P_WARPS == 1
        const real4 sum = evaluate_share<0>(part, expansion);
#else
        __shared__ real4 shares[L2P_WARPS][PARTS];
        real4 sum;
        switch (threadIdx.x / PARTS) {
            case 0: sum = evaluate_share<0>(part, expansion); break;
            case 1: sum = evaluate_share<1>(part, expansion); break;
            case 2: sum = evaluate_share<2>(part, expansion); break;
            default: sum = evaluate_share<3>(part, expansion);
        }
        __syncthreads();  // the shares of the parts before these have been added up
        shares[threadIdx.x / PARTS][threadIdx.x % PARTS] = sum;
        __syncthreads();
        if (threadIdx.x >= PARTS) continue;
#pragma unroll
        for (int w = 1; w < L2P_WARPS; w++) {
            const real4 other = shares[w][threadIdx.x];
            sum.x += other.x; sum.y += other.y; sum.z += other.z; sum.w += other.w;
        }
#endif
        if (k >= parts) continue;
        const real phi = sum.x + charge * (part.x * part.x + part.y * part.y + part.z * part.z) + square -
                         (part.x * dipole_x + part.y * dipole_y + part.z * dipole_z);
        far[k] = real4{phi, dipole_x - 2 * charge * part.x - sum.y / 2, dipole_y - 2 * charge * part.y - sum.z / 2,
                       dipole_z - 2 * charge * part.z - sum.w};
    }
}
