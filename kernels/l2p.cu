// l2p: evaluates local expansions and the trace term at the parts, potentials and fields,
//
//     Phi = sum_a L_a R_a(x) + trace term     E = -grad Phi
//     d R_lm / dz = R_l-1,m      (d/dx - i d/dy) R_lm = R_l-1,m-1
//                                (d/dx + i d/dy) R_lm = -R_l-1,m+1
//
// in the conventions of fmm_openmm/expansions/harmonics.py.
//
// A block owns L2P_BOXES boxes, whose expansions are in shared memory. A thread owns a part and
// uses each term for potential and gradient at once. In small systems L2P_WARPS warps share the
// orders m of the same parts. Fields are omitted if sets of charges need only potentials.
// Bound by instruction issue; in small systems by latency.
#include "common/harmonics.cuh"
#include "common/parts.cuh"
#include "common/share.cuh"

#define PARTS 128  // parts that a block handles at once
#define THREADS (PARTS * L2P_WARPS)

struct Shared {
    real expansion[TERMS][L2P_BOXES];
    int begin[L2P_BOXES + 1];  // first part of each box
#if L2P_WARPS > 1
    real4 share[L2P_WARPS - 1][PARTS];
#endif
};

// Contribution of the orders FIRST <= m < LAST: potential, twice its derivatives along x and y, its
// derivative along z. For each order the terms are first summed with the real factors Q_lm of the
// harmonics of the orders m - 1, m and m + 1, then multiplied by the powers R_mm.
template <int FIRST, int LAST>
__device__ __forceinline__ real4 evaluate(const real4& part, const real* expansion) {
    const real x = part.x, y = part.y, z = part.z, r2 = x * x + y * y + z * z;
    const auto at = [&](int l, int m) { return expansion[term(l, m) * L2P_BOXES]; };
    // factors of the orders m - 1, m, m + 1
    real below[ORDER + 1], own[ORDER + 1], above[ORDER + 1];
    real2 power_below = {0, 0}, power = {1, 0};
#pragma unroll
    for (int m = 0; m < FIRST; m++) {
        power_below = power;
        power = next_power(m, x, y, power);
    }
    if (FIRST > 0) degree_factors<ORDER>(FIRST - 1, z, r2, below);
    degree_factors<ORDER>(FIRST, z, r2, own);
    real4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int m = FIRST; m < LAST; m++) {
        const real2 power_above = next_power(m, x, y, power);
        degree_factors<ORDER>(m + 1, z, r2, above);
        real2 phi = {0, 0}, gz = {0, 0}, left = {0, 0}, right = {0, 0};
#pragma unroll
        for (int l = m; l <= ORDER; l++) {
            const real c = at(l, m), s = m > 0 ? at(l, -m) : real(0);
            phi.x += c * own[l];
            phi.y += s * own[l];
            if (m > 0) {
                right.x += c * below[l - 1];
                right.y += s * below[l - 1];
            }
            if (l > m) {
                gz.x += c * own[l - 1];
                gz.y += s * own[l - 1];
            }
            if (l > m + 1) {
                left.x += c * above[l - 1];
                left.y += s * above[l - 1];
            }
        }
        if (m == 0) left.x *= 2;  // order 0 has no imaginary part and counts twice
        sum.x += phi.x * power.x + phi.y * power.y;
        sum.y += right.x * power_below.x + right.y * power_below.y - left.x * power_above.x -
                 left.y * power_above.y;
        sum.z += right.y * power_below.x - right.x * power_below.y + left.y * power_above.x -
                 left.x * power_above.y;
        sum.w += gz.x * power.x + gz.y * power.y;
        power_below = power;
        power = power_above;
#pragma unroll
        for (int l = 0; l <= ORDER; l++) {
            below[l] = own[l];
            own[l] = above[l];
        }
    }
    return FIELDS ? sum : real4{sum.x, 0, 0, 0};
}

template <int SHARE>
__device__ __forceinline__ real4 evaluate_share(const real4& part, const real* expansion) {
    return evaluate<first_order(SHARE, L2P_WARPS), first_order(SHARE + 1, L2P_WARPS)>(part,
                                                                                      expansion);
}

// The thread's share of the sum for a part.
__device__ __forceinline__ real4 own_share(const real4& part, const real* expansion) {
#if L2P_WARPS == 1
    return evaluate_share<0>(part, expansion);
#else
    switch (threadIdx.x / PARTS) {
        case 0:
            return evaluate_share<0>(part, expansion);
        case 1:
            return evaluate_share<1>(part, expansion);
        case 2:
            return evaluate_share<2>(part, expansion);
        default:
            return evaluate_share<3>(part, expansion);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    l2p(const int* __restrict__ start /* (BOXES + 1) */, const real4* __restrict__ xq /* (parts) */,
        const int* __restrict__ slot /* (BOXES) */,
        const real* __restrict__ local /* (SETS), at slot[box] + STRIDE * term */,
        const double* __restrict__ trace /* (SETS, 7): of x^2, y^2, z^2, x, y, z, 1 */,
        real4* __restrict__ far /* (SETS, start[BOXES]): potential, field */,
        const Share* __restrict__ share /* (1) */) {
    __shared__ Shared s;
    const BoxRange boxes = far_boxes(share);
    const int first = boxes.first + blockIdx.x * L2P_BOXES,
              used = min(L2P_BOXES, boxes.end - first), lane = threadIdx.x % PARTS;
    if (HAS_SHARE && used <= 0) return;
    const int begin = start[first], last = start[first + used], column = threadIdx.x % L2P_BOXES;
    if (begin == last) return;
    if (SETS > 1) {
        local += blockIdx.y * (long long)STRIDE * TERMS;
        trace += 7 * blockIdx.y;
        far += blockIdx.y * (long long)start[BOXES];
    }
    real4 next = xq[min(begin + lane, last - 1)];
    if (threadIdx.x <= used) s.begin[threadIdx.x] = start[first + threadIdx.x];
    if (column < used) {
        const real* from = local + (ORDERED ? first + column : slot[first + column]);
#pragma unroll 8
        for (int a = threadIdx.x / L2P_BOXES; a < TERMS; a += THREADS / L2P_BOXES)
            s.expansion[a][column] = from[a * (long long)STRIDE];
    }
    const real square_x = real(trace[0]), square_y = real(trace[1]), square_z = real(trace[2]);
    const real linear_x = real(trace[3]), linear_y = real(trace[4]), linear_z = real(trace[5]);
    const real constant = real(trace[6]);
    __syncthreads();
    for (int from = begin; from < last; from += PARTS) {
        const int k = from + lane;
        const real4 part = next;
        next = xq[min(k + PARTS, last - 1)];
        int b = 0;
#pragma unroll
        for (int half = L2P_BOXES / 2; half > 0; half /= 2)
            b += b + half < used && s.begin[b + half] <= k ? half : 0;
        real4 sum = own_share(part, &s.expansion[0][b]);
#if L2P_WARPS > 1
        const int warp = threadIdx.x / PARTS;
        // wait until the shares of the previous parts have been summed
        if (from > begin) __syncthreads();
        if (warp > 0) s.share[warp - 1][lane] = sum;
        __syncthreads();
        if (warp > 0) continue;
#pragma unroll
        for (int w = 0; w < L2P_WARPS - 1; w++) {
            const real4 other = s.share[w][lane];
            sum.x += other.x;
            sum.y += other.y;
            sum.z += other.z;
            sum.w += other.w;
        }
#endif
        if (k >= last) continue;
        const real phi = sum.x + constant + part.x * (part.x * square_x + linear_x) +
                         part.y * (part.y * square_y + linear_y) +
                         part.z * (part.z * square_z + linear_z);
        far[k] = real4{phi, -linear_x - 2 * square_x * part.x - sum.y / 2,
                       -linear_y - 2 * square_y * part.y - sum.z / 2,
                       -linear_z - 2 * square_z * part.z - sum.w};
    }
}
