// m2l_planes: rotates moments into the planes of m2l by rotation, and local expansions back, see
// common/rotation.cuh. A block of one warp owns one degree, ORDER - blockIdx.y, of a group of 32
// boxes.
//
//   to_planes      F Z(-alpha) F M, terms of degree l times (-1)^l
//   from_planes    F^T sum_planes Z(alpha) F^T L_plane, where L_plane is summed over its shares and
//                  parts. Overwrites the local expansions if `initial`, else adds to them
#include "common/rotation.cuh"

// Minimum blocks per multiprocessor. 0 leaves the choice to the compiler, which would spill
// registers for doubles.
#define BLOCKS_PER_MULTIPROCESSOR (sizeof(real) == 4 ? 0 : (ORDER > 16 ? 8 : 12))

// y = F x, or F^T x.
template <int L, bool TRANSPOSED = false>
__device__ __forceinline__ void swap_xz(const Degree<L>& x, Degree<L>& y) {
#pragma unroll
    for (int m = 0; m <= L; m++) {
        real c = 0, s = 0;
#pragma unroll
        for (int k = 0; k <= L; k++) {
            if ((L + m + k) % 2 == 0)
                c += real(TRANSPOSED ? SWAP_XZ.real_part[L][k][m] : SWAP_XZ.real_part[L][m][k]) *
                     x[L + k];
            if ((L + m + k) % 2 == 1 && m > 0 && k > 0)
                s += real(TRANSPOSED ? SWAP_XZ.imaginary_part[L][k][m]
                                     : SWAP_XZ.imaginary_part[L][m][k]) *
                     x[L - k];
        }
        y[L + m] = c;
        if (m > 0) y[L - m] = s;
    }
}

// Calls visit.degree<L>() for the block's degree L.
template <int L = ORDER, class Visit>
__device__ __forceinline__ void for_degree(const Visit& visit) {
    if (blockIdx.y == ORDER - L) visit.template degree<L>();
    if constexpr (L > 0) for_degree<L - 1>(visit);
}

struct ToPlanes {
    int planes;
    const Rotation* __restrict__ turns;
    const real* __restrict__ from;
    real* __restrict__ to;
    long long length;  // of a plane's slabs

    template <int L>
    __device__ __forceinline__ void degree() const {
        Degree<L> moments, x, y;
#pragma unroll
        for (int k = 0; k <= 2 * L; k++) y[k] = from[(L * L + k) * WARP];
        swap_xz<L>(y, moments);
#pragma unroll 1
        for (int plane = 0; plane < planes; plane++) {
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) x[k] = moments[k];
            rotate_z<L, 1>(x, turns[plane].phase);
            swap_xz<L>(x, y);
#pragma unroll
            for (int k = 0; k <= 2 * L; k++)
                to[plane * length + (L * L + k) * WARP] = L % 2 == 1 ? -y[k] : y[k];
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARP, BLOCKS_PER_MULTIPROCESSOR)
    to_planes(int half, int planes, const Rotation* __restrict__ turns /* (planes) */,
              const real* __restrict__ moments /* slabs */,
              real* __restrict__ turned /* (planes) slabs */) {
    // lanes beyond the last parent
    if (int(blockIdx.x % groups_of(half) * WARP + threadIdx.x) >= parents_of(half)) return;
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x;
    for_degree(
        ToPlanes{planes, turns, moments + at, turned + at, gridDim.x * (long long)(TERMS * WARP)});
}

struct FromPlanes {
    bool initial;
    int planes, shares;
    const Rotation* __restrict__ turns;
    const real* __restrict__ from;
    real* __restrict__ to;
    long long length;

    template <int L>
    __device__ __forceinline__ void degree() const {
        Degree<L> sum = {}, y;
#pragma unroll 1
        for (int plane = 0; plane < planes; plane++) {
            Degree<L> x = {};
#pragma unroll 1
            for (int share = 0; share < shares; share++) {
#pragma unroll
                for (int part = 0; part < PARTS_EVEN; part++)
                    add<L, 0>((part * planes + plane) * shares + share, x);
#pragma unroll
                for (int part = 0; part < PARTS_ODD; part++)
                    add<L, 1>((part * planes + plane) * shares + share, x);
            }
            swap_xz<L, true>(x, y);
            rotate_z<L, -1>(y, turns[plane].phase);
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) sum[k] += y[k];
        }
        swap_xz<L, true>(sum, y);
#pragma unroll
        for (int k = 0; k <= 2 * L; k++)
            to[(L * L + k) * WARP] = initial ? y[k] : to[(L * L + k) * WARP] + y[k];
    }

    // Adds the terms of one parity in the n-th slabs to x.
    template <int L, int PARITY>
    __device__ __forceinline__ void add(int n, Degree<L>& x) const {
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            x[L + k] += from[n * length + (L * L + L + k) * WARP];
            if (k > 0) x[L - k] += from[n * length + (L * L + L - k) * WARP];
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARP, BLOCKS_PER_MULTIPROCESSOR)
    from_planes(int initial, int planes, int shares,
                const Rotation* __restrict__ turns /* (planes) */,
                const real* __restrict__ sums /* (PARTS_EVEN planes shares) slabs */,
                real* __restrict__ local /* slabs */) {
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x;
    for_degree(FromPlanes{initial != 0, planes, shares, turns, sums + at, local + at,
                          gridDim.x * (long long)(TERMS * WARP)});
}
