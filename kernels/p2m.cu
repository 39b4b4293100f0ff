// p2m: sorts the parts of each box by number and computes the moments of the box,
//
//     M_a = sum_j Q_j R_a(x_j)
//
// with x_j relative to the box's centre. For several sets of charges, p2m_sets computes the
// moments.
//
// A block owns GROUP boxes. Its threads first sort the parts, which makes all later sums
// reproducible. Then P2M_LANES lanes own a box: each warp accumulates its share of the orders m in
// registers, over the parts of all boxes of the block, which it reads from shared memory. Bound
// equally by instruction issue and by latency, because boxes wait for the fullest one; by latency
// alone in small systems.
#include "common/dependency.cuh"
#include "common/harmonics.cuh"
#include "common/parts.cuh"
#include "common/reduce.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define GROUP (32 / P2M_LANES)
#define SHARED_PARTS (LISTED < 48 ? LISTED : 48)  // parts per box in shared memory
#define ITEMS 2                                   // parts that a thread handles at once

struct Shared {
    real4 part[SHARED_PARTS][GROUP];    // the first parts of each box, in order
    int list[GROUP][SHARED_PARTS + 4];  // part numbers of each box in order of arrival, padded with
                                        // a larger number
    unsigned short entry[GROUP * SHARED_PARTS];  // position in the lists of each part of the block
    int begin[GROUP + 1];                        // number of the block's parts before each box
    int before[WARPS];  // each warp's share of the number of parts before the block's
    bool crowded;       // whether any box has more than SHARED_PARTS parts
};

template <class Value>
__device__ __forceinline__ Value warp_sum(Value value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(FULL, value, d);
    return value;
}

// Computes the first part of each box of the block. Returns the number of parts in all boxes before
// the block's.
__device__ __forceinline__ int count_parts(Shared& s, const int* __restrict__ count,
                                           const int* __restrict__ region_count) {
    const int first = blockIdx.x * GROUP, region = first / REGION, lane = threadIdx.x % 32;
    int before = 0;
#pragma unroll
    for (int r = 0; r < (BOXES - 1) / REGION; r += THREADS)
        if (r + threadIdx.x < region) before += region_count[r + threadIdx.x];
    for (int b = region * REGION + threadIdx.x; b < first; b += THREADS) before += count[b];
    before = warp_sum(before);
    if (lane == 0) s.before[threadIdx.x / 32] = before;
    if (threadIdx.x < 32) {
        const int here = lane < GROUP && first + lane < BOXES ? count[first + lane] : 0;
        const bool crowded = __any_sync(FULL, here > SHARED_PARTS);
        const int inclusive = prefix_sum(here);
        if (lane < GROUP) s.begin[lane + 1] = inclusive;
        if (lane == 0) {
            s.begin[0] = 0;
            s.crowded = crowded;
        }
    }
    __syncthreads();
    before = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) before += s.before[w];
    return before;
}

// Box, within the block, of the block's part t.
__device__ __forceinline__ int owner(const Shared& s, int t) {
    int b = 0;
#pragma unroll
    for (int half = GROUP / 2; half > 0; half /= 2) b += s.begin[b + half] <= t ? half : 0;
    return b;
}

// Copies the lists of all boxes of a block that is not crowded to shared memory.
__device__ __forceinline__ void copy_lists(Shared& s, const int* __restrict__ arrived) {
#pragma unroll
    for (int from = 0; from < GROUP * SHARED_PARTS; from += THREADS) {
        const int e = from + threadIdx.x, b = e / SHARED_PARTS, k = e % SHARED_PARTS;
        if (e >= GROUP * SHARED_PARTS) break;
        const int begin = s.begin[b];
        const bool used = begin + k < s.begin[b + 1];
        s.list[b][k] =
            used ? arrived[(blockIdx.x * GROUP + b) * (long long)LISTED + k] : 0x7fffffff;
        if (used) s.entry[begin + k] = e;
    }
}

// The number of entries of a box's list that are less than `own`.
__device__ __forceinline__ int rank_in(const int* list, int count, int own) {
    int rank = 0;
#pragma unroll 2
    for (int k = 0; k < count; k += 4) {
        const int4 number = *reinterpret_cast<const int4*>(list + k);
        rank += (number.x < own) + (number.y < own) + (number.z < own) + (number.w < own);
    }
    return rank;
}

// For crowded blocks: writes the numbers of the block's parts to memory, box by box in order of
// arrival.
__device__ __forceinline__ void copy_long_lists(const Shared& s, int n,
                                                const int* __restrict__ arrived,
                                                const int* __restrict__ next, int* number) {
    for (int b = threadIdx.x / 32; b < GROUP; b += WARPS) {
        const int begin = s.begin[b], count = s.begin[b + 1] - begin;
        const int* list = arrived + (blockIdx.x * GROUP + b) * (long long)LISTED;
        for (int k = threadIdx.x % 32; k < min(count, LISTED); k += 32) number[begin + k] = list[k];
        if (threadIdx.x % 32 > 0 || count <= LISTED) continue;
        int part = list[LISTED - 1];
#pragma unroll 1
        for (int k = LISTED; k < count; k++) number[begin + k] = part = next[entry_of(part, n)];
    }
}

// Sums over the lanes of a box. Lane i receives the sums of the values i, i + P2M_LANES, ... in its
// first elements.
template <int SIZE>
__device__ __forceinline__ void sum_over_lanes(real (&value)[SIZE], int lane) {
#pragma unroll
    for (int d = 1; d < P2M_LANES; d *= 2) {
        const bool upper = lane & d;
#pragma unroll
        for (int k = 0; k < SIZE / d; k += 2) {
            const real give = upper ? value[k] : value[k + 1],
                       keep = upper ? value[k + 1] : value[k];
            value[k / 2] = keep + __shfl_xor_sync(FULL, give, d);
        }
    }
}

// Number of terms of the orders first <= m < last, real and imaginary.
__host__ __device__ constexpr int terms_of(int first, int last) {
    return first == last ? 0
                         : (first > 0 ? 2 : 1) * (ORDER + 1 - first) + terms_of(first + 1, last);
}

// Calls visit(k, l, m) for the terms of the orders FIRST <= m < LAST with k = 0, 1, ...; m < 0
// denotes imaginary parts.
template <int FIRST, int LAST, class Visit>
__device__ __forceinline__ void for_each_term(Visit visit) {
    int k = 0;
#pragma unroll
    for (int m = FIRST; m < LAST; m++)
#pragma unroll
        for (int l = m; l <= ORDER; l++) {
            visit(k++, l, m);
            if (m > 0) visit(k++, l, -m);
        }
}

// Computes the moments of a box for the orders of warp WARP; each lane of the box takes every
// P2M_LANES-th part. Returns the lane's share of sum_k c_k S_k.
template <int WARP>
__device__ __forceinline__ double moments_of(const Shared& s, int box, int lane, int count,
                                             const real4* xq, const double* background,
                                             real* __restrict__ moments) {
    constexpr int FIRST = first_order(WARP, WARPS), LAST = first_order(WARP + 1, WARPS);
    // for low expansion orders some warps have no work
    constexpr int COUNT = FIRST < LAST ? terms_of(FIRST, LAST) : 1;
    real sum[(COUNT + P2M_LANES - 1) / P2M_LANES * P2M_LANES] = {};
    double second = 0;
    const real cx = real(background[0]), cy = real(background[1]), cz = real(background[2]);
#pragma unroll 1
    for (int k = lane; k < count; k += P2M_LANES) {
        const real4 part = k < SHARED_PARTS ? s.part[k][box] : xq[k];
        const real x2 = part.x * part.x, y2 = part.y * part.y, z2 = part.z * part.z;
        const real r2 = x2 + y2 + z2;
        if (WARP == WARPS - 1) second += double(part.w) * double(cx * x2 + cy * y2 + cz * z2);
        real2 power[LAST + 1];
        power[0] = real2{part.w, 0};
#pragma unroll
        for (int m = 1; m < LAST; m++) power[m] = next_power(m - 1, part.x, part.y, power[m - 1]);
        real q[ORDER + 1];
        for_each_term<FIRST, LAST>([&](int k, int l, int m) {
            if (l == m) degree_factors<ORDER>(m, part.z, r2, q);
            sum[k] += m < 0 ? power[-m].y * q[l] : power[m].x * q[l];
        });
    }
    sum_over_lanes(sum, lane);
    if (moments == nullptr) return second;
    for_each_term<FIRST, LAST>([&](int k, int l, int m) {
        if (lane == k % P2M_LANES) moments[term(l, m) * (long long)STRIDE] = sum[k / P2M_LANES];
    });
    return second;
}

// Stores the first part of each of the block's boxes; the last block stores the end, too, and a
// part that is far from all others, as padding for p2p.
__device__ __forceinline__ void store_starts(const Shared& s, int first, int* __restrict__ start,
                                             real4* xq) {
    if (threadIdx.x < GROUP && blockIdx.x * GROUP + threadIdx.x < BOXES)
        start[blockIdx.x * GROUP + threadIdx.x] = first + s.begin[threadIdx.x];
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
        const int end = first + s.begin[GROUP];
        start[BOXES] = end;
        xq[end] = real4{real(1e6), real(1e6), real(1e6), 0};
    }
}

// Whether any box of the block has a slot; those of other ranks have none.
__device__ __forceinline__ bool has_slot(const int* __restrict__ slot) {
    const int box = blockIdx.x * GROUP + threadIdx.x % GROUP;
    return __any_sync(FULL, box < BOXES && slot[box] >= 0);
}

// Stores the moments of the block's boxes, each warp those of its orders, and sum_k c_k S_k.
__device__ __forceinline__ void store_moments(const Shared& s, const real4* xq,
                                              const double* __restrict__ background,
                                              const int* __restrict__ slot,
                                              real* __restrict__ moments,
                                              double* __restrict__ square) {
    const int lane = threadIdx.x % 32, mine = lane / P2M_LANES, member = lane % P2M_LANES;
    const int box = blockIdx.x * GROUP + mine, begin = s.begin[mine];
    // without a slot are boxes of other ranks
    const bool stored = box < BOXES && (!HAS_SHARE || slot[box] >= 0);
    const int many = !HAS_SHARE || stored ? s.begin[mine + 1] - begin : 0;
    const real4* own = xq + begin;
    real* to = stored ? moments + slot[box] : nullptr;
    switch (threadIdx.x / 32) {
        case 0:
            moments_of<0>(s, mine, member, many, own, background, to);
            break;
        case 1:
            moments_of<1>(s, mine, member, many, own, background, to);
            break;
        case 2:
            moments_of<2>(s, mine, member, many, own, background, to);
            break;
        default: {
            const double second =
                warp_sum(moments_of<3>(s, mine, member, many, own, background, to));
            if (lane == 0) square[blockIdx.x] = second;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    p2m(int n, const int* __restrict__ count /* (BOXES) */,
        const int* __restrict__ region_count /* (REGIONS) */,
        const int* __restrict__ arrived /* (BOXES, LISTED) */,
        const int* __restrict__ next /* (CORNERS, n) */, const Located* __restrict__ located,
        const real4* __restrict__ fraction, const int* __restrict__ slot /* (BOXES) */,
        const Parameters* __restrict__ parameters,
        const double* __restrict__ background /* (3): c of fmm_openmm/expansions/background.py */,
        int* number /* (parts): lists of crowded blocks, in order of arrival */,
        int* __restrict__ start /* (BOXES + 1) */, int* __restrict__ sorted /* (parts): numbers */,
        int* __restrict__ place /* (CORNERS, n): inverse of sorted */,
        real4* xq /* (parts + 1): x, y, z, charge */,
        real* __restrict__ moments /* at slot[box] + STRIDE * term */,
        double* __restrict__ square /* (blocks): sum_k c_k S_k */) {
    __shared__ Shared s;
    wait_for_previous_kernel();
    const int first = count_parts(s, count, region_count), parts = s.begin[GROUP];
    if (HAS_SHARE && parts == 0 && !has_slot(slot)) {  // most blocks, where ranks are many
        store_starts(s, first, start, xq);
        if (threadIdx.x == 0) square[blockIdx.x] = 0;
        return;
    }
    const auto store_part = [&](int b, int rank, int own, const Located& at, const real4& u) {
        const Part part = part_of(at, u, SMOOTHED ? own & 7 : 0, parameters);
        const real4 value = {part.x, part.y, part.z, u.w * part.weight};
        const int k = first + s.begin[b] + rank;
        sorted[k] = own;
        place[entry_of(own, n)] = k;
        xq[k] = value;
        if (rank < SHARED_PARTS) s.part[rank][b] = value;
    };
    if (!s.crowded) {
        copy_lists(s, arrived);
        __syncthreads();
        for (int from = threadIdx.x; from < parts; from += ITEMS * THREADS) {
            int box[ITEMS], own[ITEMS];
            Located at[ITEMS];
            real4 u[ITEMS];
#pragma unroll
            for (int k = 0; k < ITEMS; k++) {
                const int e = s.entry[min(from + k * THREADS, parts - 1)];
                box[k] = e / SHARED_PARTS;
                own[k] = s.list[box[k]][e % SHARED_PARTS];
                at[k] = located[own[k] >> 3];
                u[k] = fraction[own[k] >> 3];
            }
#pragma unroll
            for (int k = 0; k < ITEMS; k++) {
                if (from + k * THREADS >= parts) break;
                const int many = s.begin[box[k] + 1] - s.begin[box[k]];
                store_part(box[k], rank_in(s.list[box[k]], many, own[k]), own[k], at[k], u[k]);
            }
        }
    } else {
        copy_long_lists(s, n, arrived, next, number + first);
        __syncthreads();
        for (int t = threadIdx.x; t < parts; t += THREADS) {
            const int b = owner(s, t), own = number[first + t], last = s.begin[b + 1];
            int rank = 0;
            for (int j = s.begin[b]; j < last; j++) rank += number[first + j] < own;
            store_part(b, rank, own, located[own >> 3], fraction[own >> 3]);
        }
    }
    store_starts(s, first, start, xq);
    if (SETS > 1) return;
    __syncthreads();
    store_moments(s, xq + first, background, slot, moments, square);
}
