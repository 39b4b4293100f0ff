// m2l_planes: moments turned into the planes of m2l by rotation, and local expansions turned back, see common/rotation.cuh.
// A block a group of 32 boxes, each of its PLANES_WARPS warps some of the degrees.
//
//   to_planes      F Z(-alpha) F M, terms of degree l times (-1)^l
//   from_planes    the sum over shares of F^T L
#include "common/rotation.cuh"

static __device__ constexpr Split<PLANES_WARPS> SPLIT;

template <int L = ORDER>
__device__ __forceinline__ void degrees_to_planes(int warp, int planes, const Turn* __restrict__ turns,
                                                  const real* __restrict__ from, real* __restrict__ to, long long length) {
    if (warp == SPLIT.degree[L]) {
        Degree<L> moments, x, y;
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) y[k] = from[(L * L + k) * WARP];
        flip<L>(y, moments);
#pragma unroll 1
        for (int plane = 0; plane < planes; plane++) {
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) x[k] = moments[k];
            turn<L, 1>(x, turns[plane].phase);
            flip<L>(x, y);
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) to[plane * length + (L * L + k) * WARP] = L % 2 == 1 ? -y[k] : y[k];
        }
    }
    if constexpr (L > 0) degrees_to_planes<L - 1>(warp, planes, turns, from, to, length);
}

extern "C" __global__ void __launch_bounds__(WARP * PLANES_WARPS)
to_planes(int half, int planes, const Turn* __restrict__ turns /* (planes) */, const real* __restrict__ moments /* slabs */,
          real* __restrict__ turned /* (planes) slabs */) {
    if (int(blockIdx.x % groups_of(half) * WARP + threadIdx.x % WARP) >= parents_of(half)) return;    // beyond the last parent
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x % WARP;
    const long long length = gridDim.x * (long long)(TERMS * WARP);
    degrees_to_planes(threadIdx.x / WARP, planes, turns, moments + at, turned + at, length);
}

template <int L = ORDER>
__device__ __forceinline__ void degrees_from_planes(int warp, int shares, const real* __restrict__ from, real* __restrict__ to,
                                                    long long length) {
    if (warp == SPLIT.degree[L]) {
        Degree<L> x, y;
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) x[k] = from[(L * L + k) * WARP];
        for (int share = 1; share < shares; share++)
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) x[k] += from[share * length + (L * L + k) * WARP];
        flip<L, true>(x, y);
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) to[(L * L + k) * WARP] = y[k];
    }
    if constexpr (L > 0) degrees_from_planes<L - 1>(warp, shares, from, to, length);
}

extern "C" __global__ void __launch_bounds__(WARP * PLANES_WARPS)
from_planes(int shares, const real* __restrict__ sums /* (shares) slabs */, real* __restrict__ local /* slabs */) {
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x % WARP;
    const long long length = gridDim.x * (long long)(TERMS * WARP);
    degrees_from_planes(threadIdx.x / WARP, shares, sums + at, local + at, length);
}
