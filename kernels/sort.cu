// sort: particles to parts, ordered by box.
//
//   locate   a thread a particle: home box, coordinates in it, sides on which it is split; counts the parts of each box
//   scan     exclusive prefix sum of the counts, one pass, blocks look back at their predecessors
//   scatter  a thread a particle: number of each part (8 * particle + corner) into its box's range, in arrival order
//
// p2m puts each box's parts in order of their numbers, which makes all later sums repeatable. Bound by memory latency.
#include "common/types.cuh"
#include "common/parts.cuh"

extern "C" __global__ void locate(int n, const POSITION* __restrict__ positions /* (n, 3) nm */,
                                  const Parameters* __restrict__ parameters,
                                  Located* __restrict__ located, real4* __restrict__ fraction /* (n): u, unused */,
                                  int* __restrict__ count /* (BOXES), zeroed */) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    place_particle(i, positions[3 * i], positions[3 * i + 1], positions[3 * i + 2], parameters, located, fraction, count);
}

#define SCAN_THREADS 1024
#define SCAN_ITEMS 4

// state: a word a tile, zeroed: bit 63..62 0 nothing, 1 sum of the tile, 2 sum of all tiles up to here; and one counter.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
scan(const int* __restrict__ count /* (BOXES) */, int* __restrict__ start /* (BOXES + 1) */,
     int* __restrict__ cursor /* (BOXES) */, volatile uint64* __restrict__ state, int* __restrict__ ticket /* zeroed */) {
    __shared__ int warp_sum[32];
    __shared__ int tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first = (tile * SCAN_THREADS + threadIdx.x) * SCAN_ITEMS;
    int value[SCAN_ITEMS], sum = 0;
#pragma unroll
    for (int k = 0; k < SCAN_ITEMS; k++) {
        value[k] = first + k < BOXES ? count[first + k] : 0;
        sum += value[k];
    }
    int inclusive = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(FULL, inclusive, d);
        if (lane >= d) inclusive += other;
    }
    if (lane == 31) warp_sum[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        int total = warp_sum[lane];
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(FULL, total, d);
            if (lane >= d) total += other;
        }
        warp_sum[lane] = total;
        const int whole = __shfl_sync(FULL, total, 31);
        if (lane == 0) {
            int sum_before = 0;
            if (tile > 0) {
                state[tile] = (1ull << 62) | unsigned(whole);
                for (int t = tile - 1;; t--) {
                    uint64 word;
                    do word = state[t]; while ((word >> 62) == 0);
                    sum_before += int(word & 0xffffffffu);
                    if ((word >> 62) == 2) break;
                }
            }
            state[tile] = (2ull << 62) | unsigned(sum_before + whole);
            before = sum_before;
        }
    }
    __syncthreads();
    int running = before + (warp > 0 ? warp_sum[warp - 1] : 0) + inclusive - sum;
#pragma unroll
    for (int k = 0; k < SCAN_ITEMS; k++) {
        if (first + k < BOXES) {
            start[first + k] = running;
            cursor[first + k] = running;
        }
        running += value[k];
        if (first + k == BOXES - 1) start[BOXES] = running;
    }
}

extern "C" __global__ void scatter(int n, const Located* __restrict__ located, int* __restrict__ cursor /* (BOXES) */,
                                   int* __restrict__ number /* (parts): 8 * particle + corner, any order in a box */) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Located at = located[i];
    for_each_corner(at, [&](int corner) { number[atomicAdd(&cursor[box_of(at, corner)], 1)] = 8 * i + corner; });
}
