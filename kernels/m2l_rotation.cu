// m2l_rotation: M2L of a level of an octree by rotation, see common/rotation.cuh; a lane a target.
//
// A block has up to 32 M2L_WARPS targets of one child position, so that its lanes share r. Its warps meet at every source, so
// that they share the instructions they fetch. Loops are unrolled, entries of F are immediates. M' and L'' stay in registers,
// the sums of a plane in shared memory, a column a lane.
//
//   M2L_WARPS  warps a block at most      BLOCKS  of a multiprocessor, at least
#include "common/rotation.cuh"

template <int L>
__device__ __forceinline__ void load(const real* __restrict__ source, Degree<L>& x) {
#pragma unroll
    for (int k = 0; k <= 2 * L; k++) x[k] = source[(L * L + k) * WARP];
}

// M' and L'' of a lane.
using Frame = real[TERMS];

// Degree L, already loaded, into the frame g, and on to the next.
template <int L>
__device__ __forceinline__ void forward(const real* __restrict__ source, Degree<L>& x, const real2* theta, Frame& frame) {
    constexpr bool AHEAD = L < ORDER && sizeof(real) == 4;    // doubles would not find enough registers
    Degree<L + 1> next;
    Degree<L> y;
    if constexpr (AHEAD) load<L + 1>(source, next);
    turn<L, 1>(x, theta);
    flip<L>(x, y);
#pragma unroll
    for (int k = 0; k <= 2 * L; k++) frame[L * L + k] = y[k];
    if constexpr (L < ORDER && !AHEAD) load<L + 1>(source, next);
    if constexpr (L < ORDER) forward<L + 1>(source, next, theta, frame);
}

// Along z: the column of order M, M < 0 for imaginary parts, of M' to that of S L'', and on to the next.
template <int M = -ORDER>
__device__ __forceinline__ void translate(const real (&power)[2 * ORDER + 1], Frame& frame) {
    constexpr int FIRST = M < 0 ? -M : M;
    real x[ORDER + 1];
#pragma unroll
    for (int j = FIRST; j <= ORDER; j++) x[j] = frame[j * j + j + M];
#pragma unroll
    for (int l = FIRST; l <= ORDER; l++) {
        real sum = 0;
#pragma unroll
        for (int j = FIRST; j <= ORDER; j++) sum += power[l + j] * x[j];
        frame[l * l + l + M] = M == 0 ? sum / 2 : (FIRST % 2 == 1 ? -sum : sum);
    }
    if constexpr (M < ORDER) translate<M + 1>(power, frame);
}

// Degree L from the frame g, added to the sums of the plane, and on to the next.
template <int L = 0>
__device__ __forceinline__ void back(const Frame& frame, const real2* theta, real* sums) {
    Degree<L> x, y;
#pragma unroll
    for (int k = 0; k <= 2 * L; k++) x[k] = frame[L * L + k];
    flip<L, true>(x, y);
    turn<L, -1>(y, theta);
#pragma unroll
    for (int k = 0; k <= 2 * L; k++) sums[(L * L + k) * WARP] += y[k];
    if constexpr (L < ORDER) back<L + 1>(frame, theta, sums);
}

// Adds the sums of a plane, turned back, to `local` or, at first, sets it.
template <int L = 0>
__device__ __forceinline__ void finish(bool initial, const real2* __restrict__ alpha, real* sums, real* local) {
    Degree<L> x, y;
#pragma unroll
    for (int k = 0; k <= 2 * L; k++) {
        real* sum = &sums[(L * L + k) * WARP];
        x[k] = *sum;
        *sum = 0;
    }
    flip<L, true>(x, y);
    turn<L, -1>(y, alpha);
    add_degree<L>(initial, y, local);
    if constexpr (L < ORDER) finish<L + 1>(initial, alpha, sums, local);
}

extern "C" __global__ void __launch_bounds__(WARP * M2L_WARPS, BLOCKS)
m2l_rotation(int half, int initial, const int* __restrict__ start /* (8 gridDim.z + 1) */, const int4* __restrict__ list,
             const Turn* __restrict__ turns /* (translations) */, const Turn* __restrict__ turns_of_planes /* (planes) */,
             const real* __restrict__ turned /* (planes) slabs */, real* __restrict__ sums /* (gridDim.z) slabs */) {
    extern __shared__ char memory[];    // for each warp (TERMS, WARP)
    __shared__ Turn along;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, child = blockIdx.y;
    const int groups = groups_of(half), group = blockIdx.x * (blockDim.x / WARP) + warp;
    if (group >= groups) return;
    Frame frame;
    const Target target(group * WARP + lane, half);
    real* of_plane = reinterpret_cast<real*>(memory) + warp * (TERMS * WARP) + lane;
    real* local = sums + slab_of(blockIdx.z, child, group, half) + lane;
    start += child * gridDim.z + blockIdx.z;
    const int end = start[1];
    if (start[0] == end) return clear(initial, 0, 1, local);
#pragma unroll 4
    for (int a = 0; a < TERMS; a++) of_plane[a * WARP] = 0;
    int4 source = list[start[0]];
#pragma unroll 1
    for (int i = start[0]; i < end;) {
        const int plane = plane_of(source);
        const real* moments = turned + plane * plane_length(half) + target.source(source);
        Degree<0> x;
        load<0>(moments, x);
        __syncthreads();
        if (warp == 0)
            for (int k = lane; k < NUMBERS; k += WARP)
                reinterpret_cast<real*>(&along)[k] = reinterpret_cast<const real*>(turns + turn_of(source))[k];
        __syncthreads();
        forward<0>(moments, x, along.phase, frame);
        {
            real power[2 * ORDER + 1];
#pragma unroll
            for (int n = 0; n <= 2 * ORDER; n++) power[n] = along.power[n];
            translate(power, frame);
        }
        back(frame, along.phase, of_plane);
        i++;
        if (i < end) source = list[i];
        if (i == end || plane_of(source) != plane) {
            finish(initial, turns_of_planes[plane].phase, of_plane, local);
            initial = 0;
        }
    }
}
