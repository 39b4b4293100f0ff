// p2m: the parts of each box in order of their numbers, and the moments M_a = sum Q R_a(x) of the box.
//
// A block owns 32 / P2M_LANES boxes. Its threads first put the boxes' parts in order, one part a thread. Then P2M_LANES lanes
// own a box: each warp keeps the sums of its share of the orders m in registers and runs over the parts of all its boxes at
// once; the moments of neighbouring boxes go straight into the arrays of the FFT. Bound by latency: boxes wait for the fullest.
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define WARPS 4
#define GROUP (32 / P2M_LANES)

// Sum over the lanes of a box.
__device__ __forceinline__ real group_sum(real value) {
#pragma unroll
    for (int d = 1; d < P2M_LANES; d *= 2) value += __shfl_xor_sync(FULL, value, d);
    return value;
}

// Moments of a box, terms of the orders of warp WARP; each of its lanes takes every P2M_LANES-th part.
template <int WARP>
__device__ __forceinline__ void moments_of(int first, int last, int lane, const real4* xq, bool used,
                                           real* __restrict__ moments) {
    constexpr int FIRST = first_order(WARP, WARPS), LAST = first_order(WARP + 1, WARPS);
    constexpr int ROWS = ORDER + 1 - FIRST;
    real c[LAST - FIRST + 1][ROWS] = {}, s[LAST - FIRST + 1][ROWS] = {};
    first += lane;
    real4 next = first < last ? xq[first] : real4{0, 0, 0, 0};
#pragma unroll 1
    for (int k = first; k < last; k += P2M_LANES) {
        const real4 part = next;
        if (k + P2M_LANES < last) next = xq[k + P2M_LANES];
        regular_harmonics<ORDER, FIRST, LAST>(part.x, part.y, part.z, [&](int l, int m, real re, real im) {
            c[m - FIRST][l - FIRST] += part.w * re;
            if (m > 0) s[m - FIRST][l - FIRST] += part.w * im;
        });
    }
#pragma unroll
    for (int m = FIRST; m < LAST; m++)
#pragma unroll
        for (int l = m; l <= ORDER; l++) {
            const real re = group_sum(c[m - FIRST][l - FIRST]), im = m > 0 ? group_sum(s[m - FIRST][l - FIRST]) : real(0);
            if (!used || lane != 0) continue;
            moments[term(l, m) * (long long)BOXES] = re;
            if (m > 0) moments[term(l, -m) * (long long)BOXES] = im;
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
p2m(const int* __restrict__ start /* (BOXES + 1) */, const int* __restrict__ number /* (parts), any order in a box */,
    const Located* __restrict__ located, const real4* __restrict__ fraction, const real* __restrict__ charges /* (n) */,
    const int* __restrict__ slot /* (BOXES) */, const Parameters* __restrict__ parameters,
    int* __restrict__ sorted /* (parts) */, int* __restrict__ place /* (n, CORNERS): inverse of sorted */,
    int* __restrict__ slot_of /* (parts): slot of the part's box */, real4* xq /* (parts + 1): x, y, z, charge */,
    real* __restrict__ moments /* (TERMS, BOXES) in FFT order */,
    double* __restrict__ square /* (blocks): sum Q |x|^2 */) {
    __shared__ int begin[GROUP + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = lane / P2M_LANES;
    const int box = blockIdx.x * GROUP + mine;
    if (threadIdx.x <= GROUP) begin[threadIdx.x] = start[min(blockIdx.x * GROUP + threadIdx.x, BOXES)];
    __syncthreads();

    for (int k = begin[0] + threadIdx.x; k < begin[GROUP]; k += 32 * WARPS) {
        int b = 0;
#pragma unroll
        for (int half = GROUP / 2; half > 0; half /= 2) b += begin[b + half] <= k ? half : 0;
        const int own = number[k], first = begin[b], last = begin[b + 1];
        int rank = first;
        for (int j = first; j < last; j++) rank += number[j] < own;
        const int i = own >> 3, corner = own & 7;
        const Part part = part_of(located[i], fraction[i], corner, parameters);
        sorted[rank] = own;
        place[i * CORNERS + corner] = rank;
        slot_of[rank] = slot[blockIdx.x * GROUP + b];
        xq[rank] = real4{part.x, part.y, part.z, charges[i] * part.weight};
    }
    if (box == BOXES - 1 && warp == 0) xq[begin[GROUP]] = real4{real(1e6), real(1e6), real(1e6), 0};  // fills up lists in p2p
    __syncthreads();

    const int first = begin[mine], last = begin[mine + 1], member = lane % P2M_LANES;
    real* to = moments + (box < BOXES ? slot[box] : 0);
    switch (warp) {
        case 0: moments_of<0>(first, last, member, xq, box < BOXES, to); break;
        case 1: moments_of<1>(first, last, member, xq, box < BOXES, to); break;
        case 2: moments_of<2>(first, last, member, xq, box < BOXES, to); break;
        default: moments_of<3>(first, last, member, xq, box < BOXES, to);
    }
    if (warp == WARPS - 1) {
        double second = 0;
        for (int k = begin[0] + lane; k < begin[GROUP]; k += 32) {
            const real4 part = xq[k];
            second += double(part.w) * double(part.x * part.x + part.y * part.y + part.z * part.z);
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) second += __shfl_xor_sync(FULL, second, d);
        if (lane == 0) square[blockIdx.x] = second;
    }
}
