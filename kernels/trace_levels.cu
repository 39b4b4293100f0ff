// trace_levels: the coefficients of the trace term with levels
// (fmm_openmm/expansions/background.py): as trace.cu has them, from Q, D and S about the centres of
// the leaves, and their changes -2 c_k (D'_k - D_k) and sum_k c_k (S'_k - S_k) if D and S are taken
// about the centres of the boxes of the root grid instead. All in float64.
//
//   trace_leaves  partial sums. A block sums some leaves
//   trace_sums    the sum over blocks. One block
#include "common/leaf_offset.cuh"

#define SUMS 8  // Q, D, D' - D, sum_k c_k (S'_k - S_k)
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
                 const double* __restrict__ background /* (3): c */,
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
        sum[7] += background[0] * a.x * (2 * dx + q * a.x) +
                  background[1] * a.y * (2 * dy + q * a.y) +
                  background[2] * a.z * (2 * dz + q * a.z);
    }
    for (int n = 0; n < SUMS; n++) {
        const double total = block_sum(sum[n]);
        if (threadIdx.x == 0) partial[blockIdx.x * SUMS + n] = total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    trace_sums(int blocks, const double* __restrict__ partial /* (blocks, SUMS) */, int squares,
               const double* __restrict__ square /* (squares), of p2m */,
               const double* __restrict__ background /* (3): c */,
               double* __restrict__ terms /* (11): those of trace, x, y, z, 1 of the changes */) {
    for (int n = 0; n <= SUMS; n++) {
        double value = 0;
        if (n < SUMS)
            for (int i = threadIdx.x; i < blocks; i += THREADS) value += partial[i * SUMS + n];
        else
            for (int i = threadIdx.x; i < squares; i += THREADS) value += square[i];
        value = block_sum(value);
        if (threadIdx.x != 0) continue;
        if (n == 0)
            for (int axis = 0; axis < 3; axis++) terms[axis] = background[axis] * value;
        else if (n < 7)
            terms[n < 4 ? n + 2 : n + 3] = -2 * background[(n - 1) % 3] * value;
        else
            terms[n == SUMS ? 6 : 10] = value;
    }
}
