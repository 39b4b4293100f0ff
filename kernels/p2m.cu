// p2m: the parts of each box in order of their numbers, and the moments M_a = sum Q R_a(x) of the box.
//
// A block owns GROUP boxes. Its threads first put the boxes' parts in order, one part a thread, which makes all later sums
// repeatable. Then P2M_LANES lanes own a box: each warp sums up its share of the orders m in registers, over the parts of all
// its boxes at once. Bound by instruction issue, while boxes wait for the fullest of 32; in small systems by latency.
#include "common/harmonics.cuh"
#include "common/parts.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define GROUP (32 / P2M_LANES)
#define DEPTH 32                    // parts of a box that shared memory holds

struct Shared {
    real4 part[DEPTH][GROUP];       // the first parts of each box
    int list[DEPTH * GROUP];        // numbers of the block's parts as they arrived, if there are no more
    int begin[GROUP + 1];           // number of the block's parts before those of a box
    int before[WARPS];              // number of parts in boxes before the block's, shares of the warps
};

template <class Value>
__device__ __forceinline__ Value warp_sum(Value value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(FULL, value, d);
    return value;
}

// Where the parts of each box of the block begin; returns the number of parts in all boxes before the block's.
__device__ __forceinline__ int count_parts(Shared& s, const int* __restrict__ count, const int* __restrict__ region_count) {
    const int first = blockIdx.x * GROUP, region = first / REGION, lane = threadIdx.x % 32;
    int before = 0;
    for (int r = threadIdx.x; r < region; r += THREADS) before += region_count[r];
    for (int b = region * REGION + threadIdx.x; b < first; b += THREADS) before += count[b];
    before = warp_sum(before);
    if (lane == 0) s.before[threadIdx.x / 32] = before;
    if (threadIdx.x < 32) {
        int inclusive = lane < GROUP && first + lane < BOXES ? count[first + lane] : 0;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(FULL, inclusive, d);
            if (lane >= d) inclusive += other;
        }
        if (lane < GROUP) s.begin[lane + 1] = inclusive;
        if (lane == 0) s.begin[0] = 0;
    }
    __syncthreads();
    before = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) before += s.before[w];
    return before;
}

// Box of the block to which its part t belongs.
__device__ __forceinline__ int owner(const Shared& s, int t) {
    int b = 0;
#pragma unroll
    for (int half = GROUP / 2; half > 0; half /= 2) b += s.begin[b + half] <= t ? half : 0;
    return b;
}

// Writes the numbers of the block's parts, box by box as they arrived.
__device__ __forceinline__ void copy_lists(const Shared& s, const int* __restrict__ arrived, const int* __restrict__ next,
                                           int* list) {
    const int* boxes = arrived + blockIdx.x * GROUP * LISTED;
    for (int t = threadIdx.x; t < s.begin[GROUP]; t += THREADS) {
        const int b = owner(s, t), k = t - s.begin[b];
        if (k < LISTED) list[t] = boxes[b * LISTED + k];
    }
    if (threadIdx.x < GROUP && s.begin[threadIdx.x] + LISTED < s.begin[threadIdx.x + 1]) {
        int part = boxes[threadIdx.x * LISTED + LISTED - 1];
        for (int t = s.begin[threadIdx.x] + LISTED; t < s.begin[threadIdx.x + 1]; t++) list[t] = part = next[entry_of(part)];
    }
}

// Sum over the lanes of a box.
__device__ __forceinline__ real group_sum(real value) {
#pragma unroll
    for (int d = 1; d < P2M_LANES; d *= 2) value += __shfl_xor_sync(FULL, value, d);
    return value;
}

// Moments of a box, terms of the orders of warp WARP; each of its lanes takes every P2M_LANES-th part. Returns the lane's
// share of sum Q |x|^2.
template <int WARP>
__device__ __forceinline__ double moments_of(const Shared& s, int box, int lane, int count, const real4* xq,
                                             real* __restrict__ moments) {
    constexpr int FIRST = first_order(WARP, WARPS), LAST = first_order(WARP + 1, WARPS);
    real2 sum[LAST - FIRST + 1][ORDER + 1 - FIRST] = {};
    double second = 0;
#pragma unroll 1
    for (int k = lane; k < count; k += P2M_LANES) {
        const real4 part = k < DEPTH ? s.part[k][box] : xq[k];
        const real r2 = part.x * part.x + part.y * part.y + part.z * part.z;
        if (WARP == WARPS - 1) second += double(part.w) * double(r2);
        real2 power = {part.w, 0};
#pragma unroll
        for (int m = 0; m < LAST; m++) {
            if (m >= FIRST) {
                real q[ORDER + 1];
                degree_factors<ORDER>(m, part.z, r2, q);
#pragma unroll
                for (int l = m; l <= ORDER; l++) {
                    sum[m - FIRST][l - FIRST].x += power.x * q[l];
                    if (m > 0) sum[m - FIRST][l - FIRST].y += power.y * q[l];
                }
            }
            power = next_power(m, part.x, part.y, power);
        }
    }
#pragma unroll
    for (int m = FIRST; m < LAST; m++)
#pragma unroll
        for (int l = m; l <= ORDER; l++) {
            real2& value = sum[m - FIRST][l - FIRST];
            value.x = group_sum(value.x);
            if (m > 0) value.y = group_sum(value.y);
        }
    if (moments == nullptr) return second;
#pragma unroll
    for (int m = FIRST; m < LAST; m++)
#pragma unroll
        for (int l = m; l <= ORDER; l++) {
            const real2 value = sum[m - FIRST][l - FIRST];
            moments[term(l, m) * (long long)POINTS] = value.x;
            if (m > 0) moments[term(l, -m) * (long long)POINTS] = value.y;
        }
    return second;
}

extern "C" __global__ void __launch_bounds__(THREADS)
p2m(const int* __restrict__ count /* (BOXES) */, const int* __restrict__ region_count /* (REGIONS) */,
    const int* __restrict__ arrived /* (BOXES, LISTED) */, const int* __restrict__ next /* (n, CORNERS) */,
    const Located* __restrict__ located, const real4* __restrict__ fraction, const int* __restrict__ slot /* (BOXES) */,
    const Parameters* __restrict__ parameters,
    int* number /* (parts): lists of crowded blocks */, int* __restrict__ start /* (BOXES + 1) */,
    int* __restrict__ sorted /* (parts): numbers */, int* __restrict__ place /* (n, CORNERS): inverse of sorted */,
    real4* xq /* (parts + 1): x, y, z, charge */, real* __restrict__ moments /* (TERMS, POINTS) in FFT order */,
    double* __restrict__ square /* (blocks): sum Q |x|^2 */) {
    __shared__ Shared s;
    const int first = count_parts(s, count, region_count), parts = s.begin[GROUP];
    const auto arrange = [&](int* list) {
        copy_lists(s, arrived, next, list);
        __syncthreads();
        for (int t = threadIdx.x; t < parts; t += THREADS) {
            const int b = owner(s, t), last = s.begin[b + 1], own = list[t], i = own >> 3, corner = SMOOTHED ? own & 7 : 0;
            const real4 u = fraction[i];
            const Part part = part_of(located[i], u, corner, parameters);
            const real4 value = {part.x, part.y, part.z, u.w * part.weight};
            int rank = 0;
            for (int j = s.begin[b]; j < last; j++) rank += list[j] < own;
            const int k = first + s.begin[b] + rank;
            sorted[k] = own;
            place[entry_of(own)] = k;
            xq[k] = value;
            if (rank < DEPTH) s.part[rank][b] = value;
        }
    };
    if (parts <= DEPTH * GROUP) arrange(s.list);
    else arrange(number + first);
    if (threadIdx.x < GROUP && blockIdx.x * GROUP + threadIdx.x < BOXES)
        start[blockIdx.x * GROUP + threadIdx.x] = first + s.begin[threadIdx.x];
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
        start[BOXES] = first + parts;
        xq[first + parts] = real4{real(1e6), real(1e6), real(1e6), 0};  // fills up lists in p2p
    }
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = lane / P2M_LANES, member = lane % P2M_LANES;
    const int box = blockIdx.x * GROUP + mine, begin = s.begin[mine], many = s.begin[mine + 1] - begin;
    const real4* own = xq + first + begin;
    real* to = member == 0 && box < BOXES ? moments + slot[box] : nullptr;
    switch (warp) {
        case 0: moments_of<0>(s, mine, member, many, own, to); break;
        case 1: moments_of<1>(s, mine, member, many, own, to); break;
        case 2: moments_of<2>(s, mine, member, many, own, to); break;
        default: {
            const double second = warp_sum(moments_of<3>(s, mine, member, many, own, to));
            if (lane == 0) square[blockIdx.x] = second;
        }
    }
}
