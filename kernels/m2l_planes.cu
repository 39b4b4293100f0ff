// m2l_planes: moments turned into the planes of m2l by rotation, and local expansions turned back,
// see common/rotation.cuh. A block, of one warp, a degree of a group of 32 boxes: blockIdx.y is by
// how much it is lower than the order.
//
//   to_planes      F Z(-alpha) F M, terms of degree l times (-1)^l
//   from_planes    F^T sum_planes Z(alpha) F^T L_plane, each the sum of its shares and parts; added
//                  to what is there, or at first instead
#include "common/rotation.cuh"

// Blocks of a multiprocessor, at least; as the compiler chooses for floats,
// which for doubles would spill.
#define RESIDENT (sizeof(real) == 4 ? 0 : (ORDER > 16 ? 8 : 12))

// F, or F^T.
template <int L, bool TRANSPOSED = false>
__device__ __forceinline__ void flip(const Degree<L>& x, Degree<L>& y) {
#pragma unroll
    for (int m = 0; m <= L; m++) {
        real c = 0, s = 0;
#pragma unroll
        for (int k = 0; k <= L; k++) {
            if ((L + m + k) % 2 == 0)
                c +=
                    real(TRANSPOSED ? FLIP.real_part[L][k][m] : FLIP.real_part[L][m][k]) * x[L + k];
            if ((L + m + k) % 2 == 1 && m > 0 && k > 0)
                s +=
                    real(TRANSPOSED ? FLIP.imaginary_part[L][k][m] : FLIP.imaginary_part[L][m][k]) *
                    x[L - k];
        }
        y[L + m] = c;
        if (m > 0) y[L - m] = s;
    }
}

// Calls visit.degree<L>() for the degree of the block.
template <int L = ORDER, class Visit>
__device__ __forceinline__ void for_degree(const Visit& visit) {
    if (blockIdx.y == ORDER - L) visit.template degree<L>();
    if constexpr (L > 0) for_degree<L - 1>(visit);
}

struct ToPlanes {
    int planes;
    const Turn* __restrict__ turns;
    const real* __restrict__ from;
    real* __restrict__ to;
    long long length;  // of the slabs of a plane

    template <int L>
    __device__ __forceinline__ void degree() const {
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
            for (int k = 0; k <= 2 * L; k++)
                to[plane * length + (L * L + k) * WARP] = L % 2 == 1 ? -y[k] : y[k];
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARP, RESIDENT)
    to_planes(int half, int planes, const Turn* __restrict__ turns /* (planes) */,
              const real* __restrict__ moments /* slabs */,
              real* __restrict__ turned /* (planes) slabs */) {
    // beyond the last parent
    if (int(blockIdx.x % groups_of(half) * WARP + threadIdx.x) >= parents_of(half)) return;
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x;
    for_degree(
        ToPlanes{planes, turns, moments + at, turned + at, gridDim.x * (long long)(TERMS * WARP)});
}

struct FromPlanes {
    bool initial;
    int planes, shares;
    const Turn* __restrict__ turns;
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
            flip<L, true>(x, y);
            turn<L, -1>(y, turns[plane].phase);
#pragma unroll
            for (int k = 0; k <= 2 * L; k++) sum[k] += y[k];
        }
        flip<L, true>(sum, y);
#pragma unroll
        for (int k = 0; k <= 2 * L; k++)
            to[(L * L + k) * WARP] = initial ? y[k] : to[(L * L + k) * WARP] + y[k];
    }

    // Adds the terms of a parity in the n-th slabs.
    template <int L, int PARITY>
    __device__ __forceinline__ void add(int n, Degree<L>& x) const {
#pragma unroll
        for (int k = (L + PARITY) % 2; k <= L; k += 2) {
            x[L + k] += from[n * length + (L * L + L + k) * WARP];
            if (k > 0) x[L - k] += from[n * length + (L * L + L - k) * WARP];
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARP, RESIDENT)
    from_planes(int initial, int planes, int shares, const Turn* __restrict__ turns /* (planes) */,
                const real* __restrict__ sums /* (PARTS_EVEN planes shares) slabs */,
                real* __restrict__ local /* slabs */) {
    const long long at = blockIdx.x * (long long)(TERMS * WARP) + threadIdx.x;
    for_degree(FromPlanes{initial != 0, planes, shares, turns, sums + at, local + at,
                          gridDim.x * (long long)(TERMS * WARP)});
}
