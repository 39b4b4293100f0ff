// Sums over a block or a grid in float64, in a fixed order.
#pragma once
#include "common/real.cuh"

// Replaces the threads' values by their sums over the block, in a fixed order. Call
// __syncthreads() before the next call.
template <int BLOCK, int N>
__device__ __forceinline__ void sum_over_block(double (&values)[N]) {
    __shared__ double sum[N][BLOCK / 32];
#pragma unroll
    for (int k = 0; k < N; k++) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) values[k] += __shfl_xor_sync(FULL, values[k], d);
        if (threadIdx.x % 32 == 0) sum[k][threadIdx.x / 32] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        values[k] = 0;
        for (int w = 0; w < BLOCK / 32; w++) values[k] += sum[k][w];
    }
}

// Replaces the threads' values by their sums over the grid: blocks write partial sums, and the last
// block to finish, by its ticket, adds them. Returns whether this is the thread that has them.
template <int BLOCK, int N>
__device__ __forceinline__ bool sum_over_grid(double (&values)[N], double* partial, int* ticket) {
    __shared__ bool last;
    sum_over_block<BLOCK>(values);
    if (threadIdx.x == 0) {
        for (int k = 0; k < N; k++) partial[N * blockIdx.x + k] = values[k];
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return false;
    for (int k = 0; k < N; k++) values[k] = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += BLOCK)
        for (int k = 0; k < N; k++)
            values[k] += reinterpret_cast<volatile double*>(partial)[N * b + k];
    sum_over_block<BLOCK>(values);
    return threadIdx.x == 0;
}
