// l2l: local expansions of the boxes of a level from those of their parents,
//
//     L'_lm = (E(shift)^T (2^-(l + 1) L))_lm
//
// A block owns the children at one position of TRANSLATE_BOXES boxes. Bound by reads of shared
// memory; on coarse levels by latency.
//
// The term of degree 0 is computed in float64 and stored separately. Neighbouring boxes obtain it
// from different parents and, by m2l, from different sources; with smoothing, its differences
// divided by the transition width become forces, so that it must agree to rounding.
#include "common/children.cuh"
#include "common/types.cuh"

extern "C" __global__ void __launch_bounds__(TRANSLATE_THREADS)
    l2l(int half, const int* __restrict__ root_slots,
        const real* __restrict__ tables /* (8, TABLE) */,
        const double* __restrict__ shifts /* (8, TERMS): R_a(shift) */,
        const real* __restrict__ parents /* slabs, or (TERMS, POINTS) in FFT order if half is 1 */,
        const double* __restrict__ parent_central /* slabs of one term; unused if half is 1 */,
        real* __restrict__ local /* slabs; without degree 0 */,
        double* __restrict__ central /* slabs of one term */) {
    extern __shared__ char memory[];
    const int box = blockIdx.x * TRANSLATE_BOXES + threadIdx.x % TRANSLATE_BOXES,
              child = blockIdx.y;
    const Target parent(box, half);
    const bool used = box < parents_of(half);
    // (TERMS, TRANSLATE_BOXES)
    real* x = reinterpret_cast<real*>(memory) + threadIdx.x % TRANSLATE_BOXES;
    real* y = x + TERMS * TRANSLATE_BOXES;
    const long long place =
        half == 1 ? root_slots[min(box, parents_of(half) - 1)] : own_slab(parent);
    const long long stride = half == 1 ? POINTS : WARP;
    for_each_term([&](int a) {
        x[a * TRANSLATE_BOXES] = ldexp(parents[place + a * stride], -degree_of(a) - 1);
    });
    __syncthreads();
    if (threadIdx.x < TRANSLATE_BOXES && used) {
        double sum = half == 1 ? double(x[0])
                               : parent_central[place / (TERMS * WARP) * WARP + place % WARP] / 2;
        for (int b = 1; b < TERMS; b++) sum += shifts[child * TERMS + b] * x[b * TRANSLATE_BOXES];
        central[(child * (long long)groups_of(half) + box / WARP) * WARP + box % WARP] = sum;
    }
    real* to = local + parent.source(make_int4(0, 0, 0, child));
    translate(tables + child * TABLE, true, x, y, [&](int a, real value) {
        if (used && a > 0) to[a * WARP] = value;
    });
}
