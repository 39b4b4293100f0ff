// m2l_rotation: M2L of a level of an octree by rotation, O(p^3) for each pair of boxes.
//
// The vector r from the source's centre to the target's, of length R, is g z with g = Rz(alpha) Q Rz(-theta) Q, where Q swaps x
// and z. In the frame g the translation runs along z and keeps the order m:
//
//     M' = F Z(theta) F Z(-alpha) M      L''_lm = sum_j (l + j)! / R^(l+j+1) M'_jm      L = Z(alpha) F^T Z(-theta) F^T S L''
//
// Z(b) multiplies order m by exp(i m b). F, R_a(Q y) = sum_b F_ab R_b(y), is one constant matrix a degree; it keeps real and
// imaginary parts apart and half of its entries vanish. S is (-1)^(l+m), twice that for m > 0. (Fast rotation: A. Lengvenis,
// H. Dachsel, L. Morgenstern and I. Kabadshow, IPDPS 2025, doi:10.1109/IPDPS64566.2025.00075.)
//
// A lane owns a target, a block up to 32 M2L_WARPS targets of one child position, so that its lanes share r, and one share of the
// interaction list. Its warps meet at every source, so that they share the instructions they fetch. Loops are unrolled, entries of F
// are immediates. Orders m >= KEEP of M' and L'' stay in registers, the others in shared memory, a column a lane. Bound by the
// supply of instructions: arithmetic takes five sixths of them, issued in up to two thirds of the cycles, in fewer the longer the
// code is.
//
//   M2L_WARPS  warps a block at most      BLOCKS  of a multiprocessor, at least
//   NEAR_SUMS  whether the sums L are in shared memory too, or added to in global memory, by one thread each, in order
//   ROLLED     whether both passes of a rotation, and real and imaginary parts, share their code
#include "common/flip.cuh"
#include "common/levels.cuh"

#define PARAMETERS (6 * (ORDER + 1))    // of a translation: exp(i m alpha), exp(i m theta); n! / R^(n+1); a zero
#define COLUMNS (TERMS - (ORDER + 1 - KEEP) * (ORDER + 2 - KEEP) + (KEEP == 0 ? ORDER + 1 : 0))  // terms of orders m < KEEP
#define KEPT (TERMS - COLUMNS)

// Index L + m: real part of order m, L - m: its imaginary part.
template <int L>
using Degree = real[2 * L + 1];

template <int L>
__device__ __forceinline__ void flip(const Degree<L>& x, Degree<L>& y) {
#pragma unroll
    for (int m = 0; m <= L; m++) {
        real c = 0, s = 0;
#pragma unroll
        for (int k = 0; k <= L; k++) {
            if ((L + m + k) % 2 == 0) c += real(FLIP.real_part[L][m][k]) * x[L + k];
            if ((L + m + k) % 2 == 1 && m > 0 && k > 0) s += real(FLIP.imaginary_part[L][m][k]) * x[L - k];
        }
        y[L + m] = c;
        if (m > 0) y[L - m] = s;
    }
}

// F^T; with_signs: F^T S.
template <int L>
__device__ __forceinline__ void flip_transposed(const Degree<L>& x, Degree<L>& y, bool with_signs) {
#pragma unroll
    for (int m = 0; m <= L; m++) {
        real c = 0, s = 0;
#pragma unroll
        for (int k = 0; k <= L; k++) {
            const real factor = with_signs ? ((L + k) % 2 == 0 ? 1 : -1) * (k == 0 ? 1 : 2) : 1;
            if ((L + m + k) % 2 == 0) c += real(factor * FLIP.real_part[L][k][m]) * x[L + k];
            if ((L + m + k) % 2 == 1 && m > 0 && k > 0) s += real(factor * FLIP.imaginary_part[L][k][m]) * x[L - k];
        }
        y[L + m] = c;
        if (m > 0) y[L - m] = s;
    }
}

// Order m times its phase, or the conjugate of it where sign is -1.
template <int L>
__device__ __forceinline__ void turn(Degree<L>& x, const real2* phase, int sign) {
#pragma unroll
    for (int m = 1; m <= L; m++) {
        const real2 w = phase[m];
        const real c = x[L + m], s = x[L - m], sine = sign * w.y;
        x[L + m] = w.x * c - sine * s;
        x[L - m] = w.x * s + sine * c;
    }
}

template <int L>
__device__ __forceinline__ void load(const real* __restrict__ source, Degree<L>& x) {
#pragma unroll
    for (int m = -L; m <= L; m++) x[L + m] = source[(L * L + L + m) * WARP];
}

// M' and L'' of a lane.
struct Frame {
    real kept[KEPT == 0 ? 1 : KEPT];
    real* columns;    // (COLUMNS, WARP), of this lane

    static __device__ constexpr int before(int m) {    // terms of orders below m
        return m == 0 ? 0 : (ORDER + 1) + (m - 1) * (2 * ORDER + 2 - m);
    }
    static __device__ constexpr int index(int m, int part, int l) {
        return before(m) + part * (ORDER + 1 - m) + l - m;
    }
    // Of orders m < KEEP, part may be known at run time only.
    __device__ __forceinline__ real get(int m, int part, int l) const {
        return m < KEEP ? columns[index(m, part, l) * WARP] : kept[index(m, part, l) - COLUMNS];
    }
    __device__ __forceinline__ void put(int m, int part, int l, real x) {
        if (m < KEEP) columns[index(m, part, l) * WARP] = x;
        else kept[index(m, part, l) - COLUMNS] = x;
    }
    __device__ __forceinline__ real get(int l, int m) const { return get(m < 0 ? -m : m, m < 0, l); }
    __device__ __forceinline__ void put(int l, int m, real x) { put(m < 0 ? -m : m, m < 0, l, x); }
};

// Degree L, already loaded, into the frame g, and on to the next.
template <int L>
__device__ __forceinline__ void forward(const real* __restrict__ source, Degree<L>& x, const real2* alpha, const real2* theta,
                                        Frame& frame) {
    constexpr bool AHEAD = L < ORDER && sizeof(real) == 4;    // doubles would not find enough registers
    Degree<L + 1> next;
    if constexpr (AHEAD) load<L + 1>(source, next);
#pragma unroll(ROLLED ? 1 : 2)
    for (int pass = 0; pass < 2; pass++) {
        Degree<L> y;
        turn<L>(x, pass == 0 ? alpha : theta, pass == 0 ? -1 : 1);
        flip<L>(x, y);
#pragma unroll
        for (int m = -L; m <= L; m++) x[L + m] = y[L + m];
    }
#pragma unroll
    for (int m = -L; m <= L; m++) frame.put(L, m, x[L + m]);
    if constexpr (L < ORDER && !AHEAD) load<L + 1>(source, next);
    if constexpr (L < ORDER) forward<L + 1>(source, next, alpha, theta, frame);
}

// Along z: the column of order M, M < 0 for imaginary parts, of M' to that of L'', and on to the next. ROLLED: real and imaginary
// parts in shared memory by the same code; with the signs of S, power being doubled.
template <int M = -ORDER>
__device__ __forceinline__ void translate(const real (&power)[2 * ORDER + 1], Frame& frame) {
    constexpr int FIRST = M < 0 ? -M : M;
    constexpr bool BOTH = ROLLED && FIRST > 0 && FIRST < KEEP;
    if constexpr (!BOTH || M > 0) {
#pragma unroll(BOTH ? 1 : 2)
        for (int part = M < 0; part <= (M < 0 || BOTH); part++) {
            real x[ORDER + 1];
#pragma unroll
            for (int j = FIRST; j <= ORDER; j++) x[j] = frame.get(FIRST, part, j);
#pragma unroll
            for (int l = FIRST; l <= ORDER; l++) {
                real sum = 0;
#pragma unroll
                for (int j = FIRST; j <= ORDER; j++) sum += power[l + j] * x[j];
                if (ROLLED && M == 0) sum /= 2;
                frame.put(FIRST, part, l, ROLLED && (l + FIRST) % 2 == 1 ? -sum : sum);
            }
        }
    }
    if constexpr (M < ORDER) translate<M + 1>(power, frame);
}

// Degree L from the frame g, added to the sums, and on to the next.
template <int L = 0>
__device__ __forceinline__ void back(const Frame& frame, const real2* alpha, const real2* theta, real* sums) {
    Degree<L> x, y;
#pragma unroll
    for (int m = -L; m <= L; m++) x[L + m] = frame.get(L, m);
#pragma unroll(ROLLED ? 1 : 2)
    for (int pass = 0; pass < 2; pass++) {
        flip_transposed<L>(x, y, !ROLLED && pass == 0);
        if (pass == 1) break;
        turn<L>(y, theta, -1);
#pragma unroll
        for (int m = -L; m <= L; m++) x[L + m] = y[L + m];
    }
    turn<L>(y, alpha, 1);
#pragma unroll
    for (int m = -L; m <= L; m++) {
        real* sum = &sums[(L * L + L + m) * WARP];
        if (NEAR_SUMS) *sum += y[L + m];
        else atomicAdd(sum, y[L + m]);
    }
    if constexpr (L < ORDER) back<L + 1>(frame, alpha, theta, sums);
}

extern "C" __global__ void __launch_bounds__(WARP * M2L_WARPS, BLOCKS)
m2l_rotation(int half, int count, const int4* __restrict__ list /* (8, count) */,
             const real* __restrict__ translations /* (translations, PARAMETERS) */, const real* __restrict__ moments /* slabs */,
             real* __restrict__ sums /* (gridDim.z) slabs */) {
    extern __shared__ char memory[];    // the translation's parameters; for each warp (COLUMNS, WARP) and, NEAR_SUMS, (TERMS, WARP)
    real* parameters = reinterpret_cast<real*>(memory);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, child = blockIdx.y;
    const int groups = groups_of(half), group = blockIdx.x * (blockDim.x / WARP) + warp;
    if (group >= groups) return;
    Frame frame;
    frame.columns = parameters + PARAMETERS + warp * ((COLUMNS + NEAR_SUMS * TERMS) * WARP) + lane;
    const real2 *alpha = reinterpret_cast<const real2*>(parameters), *theta = alpha + ORDER + 1;
    const Target target(group * WARP + lane, half);
    sums += ((blockIdx.z * gridDim.y + child) * (long long)groups + group) * (TERMS * WARP) + lane;
    real* local = NEAR_SUMS ? frame.columns + COLUMNS * WARP : sums;
#pragma unroll 4
    for (int a = 0; a < TERMS; a++) local[a * WARP] = 0;
#pragma unroll 1
    for (int i = blockIdx.z; i < count; i += gridDim.z) {
        const int4 source = list[child * count + i];
        const real* from = moments + target.source(source);
        Degree<0> x;
        load<0>(from, x);
        __syncthreads();
        if (warp == 0)
            for (int k = lane; k < PARAMETERS; k += WARP) parameters[k] = translations[(source.w >> 3) * PARAMETERS + k];
        __syncthreads();
        forward<0>(from, x, alpha, theta, frame);
        {
            real power[2 * ORDER + 1];
#pragma unroll
            for (int n = 0; n <= 2 * ORDER; n++) power[n] = (ROLLED ? 2 : 1) * parameters[4 * (ORDER + 1) + n];
            translate(power, frame);
        }
        back(frame, alpha, theta, local);
    }
    if (NEAR_SUMS)
        for (int a = 0; a < TERMS; a++) sums[a * WARP] = local[a * WARP];
}
