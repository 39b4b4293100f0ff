// trace_levels: the sums of the trace term with levels (fmm_openmm/backends/trace.py): Q, D, S
// about the centres of the leaves, and the changes D' - D, S' - S of D and S if they are taken
// about the centres of the boxes of the root grid instead. All in float64.
//
//   trace_leaves  partial sums. A block sums some leaves
//   trace_sums    the sum over blocks. One block
#include "common/leaf_offset.cuh"

#define SUMS 8  // Q, D, D' - D, S' - S
#define THREADS 256

// Sum over the threads of a block; valid in thread 0.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double shared[THREADS];
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    trace_leaves(int half, const Parameters* __restrict__ parameters,
                 const real* __restrict__ moments /* slabs */,
                 double* __restrict__ partial /* (blocks, SUMS) */) {
    const int parents = parents_of(half);
    double sum[SUMS] = {};
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < 8 * parents; i += gridDim.x * THREADS) {
        const int child = i / parents;
        const Target parent(i % parents, half);
        const real* own = moments + parent.source(make_int4(0, 0, 0, child));
        const double q = own[0], dx = 2 * double(own[3 * WARP]), dy = 2 * double(own[WARP]),
                     dz = own[2 * WARP];
        const LeafOffset a(parent, child, parameters);
        sum[0] += q;
        sum[1] += dx;
        sum[2] += dy;
        sum[3] += dz;
        sum[4] += q * a.x;
        sum[5] += q * a.y;
        sum[6] += q * a.z;
        sum[7] += 2 * (a.x * dx + a.y * dy + a.z * dz) + q * a.square();
    }
    for (int n = 0; n < SUMS; n++) {
        const double total = block_sum(sum[n]);
        if (threadIdx.x == 0) partial[blockIdx.x * SUMS + n] = total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    trace_sums(int blocks, const double* __restrict__ partial /* (blocks, SUMS) */, int squares,
               const double* __restrict__ square /* (squares), of p2m */,
               double* __restrict__ sums /* (9): Q, D, S, D' - D, S' - S */) {
    for (int n = 0; n <= SUMS; n++) {
        double value = 0;
        if (n < SUMS)
            for (int i = threadIdx.x; i < blocks; i += THREADS) value += partial[i * SUMS + n];
        else
            for (int i = threadIdx.x; i < squares; i += THREADS) value += square[i];
        value = block_sum(value);
        if (threadIdx.x == 0) sums[n < 4 ? n : (n == SUMS ? 4 : n + 1)] = value;
    }
}
