// p2p_points: potentials and fields of the parts in the near stencil of each box, at points that
// are not particles, without exclusions. At a point on a charge the results are not finite.
//
// A block owns a box. Its warps load the sources, WINDOW at a time, to shared memory; then a thread
// owns POINTS_EACH points at a time, and all threads read the same source. Bound by instruction
// issue where boxes hold many points.
#include "common/p2p_sums.cuh"

#define THREADS 128
#define POINTS_EACH 2

// Moves sources without charge, which may lie at a point, out of the way.
__device__ __forceinline__ void hide_uncharged(Shared& s, int from, int to, int lane) {
    for (int k = from + lane; k < to; k += 32)
        if (s.source[k].w == 0) s.source[k].x = real(1e6);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    p2p_points(const int* __restrict__ start /* (BOXES + 1) of the points */,
               const real4* __restrict__ xq /* (points) */,
               const int* __restrict__ source_start /* (BOXES + 1) of the parts */,
               const real4* __restrict__ source_xq /* (parts + 1) */,
               const int4* __restrict__ offset /* (NEAR) */,
               const real4* __restrict__ shift /* (NEAR): offset in box widths */,
               real4* __restrict__ near /* (points): potential, field */) {
    __shared__ Shared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, box = blockIdx.x;
    const int first = start[box], last = start[box + 1];
    if (first == last) return;
    if (warp == 0) list_rows(s, box, lane, source_start, offset);
    __syncthreads();
    int window = 0;
    do {
        if (warp == 0) index_sources(s, window, lane, source_start[BOXES]);
        __syncthreads();
        for (int from = warp * FETCH_SIZE, end = padded_size(s, window); from < end;
             from += THREADS / 32 * FETCH_SIZE) {
            fetch(s, from, from + FETCH_SIZE, lane, source_xq, shift);
            hide_uncharged(s, from, from + FETCH_SIZE, lane);
        }
        __syncthreads();
        const int sources = min(WINDOW, s.begin[NEAR] - window);
        for (int k = first + threadIdx.x; k < last; k += THREADS * POINTS_EACH) {
            real4 target[POINTS_EACH];
            Field sum[POINTS_EACH];
            Work work;
#pragma unroll
            for (int t = 0; t < POINTS_EACH; t++) {
                target[t] = xq[min(k + t * THREADS, last - 1)];
                sum[t] = Field{0, 0, 0, 0};
            }
#pragma unroll 4
            for (int j = 0; j < sources; j++)
                interact<false, true>(target, s.source[j], 0, sum, work);
#pragma unroll
            for (int t = 0; t < POINTS_EACH; t++) {
                if (k + t * THREADS >= last) continue;
                real4& result = near[k + t * THREADS];
                if (window > 0) sum[t] += Field{result.x, result.y, result.z, result.w};
                result = real4{sum[t].phi, sum[t].x, sum[t].y, sum[t].z};
            }
        }
        __syncthreads();
        window += WINDOW;
    } while (window < s.begin[NEAR]);
}
