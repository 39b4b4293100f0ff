// trace: the sums Q, D, S of the trace term (docs/explanation/method.md), times `share`, one box's
// share of the cell. Q and D are the moments at k = 0; S is summed over the blocks of p2m.
//
// One block. Bound by latency, and concurrent with the convolution.
#include "common/types.cuh"

extern "C" __global__ void trace(
    const real2* __restrict__ spectrum /* (TERMS, waves) of the moments */, int waves,
    const double* __restrict__ square /* (squares) */, int squares, double share,
    double* __restrict__ sums /* (5): Q, D, S */) {
    __shared__ double partial[1024];
    double s = 0;
    for (int b = threadIdx.x; b < squares; b += blockDim.x) s += square[b];
    partial[threadIdx.x] = s;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[0] = share * spectrum[0].x;
        sums[1] = share * 2 * spectrum[3 * (long long)waves].x;  // R_11 = (x + i y) / 2
        sums[2] = share * 2 * spectrum[1 * (long long)waves].x;
        sums[3] = share * spectrum[2 * (long long)waves].x;
        sums[4] = share * partial[0];
    }
}
